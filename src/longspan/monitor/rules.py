"""All alarm rules. docs/monitor.md lists them; a test compares."""

from longspan.monitor import rules_gpu, rules_network, rules_node, rules_replica, slow
from longspan.monitor.alarms import Rule

RULES: tuple[Rule, ...] = (
    *rules_replica.RULES,
    *rules_gpu.RULES,
    *rules_network.RULES,
    *rules_node.RULES,
    slow.RULE,
)
