"""T5: the Transformer with relative positions, norms before the layers and no biases. Raffel et al. 2020.

T5 does not scale its embeddings by √D, but its last hidden states by 1/√D. With embeddings that are 1/√D as
large, as in the Transformer, both are the same.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from regard.models.base import Presets
from regard.models.transformer import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class T5Config(TransformerConfig):
    positions: Literal["none", "sinusoidal", "learned", "rotary", "relative"] = "relative"
    norm: Literal["layer", "rms"] = "rms"
    bias: bool = False
    pre: bool = True

    PRESETS: ClassVar[Presets] = {
        "tiny": {"context": 128, "dim": 128, "depth": 4, "heads": 4},
        "mini": {"context": 256, "dim": 256, "depth": 4, "heads": 4},
        "small": {"context": 512, "dim": 512, "depth": 6, "heads": 8},
        "base": {"context": 512, "dim": 768, "depth": 12, "heads": 12},
    }
