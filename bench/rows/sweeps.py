"""The trainings of each sweep: one choice at a time, at three sizes or three budgets."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

TEXT = "tinyshakespeare/input.txt.gz"
PAIRS = ("multi30k/train.en.gz", "multi30k/train.de.gz")
PAIRS_VALID = ("multi30k/val.en.gz", "multi30k/val.de.gz")


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
    notes: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return {
            "sweep": self.sweep,
            "recipe": self.recipe,
            "data": self.data[0],
            "steps": self.steps,
            "settings": self.settings,
        } | self.notes


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
        **{k.replace("_", ".", 1): v for k, v in more.items()},
    }
    cost = 3 + steps * (2e-3 + depth * dim**2 * tokens * 6 * 12 / 1.5e14)
    return Job(sweep, "write", steps, settings, evaluations=evaluations, cost=cost)


RATES = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)


def widths(optimizer: str, factor: float = 1.0) -> Iterator[Job]:
    """Does the best learning rate stay where it is when the model becomes wider?"""
    for dim in (64, 128, 256, 512):
        for lr in RATES:
            yield write(f"width-{optimizer}", dim, lr=lr * factor, train_optimizer=optimizer)


def depths() -> Iterator[Job]:
    for depth in (2, 8, 16):
        for lr in RATES[1:]:
            yield write("depth", depth=depth, lr=lr)


def batches() -> Iterator[Job]:
    """The same 4 M characters in fewer, larger steps."""
    for tokens in (1024, 2048, 4096, 16384):
        for lr in (*RATES[1:], 32e-3):
            if tokens != 4096 or lr == 32e-3:
                yield write("batch", tokens=tokens, steps=4096 * 1000 // tokens, lr=lr)


def lengths() -> Iterator[Job]:
    """Longer and shorter runs of one size."""
    for steps in (250, 4000):
        for lr in (*RATES[1:], 32e-3):
            yield write("steps", steps=steps, lr=lr)


def warmups() -> Iterator[Job]:
    for steps in (250, 1000, 4000):
        for share in (0.0, 0.02, 0.1, 0.25):
            yield write("warmup", steps=steps, lr=8e-3, train_warmup=round(share * steps))


def schedules() -> Iterator[Job]:
    for steps in (250, 1000, 4000):
        for schedule in ("linear", "cosine", "wsd"):
            for lr in (4e-3, 8e-3):
                yield write("schedule", steps=steps, lr=lr, train_schedule=schedule)


def regularisers() -> Iterator[Job]:
    """Dropout and weight decay by the number of passes over the data, at three sizes."""
    for dim, depth in ((128, 4), (256, 6), (384, 6)):
        for steps in (250, 1000, 4000):  # of 8,192 characters: 2, 8 and 33 passes
            for dropout in (0.0, 0.15, 0.3):
                for decay in (0.1, 1.0):
                    yield write(
                        "regularise",
                        dim,
                        depth,
                        context=256,
                        tokens=8192,
                        steps=steps,
                        evaluations=8,
                        train_schedule="wsd",
                        model_dropout=dropout,
                        train_weight_decay=decay,
                    )


def translate(
    sweep: str,
    dim: int = 128,
    steps: int = 1000,
    lr: float = 3e-3,
    tokens: int = 2048,
    score: bool = False,
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
        **{k.replace("_", ".", 1): v for k, v in more.items()},
    }
    cost = 8 + steps * (5e-3 + dim**2 * 60 * tokens * 6 / 1e14) + 10 * score
    return Job(
        sweep,
        "translate",
        steps,
        settings,
        PAIRS,
        PAIRS_VALID,
        PAIRS_VALID if score else (),
        evaluations,
        cost,
    )


def translate_widths() -> Iterator[Job]:
    for dim in (64, 128, 256):
        for lr in (1.5e-3, 3e-3, 6e-3, 12e-3):
            yield translate("translate-width", dim, lr=lr)


def translate_regularisers() -> Iterator[Job]:
    """2,048 tokens a step: 1,000 steps are 4 passes over the 29,000 pairs."""
    for dim in (128, 256):
        for steps in (500, 2000, 5000):
            for dropout in (0.0, 0.15, 0.3):
                for decay in (0.1, 1.0):
                    yield translate(
                        "translate-regularise",
                        dim,
                        steps,
                        model_dropout=dropout,
                        train_weight_decay=decay,
                        evaluations=6,
                    )


WIKI = "wikitext2/train.txt.gz"
WIKI_VALID = ("wikitext2/valid.txt.gz",)


def other(job: Job, recipe: str, data: tuple[str, ...], valid: tuple[str, ...], cost: float = 0.0) -> Job:
    return replace(job, recipe=recipe, data=data, valid=valid, cost=job.cost + cost)


def vocabularies() -> Iterator[Job]:
    """Pieces of words or characters: 1 MB and 11 MB of text, by bits per byte."""
    for steps in (100, 400, 1600):
        for vocab in (0, 512, 2000, 8000):
            kind = {"data_tokenizer": "bpe", "data_vocab": vocab} if vocab else {}
            dropout = {100: 0.0, 400: 0.1, 1600: 0.3}[steps]
            more = {"model_dropout": dropout, "train_weight_decay": 1.0, "train_schedule": "wsd"} | kind
            yield write("vocabulary", 256, 6, context=256, tokens=8192, steps=steps, **more)
    for steps in (200, 800, 2400):
        for vocab in (1000, 4000, 16000, 32000):
            dropout = {200: 0.0, 800: 0.1, 2400: 0.2}[steps]
            job = write(
                "vocabulary",
                256,
                6,
                context=256,
                tokens=16384,
                steps=steps,
                data_tokenizer="bpe",
                data_vocab=vocab,
                model_dropout=dropout,
                train_weight_decay=1.0,
                train_schedule="wsd",
            )
            yield other(job, "write", (WIKI,), WIKI_VALID, 10)


def fills() -> Iterator[Job]:
    """Norms before or after the layers, at three sizes, and their learning rates."""
    for dim in (128, 256, 512):
        for pre in (True, False):
            for lr in (1e-3, 2e-3, 4e-3, 8e-3):
                job = write(
                    "fill",
                    dim,
                    4,
                    context=128,
                    tokens=16384,
                    steps=600,
                    lr=lr,
                    data_tokenizer="wordpiece",
                    data_vocab=8000,
                    model_pre=pre,
                    task_next=False,
                )
                yield other(job, "fill", (WIKI,), WIKI_VALID, 10)


def classify(**more: Any) -> Job:
    settings = {"dim": 128, "depth": 2, "steps": 1000, "lr": 1e-3, "train_optimizer": "adamw"}
    settings |= {"train_weight_decay": 0.01, "model_dropout": 0.3, "task_mean": True, "evaluations": 8} | more
    job = write("classify", **settings)
    del job.settings["train.batch"]
    job.settings["train.tokens"] = 4096
    return other(job, "classify", ("sst2/train.tsv.gz",), ("sst2/dev.tsv.gz",), 8)


def classifiers() -> Iterator[Job]:
    """A BERT from scratch on 67,349 phrases."""
    for steps in (300, 1000, 3000):
        for dropout in (0.1, 0.3, 0.5):
            yield classify(steps=steps, model_dropout=dropout)
    yield classify(task_mean=False)
    yield classify(task_mean=False, model_pre=True)
    yield classify(model_pre=True)
    for dim in (64, 256, 512):
        yield classify(dim=dim)
    for depth in (1, 4):
        yield classify(depth=depth)
    for lr in (5e-4, 2e-3, 4e-3):
        yield classify(lr=lr)
    for lr in (1e-3, 3e-3):
        yield classify(lr=lr, train_optimizer="muon", train_weight_decay=1.0)
    for vocab in (2000, 16000):
        yield classify(data_vocab=vocab)
    yield classify(task_smoothing=0.1)


FASHION = ("fashion-mnist/train-images-idx3-ubyte.gz",)
DIALOGS = ("dailydialog/train.tsv.gz",)


def see(
    dim: int = 192,
    depth: int = 6,
    patch: int = 4,
    steps: int = 1000,
    batch: int = 512,
    lr: float = 3e-3,
    mix: float = 0.0,
    erase: float = 0.25,
    sweep: str = "see",
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
        "task.erase": erase,
        "task.mixup": 0.2 * mix,
        "task.cutmix": mix,
        "task.smoothing": 0.1 if mix else 0.0,
        "data.holdout": 0.05,
        **{k.replace("_", ".", 1): v for k, v in more.items()},
    }
    cost = 5 + steps * (4e-3 + depth * dim**2 * batch * (28 // patch) ** 2 * 48 / 1.5e14)
    return Job(sweep, "see", steps, settings, FASHION, evaluations=6, cost=cost)


def sights() -> Iterator[Job]:
    """59,000 pictures of 28 pixels: patch, size, blending, by passes (batch 512: 110 steps a pass)."""
    for patch in (2, 4, 7):
        for steps in (300, 1200):
            yield see(patch=patch, steps=steps)
    for dim, depth in ((64, 4), (128, 4), (256, 8), (384, 8)):
        for steps in (300, 1200):
            yield see(dim, depth, steps=steps)
    for steps in (300, 1200, 4000):
        for mix in (0.0, 1.0):
            yield see(steps=steps, mix=mix, model_skip=0.1)
    for lr in (1e-3, 6e-3, 12e-3):
        yield see(lr=lr)
    for batch in (64, 128):
        for lr in (1.5e-3, 3e-3, 6e-3):
            yield see(batch=batch, lr=lr, steps=512 * 600 // batch, sweep="see-batch")
    for decay in (0.3, 1.0):
        yield see(train_weight_decay=decay)


def chats() -> Iterator[Job]:
    """76,052 pairs of turns; three turns are read."""
    for dim, steps, dropout in (
        (128, 1000, 0.1),
        (256, 1000, 0.1),
        (384, 1000, 0.1),
        (256, 1000, 0.0),
        (256, 1000, 0.3),
        (256, 3000, 0.1),
        (256, 3000, 0.2),
        (256, 3000, 0.3),
        (384, 3000, 0.3),
        (512, 2000, 0.3),
    ):
        decays = (0.1, 1.0) if steps == 3000 and dim == 256 else (1.0,)
        for decay in decays:
            job = translate(
                "chat",
                dim,
                steps,
                tokens=8192,
                model_dropout=dropout,
                train_weight_decay=decay,
                data_vocab=8192,
                data_ratio=0,
                task_turns=3,
                train_warmup=steps // 15,
                model_positions="rotary",
                model_norm="rms",
                model_ffn="swiglu",
                model_bias=False,
                model_depth=4,
                train_optimizer="muon",
                data_tokenizer="bpe",
                train_beta2=0.99,
            )
            yield other(job, "chat", DIALOGS, ("dailydialog/valid.tsv.gz",), 15)


def small_pairs() -> Iterator[Job]:
    """Few pairs: size and dropout, by BLEU on the validation set."""
    for count, steps in ((300, 400), (3000, 1000), (10000, 2000)):
        for dim in (64, 128, 256):
            for dropout in (0.1, 0.3, 0.5):
                vocab = {300: 1000, 3000: 2000, 10000: 4000}[count]
                job = translate(
                    "pairs", dim, steps, model_dropout=dropout, data_vocab=vocab, score=True, evaluations=8
                )
                yield replace(job, data=tuple(f"{name}#{count}" for name in PAIRS))


# The second series: 16,384 tokens a step, because a GPU does such steps as quickly as small ones


def short_runs() -> Iterator[Job]:
    """250 steps are 4 passes over Shakespeare's characters, 1,000 are 16."""
    for dim in (128, 256, 512):
        for lr in (1e-3, 2e-3, 4e-3, 8e-3):
            yield write("adamw", dim, tokens=16384, steps=250, lr=lr, train_optimizer="adamw")
    for depth in (2, 8, 16):
        for lr in (4e-3, 8e-3, 16e-3):
            yield write("depth", depth=depth, tokens=16384, steps=250, lr=lr)
    for steps in (60, 250, 1000):
        for schedule in ("linear", "cosine", "wsd"):
            yield write("schedule", 256, tokens=16384, steps=steps, lr=8e-3, train_schedule=schedule, model_dropout=0.1, train_weight_decay=1.0)
        for share in (0.0, 0.02, 0.15, 0.3) if steps < 1000 else (0.02, 0.15):
            yield write("warmup", 256, tokens=16384, steps=steps, lr=8e-3, train_warmup=round(share * steps), model_dropout=0.1, train_weight_decay=1.0)


