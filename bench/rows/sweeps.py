"""The trainings of each sweep: one choice at a time, at several sizes or budgets."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

TEXT = "tinyshakespeare/input.txt.gz"
WIKI, WIKI_VALID = ("wikitext2/train.txt.gz",), ("wikitext2/valid.txt.gz",)
PAIRS = ("multi30k/train.en.gz", "multi30k/train.de.gz")
PAIRS_VALID = ("multi30k/val.en.gz", "multi30k/val.de.gz")
DIALOGS, DIALOGS_VALID = ("dailydialog/train.tsv.gz",), ("dailydialog/valid.tsv.gz",)
PHRASES, PHRASES_VALID = ("sst2/train.tsv.gz",), ("sst2/dev.tsv.gz",)
FASHION = ("fashion-mnist/train-images-idx3-ubyte.gz",)


@dataclass(frozen=True)
class Job:
    """A training with a fixed number of steps."""

    sweep: str
    recipe: str
    steps: int
    settings: dict[str, Any]
    data: tuple[str, ...] = (TEXT,)
    valid: tuple[str, ...] = ()
    score: tuple[str, ...] = ()
    evaluations: int = 4
    cost: float = 1.0  # seconds, roughly: the longest begin first

    def describe(self) -> dict[str, Any]:
        return {
            "sweep": self.sweep,
            "recipe": self.recipe,
            "data": self.data[0],
            "steps": self.steps,
            "settings": self.settings,
        }


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    """model_dropout=0.1 as "model.dropout": 0.1."""
    return {name.replace("_", ".", 1): value for name, value in settings.items()}


# Running text


def write(
    sweep: str,
    dim: int = 128,
    depth: int = 4,
    context: int = 128,
    tokens: int = 4096,
    steps: int = 1000,
    lr: float = 4e-3,
    evaluations: int = 4,
    **more: Any,
) -> Job:
    settings: dict[str, Any] = {
        "model.dim": dim,
        "model.depth": depth,
        "model.heads": max(1, dim // 64),
        "model.context": context,
        "train.batch": tokens // context,
        "train.lr": lr,
        "train.optimizer": "muon",
        "train.schedule": "linear",
        "train.weight_decay": 0.1,
        "train.warmup": max(1, steps // 20),
    }
    cost = 3 + steps * (2e-3 + depth * dim**2 * tokens * 6 * 12 / 1.5e14)
    return Job(sweep, "write", steps, settings | dotted(more), evaluations=evaluations, cost=cost)


def widths() -> Iterator[Job]:
    """Does the best learning rate stay where it is when the model becomes wider? 4 passes over the text."""
    for dim in (64, 128, 256, 512):
        for lr in (1e-3, 2e-3, 4e-3, 8e-3, 16e-3):
            yield write("width-muon", dim, lr=lr)


def batches() -> Iterator[Job]:
    """The same 4 M characters in fewer, larger steps."""
    for tokens in (1024, 2048, 4096, 16384):
        for lr in (2e-3, 4e-3, 8e-3, 16e-3, 32e-3):
            yield write("batch", tokens=tokens, steps=4096 * 1000 // tokens, lr=lr)


def regularisers() -> Iterator[Job]:
    """Dropout and weight decay by the number of passes over the data: 33, at three sizes."""
    for dim, depth in ((128, 4), (256, 6), (384, 6)):
        for dropout in (0.0, 0.15, 0.3):
            for decay in (0.1, 1.0):
                yield write(
                    *("regularise", dim, depth, 256, 8192, 4000),
                    evaluations=8,
                    train_schedule="wsd",
                    model_dropout=dropout,
                    train_weight_decay=decay,
                )


# Small models for one core of a CPU: 1,024 characters a step; 800 of them are four fifths of a pass


def small(sweep: str, dim: int = 64, depth: int = 3, steps: int = 500, lr: float = 8e-3, **more: Any) -> Job:
    more = {"train_device": "cpu", "evaluations": 1, **more}
    return write(sweep, dim, depth, 64, 1024, steps, lr, **more)


def schedules() -> Iterator[Job]:
    for steps in (60, 250, 800):
        for schedule in ("linear", "cosine", "wsd"):
            yield small("schedule", steps=steps, train_schedule=schedule)


def warmups() -> Iterator[Job]:
    for steps in (60, 250):
        for share in (0.0, 0.02, 0.07, 0.25):
            yield small("warmup", steps=steps, train_warmup=round(share * steps))


def depths() -> Iterator[Job]:
    for depth in (2, 4, 8):
        for lr in (4e-3, 8e-3, 16e-3):
            yield small("depth", depth=depth, lr=lr, steps=150)


def adamw() -> Iterator[Job]:
    for dim in (32, 64, 128):
        for lr in (2e-3, 4e-3, 8e-3, 16e-3):
            yield small("adamw", dim, lr=lr, steps=150, train_optimizer="adamw")


def decays() -> Iterator[Job]:
    """Few passes: does weight decay harm?"""
    for steps in (60, 250, 800):
        for decay in (0.1, 1.0):
            yield small("decay", steps=steps, train_weight_decay=decay)


def query_norms() -> Iterator[Job]:
    """Queries and keys that are normalised, with three seeds: at the same number of steps."""
    for optimizer, lr in (("muon", 8e-3), ("adamw", 4e-3)):
        for seed in (1, 2, 3):
            for normalised in (False, True):
                yield small(
                    *("qk_norm", 64, 3, 300, lr),
                    evaluations=4,
                    train_optimizer=optimizer,
                    train_seed=seed,
                    model_qk_norm=normalised,
                )


def query_norms_wider() -> Iterator[Job]:
    """The same for the size that the plan takes on two cores."""
    for seed in (1, 2, 3):
        for normalised in (False, True):
            yield write(
                *("qk_norm-wider", 128, 4, 128, 2048, 500),
                evaluations=5,
                train_device="cpu",
                train_seed=seed,
                model_qk_norm=normalised,
            )


def wiki() -> Iterator[Job]:
    """Vocabularies for 11 MB of text, by bits per byte; and larger models."""
    for vocab, dim, depth, dropout, steps in (
        *((2000, 256, 5, 0.0, 200), (8000, 256, 5, 0.0, 200), (16000, 256, 5, 0.0, 200)),
        *((2000, 256, 5, 0.1, 800), (8000, 256, 5, 0.1, 800), (16000, 256, 5, 0.1, 800)),
        *((8000, 512, 8, 0.2, 800), (8000, 512, 8, 0.3, 1500)),
    ):
        job = write(
            *("wiki", dim, depth, 256, 16384, steps),
            evaluations=8,
            data_tokenizer="bpe",
            data_vocab=vocab,
            model_dropout=dropout,
            train_weight_decay=1.0,
            train_schedule="wsd",
        )
        yield replace(job, data=WIKI, valid=WIKI_VALID)


def fills() -> Iterator[Job]:
    """Masked words: norms before or after the layers, and their learning rates."""
    for dim in (128, 512):
        for pre in (True, False):
            for lr in (2e-3, 4e-3, 8e-3):
                job = write(
                    *("fill", dim, 4, 128, 16384, 300, lr),
                    data_tokenizer="wordpiece",
                    data_vocab=8000,
                    model_pre=pre,
                    model_dropout=0.1,
                    task_next=False,
                )
                yield replace(job, recipe="fill", data=WIKI, valid=WIKI_VALID)


# Rows


def classify(**more: Any) -> Job:
    settings: dict[str, Any] = {"depth": 2, "steps": 400, "lr": 1e-3, "train_optimizer": "adamw"}
    settings |= {"train_weight_decay": 0.01, "model_dropout": 0.3, "task_mean": True, "evaluations": 8} | more
    job = write("classify", **settings)
    del job.settings["train.batch"]
    job.settings["train.tokens"] = 4096
    return replace(job, recipe="classify", data=PHRASES, valid=PHRASES_VALID, cost=job.cost + 8)


def classifiers() -> Iterator[Job]:
    """A BERT from scratch on 67,349 phrases, 250 steps a pass: one change at a time."""
    for dropout in (0.1, 0.3, 0.5):
        yield classify(model_dropout=dropout)
    yield classify(task_mean=False)
    yield classify(dim=64)
    yield classify(dim=256)
    yield classify(depth=1)
    yield classify(depth=1, dim=256, model_dropout=0.5)
    yield classify(lr=3e-3)
    yield classify(lr=3e-4)
    yield classify(lr=3e-3, train_optimizer="muon", train_weight_decay=1.0)
    yield classify(model_pre=True, lr=2e-3, train_optimizer="muon", train_weight_decay=0.1)
    yield classify(data_vocab=16000)
    yield classify(task_smoothing=0.1)
    yield classify(steps=1200, model_dropout=0.5)
    yield classify(steps=200, lr=2e-3)


def pools() -> Iterator[Job]:
    """The first token or the mean of all, with the plan's settings: phrases and sets of bench.kinds."""
    plan = {"model_pre": True, "train_optimizer": "muon", "train_weight_decay": 0.1, "train_device": "cpu"}
    for seed in (1, 2, 3):
        for data, valid, steps in (
            *((PHRASES, PHRASES_VALID, 300), (("names/train.tsv",), ("names/test.tsv",), 100)),
            *(
                (("topics/train.tsv",), ("topics/test.tsv",), 250),
                (("few/train.tsv",), ("few/test.tsv",), 60),
            ),
            *((("unbalanced/train.tsv",), ("unbalanced/test.tsv",), 100),),
            *((("price/train.tsv",), ("price/test.tsv",), 150),),
        ):
            for mean in (True, False):
                job = classify(steps=steps, lr=2e-3, task_mean=mean, train_seed=seed, **plan)
                job.settings["train.tokens"] = 2048
                yield replace(job, sweep="pool", data=data, valid=valid)


