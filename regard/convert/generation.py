"""How texts are written: generation_config.json into the options of `ask`, and back."""

from pathlib import Path
from typing import Any

from ..errors import Mistake
from .family import HARMLESS, Config, short
from .files import GENERATION, read_json

OPTIONS = (
    *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "num_beams", "length_penalty"),
)
# Of no effect on what is written; or on no more than when beams stop (here they go on until none can win).
QUIET = {
    "transformers_version", "_from_model_config", "bos_token_id", "eos_token_id", "pad_token_id",
    "decoder_start_token_id", "use_cache", "do_sample", "max_length", "bad_words_ids", "suppress_tokens",
    "early_stopping", "forced_eos_token_id", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate", "cache_implementation", "disable_compile",
    "max_matching_ngram_size",
}  # fmt: skip
OFF = {  # what changes nothing, if it is this
    "num_beam_groups": 1, "diversity_penalty": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "min_length": 0,
    "num_return_sequences": 1, "guidance_scale": 1.0, "top_k": 0,
}  # fmt: skip


def read_generation(folder: Path, c: Config, both: bool, vocab: int) -> dict[str, Any]:
    """Options as a folder has them, where it does; `both`: it has an encoder and a decoder.

    What is not told is as the task has it. `begin` and `ends` are the tokens that stand around a text.
    """
    where = folder / GENERATION
    if where.exists():
        told = read_json(where)
        for key in sorted(told.keys() - QUIET - set(OPTIONS)):
            if (value := told[key]) not in (None, False, [], {}, OFF.get(key)):
                raise Mistake(f"{where}: {key}={short(value)} is not known; remove it to do without")
    else:
        where, told = c.where, {k: v for k, v in c.told.items() if k in HARMLESS}  # where they once stood
    found: dict[str, Any] = {k: told[k] for k in OPTIONS if told.get(k) not in (None, OFF.get(k))}
    if told.get("do_sample") is not None:
        found["temperature"] = found.get("temperature", 1.0) if told["do_sample"] else 0.0
    if both and isinstance(longest := told.get("max_length"), int) and longest > 1:
        found.setdefault("max_new_tokens", longest - 1)
    never = told.get("suppress_tokens") or []
    if not isinstance(never, list):
        raise Mistake(f"{where}: suppress_tokens={short(never)} should be a list of tokens")
    never = [*never, *ids(told.get("bad_words_ids"), where)]
    if never:
        found["suppress_tokens"] = [known(id, vocab, where, "suppress_tokens") for id in never]
    begin = told.get("decoder_start_token_id", c.told.get("decoder_start_token_id"))
    ends = told.get("eos_token_id", c.told.get("eos_token_id"))
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    found["ends"] = [known(id, vocab, where, "eos_token_id") for id in ends]
    found["begin"] = None if begin is None else known(begin, vocab, where, "decoder_start_token_id")
    return found


def ids(words: Any, where: Path) -> list[Any]:
    """The tokens that may not come."""
    if not isinstance(words, list | None) or not all(
        isinstance(word, list) and len(word) == 1 for word in words or []
    ):
        raise Mistake(f"{where}: bad_words_ids={short(words)} is not known; known are words of one token")
    return [word[0] for word in words or []]


def known(id: Any, vocab: int, where: Path, key: str) -> int:
    if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab:
        raise Mistake(f"{where}: {key}={short(id)} is no token of the {vocab}")
    return id


def written_generation(options: dict[str, Any], tokens: dict[str, Any]) -> dict[str, Any]:
    """The options of `ask` as theirs; what they do without being asked is told to be off."""
    found: dict[str, Any] = {k: v for k, v in options.items() if k in OPTIONS or k == "suppress_tokens"}
    if found.get("temperature", 1.0) == 0 or found.get("num_beams", 1) > 1:
        found = {k: v for k, v in found.items() if k not in ("temperature", "top_k", "top_p", "min_p")}
        found["do_sample"] = False
    else:
        found |= {"do_sample": True, "top_k": found.get("top_k", 0)}
    if found.get("num_beams", 1) > 1:
        found["early_stopping"] = "never"
    return tokens | found
