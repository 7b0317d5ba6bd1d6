"""Checks of a model's settings, by their names: a rule holds for every model that has the setting."""

import math
from collections.abc import Sequence
from typing import Any

SHARES = ("dropout", "skip")
COUNTS = ("segments", "globals", "mels")  # settings that may be 0
LARGEST = 2**31 - 1  # the largest whole number, so that computations with it stay exact


def output_vocab(config: Any) -> int:
    """The size of the vocabulary of a model's output: the target's, if it has its own; 0 if there is none."""
    vocab: Any = getattr(config, "target_vocab", None) or getattr(config, "vocab", 0)
    return int(vocab)


def check_settings(config: Any) -> None:
    """Raise a ValueError that names the setting, if one is invalid, or if two contradict each other."""
    settings = vars(config)
    check_numbers(settings)
    check_windows(**settings)
    check_images(**settings)
    if settings.get("bidirectional") and settings["dim"] % 2:
        raise ValueError(f"dim={settings['dim']} must be even: half of it reads forwards, half backwards")


def check_numbers(settings: dict[str, Any]) -> None:
    sizes = {name: size for name, size in settings.items() if type(size) in (int, float)}
    for name, size in sizes.items():
        if name in SHARES:
            allowed, need = 0 <= size < 1, "from 0 to less than 1"
        elif name in COUNTS:
            allowed, need = size >= 0, "0 or more"
        else:
            allowed, need = 0 < size < math.inf, "more than 0"
        if not allowed:
            raise ValueError(f"{name}={size} must be {need}")
        if type(size) is int and size > LARGEST:
            raise ValueError(f"{name}={size} must be at most {LARGEST}")
    for name in ("heads", "decoder_heads"):
        if name in sizes and "head_dim" not in sizes and sizes["dim"] % sizes[name]:
            raise ValueError(f"dim={sizes['dim']} must divide by {name}={sizes[name]}")


def check_windows(
    window: int | None = None,
    windows: Sequence[int] | None = None,
    positions: str = "none",
    depth: int = 1,
    global_qkv: bool = False,
    **_: Any,
) -> None:
    if window is not None and positions == "relative":
        raise ValueError(f"{window=} does not go with positions=relative; rotary ones do")
    if global_qkv and (window is None or positions == "rotary"):
        raise ValueError("global_qkv=true needs a window, and positions other than rotary ones")
    if windows and (len(windows), max(windows)) != (depth, window):
        raise ValueError(f"{windows=} must be {depth}, and the largest of them the window")


def check_images(
    dim: int,
    patch: int | None = None,
    positions: str = "none",
    encoder: str = "",
    decoder: str = "",
    attention: str = "",
    **_: Any,
) -> None:
    if patch is not None and positions == "sinusoidal" and dim % 4:
        raise ValueError(f"{dim=} must divide by 4: sine and cosine, for rows and for columns")
    if patch is not None and encoder == "cnn" and (patch < 2 or patch & (patch - 1)):
        raise ValueError(f"{patch=}: a CNN halves pictures; give 2, 4, 8, ...")
    if attention == "hard" and decoder != "lstm":
        raise ValueError(f"attention=hard is for decoder=lstm, not {decoder}")


def check_attention(
    dim: int,
    heads: int,
    kv_heads: int,
    head_dim: int | None,
    window: int | None,
    globals: int,
    causal: bool,
) -> None:
    if window is not None and (window < (not causal) or globals < 0):
        raise ValueError(f"{window=} must be more than 0 (causal: 0 or more), and {globals=} 0 or more")
    if (dim % heads and head_dim is None) or heads % kv_heads:
        raise ValueError(f"{dim=} must divide by {heads=}, and heads by {kv_heads=}")
