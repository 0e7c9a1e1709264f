"""For Prometheus: the controller's port is new at each start, the dashboard's stays, so it passes metrics and discovery on.

The caller's own key goes along and the controller decides: nothing is opened here that is closed there.
"""

import json

from aiohttp import web

from longspan.dashboard.source import Away, Source

# No dots in front: a path of the controller's other than its metrics cannot be spelt.
PART = "{part:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}}"


class Exporter:
    """Handlers of `/metrics`, `/v1/metrics/PART` and `/v1/sd`."""

    def __init__(self, source: Source, https: bool) -> None:
        self._source = source
        self._https = https

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [
            web.get("/metrics", self.metrics),
            web.get(f"/v1/metrics/{PART}", self.metrics),
            web.get("/v1/sd", self.targets),
        ]

    async def metrics(self, request: web.Request) -> web.Response:
        """The controller's text as it is."""
        status, text = await self._passed(request, request.path)
        return web.Response(status=status, text=text, content_type="text/plain")

    async def targets(self, request: web.Request) -> web.Response:
        """Service discovery, with this address in place of the controller's."""
        status, text = await self._passed(request, "/v1/sd")
        if status != 200:
            return web.Response(status=status, text=text)
        scheme = {"__scheme__": "https"} if self._https else {}
        try:
            found = [
                {"targets": [request.host], "labels": {**group["labels"], **scheme}}
                for group in json.loads(text)
            ]
        except (ValueError, LookupError, TypeError):
            return web.Response(status=502, text="the controller's list of targets cannot be read\n")
        return web.json_response(found)

    async def _passed(self, request: web.Request, path: str) -> tuple[int, str]:
        try:
            return await self._source.metrics(path, request.headers.get("Authorization", ""))
        except Away as error:
            return 502, f"{error}\n"
