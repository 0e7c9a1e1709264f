"""Alarms to a webhook: in Slack's form, again after a failure, and never with the address in a log."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from test_telemetry import run, served, until

from longspan.daemon import webhook
from longspan.daemon.webhook import Webhook, message, read_address
from longspan.finding import Finding
from longspan.monitor.alarms import Change
from longspan.monitor.view import AlarmView

ALARM = AlarmView("k", 1.0, Finding("n0", "error", "c", "n0 <!channel> & more", remedy="look"))


def test_the_message_is_for_people_and_mentions_nobody() -> None:
    """What came with what to do, what went; characters that Slack gives a meaning are escaped."""
    text = message("prod", [Change(ALARM, raised=True), Change(ALARM, raised=False)])
    assert text.startswith("[prod] ")
    assert "n0 &lt;!channel&gt; &amp; more\n    look" in text
    assert "over: n0" in text


@pytest.mark.parametrize(
    ("mode", "text", "found"),
    [
        (0o600, "https://h/x\n", "https://h/x"),
        (0o644, "https://h/x", ""),
        (0o600, "ftp://h", ""),
        (0o600, "", ""),
    ],
)
def test_the_address_is_a_secret_in_a_file(tmp_path: Path, mode: int, text: str, found: str) -> None:
    """A file that others may read is not used, nor what is no address of the web."""
    path = tmp_path / "webhook-url"
    path.write_text(text)
    path.chmod(mode)
    assert read_address(path) == found
    assert read_address(tmp_path / "nothing") == ""


@pytest.mark.parametrize(
    ("answers", "told", "lost"),
    [([200], 1, 0), ([500, 429, 200], 3, 0), ([404], 1, 1), ([302], 1, 1), ([500] * 20, 6, 1)],
)  # fmt: skip
def test_a_failure_is_tried_again_and_a_refusal_is_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: list[int],
    told: int,
    lost: int,
) -> None:
    """Errors of the server and "too many" are tried again, six times in all; other refusals and redirects are not."""
    monkeypatch.setattr(webhook, "FIRST_PAUSE_SECONDS", 0.001)
    came: list[dict[str, str]] = []

    async def hook(request: web.Request) -> web.Response:
        came.append(await request.json())
        return web.Response(status=answers[len(came) - 1], headers={"Location": "/other"})

    async def test() -> None:
        async with served(web.post("/secret", hook)) as url:
            path = tmp_path / "webhook-url"
            path.touch(0o600)
            path.write_text(f"{url}/secret")
            sender = Webhook("prod", path)
            job = asyncio.create_task(sender.run())
            sender.add([Change(ALARM, raised=True)])
            await until(lambda: len(came) == told and (sender.lost == lost or lost == 0))
            await asyncio.sleep(0.05)
            assert (len(came), sender.lost) == (told, lost)
            job.cancel()

    run(test())
    assert set(came[0]) == {"text"}
    assert "secret" not in capsys.readouterr().out


def test_a_storm_is_bounded_and_sent_together(tmp_path: Path) -> None:
    """The queue keeps the newest; without an address nothing is kept at all."""
    path = tmp_path / "webhook-url"
    sender = Webhook("prod", path)
    sender.add([Change(ALARM, raised=True)] * 500)
    assert sender.lost == 0
    path.touch(0o600)
    path.write_text("https://h/x")
    sender.add([Change(ALARM, raised=True)] * 500)
    assert sender.lost == 300


def test_an_address_that_nobody_answers_is_told_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the kind of failure goes to the log."""
    monkeypatch.setattr(webhook, "FIRST_PAUSE_SECONDS", 0.001)

    async def test() -> None:
        path = tmp_path / "webhook-url"
        path.touch(0o600)
        path.write_text("http://127.0.0.1:1/secret")
        sender = Webhook("prod", path)
        job = asyncio.create_task(sender.run())
        sender.add([Change(ALARM, raised=True)])
        await until(lambda: sender.lost == 1)
        job.cancel()

    run(test())
    said = capsys.readouterr().out
    assert "ClientConnectorError" in said
    assert "secret" not in said
