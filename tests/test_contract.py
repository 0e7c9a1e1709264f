"""The import contract of docs/architecture.md: imports go down only, and pure modules stay pure."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "longspan"

# From the top down; rooms in one row are siblings and never import each other.
LAYERS: list[set[str]] = [
    {"cli"},
    {"daemon", "dashboard", "gateway"},
    {"audit", "launch", "preflight", "doctor", "bench", "monitor", "planner"},
    {"deployment", "cost"},
    {"plan"},
    {"model", "cluster", "workload"},
    {"host"},
    {"finding", "units"},
    {"errors"},
]
# Exceptions to the sibling rule, each with its reason in docs/architecture.md.
ALLOWED = {("dashboard", "monitor")}

# Modules that may do I/O. Everything else decides with what it is given.
IO_MODULES = {
    "audit.node_probe",
    "bench.store",
    "bench.alarm",
    "bench.client",
    "bench.connection",
    "bench.null_server",
    "bench.observe",
    "bench.pipe",
    "bench.probe",
    "bench.worker",
    "host",
    "model.demo",
    "model.demo_convert",
    "doctor.collect",
    "launch.cpu_communicator",
    "launch.cpu_platform",
    "launch.cpu_platform_class",
    "launch.digest",
    "launch.digest_main",
    "launch.one_rank",
    "launch.engine_main",
    "launch.ray_driver",
    "launch.ray_join",
    "launch.ray_main",
    "launch.relay",
    "launch.rehearsal_make",
    "launch.worker_hook",
    "dashboard.app",
    "dashboard.assets",
    "dashboard.exporter",
    "dashboard.hub",
    "dashboard.source",
    "daemon.agent",
    "daemon.asking",
    "daemon.collected",
    "daemon.controller",
    "daemon.functions",
    "daemon.launch_store",
    "daemon.otlp_logs",
    "daemon.places",
    "daemon.processes",
    "daemon.reach",
    "daemon.resume",
    "daemon.sampling",
    "daemon.snapshot",
    "daemon.spare",
    "daemon.standby",
    "daemon.starting",
    "daemon.supervisor",
    "daemon.sweep",
    "daemon.telemetry",
    "daemon.watching",
    "daemon.webhook",
    "daemon.versions",
    "launch.prover",
    "launch.reference",
    "cli.*",
    "cluster.probe",
    "model.fetch",
    "monitor.history",
    "gateway.__main__",
    "gateway.admin",
    "gateway.app",
    "gateway.brain",
    "gateway.downstream",
    "gateway.fetch",
    "gateway.listener",
    "gateway.log",
    "gateway.peer",
    "gateway.proxy",
    "gateway.server",
    "gateway.settings",
    "gateway.store",
    "gateway.tracing",
    "gateway.upstream",
    "gateway.watch",
    "gateway.workers",
    "monitor.amd",
    "monitor.node",
    "monitor.nvml",
    "monitor.ports",
    "monitor.procfs",
    "monitor.scrape",
    "preflight.collective",
    "preflight.gather",
    "preflight.gather_file",
    "preflight.gather_gpu",
    "preflight.gather_model",
    "preflight.gather_net",
    "preflight.groups",
    "preflight.node",
    "preflight.rails",
    "preflight.rails_node",
    "preflight.run",
    "preflight.session",
    "preflight.trial",
    "doctor.bundle",
    "doctor.fetch",
    "doctor.flight",
    "doctor.kept",
    "doctor.live",
}
IMPURE_IMPORTS = {
    "ray", "vllm", "torch", "transformers", "aiohttp", "httptools", "uvloop", "asyncio", "subprocess",
    "socket", "time", "random", "secrets", "os", "threading", "multiprocessing", "shutil", "tempfile", "sqlite3",
    "urllib", "http", "signal", "huggingface_hub",
}  # fmt: skip


def modules() -> list[tuple[str, Path]]:
    """Every module of the package with its dotted name below `longspan`."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        parts = list(path.relative_to(SRC).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if parts:
            found.append((".".join(parts), path))
    return found


def imports(path: Path) -> set[str]:
    """The absolute module names that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def layer(room: str) -> int | None:
    """The row of a room, or None for the package itself."""
    return next((i for i, row in enumerate(LAYERS) if room in row), None)


def may_do_io(name: str) -> bool:
    """Whether the module is marked as a door to the outside."""
    return any(
        name == entry or (entry.endswith(".*") and name.startswith(entry[:-1])) for entry in IO_MODULES
    )


@pytest.mark.parametrize(
    ("name", "path"), modules(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_imports_go_down(name: str, path: Path) -> None:
    """A room imports only rooms below it, never a sibling and never one above."""
    room = name.split(".")[0]
    own = layer(room)
    assert own is not None, f"room {room} has no row in LAYERS"
    for target in imports(path):
        if not target.startswith("longspan."):
            continue
        other = target.split(".")[1]
        if other == room or layer(other) is None or (room, other) in ALLOWED:
            continue
        assert own < layer(other), f"{name} imports {target}"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "path"), modules(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_pure_modules_stay_pure(name: str, path: Path) -> None:
    """A module without the I/O mark imports neither engines nor clocks nor the system, and no marked module."""
    if may_do_io(name):
        return
    for target in imports(path):
        assert target.split(".")[0] not in IMPURE_IMPORTS, f"{name} is pure but imports {target}"
        if target.startswith("longspan."):
            inner = target.removeprefix("longspan.")
            assert not may_do_io(inner), f"{name} is pure but imports {target}, which may do I/O"


def test_every_io_mark_names_a_module() -> None:
    """The list of doors does not outlive the doors."""
    names = {name for name, _ in modules()}
    for entry in IO_MODULES:
        assert any(may_do_io(name) and (name == entry or entry.endswith(".*")) for name in names), entry
