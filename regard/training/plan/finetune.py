"""Advice for fine-tuning (`--from`): pure functions of the rows, their labels and the model.

"Measured" means docs/plan.md and docs/results.md: MiniLM (6 layers, 384 wide) and BERTs that were pre-trained
here for minutes (4 layers, 512 wide), on 50 to 67,349 rows.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

WRITING = (
    "write",
    "fill",
    "restore",
    "translate",
    "chat",
    "converse",
    "caption",
)  # no new head, nothing to unlearn
STREAMS = ("write", "fill", "restore", "words")  # running text, which has no rows
BATCH, LARGE = 32, 20_000  # rows of a step; from this many rows on, a set is large, and its batch doubled
LONGEST = 100_000  # steps of a run whose time is not known
FEW = 500  # rows, of which a tenth is too little to choose the best step
FOLDS = 5
RANK = 16  # of an adapter's matrices
FOLDABLE = ("classify", "tag", "span", "see", "hear")


@dataclass(frozen=True, kw_only=True)
class Base:
    """The model that training starts from."""

    task: str  # the task that it was trained for
    dim: int


class Choice(NamedTuple):
    """A setting, by SECTION.NAME, the reason for its value, and the source."""

    key: str
    value: Any
    reason: str
    source: str


def finetune_settings(
    task: str,
    base: Base,
    rows: int,
    classes: int = 0,
    largest: float = 0.0,  # the share of the largest class
    validated: bool = False,  # whether data to evaluate on are given
    batch: int | None = None,  # rows of a step, if given
    steps: int | None = None,  # if given
    affordable: int | None = None,  # steps that there is time for, if known
    lora: int = 0,
    adapter: bool = False,  # whether only low-rank updates are trained
) -> list[Choice]:
    """Every setting that follows from the data and from the model to start from."""
    batch = batch or choose_batch(task, rows)
    choices = []
    if adapter and not lora:
        lora = RANK
        about = "an adapter of low-rank updates of queries and values"
        choices.append(Choice("train.lora", lora, about, "Hu et al. 2021, 7.2"))
    choices += [
        Choice("train.optimizer", "adamw", "small steps away from what is known", "Devlin et al. 2019, A.3"),
        Choice("train.batch", batch, f"for {rows:,} rows", "Devlin et al. 2019, A.3: 16 or 32; measured"),
        choose_rate(task, base, batch, lora),
        Choice(
            "train.schedule", "linear", "the last steps settle", "Devlin et al. 2019; Mosbach et al. 2021"
        ),
        Choice("train.weight_decay", 0.01, "against memorising", "Devlin et al. 2019, A.2"),
        choose_layer_decay(lora),
    ]
    choices += choose_length(task, rows, batch, validated, steps, affordable)
    if task == "classify" and base.task == "embed":
        about = "the model was trained to say in the mean of its tokens what a text means"
        choices.append(Choice("task.mean", True, about, "Reimers & Gurevych 2019; measured"))
    if task in ("classify", "see", "hear") and (weights := choose_weights(classes, largest)):
        choices.append(weights)
    return choices


def choose_batch(task: str, rows: int) -> int:
    """Rows of a step: 32, and 64 for a large set or if the other rows are the wrong answers (`embed`)."""
    return 2 * BATCH if task == "embed" or rows >= LARGE else BATCH


def choose_rate(task: str, base: Base, batch: int, lora: int) -> Choice:
    """The learning rate falls with the width, as AdamW's does (Yang et al. 2022), and grows with the square
    root of the batch (Malladi et al. 2022).

    Measured at 384 and 32 rows: 1e-4 is best or nearly best from 50 to 8,551 rows, 3e-5 needs three times the
    steps, and 5e-4 is worse (Matthews .41 instead of .53 on sentences that are right or scrambled). At 512
    wide, 5e-4 makes a BERT always answer with the larger class (Matthews 0), and 1e-4 does not.
    BERT-base (768) gets 5e-5, as published. Models that write have no new head; measured on masked words.
    """
    known = 3e-4 if task in WRITING else 1e-4
    rate = min(5e-4, known * 384 / base.dim * math.sqrt(batch / BATCH))
    if lora:  # Hu et al. 2022 use ten times the rate of full fine-tuning
        rate *= 10
    reason = f"for a model {base.dim} wide, and {batch} rows a step"
    source = "Devlin et al. 2019, A.3; Yang et al. 2022; measured"
    return Choice("train.lr", float(f"{rate:.2g}"), reason, source)


def choose_layer_decay(lora: int) -> Choice:
    """Lower layers change less. Measured: .95 and 1 are equal, and .8 is too small."""
    decay = 1.0 if lora else 0.95
    return Choice(
        "train.layer_decay", decay, "lower layers change less", "Howard & Ruder 2018; Clark et al. 2020"
    )


def choose_length(
    task: str, rows: int, batch: int, validated: bool, steps_by_hand: int | None, affordable: int | None
) -> list[Choice]:
    """Steps, warm-up, evaluations, and folds of a small set. If the time is too short, or the data are
    running text, the clock decides."""
    wanted = math.inf if task in STREAMS else choose_steps(task, rows, batch)
    steps = steps_by_hand or int(min(wanted, affordable or LONGEST))
    mosbach = "Mosbach et al. 2021"
    warmup = Choice("train.warmup", max(1, steps // 10), "a tenth of the steps", f"{mosbach}, section 6")
    if steps_by_hand is not None:
        return [warmup]
    choices = [
        warmup,
        Choice("train.evaluate", max(5, steps // 10), "the best of ten is kept", "Dodge et al. 2020"),
    ]
    if steps < wanted:
        return choices
    passes = steps * batch / max(1, rows)
    few = "small sets need many passes" if passes > 4 else "a few passes over the data"
    choices.append(
        Choice("train.steps", steps, f"{few}: {passes:.2g}", f"{mosbach}; Zhang et al. 2021; measured")
    )
    if rows < FEW and not validated and task in FOLDABLE and steps * (FOLDS + 1) <= (affordable or LONGEST):
        about = f"{rows} rows are too few to hold some out: each is scored by a model trained without it"
        choices.append(Choice("train.folds", FOLDS, about, "Kohavi 1995"))
    return choices


def choose_steps(task: str, rows: int, batch: int) -> int:
    """450 √rows are read, but each three times at least (once, if pairs are compared with each other).

    Measured with MiniLM: 50 rows like 100 steps of 32, 200 rows 200 to 600, 1,000 rows 300 to 1,000, and
    8,551 rows 800 to 1,600. SST-2's 67,349: 2.5 passes (docs/results.md).
    """
    least = 1 if task == "embed" else 3
    return math.ceil(max(450 * math.sqrt(rows), least * rows) / batch)


def choose_weights(classes: int, largest: float) -> Choice | None:
    """Class weights if almost all rows have the same class. Measured at 95:5, the last evaluation:
    Matthews .29 instead of .25 (1,000 rows, two seeds) and .45 instead of .44 (4,000); 70:30 loses .03."""
    if classes < 2 or effective_share(classes, largest) >= 0.75:
        return None
    about = f"{largest:.0%} of the labels are one class"
    return Choice("task.balanced", True, about, "King & Zeng 2001; measured")


def effective_share(classes: int, largest: float) -> float:
    """An upper bound of `label_balance`, the effective share of the classes: e to the entropy, if all classes
    but the largest are equally frequent."""
    rest = (1 - largest) / (classes - 1)
    entropy = -sum(p * math.log(p) * n for p, n in ((largest, 1), (rest, classes - 1)) if p > 0)
    return math.exp(entropy) / classes
