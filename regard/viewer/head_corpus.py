"""What attention heads do on the package's own texts, and on random tokens that are repeated.

Shapes: H heads.
"""

import json
from pathlib import Path
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

import numpy as np

from regard.errors import UserError
from regard.runs.model import Model
from regard.tracing import trace_input
from regard.viewer.heads import Pattern, attention_patterns, name_heads

BUILTIN = Path(__file__).parents[1] / "builtin"
FILES = {
    "chat": "chat.valid.tsv",
    "classify": "classify.valid.tsv",
    "converse": "chat.valid.tsv",
    "embed": "embed.valid.tsv",
    "span": "span.valid.jsonl",
    "translate": "translate.valid.tsv",
}
STORIES = "stories.txt"  # for all other tasks
TEXTS, REPEATS = 20, 4
MOST_REPEATED, LEAST_REPEATED = 24, 4  # random tokens, which come twice
# On texts, what is said twice is often near or at the start; random tokens leave no other way to find it.
BY_REPEATS = "induction", "duplicate"
BLANK = "___"


class HeadPatterns(TypedDict):
    """The patterns of an attention, and the one that each head is named after."""

    patterns: dict[str, Pattern]
    roles: list[str | None]


class HeadCorpus:
    """The patterns of a model's heads over many inputs, measured input by input."""

    def __init__(self, model: Model):
        self.reason = why_none(model)
        repeats = [] if self.reason else repeated_tokens(model)
        texts = [] if self.reason else corpus_texts(model)
        self.inputs = [*((input, "texts") for input in texts), *((input, "repeats") for input in repeats)]
        self.counts = {"texts": 0, "repeats": 0}
        self.heads: dict[str, int] = {}
        self.measured: dict[str, dict[str, list[Pattern]]] = {}  # of each input, by attention and pattern

    def step(self, model: Model) -> None:
        """Measure one more input."""
        if not self.inputs:
            return
        input, kind = self.inputs.pop(0)
        try:
            trace = trace_input(model, input)
        except UserError:
            return  # too long for this model
        if not trace.attentions:
            self.reason = "this model has no attention"
            self.inputs.clear()
            return
        self.counts[kind] += 1
        for name in trace.attentions:
            self.heads[name] = len(trace[f"{name}.weights"])
            by_pattern = self.measured.setdefault(name, {})
            for pattern, one in attention_patterns(trace, name).items():
                if (pattern in BY_REPEATS) == (kind == "repeats"):
                    by_pattern.setdefault(pattern, []).append(one)

    def to_json(self) -> dict[str, Any]:
        """Patterns by attention, as means over the queries of all inputs; or the `reason` why there are
        none."""
        if not any(self.counts.values()):
            return {"reason": self.reason or "none of the built-in texts fits into what this model reads"}
        attentions: dict[str, HeadPatterns] = {}
        for name, by_pattern in self.measured.items():
            patterns = {pattern: mean_pattern(several) for pattern, several in by_pattern.items()}
            attentions[name] = {"patterns": patterns, "roles": name_heads(patterns, self.heads[name])}
        return self.counts | {"attentions": attentions}


MEASURED: WeakKeyDictionary[Model, HeadCorpus] = WeakKeyDictionary()


def head_corpus(model: Model) -> HeadCorpus:
    """What is known of a model's heads; `step` measures what is missing."""
    if model not in MEASURED:
        MEASURED[model] = HeadCorpus(model)
    return MEASURED[model]


def measure_heads(model: Model) -> dict[str, Any]:
    """The patterns of a model's heads on all built-in inputs."""
    corpus = head_corpus(model)
    while corpus.inputs:
        corpus.step(model)
    return corpus.to_json()


def mean_pattern(several: list[Pattern]) -> Pattern:
    """The mean over the queries of several inputs."""
    rows = np.array([one["rows"] for one in several])
    weights = np.array([one["weights"] for one in several])  # (inputs, H)
    chances = np.array([one["chance"] for one in several])
    mean = rows @ weights / rows.sum()  # (H,)
    return {"weights": mean.tolist(), "chance": float(rows @ chances / rows.sum()), "rows": int(rows.sum())}


def why_none(model: Model) -> str | None:
    """Why there is nothing to measure heads on; None if there is."""
    nouns = {"image": "pictures", "audio": "recordings"}
    if model.task.reads != "text":
        return f"this model reads {nouns[model.task.reads]}, and what is built in are texts"
    if model.task.tokenizer is None:
        return "this model reads no texts"
    return None


def corpus_texts(model: Model) -> list[Any]:
    """Texts of the package's data as the model's task takes them, spread over the file."""
    task = model.task
    name = FILES.get(task.config.name, STORIES)
    lines = [line for line in (BUILTIN / name).read_text(encoding="utf-8").splitlines() if " " in line]
    lines = [lines[n * len(lines) // TEXTS] for n in range(min(TEXTS, len(lines)))]
    if name.endswith(".jsonl"):
        rows = map(json.loads, lines)
        return [f"{row['question']}\t{row['context']}" for row in rows]
    if name == STORIES and task.config.name in ("fill", "restore"):
        blanks = [hide_word(line) for line in lines]
        return [pair if task.has_source else pair[0] for pair in blanks]
    return lines if task.has_source else [line.split("\t")[0] for line in lines]


def hide_word(line: str) -> tuple[str, str]:
    """A text with a blank instead of its middle word, and that word."""
    words = line.split()
    n = len(words) // 2
    return " ".join([*words[:n], BLANK, *words[n + 1 :]]), words[n]


def repeated_tokens(model: Model) -> list[Any]:
    """Random tokens, each sequence of them twice, as in Olsson et al. 2022."""
    task, rng = model.task, np.random.default_rng(7)
    tokenizers = [task.tokenizer, task.output_tokenizer] if task.has_source else [task.tokenizer]
    known = [plain_ids(tokenizer) for tokenizer in tokenizers]
    count = min(MOST_REPEATED, (task.context - 4) // 2, *map(len, known))  # beside special tokens
    if count < LEAST_REPEATED:
        return []
    result: list[Any] = []
    for _ in range(REPEATS):
        sides = [rng.choice(ids, count, replace=False).tolist() * 2 for ids in known]
        if task.has_source:
            result.append(tuple(sides))
        elif task.generates:
            result.append(sides[0])
        else:
            words = [task.tokenizer.decode([id]).strip() for id in sides[0]]
            between = "\t" if task.config.name == "span" else " "  # a question, and where its answer stands
            result.append(between.join([" ".join(words[:count]), " ".join(words[count:])]))
    return result


def plain_ids(tokenizer: Any) -> list[int]:
    """The tokens that are words or parts of some, the same when they are read again."""
    added = tokenizer.inner.get_added_tokens_decoder().keys()
    texts = ((id, tokenizer.decode([id]).strip()) for id in range(tokenizer.vocab) if id not in added)
    return [id for id, text in texts if text.isalpha()]