def see(
    dim: int = 192,
    depth: int = 6,
    patch: int = 4,
    steps: int = 300,
    batch: int = 512,
    lr: float = 3e-3,
    mix: float = 0.0,
    **more: Any,
) -> Job:
    settings = {
        "model.dim": dim,
        "model.depth": depth,
        "model.heads": max(2, dim // 64),
        "model.hidden": 2 * dim,
        "model.patch": patch,
        "train.batch": batch,
        "train.lr": lr,
        "train.warmup": max(1, steps // 20),
        "task.pad": 2 if mix else 1,
        "task.flip": True,
        "task.erase": 0.25,
        "task.mixup": 0.2 * mix,
        "task.cutmix": mix,
        "task.smoothing": 0.1 if mix else 0.0,
        "data.holdout": 0.05,
    }
    cost = 5 + steps * (4e-3 + depth * dim**2 * batch * (28 // patch) ** 2 * 48 / 1.5e14)
    return Job("see", "see", steps, settings | dotted(more), FASHION, evaluations=6, cost=cost)


def sights() -> Iterator[Job]:
    """57,000 pictures of 28 pixels, 111 steps a pass: patch, size, blending, rates."""
    for patch in (2, 4, 7):
        yield see(patch=patch)
    for dim, depth in ((128, 4), (256, 8)):
        yield see(dim, depth)
    for mix in (0.0, 1.0):
        yield see(steps=1200, mix=mix, model_skip=0.1)
    for lr in (1.5e-3, 6e-3, 12e-3):
        yield see(lr=lr)
    yield see(train_weight_decay=0.5)
    yield see(batch=128, steps=1200, lr=3e-3)


# Pairs


def translate(
    sweep: str,
    dim: int = 128,
    steps: int = 1000,
    lr: float = 3e-3,
    tokens: int = 2048,
    score: tuple[str, ...] = (),
    evaluations: int = 4,
    **more: Any,
) -> Job:
    settings: dict[str, Any] = {
        "model.dim": dim,
        "model.hidden": 2 * dim,
        "model.heads": max(1, dim // 64),
        "train.lr": lr,
        "train.tokens": tokens,
        "train.warmup": max(1, steps // 15),
        "model.dropout": 0.1,
    }
    cost = 8 + steps * (5e-3 + dim**2 * 60 * tokens * 6 / 1e14) + 10 * bool(score)
    settings |= dotted(more)
    return Job(sweep, "translate", steps, settings, PAIRS, PAIRS_VALID, score, evaluations, cost)


def small_pairs() -> Iterator[Job]:
    """Few pairs: size and dropout, by BLEU on the validation set."""
    for count, vocab, steps, dims in (
        (300, 1000, 300, (128,)),
        (3000, 2000, 750, (128, 256)),
        (10000, 4000, 1000, (128, 256)),
    ):
        for dim in dims:
            for dropout in (0.1, 0.3):
                job = translate(
                    *("pairs", dim, steps),
                    score=PAIRS_VALID,
                    evaluations=8,
                    model_dropout=dropout,
                    data_vocab=vocab,
                )
                yield replace(job, data=tuple(f"{name}#{count}" for name in PAIRS))


def chats() -> Iterator[Job]:
    """76,052 pairs of turns; three turns are read."""
    for dim in (256, 384):
        job = translate(
            *("chat", dim, 1000),
            tokens=8192,
            data_vocab=8192,
            data_ratio=0,
            data_tokenizer="bpe",
            task_turns=3,
            model_positions="rotary",
            model_norm="rms",
            model_ffn="swiglu",
            model_bias=False,
            model_depth=4,
            train_optimizer="muon",
            train_weight_decay=1.0,
            train_beta2=0.99,
        )
        yield replace(job, recipe="chat", data=DIALOGS, valid=DIALOGS_VALID)


SWEEPS: dict[str, list[Job]] = {
    "width": list(widths()),
    "batch": list(batches()),
    "regularise": list(regularisers()),
    "schedule": list(schedules()),
    "warmup": list(warmups()),
    "decay": list(decays()),
    "adamw": list(adamw()),
    "depth": list(depths()),
    "qk_norm": list(query_norms()),
    "qk_norm-wider": list(query_norms_wider()),
    "wiki": list(wiki()),
    "fill": list(fills()),
    "classify": list(classifiers()),
    "pool": list(pools()),
    "see": list(sights()),
    "pairs": list(small_pairs()),
    "chat": list(chats()),
}
