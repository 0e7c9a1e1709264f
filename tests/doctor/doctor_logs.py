"""Builds logs of a two-node launch (16 ranks, TP 8 x PP 2) for the tests: each piece is a list of lines."""

from longspan.doctor.match import Diagnosis, diagnose_record
from longspan.doctor.rules import MARKS, RULES
from longspan.doctor.scan import Scanner

RANKS = 16
START = 9 * 3600
CONFIG = "model='/models/big', tensor_parallel_size=8, disable_custom_all_reduce=False, enforce_eager=False"
INIT_FAILED = "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
ISSUE = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def diagnose_text(text: str, name: str = "x.log") -> Diagnosis:
    """The diagnosis of one log."""
    scanner = Scanner(RULES, MARKS)
    scanner.feed(name, [text.encode()])
    return diagnose_record(scanner.record())


def diagnose_lines(lines: list[str]) -> Diagnosis:
    """The diagnosis of one log given as lines."""
    return diagnose_text("\n".join(lines) + "\n")


def stamp(seconds: float) -> str:
    """vLLM's time stamp."""
    whole = int(seconds)
    return f"11-12 {whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def worker(rank: int, named: bool = False) -> str:
    """The prefixes of one rank's lines as the Ray driver prints them."""
    node, pid = rank // 8, 3000 + rank * 7
    tag = f"Worker_PP{node}_TP{rank % 8}" if named else "Worker"
    return f"(RayWorkerProc pid={pid}, ip=10.0.0.{11 + node}) ({tag} pid={pid})"


def head(at: float = START) -> list[str]:
    """The API server and the engine start."""
    return [
        f"(APIServer pid=2001) INFO {stamp(at)} [api_utils.py:286] vLLM API server version 0.32.0",
        f"(APIServer pid=2001) INFO {stamp(at + 2)} [model.py:733] Resolved architecture: DeepseekV3ForCausalLM",
        f"(EngineCore pid=2210) INFO {stamp(at + 9)} [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        + CONFIG,
    ]


def connecting(at: float = START + 20) -> list[str]:
    """The ranks start and load NCCL."""
    return [
        f"{worker(r)} INFO {stamp(at)} [parallel_state.py:1906] world_size={RANKS} rank={r} local_rank={r % 8} "
        "distributed_init_method=tcp://10.0.0.11:43905 backend=nccl"
        for r in range(RANKS)
    ] + [f"{worker(r)} INFO {stamp(at + 6)} [pynccl.py:148] vLLM is using nccl==2.28.9" for r in range(RANKS)]


def assigned(at: float = START + 31) -> list[str]:
    """The communicators stand."""
    return [
        f"{worker(r)} INFO {stamp(at)} [parallel_state.py:2350] rank {r} in world size {RANKS} is assigned as DP rank 0, "
        f"PP rank {r // 8}, TP rank {r % 8}"
        for r in range(RANKS)
    ]


def loading(at: float = START + 36, done: bool = True) -> list[str]:
    """The weights load, and are loaded."""
    name = "gpu_model_runner.py"
    lines = [
        f"{worker(r, True)} INFO {stamp(at)} [{name}:5040] Starting to load model /models/big..."
        for r in range(RANKS)
    ]
    if done:
        took = "Model loading took 41.34 GiB memory and 81.8 seconds"
        lines += [f"{worker(r, True)} INFO {stamp(at + 80)} [{name}:5150] {took}" for r in range(RANKS)]
    return lines


def ready(at: float = START + 180) -> list[str]:
    """The server is up."""
    text = "init engine (profile, create kv cache, warmup model) took 61.20 s"
    return [
        f"(EngineCore pid=2210) INFO {stamp(at)} [core.py:402] {text}",
        "INFO:     Application startup complete.",
    ]


def serving(at: float = START + 200, times: int = 5) -> list[str]:
    """Requests are answered."""
    lines = []
    for i in range(times):
        lines.append(f'INFO:     10.0.0.50:4{i:04d} - "POST /v1/chat/completions HTTP/1.1" 200 OK')
        lines.append(
            f"(APIServer pid=2001) INFO {stamp(at + 10 * i)} [loggers.py:335] Engine 000: Avg prompt throughput: 65.6 tokens/s, "
            "Avg generation throughput: 149.6 tokens/s, Running: 16 reqs, Waiting: 0 reqs"
        )
    return lines


def up() -> list[str]:
    """A whole good launch."""
    return head() + connecting() + assigned() + loading() + ready()


def failed(who: str, at: float, error: str, frame: str = "init_device") -> list[str]:
    """One process ends with a traceback."""
    front = f"{who} ERROR {stamp(at)} [multiproc_executor.py:953]"
    return [
        f"{front} WorkerProc failed to start.",
        f"{front} Traceback (most recent call last):",
        f'{front}   File "/opt/vllm/v1/worker/gpu_worker.py", line 431, in {frame}',
        f"{front} {error}",
    ]


def closed(at: float, ranks: range, peer: str = "10.0.0.11") -> list[str]:
    """The survivors of a dead rank complain."""
    text = (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    )
    return [line for r in ranks for line in failed(worker(r, True), at, f"{text} [{peer}]:{30000 + r}.")]


def wrapped(at: float) -> list[str]:
    """The engine repeats that a worker failed to start."""
    return [
        f"(EngineCore pid=2210) ERROR {stamp(at)} [core.py:1510] EngineCore failed to start.",
        f"(EngineCore pid=2210) ERROR {stamp(at)} [core.py:1510] Exception: {INIT_FAILED}",
        "(APIServer pid=2001) Traceback (most recent call last):",
        "(APIServer pid=2001) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]


def dead(at: float) -> list[str]:
    """A serving engine dies."""
    return [
        f"(EngineCore pid=2210) ERROR {stamp(at)} [core.py:1510] EngineCore encountered a fatal error.",
        f"(APIServer pid=2001) ERROR {stamp(at)} [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: {ISSUE}",
        'INFO:     10.0.0.40:51514 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
    ]


def stopped(at: float) -> list[str]:
    """Someone stops the server, which looks like a death."""
    return [
        f"(APIServer pid=2001) INFO {stamp(at)} [launcher.py:254] [shutdown] API server: shutdown triggered",
        "*** SIGTERM received at time=1796052600 on cpu 0 ***",
        *dead(at)[1:2],
        "(raylet, ip=10.0.0.12) A worker died or was killed while executing a task by an unexpected system error.",
        "INFO:     Shutting down",
        "INFO:     Application shutdown complete.",
    ]


def watchdog(rank: int, sequence: int, operation: str = "ALLREDUCE") -> str:
    """torch's watchdog on one rank."""
    return (
        f"[rank{rank}]:[E1112 09:20:00.{rank} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={sequence}, OpType={operation}, NumelIn=7168, NumelOut=7168, Timeout(ms)=600000) ran for "
        "600009 milliseconds before timing out."
    )
