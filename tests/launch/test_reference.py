"""The one-rank reference: made, cached, refused with a reason, and gone without a trace."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import pytest

from longspan.launch import one_rank
from longspan.launch.logprobs import NotMade, Reference
from longspan.launch.proof_texts import TEXTS
from longspan.launch.reference import Wish, default_argv, make_reference

FAKE = (sys.executable, str(Path(__file__).parent / "fake_engine.py"))


@pytest.fixture
def wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wish:
    """A wish for a tiny checkpoint and the stand-in engine, in directories of the test's own."""
    model, temporary = tmp_path / "model", tmp_path / "tmp"
    for directory in (model, temporary):
        directory.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"\0" * 100)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(one_rank, "_STOP_SECONDS", 2.0)
    return make_wish(tmp_path, "")


def make_wish(tmp_path: Path, manners: str, **changes: object) -> Wish:
    """The same with an engine of given manners."""
    env = {**os.environ, "FAKE_LOG": str(tmp_path / "starts"), "FAKE_ENGINE": manners}
    values: dict[str, object] = {
        "model": tmp_path / "model",
        "engine_version": "1.0",
        "device": "cpu",
        "cache_dir": tmp_path / "cache",
        "entry": FAKE,
        "env": env,
        "free_bytes": 1 << 40,
        **changes,
    }
    return Wish(**values)  # type: ignore[arg-type]


def starts(tmp_path: Path) -> list[str]:
    """The engine starts so far, each "pid arguments"."""
    log = tmp_path / "starts"
    return log.read_text().splitlines() if log.exists() else []


def assert_nothing_left(tmp_path: Path) -> None:
    """No process of any started session, and no temporary directory."""
    for line in starts(tmp_path):
        assert one_rank._session_members(int(line.split()[0])) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_reference_is_made_once(wish: Wish, tmp_path: Path) -> None:
    """The second wish for the same content is answered from the cache, and nothing of the engine is left."""
    first = asyncio.run(make_reference(wish))
    assert isinstance(first, Reference)
    assert len(first.texts) == len(TEXTS)
    assert first.made_by == "vLLM 1.0 on cpu"
    assert asyncio.run(make_reference(wish)) == first
    assert len(starts(tmp_path)) == 1
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "float32"}, {"device": "gpu"}, {"engine_version": "2"}, {"arguments": ("--quantization", "fp8")}],
)  # fmt: skip
def test_what_changes_the_numbers_changes_the_key(
    wish: Wish, tmp_path: Path, changes: dict[str, object]
) -> None:
    """Another dtype, device, engine version or argument is another reference, never served from the cache."""
    asyncio.run(make_reference(wish))
    asyncio.run(make_reference(make_wish(tmp_path, "", **changes)))
    assert len(starts(tmp_path)) == 2


def test_another_copy_is_another_reference(wish: Wish, tmp_path: Path) -> None:
    """The key follows the bytes of this very copy: a damaged copy does not find the honest one's reference."""
    asyncio.run(make_reference(wish))
    (wish.model / "model.safetensors").write_bytes(b"\1" * 100)
    asyncio.run(make_reference(wish))
    assert len(starts(tmp_path)) == 2


def test_a_spoilt_cache_is_made_again(wish: Wish, tmp_path: Path) -> None:
    """A cached file that cannot be read costs a start, not an error."""
    made = asyncio.run(make_reference(wish))
    for path in (tmp_path / "cache" / "references").iterdir():
        path.write_text('{"texts": 3}')
    assert asyncio.run(make_reference(wish)) == made
    assert len(starts(tmp_path)) == 2


def test_a_model_too_large_is_not_tried(wish: Wish, tmp_path: Path) -> None:
    """Where one rank cannot hold the weights, no engine starts, and the reason has both numbers."""
    outcome = asyncio.run(make_reference(make_wish(tmp_path, "", free_bytes=1 << 30)))
    assert isinstance(outcome, NotMade)
    assert "3.0 GiB" in outcome.reason
    assert "1.0 GiB are free" in outcome.reason
    assert starts(tmp_path) == []


def test_an_engine_that_dies_gives_its_last_words(wish: Wish, tmp_path: Path) -> None:
    """The reason carries what the engine's log said, not only that it ended."""
    outcome = asyncio.run(make_reference(make_wish(tmp_path, "die")))
    assert isinstance(outcome, NotMade)
    assert "does not like this model" in outcome.reason
    assert_nothing_left(tmp_path)


def test_an_engine_that_does_not_exist(wish: Wish, tmp_path: Path) -> None:
    """A missing program is a reason, and leaves nothing."""
    outcome = asyncio.run(make_reference(make_wish(tmp_path, "", entry=("/no/such/engine",))))
    assert isinstance(outcome, NotMade)
    assert "does not exist" in outcome.reason
    assert_nothing_left(tmp_path)


def test_nonsense_is_not_cached(wish: Wish, tmp_path: Path) -> None:
    """An answer that is not vLLM's is a reason, and the next wish asks again."""
    assert isinstance(asyncio.run(make_reference(make_wish(tmp_path, "wrong"))), NotMade)
    assert isinstance(asyncio.run(make_reference(wish)), Reference)
    assert_nothing_left(tmp_path)


def test_an_engine_that_never_gets_ready(wish: Wish, tmp_path: Path) -> None:
    """After its time an engine that hangs is given up, and killed."""
    outcome = asyncio.run(make_reference(make_wish(tmp_path, "mute", timeout_seconds=1.5)))
    assert isinstance(outcome, NotMade)
    assert "not ready" in outcome.reason
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("manners", ["", "deaf child"])
def test_the_engine_ends_as_a_whole(wish: Wish, tmp_path: Path, manners: str) -> None:
    """Also one that ignores SIGTERM, and its children in other process groups."""
    assert isinstance(asyncio.run(make_reference(make_wish(tmp_path, manners))), Reference)
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_wish_leaves_nothing(wish: Wish, tmp_path: Path, times: int) -> None:
    """Cancelled while the engine starts, and again while it is being stopped: the session and the directory are gone."""

    async def cancel() -> None:
        task = asyncio.create_task(make_reference(make_wish(tmp_path, "mute deaf child")))
        while not starts(tmp_path):  # noqa: ASYNC110 - the engine is another process
            await asyncio.sleep(0.02)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert_nothing_left(tmp_path)


def test_the_command_line_is_one_rank(tmp_path: Path) -> None:
    """TP=1, PP=1, a private socket and no port; `vllm serve` takes the model as its first word, the module as an option."""
    wish = make_wish(tmp_path, "", arguments=("--quantization", "fp8"))
    argv = default_argv(wish, Path("/s"))
    assert argv[argv.index("--model") + 1] == str(wish.model)
    assert argv[argv.index("--tensor-parallel-size") + 1] == "1"
    assert argv[argv.index("--pipeline-parallel-size") + 1] == "1"
    assert argv[argv.index("--uds") + 1] == "/s"
    assert "--port" not in argv
    assert argv[-2:] == ["--quantization", "fp8"]
    served = default_argv(make_wish(tmp_path, "", entry=("vllm", "serve")), Path("/s"))
    assert served[:3] == ["vllm", "serve", str(wish.model)]
    assert "--model" not in served
