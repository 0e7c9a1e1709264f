"""The plan file: what is written is read back, and what is damaged is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import PlanFileError
from longspan.plan import Estimate, Layout, Place, Plan, Replica
from longspan.planner.plan_file import parse_plan, to_toml

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
VARIABLES = st.dictionaries(
    st.from_regex(r"[A-Z_][A-Z0-9_]{0,6}", fullmatch=True), TEXTS.filter(lambda text: "\0" not in text), max_size=2
).map(lambda values: tuple(values.items()))  # fmt: skip
NUMBERS = st.floats(allow_nan=False)


@st.composite
def replicas(draw: st.DrawFn, name: str) -> Replica:
    """A replica whose places suit its layout."""
    sizes = st.integers(1, 3)
    layout = Layout(draw(sizes), draw(sizes), draw(sizes), draw(st.booleans()), draw(sizes))
    split = draw(st.sampled_from([(), tuple(range(1, layout.pp + 1))]))
    layout = Layout(layout.tp, layout.pp, layout.dp, layout.ep, layout.dcp, split)
    places = st.builds(Place, NAMES, st.integers(0, 127))
    return Replica(
        name=name,
        layout=layout,
        places=tuple(draw(st.lists(places, min_size=layout.gpus, max_size=layout.gpus, unique=True))),
        executor=draw(st.sampled_from(["ray", "mp", "uni"])),
        max_model_len=draw(st.integers(0, 1 << 20)),
        max_num_seqs=draw(st.integers(0, 1024)),
        arguments=tuple(draw(st.lists(TEXTS, max_size=2))),
        environment=draw(VARIABLES),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan that the planner could make, and some with names that it would not choose."""
    return Plan(
        model=draw(NAMES),
        replicas=tuple(draw(replicas(name)) for name in draw(st.lists(NAMES, max_size=2, unique=True))),
        vllm_version=draw(TEXTS),
        environment=tuple(draw(st.lists(st.tuples(NAMES, VARIABLES), max_size=2))),
        estimates=tuple(
            draw(
                st.dictionaries(
                    NAMES, st.builds(Estimate, NUMBERS, NUMBERS, NUMBERS, TEXTS, TEXTS), max_size=2
                )
            ).items()
        ),
        notes=tuple(draw(st.lists(TEXTS, max_size=2))),
    )


@settings(max_examples=60, deadline=None)
@given(plans())
def test_what_is_written_is_read_back(plan: Plan) -> None:
    """Every field survives, whatever characters its texts have."""
    assert parse_plan(to_toml(plan)) == plan


GOOD = to_toml(
    Plan(
        model="org/model",
        replicas=(
            Replica("r0", Layout(pp=2, partition=(16, 14)), (Place("a", 0), Place("b", 0)), "ray", 4096, 8),
        ),
        vllm_version="0.32.0",
        environment=(("a", (("NCCL_SOCKET_IFNAME", "eno1"),)),),
        estimates=(("rate", Estimate(1.0, 0.5, 2.0, "tokens/s", "guess")),),
    )
)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("format = 1", "format = = 1", "it is not TOML"),
        ("format = 1", "", "format is missing"),
        ("format = 1", "format = 2", "format 2, this version reads 1"),
        ('model = "org/model"', "", "model of the plan is missing"),
        ('model = "org/model"', 'model = ""', "model of the plan must be a text, not ''"),
        ("notes = []", 'notes = "one"', "notes of the plan must be a list of texts"),
        ("tp = 1", "", "tp of replica r0 is missing"),
        ("tp = 1", "tp = 0", "tp of replica r0 must be a whole number from 1 on, not 0"),
        ("pp = 2", "pp = true", "pp of replica r0 must be a whole number"),
        ("pp = 2", 'pp = "2"', "pp of replica r0 must be a whole number"),
        ("dcp = 1", "dcp = 1.5", "dcp of replica r0 must be a whole number"),
        ("ep = false", "ep = 0", "ep of replica r0 must be true or false"),
        ("partition = [16, 14]", "partition = [16, 0]", "partition of replica r0 must be a list of layers"),
        ("max_model_len = 4096", "max_model_len = -1", "max_model_len of replica r0 must be"),
        ("max_num_seqs = 8", "", "max_num_seqs of replica r0 is missing"),
        ("arguments = []", "arguments = [1]", "arguments of replica r0 must be a list of texts, not [1]"),
        ('executor = "ray"', 'executor = "slurm"', "executor of replica r0 must be one of ray, mp, uni"),
        ('name = "r0"', "", "name of replica number 1 is missing"),
        ("environment = {}", 'environment = { "A B" = "1" }', "environment of replica r0 must be"),
        ("environment = {}", "environment = { A = 1 }", "environment of replica r0 must be"),
        ('{ "NCCL_SOCKET_IFNAME" = "eno1" }', "3", "environment of node a must be"),
        ('"b:0"', '"b"', "places of replica r0 must be \"node:gpu\", not 'b'"),
        ('"b:0"', '"b:-1"', "places of replica r0 must be"),
        ('"b:0"', '"a:0"', "places of replica r0 name a GPU twice"),
        (', "b:0"', "", "places of replica r0 are 1, TP1 x PP2 needs 2"),
        ("[[replica]]", "[replica]", "replica must be tables"),
        ("p10 = 0.5", 'p10 = "low"', "p10 of estimate rate must be a number"),
    ],
)
def test_a_damaged_plan_names_the_field(old: str, new: str, says: str) -> None:
    """Each field that is missing or wrong is named with its replica, node or estimate."""
    assert parse_plan(GOOD).model == "org/model"
    assert old in GOOD
    with pytest.raises(PlanFileError) as raised:
        parse_plan(GOOD.replace(old, new))
    assert says in raised.value.what


def test_two_replicas_of_one_name() -> None:
    """`--replica` would not know which."""
    replica = GOOD[GOOD.index("[[replica]]") : GOOD.index("[estimate")]
    with pytest.raises(PlanFileError, match="same name"):
        parse_plan(GOOD + replica)


@pytest.mark.parametrize("text", ["a = " + "[" * 20_000, "format = " + "9" * 5000])
def test_a_plan_nested_too_deep_or_of_endless_numbers_is_an_answer(text: str) -> None:
    """What the TOML reader itself gives up on is no plan."""
    with pytest.raises(PlanFileError):
        parse_plan(text)
