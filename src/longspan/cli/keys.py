"""The client's key: made once, shown once, kept in a file with mode 0600."""

import secrets

from longspan.daemon.places import Places, write_private


def ensure_api_key(places: Places) -> tuple[str, bool]:
    """The deployment's key and whether it is new. 256 random bits, so its plain sha256 may be stored by the gateway."""
    if places.api_key.exists():
        return places.api_key.read_text().strip(), False
    key = f"lsp_{secrets.token_urlsafe(32)}"
    write_private(places.api_key, key)
    return key, True
