"""Lets the tests of the launch import `recorded`, the helper that lies beside them, and takes the clock out of hypothesis."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