def sizes() -> Iterator[Job]:
    """Loss by size and passes, with and without dropout; weight decay 1."""
    for dim, depth in ((128, 4), (256, 5), (512, 8)):
        for steps in (125, 500, 1200):  # 2, 8 and 20 passes
            for dropout in (0.0, 0.1, 0.25):
                if dropout == 0 or (steps > 125 and dropout < 0.2) or steps > 500:
                    yield write("size", dim, depth, context=256, tokens=16384, steps=steps, lr=6e-3, model_dropout=dropout, train_weight_decay=1.0, train_schedule="wsd", evaluations=8)
    for decay in (0.1, 0.3, 3.0):
        for steps in (500,):
            yield write("decay", 256, 5, context=256, tokens=16384, steps=steps, lr=6e-3, model_dropout=0.1, train_weight_decay=decay, train_schedule="wsd", evaluations=8)


def wiki() -> Iterator[Job]:
    for vocab, dim, depth, dropout, steps in (
        (2000, 256, 5, 0.0, 200), (8000, 256, 5, 0.0, 200), (16000, 256, 5, 0.0, 200),
        (2000, 256, 5, 0.1, 800), (8000, 256, 5, 0.1, 800), (16000, 256, 5, 0.1, 800),
        (8000, 512, 8, 0.2, 800), (8000, 512, 8, 0.3, 1500),
    ):
        job = write("wiki", dim, depth, context=256, tokens=16384, steps=steps, lr=4e-3, data_tokenizer="bpe", data_vocab=vocab, model_dropout=dropout, train_weight_decay=1.0, train_schedule="wsd", evaluations=8)
        yield other(job, "write", (WIKI,), WIKI_VALID, 10)


