"""Checks that compare nodes: the same versions, the same settings, the same model, different machines."""

from collections.abc import Callable, Mapping

from longspan.finding import Finding, Severity
from longspan.preflight.check import Check, Outcome, finding, majority, minority, together, unknown
from longspan.preflight.environment import COMPILED
from longspan.preflight.facts import NodeFacts
from longspan.preflight.scene import Scene
from longspan.units import format_bytes

CLOCK_WARNING_SECONDS, CLOCK_ERROR_SECONDS = 1.0, 30.0
# Differ from node to node for good reason.
_OWN = {*COMPILED, "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST", "CUDA_VISIBLE_DEVICES", "RAY_TMPDIR", "VLLM_PORT"}
_DIFFER = ("NCCL_", "GLOO_", "VLLM_", "UCX_", "TORCH_NCCL_", "PYTORCH_", "NVSHMEM_")


def _same(
    what: str, cause: str, severity: Severity, value: Callable[[NodeFacts], str], remedy: str, why: str
) -> Callable[[Scene], Outcome]:
    """A check that a value is the same on all nodes that have one."""

    def judge(scene: Scene) -> Outcome:
        values = {node.name: told for node in scene.answering if (told := value(node))}
        if not values:
            return Outcome(skipped=f"no node has {what}")
        odd = minority(values)
        common = majority(values)
        others = [name for name, told in values.items() if told == common]
        found = tuple(
            finding(
                name, severity, cause, f"{name} has {what} {here}, {together(others)} {'has' if len(others) == 1 else 'have'} {common}: {why}.",
                remedy.format(version=common, node=name), where=name, evidence=f"{what} {here}",
            )
            for name, here in odd.items()
        )  # fmt: skip
        return Outcome(found, seen=common)

    return judge


def environment_equal(scene: Scene) -> Outcome:
    """Variables that must be the same on all ranks are; those that differ by node for good reason are left out."""
    found = []
    names = {
        key for node in scene.answering for key in node.env if key.startswith(_DIFFER) and key not in _OWN
    }
    for name in sorted(names):
        values = {node.name: node.env.get(name, "(not set)") for node in scene.answering}
        for node, here in minority(values).items():
            common = majority(values)
            found.append(
                finding(
                    node, "warning", "nccl-env-mismatch", f"{name} is {here!r} on {node}, {common!r} on the others.",
                    f"Set it the same everywhere, or nowhere; env = {{ {name} = … }} in the cluster file sets it for one node.",
                    where="environ", evidence=f"{name}={here}",
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "environment"), "equal")


def expandable_segments(scene: Scene) -> Outcome:
    """vLLM's custom all-reduce shares memory handles, which expandable segments do not have."""
    if scene.tp == 1:
        return Outcome(skipped="TP is 1")
    found = tuple(
        finding(
            node.name, "warning", "expandable-segments",
            f"PYTORCH_CUDA_ALLOC_CONF on {node.name} has expandable_segments, with which custom all-reduce fails under TP.",
            "Unset it for the engine.", where="environ", evidence=node.env["PYTORCH_CUDA_ALLOC_CONF"],
        )
        for node in scene.answering
        if "expandable_segments:true" in node.env.get("PYTORCH_CUDA_ALLOC_CONF", "").lower()
    )  # fmt: skip
    return Outcome(found, unknown(scene.answering, "environment"), "not set")


def ray_token(scene: Scene) -> Outcome:
    """In a Ray that we join, every node must use the same token; our own Ray gets a new one at each start."""
    if scene.own_ray:
        return Outcome(skipped="Longspan starts Ray with a token of its own")
    values = {node.name: node.ray_token.get("digest") or "none" for node in scene.answering if node.ray_token}
    found = tuple(
        finding(
            name, "error", "ray-token-differs",
            f"{name} {'has no Ray token' if here == 'none' else 'has another Ray token than the others'}, so Ray refuses it.",
            "Copy ~/.ray/auth_token (mode 0600) from the head to it, and set RAY_AUTH_MODE=token there.", where="~/.ray/auth_token",
        )
        for name, here in minority(values).items()
    )  # fmt: skip
    return Outcome(found, unknown(scene.answering, "ray_token"), "the same everywhere")


