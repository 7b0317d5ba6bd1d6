"""Every model: its configuration, its presets and its class, one file each."""

from typing import Any

from .bert import PRESETS as BERT_PRESETS
from .bert import Bert, BertConfig
from .captioner import PRESETS as CAPTIONER_PRESETS
from .captioner import Captioner, CaptionerConfig
from .electra import Electra
from .gpt import GPT, GPTConfig
from .gpt import PRESETS as GPT_PRESETS
from .labelled import Labelled
from .seq2seq import PRESETS as SEQ2SEQ_PRESETS
from .seq2seq import GRUConfig, LSTMConfig, RNNConfig, Seq2Seq, Seq2SeqConfig
from .t5 import PRESETS as T5_PRESETS
from .t5 import T5Config
from .transformer import PRESETS as TRANSFORMER_PRESETS
from .transformer import Transformer, TransformerConfig
from .vit import PRESETS as VIT_PRESETS
from .vit import ViT, ViTConfig
from .words import PRESETS as WORDS_PRESETS
from .words import Words, WordsConfig

MODELS: dict[str, tuple[type[Any], type[Any], dict[str, dict[str, Any]]]] = {
    "bert": (Bert, BertConfig, BERT_PRESETS),
    "captioner": (Captioner, CaptionerConfig, CAPTIONER_PRESETS),
    "gpt": (GPT, GPTConfig, GPT_PRESETS),
    "rnn": (Seq2Seq, RNNConfig, SEQ2SEQ_PRESETS),
    "gru": (Seq2Seq, GRUConfig, SEQ2SEQ_PRESETS),
    "lstm": (Seq2Seq, LSTMConfig, SEQ2SEQ_PRESETS),
    "t5": (Transformer, T5Config, T5_PRESETS),
    "transformer": (Transformer, TransformerConfig, TRANSFORMER_PRESETS),
    "vit": (ViT, ViTConfig, VIT_PRESETS),
    "words": (Words, WordsConfig, WORDS_PRESETS),
}

__all__ = [
    "BERT_PRESETS",
    "CAPTIONER_PRESETS",
    "GPT",
    "GPT_PRESETS",
    "MODELS",
    "SEQ2SEQ_PRESETS",
    "T5_PRESETS",
    "TRANSFORMER_PRESETS",
    "VIT_PRESETS",
    "WORDS_PRESETS",
    "Bert",
    "BertConfig",
    "Captioner",
    "CaptionerConfig",
    "Electra",
    "GPTConfig",
    "GRUConfig",
    "LSTMConfig",
    "Labelled",
    "RNNConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "T5Config",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "Words",
    "WordsConfig",
]
