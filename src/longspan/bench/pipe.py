"""Messages of a worker to its parent: pickles with their length in front, on pipes that belong to the two alone."""

import os
import pickle
import struct
from typing import Any


def write_message(value: Any) -> None:
    """Writes one message to standard output."""
    data = pickle.dumps(value, protocol=5)
    data = struct.pack("<Q", len(data)) + data
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def read_exactly(count: int) -> bytes:
    """So many bytes of standard input; ends the process when the parent is gone."""
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            raise SystemExit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