def distinct_machines(scene: Scene) -> Outcome:
    """Two entries of the file are two machines, and no address of a node is carried by another."""
    found: list[Finding] = []
    seen: dict[tuple[str, str], str] = {}
    for node in scene.answering:
        key = (node.boot_id, node.hostname)
        if all(key) and key in seen:
            found.append(
                finding(
                    node.name, "warning", "same-machine", f"{node.name} and {seen[key]} are the same machine ({node.hostname}), or have the same host name.",
                    "Correct ssh = … or address = … of one of them; machines that only share a name should get different ones.",
                    where="boot_id", evidence=f"{node.hostname} {node.boot_id}",
                )
            )  # fmt: skip
        seen.setdefault(key, node.name)
    for want in scene.wanted:
        carriers = [node.name for node in scene.answering if node.nic_of(want.address)]
        others = [name for name in carriers if name != want.name]
        if others:
            found.append(
                finding(
                    want.name, "error", "address-duplicate",
                    f"{want.address}, the address of {want.name}, is also on {together(others)}: packets reach one or the other by chance.",
                    f"Give {want.name} or {others[0]} another address.", where="ip address", evidence=", ".join(carriers),
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "addresses"), "different machines and addresses")


def clock(scene: Scene) -> Outcome:
    """Two-way measurement over the session, against this machine's clock; judged against the median node."""
    offsets = {node.name: node for node in scene.answering if node.clock_offset_seconds is not None}
    if len(offsets) < 2:
        return Outcome(skipped="fewer than two clocks were measured")
    values = sorted(node.clock_offset_seconds or 0.0 for node in offsets.values())
    # Of two clocks the one nearer to ours is believed.
    middle = min(values, key=abs) if len(values) == 2 else values[len(values) // 2]
    found = []
    for node in offsets.values():
        off = (node.clock_offset_seconds or 0.0) - middle
        if abs(off) - 2 * node.clock_error_seconds > CLOCK_WARNING_SECONDS:
            severity: Severity = "error" if abs(off) > CLOCK_ERROR_SECONDS else "warning"
            found.append(
                finding(
                    node.name, severity, "clock-skew",
                    f"The clock of {node.name} is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the others; logs cannot be put in order"
                    " and time-limited tokens fail.",
                    "Start a time service there: `timedatectl set-ntp true` or chrony.", where="two-way offset",
                    evidence=f"{off:+.3f} s, known to {node.clock_error_seconds * 1000:.0f} ms",
                )
            )  # fmt: skip
    spread = values[-1] - values[0]
    error = max(node.clock_error_seconds for node in offsets.values())
    return Outcome(tuple(found), seen=f"within {spread * 1000:.0f} ms (known to {error * 1000:.0f} ms)")


def model_copies(scene: Scene) -> Outcome:
    """Every node with ranks sees the model at the same path, with the same files, none missing or cut short."""
    if not scene.model:
        return Outcome(skipped="no model was named")
    if not scene.model.startswith("/"):
        return Outcome(skipped="the model is an id on Hugging Face")
    nodes = [node for node in scene.workers if node.model]
    found: list[Finding] = []
    for node in nodes:
        if not node.model["there"]:
            found.append(
                finding(
                    node.name, "error", "model-path-missing", f"{scene.model} does not exist on {node.name}.",
                    "Copy the model there, or mount the same file system at the same path on every node.", where=scene.model, evidence="no such directory",
                )
            )  # fmt: skip
        for what, files in (
            ("missing", node.model.get("missing", ())),
            ("damaged", node.model.get("damaged", ())),
        ):
            if files:
                told = together(list(files))
                found.append(
                    finding(
                        node.name, "error", f"model-files-{what}",
                        f"{told} of {scene.model} on {node.name} {'is not there, though the index names it' if what == 'missing' else 'has no whole safetensors header, or another size than it says'}.",
                        "Copy the file again from where the others have it.", where=str(scene.model), evidence=told,
                    )
                )  # fmt: skip
    there = {node.name: node for node in nodes if node.model["there"]}
    found += [] if scene.digests_follow else _other_files(scene, there)
    total = max((sum(node.model["files"].values()) for node in there.values()), default=0)
    return Outcome(
        tuple(found),
        unknown(scene.workers, "model"),
        f"the same files on {len(there)} nodes, {format_bytes(total)}",
    )


def _other_files(scene: Scene, there: Mapping[str, NodeFacts]) -> list[Finding]:
    texts = {
        name: repr(sorted(node.model["files"].items())) + str(node.model["config"])
        for name, node in there.items()
    }
    odd = minority(texts)
    if not odd:
        return []
    like = next(node for name, node in there.items() if name not in odd)
    found = []
    for name in odd:
        here, others = there[name].model["files"], like.model["files"]
        differ = sorted(
            file for file in here.keys() | others.keys() if here.get(file) != others.get(file)
        ) or ["config.json"]
        told = f"{differ[0]} is {here.get(differ[0], 'not there')}, on {like.name} {others.get(differ[0], 'not there')} (bytes)"
        found.append(
            finding(
                name, "error", "model-copies-differ", f"{scene.model} on {name} differs from the copy on {like.name} in {together(differ)}.",
                "Copy it again from one place; after that `up` compares digests.", where=str(scene.model), evidence=told,
            )
        )  # fmt: skip
    return found


def hub_access(scene: Scene) -> Outcome:
    """Each node has the model in its cache, or may fetch it."""
    if not scene.model or scene.model.startswith("/"):
        return Outcome(skipped="the model is a directory" if scene.model else "no model was named")
    found = []
    said = {
        401: "its token is wrong or missing",
        403: "its user has not accepted the model's licence",
        404: "there is no such model, or it is private",
    }
    for node in scene.workers:
        if not node.hub or node.hub.get("cached"):
            continue
        status, error = node.hub.get("status"), node.hub.get("error")
        if node.hub.get("offline"):
            reason = "HF_HUB_OFFLINE is set and its cache does not hold the model"
        elif status == 200:
            continue
        else:
            reason = said.get(
                status or 0, f"the hub answers {status}" if status else f"the hub cannot be reached ({error})"
            )
        found.append(
            finding(
                node.name, "error", "hub-access", f"{node.name} cannot fetch {scene.model}: {reason}.",
                "Log in there as the user that runs the engine (`hf auth login`), set HF_TOKEN for that node, or copy the model to all nodes.",
                where="HEAD config.json", evidence=str(status or error or "offline"),
            )
        )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.workers, "hub"), "cached or allowed everywhere")


