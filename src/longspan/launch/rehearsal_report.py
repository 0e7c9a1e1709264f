"""What a rehearsal proved and what it could not, from the deployment's status and what was left out. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from longspan.launch.rehearsal import RULE, LeftOut
from longspan.units import format_bytes

State = Literal["proved", "failed", "not reached", "skipped"]


@dataclass(frozen=True, slots=True)
class Scene:
    """What was rehearsed, and how.

    Attributes:
        cpu: ranks ran on processors. here: on this machine, whatever nodes the plan names.
        real, rehearsed: (TP, PP).
        weights_reason: why there are no weight files; empty where there are.
        quantisation: of the real weights; empty for plain ones.
        head_sizes: of the real model and the rehearsal's.
        layers: of the real model and the rehearsal's.
        experts: the model has some. encoder: it has a vision or audio part.
        left_out: arguments and variables.
    """

    cpu: bool
    here: bool
    executor: str
    real: tuple[int, int]
    rehearsed: tuple[int, int]
    nodes: int
    weights_bytes: int
    weights_reason: str
    own_tokenizer: bool
    quantisation: str
    head_sizes: tuple[int, int]
    layers: tuple[int, int]
    experts: bool
    encoder: bool
    arguments: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that the rehearsal was to prove. `evidence`: what was seen, or why not."""

    name: str
    state: State
    evidence: str


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that it cannot prove, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Both lists; `passed` if nothing failed and everything was reached."""

    claims: tuple[Claim, ...]
    limits: tuple[Limit, ...]

    @property
    def passed(self) -> bool:
        """Whether all that could be proved was."""
        return all(claim.state in {"proved", "skipped"} for claim in self.claims)

    def to_json(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "passed": self.passed,
            "proved": [asdict(claim) for claim in self.claims],
            "not_proved": [asdict(limit) for limit in self.limits],
        }


def report(scene: Scene, status: Mapping[str, Any] | None, *, left: Sequence[str] | None) -> Report:
    """What came out of it.

    Args:
        status: the last one of the deployment; None where it did not get that far.
        left: what the end left running, empty for nothing, None where nothing was started.
    """
    claims = [Claim("layout", "proved", "every rule of vLLM that is known here allows it for the real model")]
    claims += [_from_phase(name, phase, text, scene, status) for name, phase, text in _PHASE_CLAIMS]
    claims.insert(5, _ranks(status))
    claims += _layers(status)
    if left is None:
        claims.append(Claim("end", "not reached", "nothing was started"))
    else:
        state: State = "failed" if left else "proved"
        claims.append(Claim("end", state, "; ".join(left) or "everything was taken down, nothing is left"))
    limits = [Limit(name, text(scene)) for name, applies, text in LIMITS if applies(scene)]
    limits += [Limit(item.what, item.reason) for item in scene.left_out]
    return Report(tuple(claims), tuple(limits))


def _arguments(scene: Scene) -> str:
    given = " ".join(scene.arguments)
    return f"vLLM took the command line{f' with {given}' if given else ''}"


def _loading(scene: Scene) -> str:
    if scene.weights_reason:
        return f"every rank filled its layers itself ({scene.weights_reason}); no file was read"
    return (
        f"every rank found its part of {format_bytes(scene.weights_bytes)} under the architecture's own names"
    )


# Claim, the phase of the launch that it stands or falls with, and what was seen when that is done.
_PHASE_CLAIMS: tuple[tuple[str, str, Callable[[Scene], str]], ...] = (
    ("nodes", "agents", lambda scene: f"an agent ran on each of {scene.nodes} nodes"),
    ("copies", "checkpoint", lambda s: "the nodes' copies are the same" if s.nodes > 1 else "one node has the one copy"),
    ("ray", "ray", lambda _: "Ray has all nodes and their GPUs"),
    ("reservation", "reservation", lambda _: "one bundle a rank, on the planned nodes"),
    ("arguments", "engine", _arguments),
    ("rendezvous", "engine", lambda scene: f"all ranks met, with the {scene.executor} executor"),
    ("loading", "engine", _loading),
    ("gateway", "gateway", lambda _: "the gateway passes requests on"),
    ("first token", "first token", lambda _: "a token came through every rank"),
)  # fmt: skip


def _from_phase(
    name: str, phase: str, text: Callable[[Scene], str], scene: Scene, status: Mapping[str, Any] | None
) -> Claim:
    found = next((item for item in (status or {}).get("phases", ()) if item["phase"] == phase), None)
    state = found["state"] if found else "waiting"
    if state == "done":
        return Claim(name, "proved", text(scene))
    if state == "failed":
        return Claim(name, "failed", str(((status or {}).get("failure") or {}).get("what", "")))
    return Claim(name, "not reached", "the launch ended before it")


def _ranks(status: Mapping[str, Any] | None) -> Claim:
    rows = (status or {}).get("ranks", ())
    if not rows or any(row["pid"] is None for row in rows):
        return Claim("ranks", "not reached", "not every rank said where it is")
    wrong = [row for row in rows if row["planned_address"] != row["bundle_address"]]
    if wrong:
        texts = [
            f"rank {row['rank']} is on {row['bundle_address']}, not on {row['planned_node']}" for row in wrong
        ]
        return Claim("ranks", "failed", "; ".join(texts))
    nodes = dict.fromkeys(row["planned_node"] for row in rows)
    parts = [f"{node}: {_numbers(rows, node)}" for node in nodes]
    return Claim("ranks", "proved", f"each on its node ({'; '.join(parts)})")


def _numbers(rows: Sequence[Mapping[str, Any]], node: str) -> str:
    return "rank " + ", ".join(str(row["rank"]) for row in rows if row["planned_node"] == node)


_LAYER_STATES: Mapping[str, State] = {"passed": "proved", "failed": "failed", "skipped": "skipped"}


def _layers(status: Mapping[str, Any] | None) -> list[Claim]:
    """The layers of the proof, as claims."""
    proof = (status or {}).get("proof")
    if not proof:
        return [Claim("proof", "not reached", "no proof was made")]
    return [
        Claim(f"proof: {layer['name']}", _LAYER_STATES[layer["state"]], layer["seen"])
        for layer in proof["layers"]
    ]


def _always(_: Scene) -> bool:
    return True


def _kernels(scene: Scene) -> str:
    if scene.cpu:
        return "processors ran it: no GPU kernel, no torch.compile, no CUDA graph, no GPU driver"
    return "the model's sizes are smaller, and kernels are chosen and tuned by size"


def _weights(scene: Scene) -> str:
    return f"the rehearsal's weights are plain; the real ones are stored as {scene.quantisation}, with kernels of their own"


def _scaled(scene: Scene) -> str:
    (tp, pp), (small_tp, small_pp) = scene.real, scene.rehearsed
    return f"TP {tp} x PP {pp} was rehearsed as TP {small_tp} x PP {small_pp}: {RULE}"


# What a rehearsal cannot prove: name, when that holds, why.
LIMITS: tuple[tuple[str, Callable[[Scene], bool], Callable[[Scene], str]], ...] = (
    ("memory", _always, lambda s: f"{format_bytes(s.weights_bytes)} of weights and a small cache fit anywhere; `longspan plan` counts the real ones"),
    ("speed", _always, lambda _: "a smaller model says nothing of the real one's time for a token"),
    ("answers", _always, lambda _: "random weights have none worth reading"),
    ("time to load", _always, lambda _: "the real weights were not read from their disk"),
    ("kernels", _always, _kernels),
    ("network", lambda s: s.here, lambda _: "ranks spoke over this machine's loopback: no NCCL, NIC, switch or firewall; `--on-cluster` uses them"),
    ("hosts", lambda s: s.here, lambda _: "the nodes were processes of this machine: no ssh, mount, driver or version of the real hosts was met"),
    ("size of the layout", lambda s: s.real != s.rehearsed, _scaled),
    ("all layers", lambda s: s.layers[0] != s.layers[1], lambda s: f"{s.layers[1]} of {s.layers[0]} layers, of every kind that a stage has"),
    ("quantised weights", lambda s: bool(s.quantisation), _weights),
    ("head size", lambda s: s.head_sizes[0] != s.head_sizes[1], lambda s: f"heads of {s.head_sizes[1]} instead of {s.head_sizes[0]} values take other kernels"),
    ("expert parallelism", lambda s: s.cpu and s.experts, lambda _: "the CPU build has no exchange of tokens between ranks with experts; experts were split by TP"),
    ("weight files", lambda s: bool(s.weights_reason), lambda s: f"without them neither names nor sharding nor the reference say anything ({s.weights_reason})"),
    ("tokenizer", lambda s: not s.own_tokenizer, lambda _: "a small one was made; the model's own, its chat template and parsers were not at hand"),
    ("encoder", lambda s: s.encoder, lambda _: "only text was asked; images and sound were not"),
    ("failures", _always, lambda _: "nothing was broken on purpose"),
)  # fmt: skip
