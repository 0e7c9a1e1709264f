"""What texts about memory, disks and dead processes mean where their surroundings decide."""

import re

from longspan.doctor.rules.rule import Rule
from longspan.doctor.scene import Guess, Scene
from longspan.doctor.timeline import Event


def worker_exit(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Beside a watchdog's time-out the death explains the time-out."""
    if scene.of("nccl-watchdog", "nccl-watchdog-seq"):
        return Guess(
            "nccl-peer-died-first",
            0.8,
            ("worker-killed",),
            "the watchdog's time-out followed a worker's death",
        )
    done = scene.of("offline-done")
    if done and "Engine core proc" in event.hit.text and done[-1].hit.order < event.hit.order:
        return Guess("worker-killed", 0.05)  # a script that ends without closing its engine prints this
    code = event.hit.groups.get("code")
    if code == "-7" or re.search(r"\bBus error\b|SIGBUS", event.hit.text):
        return Guess(
            "shm-too-small",
            0.65,
            ("worker-killed", "weights-corrupt"),
            "a bus error: memory that a full /dev/shm cannot back",
        )
    return Guess("worker-killed", rule.weight, rule.also, f"exit code {code}" if code else "")


def ended_from_outside(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A job that served until its time was over did what it was asked for."""
    if "TIME LIMIT" in event.hit.text and scene.phase_before(event) >= 10:
        return Guess(rule.cause, 0.3, (), "it served until the job's time limit")
    return Guess(rule.cause, rule.weight, rule.also)


def host_alloc(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A safetensors header asks for as many bytes as its first eight say: of a git-lfs pointer that is more than any machine has."""
    if "frame-header" in scene.frames_above(event):
        return Guess(
            "weights-corrupt",
            0.9,
            ("oom-host-ram",),
            "the header of a weight file gives an impossible length",
        )
    return Guess(rule.cause, rule.weight, rule.also)


_OURS = re.compile(r"(?i)vllm|ray|python|pt_main|engine|worker|sglang|nccl|load|uvicorn")


def oom_victim(event: Event, rule: Rule, scene: Scene) -> Guess:
    """The kernel kills other programs too."""
    groups = event.hit.groups
    victim = groups.get("victim") or groups.get("victim2") or groups.get("victim3") or ""
    if victim and not _OURS.search(victim):
        return Guess("oom-host-ram", 0.05, (), f"the kernel killed {victim}")
    return Guess("oom-host-ram", rule.weight, (), f"the kernel killed {victim}" if victim else "")


_SHM = re.compile(
    r"/dev/shm|nccl-\w|</torch_\d|psm_|sem\.|shmutils|shared memory|posix_fallocate|SharedMemory|shm_open"
)


def no_space(event: Event, rule: Rule, scene: Scene) -> Guess:
    """The path tells /dev/shm from a disk; without a path the traceback does."""
    if _SHM.search(event.hit.text):
        return Guess("shm-too-small", 0.93, ("disk-full",))
    if "frame-shm" in scene.frames_above(event)[:12]:
        return Guess("shm-too-small", 0.85, ("disk-full",))
    return Guess("disk-full", rule.weight, ("shm-too-small",))


_GIB = r"(\d+(?:\.\d+)?) ([KMGT])iB"
_UNIT = {"K": 1 / 2**20, "M": 1 / 2**10, "G": 1.0, "T": 2.0**10}


def _amount(pattern: str, text: str) -> float:
    match = re.search(pattern.replace("SIZE", _GIB), text)
    return float(match[1]) * _UNIT[match[2]] if match else 0.0


def cuda_oom(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Who holds the memory, then where the traceback stands, then how far the launch had come."""
    text = event.hit.text
    total = _amount(r"total capacity of SIZE", text)
    own = _amount(r"this process has SIZE", text) or _amount(r"Of the allocated memory SIZE", text)
    free = _amount(r"of which SIZE is free", text)
    if total and own and total - own - free > 0.4 * total:
        return Guess(
            "gpu-memory-taken",
            0.85,
            ("oom-weights", "oom-runtime"),
            f"others hold {total - own - free:.0f} GiB",
        )
    for means in scene.frames_above(event):
        if means == "frame-weights":
            return Guess("oom-weights", 0.92, ("gpu-memory-taken",), "while the model was built")
        if means == "frame-kv":
            return Guess(
                "oom-kv-cache", 0.75, ("oom-runtime", "gpu-memory-taken"), "while the KV cache was allocated"
            )
        if means == "frame-runtime":
            return Guess("oom-runtime", 0.92, ("gpu-memory-taken",), "at warm-up, capture or while serving")
    phase = scene.phase_before(event)
    if phase >= 6:
        return Guess("oom-runtime", 0.9, ("gpu-memory-taken",), "after the weights were loaded")
    if phase == 5:
        return Guess("oom-weights", 0.88, ("gpu-memory-taken",), "while the weights were loading")
    return Guess("oom-runtime", 0.5, ("oom-weights", "gpu-memory-taken"))
