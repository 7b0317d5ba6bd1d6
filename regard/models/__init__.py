"""Every model: its configuration, its presets and its class, one file each."""

from .gpt import GPT, GPTConfig
from .gpt import PRESETS as GPT_PRESETS

MODELS = {"gpt": (GPT, GPTConfig, GPT_PRESETS)}

__all__ = ["GPT", "GPT_PRESETS", "MODELS", "GPTConfig"]
