"""A folder's config.json, read key by key."""

import math
from pathlib import Path
from typing import Any

from regard.convert.huggingface.files import CONFIG
from regard.errors import UserError, shorten
from regard.files.untrusted import read_json

# Keys that do not change what a model computes.
IGNORED = {
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path",
    "name_or_path", "use_cache", "gradient_checkpointing", "initializer_range", "initializer_factor",
    "init_std", "id2label", "label2id", "problem_type", "num_labels", "finetuning_task", "bos_token_id",
    "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "is_encoder_decoder",
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "return_dict",
    "torchscript", "use_bfloat16", "pruned_heads", "chunk_size_feed_forward", "max_length", "min_length",
    "num_beams", "num_beam_groups", "diversity_penalty", "early_stopping", "length_penalty",
    "temperature", "top_k", "top_p", "typical_p", "do_sample", "repetition_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "num_return_sequences", "remove_invalid_values",
    "exponential_decay_length_penalty", "task_specific_params", "prefix", "tokenizer_class",
    "tf_legacy_loss", "use_return_dict", "directionality", "n_ctx", "_attn_implementation",
    "_attn_implementation_autoset", "attn_implementation", "_commit_hash", "custom_pipelines", "language",
    "license",
}  # fmt: skip
REQUIRED: Any = object()


class Config:
    """The keys of a config.json; `finish` refuses unread keys that change a result."""

    def __init__(self, values: dict[str, Any], path: Path):
        self.values, self.path, self.unread = values, path, set(values) - IGNORED
        self.weights = path.parent  # the file with the weights, once it is known

    @classmethod
    def read(cls, folder: Path) -> "Config":
        return cls(read_json(folder / CONFIG), folder / CONFIG)

    @property
    def kind(self) -> str:
        return str(self.values.get("model_type", "bert"))  # missing in the first folders, which are all BERTs

    @property
    def architecture(self) -> str:
        """The class that the folder was saved from."""
        names = self.values.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def unknown(self, key: str, value: object, supported: str) -> UserError:
        return UserError(f"{self.path}: {key}={shorten(value)} is not supported; supported: {supported}")

    def get(self, *keys: str, default: Any = REQUIRED) -> Any:
        """The value of the first of these keys that exists and is not null."""
        self.unread -= set(keys)
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key]
        if default is REQUIRED:
            raise UserError(f"{self.path}: {keys[0]} is missing")
        return default

    def number(self, *keys: str, default: Any = REQUIRED) -> Any:
        value = self.get(*keys, default=default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{self.path}: {keys[0]}={shorten(repr(value))} should be a number")
        return value

    def size(self, *keys: str, default: Any = REQUIRED) -> Any:
        """A whole number from 1 up."""
        value = self.number(*keys, default=default)
        if value is not default and (not isinstance(value, int) or value < 1):
            raise UserError(f"{self.path}: {keys[0]}={shorten(value)} should be a whole number from 1 up")
        return value

    def dropout(self, *keys: str) -> Any:
        """Regard's dropout; Hugging Face's separate one for attention weights is not read."""
        return self.number(*keys, default=0.1)

    def choice(self, key: str, names: dict[str, str], default: str) -> str:
        """Regard's name for a value."""
        if (value := self.get(key, default=default)) not in list(names):
            raise self.unknown(key, value, ", ".join(names))
        return names[value]

    def require(self, **expected: Any) -> None:
        """Raise UserError if a key has another value; a missing key has the expected one."""
        for key, value in expected.items():
            if (actual := self.get(key, default=value)) != value:
                raise self.unknown(key, actual, str(value))

    def ignore(self, *keys: str) -> None:
        """Accept these keys with any values."""
        self.unread -= set(keys)

    def finish(self) -> None:
        """Raise UserError for an unread key, unless it is about dropout or switched off."""
        for key in sorted(self.unread):
            if "drop" not in key and (value := self.values[key]) not in (None, False, "", [], {}):
                raise UserError(
                    f"{self.path}: {key}={shorten(value)} is not supported for model_type={self.kind}; "
                    "remove the key if it does not change the computation"
                )
