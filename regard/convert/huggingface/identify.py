"""Identify the task of a model in Hugging Face's layout, by its settings and tensors' names. Needs no
torch."""

from collections.abc import Collection
from typing import Any

TASK_OF_CLASS = {  # how the name of their class ends: the task
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "span",
    "ForImageClassification": "see",
}
HEAD_NAMES = ("classifier", "qa_outputs")  # their heads for classes, and for answers
MASKED_LM_HEADS = ("cls.predictions.", "lm_head.", "vocab_", "generator_lm_head.")  # how their names begin
NEXT_HEAD = "cls.seq_relationship."
WRITERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
TRANSLATORS = ("marian", "pegasus", "t5")


def identify_task(config: dict[str, Any], names: Collection[str], restores: bool) -> str:
    """The task that such a folder is loaded for; `restores` if its tokenizer has tokens for gaps."""
    kind, classes = config.get("model_type", "bert"), config.get("architectures") or [""]
    if kind in WRITERS:
        return "write"
    if kind in TRANSLATORS:
        return "restore" if kind == "t5" and restores else "translate"
    if any(name.startswith(HEAD_NAMES) for name in names):
        ends = (task for end, task in TASK_OF_CLASS.items() if str(classes[0]).endswith(end))
        return next(ends, "classify")
    if any(name.startswith((*MASKED_LM_HEADS, NEXT_HEAD, "discriminator_")) for name in names):
        return "fill"
    return "see" if kind in ("vit", "siglip") else "embed"
