"""Checks of GPUs and their driver. Without a GPU on any node they are skipped, and say so."""

from collections.abc import Callable

from longspan.finding import Finding
from longspan.preflight.check import Check, Outcome, finding, majority, minority, together, unknown
from longspan.preflight.scene import Scene
from longspan.units import MIB, format_bytes

# What an idle GPU's driver and display keep for themselves (a chosen threshold).
IDLE_BYTES = 1024 * MIB
_NONE = "no node has a GPU that a driver lists"
_ELSEWHERE = {
    "cpu": "the ranks run on processors",
    "rocm": "these checks ask NVIDIA's driver, the ranks run on AMD's GPUs",
}


def _with_gpus(judge: Callable[[Scene], Outcome]) -> Callable[[Scene], Outcome]:
    """Skipped where there is no GPU at all."""
    return lambda scene: (
        judge(scene) if scene.has_gpus else Outcome(skipped=_ELSEWHERE.get(scene.device, _NONE))
    )


def count(scene: Scene) -> Outcome:
    """As many GPUs as the cluster file says."""
    found = []
    for node in scene.workers:
        want = scene.want(node.name).gpus
        if len(node.gpus) < want:
            found.append(
                finding(
                    node.name, "error", "gpu-missing", f"{node.name} should have {want} GPU(s), its driver lists {len(node.gpus)}.",
                    "`nvidia-smi -L` and `dmesg | grep -i nvrm` there; a GPU that fell off the bus comes back with a reset or a reboot.",
                    where="nvidia-smi", evidence=node.unknown.get("gpus", f"{len(node.gpus)} lines"),
                )
            )  # fmt: skip
    kinds = {
        node.name: ", ".join(sorted({gpu.name for gpu in node.gpus})) for node in scene.workers if node.gpus
    }
    for name, here in minority(kinds).items():
        found.append(
            finding(
                name, "warning", "gpu-models-differ", f"{name} has {here}, the others {majority(kinds)}: the slowest sets the pace of a TP group.",
                "Keep a TP group on equal nodes, or plan with `longspan plan`, which knows the difference.", where="nvidia-smi", evidence=here,
            )
        )  # fmt: skip
    total = sum(len(node.gpus) for node in scene.workers)
    return Outcome(tuple(found), seen=f"{total} GPUs ({majority(kinds) if kinds else 'none'})")


def free_memory(scene: Scene) -> Outcome:
    """Nothing else holds GPU memory."""
    found = []
    for node in scene.workers:
        busy = [gpu for gpu in node.gpus if gpu.used_bytes > IDLE_BYTES]
        if busy:
            told = ", ".join(
                f"GPU {gpu.index}: {format_bytes(gpu.used_bytes)} of {format_bytes(gpu.total_bytes)}"
                for gpu in busy[:4]
            )
            uuids = {gpu.uuid for gpu in busy}
            pids = [str(pid) for pid, uuid in node.gpu_processes if uuid in uuids]
            found.append(
                finding(
                    node.name, "error", "gpu-memory-held", f"GPU memory on {node.name} is held already ({told})"
                    f"{' by pid ' + together(pids) if pids else ''}; vLLM asks for its share of the total and stops.",
                    "End the processes by pid, or plan with other GPUs.", where="nvidia-smi", evidence=told,
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.workers, "gpus"), "free")


def health(scene: Scene) -> Outcome:
    """No uncorrected memory error, no Xid, no MIG where whole GPUs are planned."""
    found: list[Finding] = []
    for node in scene.workers:
        for gpu in node.gpus:
            if gpu.ecc_errors:
                found.append(
                    finding(
                        node.name, "error", "gpu-ecc", f"GPU {gpu.index} on {node.name} has {gpu.ecc_errors} uncorrected memory error(s) since the driver started.",
                        f"Take it out of use; `nvidia-smi -r -i {gpu.index}` resets it, and if they come back it is to be replaced.",
                        where="nvidia-smi", evidence=f"{gpu.uuid}: {gpu.ecc_errors}",
                    )
                )  # fmt: skip
            if gpu.is_mig:
                found.append(
                    finding(
                        node.name, "warning", "gpu-mig", f"GPU {gpu.index} on {node.name} is in MIG mode; NCCL cannot join MIG slices.",
                        "Plan one rank per replica there, or turn MIG off.", where="nvidia-smi", evidence=gpu.uuid,
                    )
                )  # fmt: skip
        if node.xids:
            found.append(
                finding(
                    node.name, "warning", "gpu-xid", f"The driver on {node.name} has reported errors since boot (Xid).",
                    "Look the numbers up in NVIDIA's Xid catalogue; 48, 63, 64, 74, 79, 94 and 95 are the hardware's.", where="dmesg", evidence=node.xids[-1],
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.workers, "gpus"), "no uncorrected errors")


