"""generation_config.json, into the options of `ask` and back."""

from pathlib import Path
from typing import Any

from regard.convert.huggingface.config import IGNORED, Config
from regard.convert.huggingface.files import GENERATION
from regard.errors import UserError, shorten
from regard.files.untrusted import read_json

OPTIONS = (
    *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "num_beams", "length_penalty"),
)
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
# No effect on the text, or only on the end of beam search (Regard's continues until no beam can win).
WITHOUT_EFFECT = {
    "transformers_version", "_from_model_config", "bos_token_id", "eos_token_id", "pad_token_id",
    "decoder_start_token_id", "use_cache", "do_sample", "max_length", "bad_words_ids", "suppress_tokens",
    "early_stopping", "forced_eos_token_id", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate", "cache_implementation", "disable_compile",
    "max_matching_ngram_size",
}  # fmt: skip
OFF = {  # values that switch an option off
    "num_beam_groups": 1, "diversity_penalty": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "min_length": 0,
    "num_return_sequences": 1, "guidance_scale": 1.0, "top_k": 0,
}  # fmt: skip


def read_generation(folder: Path, c: Config, encoder_decoder: bool, vocab: int) -> dict[str, Any]:
    """The options that a folder sets, and the tokens `begin` and `ends` of a text."""
    path = folder / GENERATION
    if path.exists():
        config = read_json(path)
        for key in sorted(config.keys() - WITHOUT_EFFECT - set(OPTIONS)):
            if (value := config[key]) not in (None, False, [], {}, OFF.get(key)):
                raise UserError(f"{path}: {key}={shorten(value)} is not supported; remove it to do without")
    else:  # older folders have the options in config.json
        path, config = c.path, {key: value for key, value in c.values.items() if key in IGNORED}
    options: dict[str, Any] = {k: config[k] for k in OPTIONS if config.get(k) not in (None, OFF.get(k))}
    if config.get("do_sample") is not None:
        options["temperature"] = options.get("temperature", 1.0) if config["do_sample"] else 0.0
    if encoder_decoder and isinstance(length := config.get("max_length"), int) and length > 1:
        options.setdefault("max_new_tokens", length - 1)
    suppressed = config.get("suppress_tokens") or []
    if not isinstance(suppressed, list):
        raise UserError(f"{path}: suppress_tokens={shorten(suppressed)} should be a list of tokens")
    suppressed = [*suppressed, *read_bad_words(config.get("bad_words_ids"), path)]
    if suppressed:
        options["suppress_tokens"] = [check_token(id, vocab, path, "suppress_tokens") for id in suppressed]
    begin = config.get("decoder_start_token_id", c.values.get("decoder_start_token_id"))
    ends = config.get("eos_token_id", c.values.get("eos_token_id"))
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    options["ends"] = [check_token(id, vocab, path, "eos_token_id") for id in ends]
    options["begin"] = None if begin is None else check_token(begin, vocab, path, "decoder_start_token_id")
    return options


def read_bad_words(words: Any, path: Path) -> list[Any]:
    """bad_words_ids, if each word is one token."""
    if not isinstance(words, list | None) or not all(
        isinstance(word, list) and len(word) == 1 for word in words or []
    ):
        raise UserError(f"{path}: bad_words_ids={shorten(words)} is not supported; give words of one token")
    return [word[0] for word in words or []]


def check_token(id: Any, vocab: int, path: Path, key: str) -> int:
    if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab:
        raise UserError(f"{path}: {key}={shorten(id)} is not a token; give a number from 0 to {vocab - 1}")
    return id


def generation_config(options: dict[str, Any], tokens: dict[str, Any]) -> dict[str, Any]:
    """The content of generation_config.json; transformers' default top_k is switched off unless it is set."""
    config: dict[str, Any] = {k: v for k, v in options.items() if k in OPTIONS or k == "suppress_tokens"}
    beams = config.get("num_beams", 1) > 1
    if config.get("temperature", 1.0) == 0 or beams:
        config = {k: v for k, v in config.items() if k not in SAMPLING} | {"do_sample": False}
    else:
        config |= {"do_sample": True, "top_k": config.get("top_k", 0)}
    if beams:
        config["early_stopping"] = "never"
    return tokens | config
