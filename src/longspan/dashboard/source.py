"""Where the picture comes from: the controller, or whatever else can give one (tests have a simulated one)."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import aiohttp

from longspan.monitor.record import RecordError
from longspan.monitor.view import ClusterView

TIMEOUT_SECONDS = 5.0
# 64 nodes of 8 GPUs are about 0.4 MB.
MAX_DOCUMENT_BYTES = 32 << 20
VERBS = ("drain", "isolate", "restore")
MAX_REASON_CHARACTERS = 500


class Away(Exception):  # noqa: N818 - a state of the other side and no error of ours; never reaches a user as such
    """There is no picture now, and why, in a sentence for people."""


class Picture(NamedTuple):
    """A picture and the JSON text that it came in."""

    view: ClusterView
    text: str


class Outcome(NamedTuple):
    """What came of an action: an HTTP status, and words for people where it was refused."""

    status: int
    text: str


class Door(NamedTuple):
    """Where the controller is at the moment and the operator's key to it; both are new at each start."""

    url: str
    key: str


class Source(Protocol):
    """What the dashboard needs of a deployment."""

    async def picture(self) -> Picture:
        """The newest picture.

        Raises:
            Away: there is none.
        """

    async def verbs(self) -> dict[str, bool]:
        """Which actions this controller knows.

        Raises:
            Away: it does not answer.
        """

    async def act(self, verb: str, subject: str) -> Outcome:
        """Asks for an action on a replica or node.

        Raises:
            Away: it does not answer, so that nobody knows whether it was done.
        """

    async def metrics(self, path: str, authorization: str) -> tuple[int, str]:
        """What the controller gives a monitoring system under a path, asked with the caller's own key: status and text.

        Raises:
            Away: it does not answer.
        """

    async def close(self) -> None:
        """Lets connections go."""


class ControllerSource:
    """The controller of a deployment, found anew for every question, since it may be another one by now."""

    def __init__(self, find: Callable[[], Door | None]) -> None:
        self._find = find
        self._http: aiohttp.ClientSession | None = None

    async def _ask(
        self, method: str, path: str, body: Any = None, authorization: str | None = None
    ) -> tuple[int, bytes]:
        door = await asyncio.to_thread(self._find)
        if door is None:
            raise Away("No controller of this deployment runs on this machine.")
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
        try:
            async with self._http.request(
                method,
                door.url + path,
                json=body,
                headers={"Authorization": f"Bearer {door.key}" if authorization is None else authorization},
                allow_redirects=False,
            ) as response:
                content = bytearray()
                async for piece in response.content.iter_any():
                    content += piece
                    if len(content) > MAX_DOCUMENT_BYTES:
                        raise Away(f"The controller's answer is larger than {MAX_DOCUMENT_BYTES >> 20} MiB.")
                return response.status, bytes(content)
        except TimeoutError as error:
            raise Away(f"The controller has not answered within {TIMEOUT_SECONDS:.0f} s.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Away(f"The controller does not answer: {error}.") from error

    async def picture(self) -> Picture:
        """See `Source`."""
        status, content = await self._ask("GET", "/v1/view")
        if status == 404:
            raise Away(
                "This controller is of a version that gives no picture; it is newer after the next `up`."
            )
        if status != 200:
            raise Away(f"The controller answers {status} when it is asked for the picture.")
        try:
            return await asyncio.to_thread(read_picture, content)
        except ValueError as error:
            raise Away(f"The controller's picture cannot be read: {error}.") from error

    async def verbs(self) -> dict[str, bool]:
        """See `Source`. A path that exists for POST only answers a GET with 405, one that does not exist with 404."""
        found = {}
        for verb in VERBS:
            status, _ = await self._ask("GET", f"/v1/{verb}")
            found[verb] = status != 404
        return found

    async def act(self, verb: str, subject: str) -> Outcome:
        """See `Source`."""
        status, content = await self._ask("POST", f"/v1/{verb}", {"subject": subject})
        if status < 300:
            return Outcome(200, "")
        if status == 404 and subject.encode() not in content:
            return Outcome(404, f"This controller does not know `{verb}` for {subject}.")
        return Outcome(409 if status < 500 else 502, _words(content) or f"The controller answered {status}.")

    async def metrics(self, path: str, authorization: str) -> tuple[int, str]:
        """See `Source`."""
        status, content = await self._ask("GET", path, authorization=authorization)
        return status, content.decode("utf-8", "replace")

    async def close(self) -> None:
        """See `Source`."""
        if self._http is not None:
            await self._http.close()


def read_picture(content: bytes) -> Picture:
    """A picture out of the controller's answer.

    Raises:
        ValueError: it is none.
    """
    text = content.decode()
    try:
        return Picture(ClusterView.from_json(json.loads(text)), text)
    except RecursionError as error:
        raise RecordError("it is nested too deeply") from error


def _words(content: bytes) -> str:
    """The sentence in a refusal, be it plain text or `{"error": …}`."""
    text = content.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text[:MAX_REASON_CHARACTERS]
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict):
        error = error.get("message") or error.get("what") or ""
    return str(error)[:MAX_REASON_CHARACTERS]
