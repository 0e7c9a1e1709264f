"""Lets the tests of the launch import `recorded` and `driving`, the helpers that lie beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
