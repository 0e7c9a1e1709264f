"""`python -m longspan.launch.digest_main`: a node's digests, asked as JSON on standard input, printed as JSON."""

import json
import sys
from pathlib import Path

from longspan.errors import ModelError
from longspan.launch.digest import digest_checkpoint


def main() -> None:
    """Reads {"path", "nonce", "full"}; prints the digest, or {"error"}."""
    asked = json.load(sys.stdin)
    try:
        found = digest_checkpoint(Path(asked["path"]), asked["nonce"], full=asked["full"]).to_json()
    except ModelError as error:
        found = {"error": error.what}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
