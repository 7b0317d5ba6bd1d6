"""Round numbers along an axis."""

import math
from collections.abc import Sequence


def ticks(low: float, high: float, about: int, integers: bool = False) -> list[float]:
    """About `about` round numbers that enclose `low` and `high`, 1, 2 or 5 times a power of ten apart."""
    if high - low <= 1e-6 * abs(high):  # practically one value: make room around it
        room = abs(high) / 10 or 1.0
        low, high = low - room, high + room
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    if integers:
        step = max(step, 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose two positive numbers; with 2 and 5 times these over two decades or less."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    every = [m * 10.0**n for n in range(first, last + 1) for m in steps]
    below = max((tick for tick in every if tick <= low * (1 + 1e-9)), default=every[0])
    above = min((tick for tick in every if tick >= high * (1 - 1e-9)), default=every[-1])
    return [tick for tick in every if below <= tick <= above]


def tick_label(tick: float, among: Sequence[float]) -> str:
    """A tick with just enough decimals to differ from its neighbours."""
    step = among[1] - among[0]
    if abs(tick) >= 1e6:
        return f"{tick:.3g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{tick if abs(tick) > step / 2 else 0:.{decimals}f}"
