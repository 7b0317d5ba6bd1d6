"""Pre-training: a class from sixteen labels, from scratch and after reading four megabytes of plain text.

The text is made by a grammar in which praise stands with praise, and blame with blame. The labelled reviews
have four words of praise and four of blame; the 400 held-out reviews have the 32 others, which a model from
scratch has never seen. `regard train fill`, then `regard train classify --from` it, and without it.
"""

import tempfile
from pathlib import Path
from typing import Any

from experiments.texts.reviews import make_labelled, make_text
from experiments.training import Result
from regard import train

STEPS = 300  # of pre-training
BYTES, LABELS, KNOWN = 4_000_000, 16, 4
MODEL = {
    "model.dim": 64, "model.depth": 2, "model.heads": 2, "model.context": 32, "model.dropout": 0.0,
    "model.pre": True, "data.tokenizer": "word",
}  # fmt: skip
PRETRAINING = {"task.next": False, "task.hidden": 0.3, "train.batch": 64, "train.lr": 1e-2}
TUNING = {"task.mean": True, "train.lr": 2e-3}


def run(seed: int, steps: int = STEPS, bytes: int = BYTES) -> Result:
    sides = make_labelled(seed, LABELS, KNOWN)
    result = {}
    with tempfile.TemporaryDirectory() as name:
        text, files, bert = (
            Path(name, "text.txt"),
            [Path(name, f"{side}.tsv") for side in "ab"],
            Path(name, "bert"),
        )
        text.write_text(make_text(seed, bytes), "utf-8")
        for file, rows in zip(files, sides, strict=True):
            file.write_text("text\tlabel\n" + "".join(f"{review}\t{label}\n" for review, label in rows))
        shared: dict[str, Any] = {
            "train.seed": seed, "train.warmup": 100, "train.log": 100, "train.save": 10**9
        }  # fmt: skip
        train("fill", str(text), out=bert, steps=steps, set=MODEL | PRETRAINING | shared)
        for variant, base in (("from scratch", None), ("pre-trained", bert)):
            settings = shared | TUNING | ({} if base else MODEL)
            model = train(
                "classify", str(files[0]), out=Path(name, variant), base=base, steps=60, set=settings
            )
            answers = model.ask([review for review, _ in sides[1]])
            right = [answer == label for answer, (_, label) in zip(answers, sides[1], strict=True)]
            result[variant] = {"right, %": 100 * sum(right) / len(right)}
    return result