def _package(name: str) -> Callable[[NodeFacts], str]:
    return lambda node: node.packages.get(name, "")


_INSTALL = "Install {version} on {node} too, from the same lock as on the others."
_RANKS = "ranks of one replica must run the same version"
CHECKS = (
    Check("python", "versions", "the same full version everywhere", "Ray refuses other patch versions", "python -V", "ray#50511",
          _same("Python", "version-python", "error", lambda n: n.python, _INSTALL, "Ray refuses workers of another version")),
    Check("longspan", "versions", "the same version everywhere", "controller and agents speak one protocol", "longspan --version", "",
          _same("Longspan", "version-longspan", "error", _package("longspan"), _INSTALL, "controller and agents speak one protocol")),
    Check("ray", "versions", "the same version everywhere", "Ray refuses workers of another version", "ray --version", "ray start",
          _same("Ray", "version-ray", "error", _package("ray"), _INSTALL, "Ray refuses workers of another version")),
    Check("vllm", "versions", "the same version everywhere", "ranks of different versions hang or die in the first collective", "vllm --version",
          "vllm#16779", _same("vLLM", "version-vllm", "error", lambda n: n.vllm, _INSTALL, _RANKS)),
    Check("torch", "versions", "the same version everywhere", "torch.distributed's wire format and NCCL differ", "python -c 'import torch'",
          "nccl#626", _same("torch", "version-torch", "error", _package("torch"), _INSTALL, _RANKS)),
    Check("nccl", "versions", "the same version everywhere", "NCCL refuses or hangs with another version", "torch.cuda.nccl.version()",
          "nccl#626", _same("NCCL", "version-nccl", "error", lambda n: n.nccl, _INSTALL, "NCCL needs the same version on all ranks")),
    Check("transformers", "versions", "the same version everywhere", "tokenizers and model code may differ", "python -m pip list", "vllm#16779",
          _same("transformers", "version-transformers", "warning", _package("transformers"), _INSTALL, "model code may differ")),
    Check("flashinfer", "versions", "the same version everywhere", "kernels are tuned and chosen per version", "python -m pip list", "vllm#52292",
          _same("flashinfer", "version-flashinfer", "warning", _package("flashinfer-python"), _INSTALL, "kernels may differ")),
    Check("environment-equal", "versions", "NCCL_, GLOO_, VLLM_, UCX_, … equal, except what is a node's own", "ranks choose different algorithms and hang",
          "env", "nccl#626", environment_equal),
    Check("expandable-segments", "versions", "not set with TP above 1", "custom all-reduce fails", "env", "vllm#42609", expandable_segments),
    Check("ray-token", "versions", "the same on all nodes of a Ray that is joined", "Ray refuses nodes with another token", "~/.ray/auth_token",
          "Ray's authentication", ray_token),
    Check("distinct-machines", "hosts", "every entry is its own machine, every address on one machine only",
          "traffic reaches one of two machines by chance", "ip address; hostname", "", distinct_machines),
    Check("clock", "hosts", "within 1 s of the others (error from 30 s)", "logs of several nodes cannot be put in order", "date +%s.%N on each", "",
          clock),
    Check("model", "model", "the same files and sizes on every node, headers whole", "the launch dies after minutes of loading", "ls -l MODEL",
          "vllm#12035, gpustack#815", model_copies),
    Check("hub-access", "model", "in the cache, or 200 for config.json as the launching user", "the download fails on one node", "curl -I …/config.json",
          "tt-inference-server#37", hub_access),
)  # fmt: skip
