"""Asks an endpoint for its Prometheus text, bounded in time and size."""

import asyncio

import aiohttp

TIMEOUT_SECONDS = 2.0
# A front end with several engines and long bucket lists writes some hundred KiB.
MAX_BYTES = 8 << 20


async def scrape(session: aiohttp.ClientSession, url: str, key: str = "") -> str | None:
    """The text at `url`; None where nothing came in time, it is too long, or the status is not 200."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), session.get(url, headers=headers) as response:
            if response.status != 200:
                return None
            data = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                data += chunk
                if len(data) > MAX_BYTES:
                    return None
            return data.decode(errors="replace")
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
