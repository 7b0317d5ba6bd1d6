"""Small experiments, each of which shows what one idea is worth: `python -m experiments NAME`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
