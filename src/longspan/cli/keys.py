"""The client's key: made once, shown once, kept in a file with mode 0600; or given in a file."""

import secrets
from pathlib import Path

from longspan.daemon.places import Places, write_private
from longspan.errors import InputError

# The gateway keeps a plain sha256 of it, which protects long random keys only.
MIN_CHARACTERS = 20


def ensure_api_key(places: Places, given: Path | None = None) -> tuple[str, bool]:
    """The deployment's key and whether it is new. 256 random bits, so its plain sha256 may be stored by the gateway.

    Args:
        given: a file that holds the key to use.

    Raises:
        InputError: that file cannot be read, or holds no key.
    """
    kept = places.api_key.read_text().strip() if places.api_key.exists() else ""
    if given is None and kept:
        return kept, False
    key = f"lsp_{secrets.token_urlsafe(32)}" if given is None else _read(given)
    if key != kept:
        write_private(places.api_key, key)
    return key, given is None


def _read(path: Path) -> str:
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no plain text"
        raise InputError(f"--api-key-file {path} cannot be read: {reason}.") from error
    if len(key) < MIN_CHARACTERS or not key.isprintable() or " " in key:
        raise InputError(
            f"--api-key-file {path} holds no key: one line of at least {MIN_CHARACTERS} characters without blanks.",
            "Make one: python3 -c 'import secrets; print(\"lsp_\" + secrets.token_urlsafe(32))'",
        )
    return key