def fills2() -> Iterator[Job]:
    for dim in (128, 512):
        for pre in (True, False):
            for lr in (2e-3, 4e-3, 8e-3):
                job = write("fill", dim, 4, context=128, tokens=16384, steps=300, lr=lr, data_tokenizer="wordpiece", data_vocab=8000, model_pre=pre, model_dropout=0.1, task_next=False)
                yield other(job, "fill", (WIKI,), WIKI_VALID, 10)


def classifiers2() -> Iterator[Job]:
    for dropout in (0.1, 0.3, 0.5):
        yield classify(steps=400, model_dropout=dropout)
    yield classify(steps=400, task_mean=False)
    yield classify(steps=400, dim=64)
    yield classify(steps=400, dim=256)
    yield classify(steps=400, depth=1)
    yield classify(steps=400, depth=1, dim=256, model_dropout=0.5)
    yield classify(steps=400, lr=3e-3)
    yield classify(steps=400, lr=3e-4)
    yield classify(steps=400, lr=3e-3, train_optimizer="muon", train_weight_decay=1.0)
    yield classify(steps=400, model_pre=True, lr=2e-3, train_optimizer="muon", train_weight_decay=0.1)
    yield classify(steps=400, data_vocab=16000)
    yield classify(steps=400, task_smoothing=0.1)
    yield classify(steps=1200, model_dropout=0.5)
    yield classify(steps=200, lr=2e-3)


