"""The decision of a rule that needs none."""

from longspan.doctor.rules.rule import Rule
from longspan.doctor.scene import Guess, Scene
from longspan.doctor.timeline import Event


def default(event: Event, rule: Rule, scene: Scene) -> Guess:
    """What the rule itself says."""
    return Guess(rule.cause, rule.weight, rule.also, remedy=rule.remedy)