def driver(scene: Scene) -> Outcome:
    """torch reaches the GPUs with this driver, its build has code for them, and drivers are equal."""
    found = []
    for node in scene.workers:
        if not node.gpus:
            continue
        if node.torch.get("error"):
            found.append(
                finding(
                    node.name, "error", "cuda-unusable", f"torch cannot use the GPUs of {node.name}: {node.torch['error']}",
                    f"Its CUDA is {node.torch.get('cuda')}, the driver {node.gpus[0].driver}: install a newer driver, or torch built for an older CUDA.",
                    where="torch.cuda.init()", evidence=str(node.torch["error"]),
                )
            )  # fmt: skip
        archs = set(node.torch.get("archs", ()))
        found += [
            finding(
                node.name, "error", "arch-not-covered", f"torch on {node.name} has no code for compute capability {capability}.",
                "Install a build that covers it.", where="torch.cuda.get_arch_list()", evidence=", ".join(sorted(archs)),
            )
            for capability in sorted({gpu.capability for gpu in node.gpus})
            if archs and not _covered(capability, archs)
        ]  # fmt: skip
    drivers = {node.name: node.gpus[0].driver for node in scene.workers if node.gpus}
    for name, here in minority(drivers).items():
        found.append(
            finding(
                name, "warning", "driver-differs", f"{name} has driver {here}, the others {majority(drivers)}.",
                "Bring them to one version at the next maintenance.", where="nvidia-smi", evidence=here,
            )
        )  # fmt: skip
    return Outcome(tuple(found), seen=f"driver {majority(drivers)}" if drivers else "")


def _covered(capability: str, archs: set[str]) -> bool:
    """sm_XY runs on the same major version from its minor on; compute_XY (PTX) on all later ones."""
    if not capability.replace(".", "").isdigit():
        return True
    major, _, minor = capability.partition(".")
    for arch in archs:
        kind, _, number = arch.partition("_")
        digits = "".join(filter(str.isdigit, number))
        if len(digits) < 2:
            continue
        have = (int(digits[:-1]), int(digits[-1]))
        here = (int(major), int(minor or 0))
        if (kind == "compute" and have <= here) or (have[0] == here[0] and have[1] <= here[1]):
            return True
    return False


def fabric(scene: Scene) -> Outcome:
    """On NVSwitch machines the fabric manager has finished, and is of the driver's version."""
    nodes = [node for node in scene.workers if node.fabric.get("states", "").replace("N/A", "").strip(", ")]
    if not nodes:
        return Outcome(skipped="no node has an NVSwitch fabric")
    found = [
        finding(
            node.name, "error", "fabricmanager-down",
            f"The NVSwitch fabric of {node.name} is not ready ({node.fabric['states']}): CUDA fails with “system not yet initialized”.",
            "`systemctl restart nvidia-fabricmanager`; its version must be the driver's.", where="nvidia-smi -q", evidence=node.fabric["service"],
        )
        for node in nodes
        if {state.strip() for state in node.fabric["states"].split(",")} - {"Completed", "N/A"}
    ]  # fmt: skip
    for node in nodes:
        manager, of_driver = node.fabric.get("version", ""), node.gpus[0].driver if node.gpus else ""
        if manager and of_driver and manager != of_driver:
            found.append(
                finding(
                    node.name, "error", "fabricmanager-version",
                    f"The fabric manager of {node.name} is {manager}, its driver {of_driver}: it starts only with exactly the driver's"
                    " version, and without it CUDA fails with “system not yet initialized” after the next boot.",
                    f"Install nvidia-fabricmanager {of_driver} there and restart it; hold both packages at one version.",
                    where="nv-fabricmanager --version", evidence=f"fabric manager {manager}, driver {of_driver}",
                )
            )  # fmt: skip
    return Outcome(tuple(found), seen="completed, of the driver's version")


def custom_all_reduce(scene: Scene) -> Outcome:
    """vLLM's custom all-reduce works inside one node; a TP group over several has hung with it."""
    per_node = min((scene.want(node.name).gpus for node in scene.workers), default=0)
    if not scene.tp or scene.tp <= per_node or len(scene.workers) < 2:
        return Outcome(skipped="TP stays inside one node" if scene.tp else "no layout is known")
    if "--disable-custom-all-reduce" in scene.vllm_arguments:
        return Outcome(seen="off")
    return Outcome(
        (
            finding(
                "layout", "warning", "custom-all-reduce", f"TP {scene.tp} spans nodes of {per_node} GPU(s); vLLM's custom all-reduce has hung there.",
                "Add `-- --disable-custom-all-reduce`, or keep TP inside a node and use PP across.", where="layout", evidence=f"TP {scene.tp}",
            ),
        )
    )  # fmt: skip


CHECKS = (
    Check("gpu-count", "gpus", "as many as planned, of one model", "the launch waits for GPUs that are not there", "nvidia-smi -L", "vllm#8908",
          _with_gpus(count)),
    Check("gpu-memory", "gpus", "less than 1 GiB in use", "vLLM stops when its share is not free", "nvidia-smi", "pytorch#175666",
          _with_gpus(free_memory)),
    Check("gpu-health", "gpus", "no uncorrected ECC error, no Xid, no MIG", "the GPU fails under load", "nvidia-smi -q; dmesg", "vllm#5222",
          _with_gpus(health)),
    Check("driver", "gpus", "torch.cuda.init() works, the build covers the GPU, drivers equal", "ranks die at the first CUDA call",
          "torch.cuda.init(); torch.cuda.get_arch_list()", "FunASR#2973, llm-d#706, vllm PR#39878", _with_gpus(driver)),
    Check("fabric", "gpus", "NVSwitch fabric Completed, fabric manager of the driver's version", "CUDA error 802",
          "nvidia-smi -q; nv-fabricmanager --version", "MiniMax-M2.5#9; NVIDIA Fabric Manager User Guide", _with_gpus(fabric)),
    Check("custom-all-reduce", "gpus", "off where TP spans hosts", "all ranks wait without a word", "layout", "vllm#52778, vllm#53894",
          _with_gpus(custom_all_reduce)),
)  # fmt: skip
