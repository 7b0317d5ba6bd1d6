"""Every model: its configuration, its presets and its class, one file each."""

from typing import Any

from .gpt import GPT, GPTConfig
from .gpt import PRESETS as GPT_PRESETS
from .seq2seq import PRESETS as SEQ2SEQ_PRESETS
from .seq2seq import GRUConfig, LSTMConfig, RNNConfig, Seq2Seq, Seq2SeqConfig
from .transformer import PRESETS as TRANSFORMER_PRESETS
from .transformer import Transformer, TransformerConfig

MODELS: dict[str, tuple[type[Any], type[Any], dict[str, dict[str, Any]]]] = {
    "gpt": (GPT, GPTConfig, GPT_PRESETS),
    "rnn": (Seq2Seq, RNNConfig, SEQ2SEQ_PRESETS),
    "gru": (Seq2Seq, GRUConfig, SEQ2SEQ_PRESETS),
    "lstm": (Seq2Seq, LSTMConfig, SEQ2SEQ_PRESETS),
    "transformer": (Transformer, TransformerConfig, TRANSFORMER_PRESETS),
}

__all__ = [
    "GPT",
    "GPT_PRESETS",
    "MODELS",
    "SEQ2SEQ_PRESETS",
    "TRANSFORMER_PRESETS",
    "GPTConfig",
    "GRUConfig",
    "LSTMConfig",
    "RNNConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Transformer",
    "TransformerConfig",
]
