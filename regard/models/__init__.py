"""All models: a configuration with presets and a class, one file for each family."""

from typing import Any

from regard.models.bert import Bert, BertConfig
from regard.models.captioner import Captioner, CaptionerConfig
from regard.models.electra import Electra
from regard.models.elmo import Elmo, ElmoConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.head import ModelWithHead
from regard.models.rnn import RecurrentLM, RecurrentLMConfig
from regard.models.seq2seq import GRUConfig, LSTMConfig, RNNConfig, Seq2Seq, Seq2SeqConfig
from regard.models.t5 import T5Config
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.models.words import Word2Vec, WordsConfig

MODELS: dict[str, tuple[type[Any], type[Any], dict[str, dict[str, Any]]]] = {
    "bert": (Bert, BertConfig, BertConfig.PRESETS),
    "captioner": (Captioner, CaptionerConfig, CaptionerConfig.PRESETS),
    "elmo": (Elmo, ElmoConfig, ElmoConfig.PRESETS),
    "gpt": (GPT, GPTConfig, GPTConfig.PRESETS),
    "recurrent": (RecurrentLM, RecurrentLMConfig, RecurrentLMConfig.PRESETS),
    "rnn": (Seq2Seq, RNNConfig, RNNConfig.PRESETS),
    "gru": (Seq2Seq, GRUConfig, GRUConfig.PRESETS),
    "lstm": (Seq2Seq, LSTMConfig, LSTMConfig.PRESETS),
    "t5": (Transformer, T5Config, T5Config.PRESETS),
    "transformer": (Transformer, TransformerConfig, TransformerConfig.PRESETS),
    "vit": (ViT, ViTConfig, ViTConfig.PRESETS),
    "words": (Word2Vec, WordsConfig, WordsConfig.PRESETS),
}
__all__ = ["GPT", "MODELS", "Bert", "Captioner", "Electra", "ModelWithHead", "Seq2Seq", "Transformer", "ViT"]
__all__ += ["BertConfig", "CaptionerConfig", "GPTConfig", "GRUConfig", "LSTMConfig", "RNNConfig", "T5Config"]
__all__ += ["Elmo", "ElmoConfig", "RecurrentLM", "RecurrentLMConfig", "Seq2SeqConfig", "TransformerConfig"]
__all__ += ["ViTConfig", "Word2Vec", "WordsConfig"]
