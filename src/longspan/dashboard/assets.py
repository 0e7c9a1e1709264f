"""The page's files, read and compressed once at the start; nothing else can be asked for."""

import gzip
import hashlib
from importlib.resources import files
from typing import NamedTuple

KINDS = {
    "html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml",
}  # fmt: skip


class Asset(NamedTuple):
    """One file with the tag by which a browser asks whether it has changed."""

    kind: str
    plain: bytes
    packed: bytes
    etag: str


def load() -> dict[str, Asset]:
    """File name -> asset."""
    found = {}
    for file in files("longspan.dashboard").joinpath("static").iterdir():
        kind = KINDS.get(file.name.rsplit(".", 1)[-1])
        if kind is not None:
            content = file.read_bytes()
            etag = hashlib.sha256(content).hexdigest()[:20]
            found[file.name] = Asset(kind, content, gzip.compress(content, 9, mtime=0), etag)
    return found