def sights2() -> Iterator[Job]:
    for patch in (2, 4, 7):
        yield see(patch=patch, steps=300)
    for dim, depth in ((128, 4), (256, 8)):
        yield see(dim, depth, steps=300)
    for mix in (0.0, 1.0):
        yield see(steps=1200, mix=mix, model_skip=0.1)
    for lr in (1.5e-3, 6e-3, 12e-3):
        yield see(lr=lr, steps=300)
    yield see(steps=300, train_weight_decay=0.5)
    yield see(batch=128, steps=1200, lr=3e-3)


def chats2() -> Iterator[Job]:
    for job in chats():
        dim, steps, dropout, decay = (job.settings[k] for k in ("model.dim", "train.warmup", "model.dropout", "train.weight_decay"))
        if (dim, job.steps, dropout, decay) in ((256, 1000, 0.1, 1.0), (384, 1000, 0.1, 1.0)):
            yield job


def small_pairs2() -> Iterator[Job]:
    for job in small_pairs():
        count = job.data[0].partition("#")[2]
        if job.settings["model.dim"] in (128, 256) and job.settings["model.dropout"] in (0.1, 0.3) and not (count == "300" and job.settings["model.dim"] == 256):
            yield replace(job, steps=min(1000, job.steps * 3 // 4))


SWEEPS: dict[str, list[Job]] = {
    "test": [
        write("test", 32, 1, steps=20, tokens=1024),
        translate("test", 32, steps=20, score=True, model_depth=1),
    ],
    "width-muon": list(widths("muon")),
    "width-adamw": list(widths("adamw", 0.5)),
    "depth": list(depths()),
    "batch": list(batches()),
    "steps": list(lengths()),
    "warmup": list(warmups()),
    "schedule": list(schedules()),
    "regularise": list(regularisers()),
    "translate-width": list(translate_widths()),
    "translate-regularise": list(translate_regularisers()),
    "vocabulary": list(vocabularies()),
    "fill": list(fills()),
    "classify": list(classifiers()),
    "short": list(short_runs()),
    "size": list(sizes()),
    "wiki": list(wiki()),
    "fill2": list(fills2()),
    "classify2": list(classifiers2()),
    "see2": list(sights2()),
    "chat2": list(chats2()),
    "pairs2": list(small_pairs2()),
    "see": list(sights()),
    "chat": list(chats()),
    "pairs": list(small_pairs()),
}
