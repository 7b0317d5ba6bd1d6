"""Attacks on Regard by the thousand: `make torture`. What each suite does stands in docs/reliability.md."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [folder for folder in (str(ROOT), str(ROOT / "tests")) if folder not in sys.path]
