"""What `bench/gpu.py` measures, a function for each row."""

from bench.rows import train, translate, write

ROWS = {**write.ROWS, **translate.ROWS, **train.ROWS}
