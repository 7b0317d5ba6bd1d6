"""The rules: settings for the data, the machine and the time. Every rule is a few lines, with its source.

All rules are pure functions, so that tests can table them and docs/plan.md can draw them. "Measured" means
docs/results.md or docs/plan.md. Weights are those of the blocks, without embeddings. A unit is the
task's measure of data: tokens of texts, pictures, recordings.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from regard.core.recurrent import CELLS
from regard.training.plan.facts import Facts, Side

DEFAULT_MINUTES = 5.0
LARGER = 4.0  # times the best batch, which costs about 2 % of the loss (docs/plan.md)
MANY, FASTEST = 600, 8.0  # steps; in fewer, Muon's rate is up to FASTEST times as high


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Values that are known to work for a task. A pair of numbers is for a CPU and for a GPU."""

    # Size
    dim: int = 128  # the narrowest model, unless the time is too short for it
    weights_per_unit: float = 12  # the largest number of weights for each unit of data
    units_per_weight: float = 2  # units that each weight must read, or the model is too large for the time
    # Steps
    batch: tuple[float, float] = (0.8, 1.6)  # units of a step, in square roots of all units that are read
    passes: float = 30  # over the data, at most
    repeats: float = 0.0  # below a million units, more passes: (1e6 / units) ** repeats times as many
    steps: int = 600  # at least, if there is time
    # The learning rate at a width up to `known`; above it falls with (known / dim) ** falls
    optimizer: str = "muon"
    lr: float = 3e-3
    known: int = 384
    falls: float = 0.5
    rises: float = 0.0  # with (units of a step / 4,096) ** rises
    beta2: float = 0.99
    schedule: str = "linear"
    # Against memorising: at one pass, and at many
    weight_decay: tuple[float, float] = (0.1, 0.1)
    dropout: tuple[float, float] = (0.1, 0.1)
    smoothing: float | None = None  # label smoothing; None: the task's default
    ema: float | None = None  # moving average of the weights, in which this share of the steps counts half


# The sources of each task's numbers. write: Shakespeare, tiny on a CPU (1.57) and mini on a GPU (1.41).
# translate: Multi30k, 4 + 4 layers, dim 256 (40.7). chat: DailyDialog (33.8). fill: reviews and WikiText-2,
# 5,300 steps (52 %). see: Fashion-MNIST (94.7; CPU 90.9). caption: Flickr8k (22.1). The others: their
# built-in sets.
ADVICE: dict[str, Advice] = {
    "write": Advice(
        lr=4e-3, rises=0.3, falls=0, passes=20, steps=600, batch=(1, 3), weight_decay=(0.1, 1),
        dropout=(0, 0.25), ema=0.05,
    ),
    "translate": Advice(
        weights_per_unit=20, passes=45, steps=3000, batch=(0.9, 0.9), weight_decay=(1, 1), dropout=(0, 0.3),
        smoothing=0.1, falls=0, ema=0.05,
    ),
    "chat": Advice(
        lr=2e-3, weights_per_unit=20, passes=20, steps=1000, batch=(1, 1.6), weight_decay=(1, 1),
        dropout=(0, 0.3), smoothing=0.1, ema=0.05,
    ),
    "converse": Advice(optimizer="adamw", passes=3, falls=1.0),
    "fill": Advice(
        lr=3e-3, steps=3000, passes=80, batch=(0.8, 2.5), units_per_weight=8, known=512, dropout=(0.1, 0.1)
    ),
    "restore": Advice(lr=3e-3, steps=3000, passes=40, batch=(0.8, 2.5), units_per_weight=8, known=512),
    "classify": Advice(
        lr=2e-3, known=128, passes=1.6, repeats=0.5, steps=400, batch=(2.5, 3), weights_per_unit=0.6,
        weight_decay=(0.1, 1), dropout=(0.3, 0.3),
    ),
    "tag": Advice(optimizer="adamw", lr=5e-4, weight_decay=(0.01, 0.01), dropout=(0.1, 0.3), known=512),
    "span": Advice(optimizer="adamw", lr=5e-4, weight_decay=(0.01, 0.01), dropout=(0.1, 0.3), known=512),
    "embed": Advice(optimizer="adamw", lr=5e-4, weight_decay=(0.01, 0.01), dropout=(0.1, 0.1), known=512),
    "see": Advice(
        lr=6e-3, known=128, falls=1.0, steps=600, passes=250, batch=(0.14, 0.24), units_per_weight=0.5,
        weights_per_unit=70, weight_decay=(0.05, 0.05), dropout=(0, 0), ema=0.05,
    ),
    "hear": Advice(
        lr=6e-3, known=128, falls=1.0, steps=300, passes=100, batch=(0.3, 0.5), units_per_weight=0.05,
        weights_per_unit=1000, weight_decay=(0.05, 0.05), dropout=(0.1, 0.1),
    ),
    "caption": Advice(
        optimizer="adamw", dim=64, lr=2e-3, known=64, falls=0.75, steps=1500, batch=(0.1, 0.07),
        weights_per_unit=500, units_per_weight=0.02, weight_decay=(0.01, 0.05), dropout=(0.1, 0.3),
    ),
    "words": Advice(
        optimizer="adamw", lr=5e-2, passes=5, steps=1000, batch=(5, 5), weight_decay=(0.2, 0.2), falls=0
    ),
}  # fmt: skip

# Recurrent models have no blocks for Muon, and use the settings of docs/results.md for Multi30k.
RECURRENT_KINDS = (*CELLS, "recurrent", "elmo")
RECURRENT = {"optimizer": "adamw", "lr": 2e-3, "known": 256, "falls": 1.0, "weight_decay": (0.1, 0.1)}


def advice_for(task: str, kind: str) -> Advice:
    return replace(ADVICE[task], **RECURRENT) if kind in RECURRENT_KINDS else ADVICE[task]  # type: ignore[arg-type]


# Tokenizers


def choose_tokenizer(task: str, facts: Facts) -> dict[str, Any]:
    """The kind of tokenizer and its vocabulary, as settings of [data].

    Characters if there is too little text to learn words from (nanoGPT: Shakespeare, 1.1 MB), and of pairs of
    single words, as words and their pronunciations (Yolchuyeva et al. 2019), or of single words that have a
    class (4,500 names: 95 %; with word pieces, 36 %).
    A side of few different words that are often repeated, such as phonemes, is read word by word.
    """
    if task == "words":
        return {"tokenizer": "word"}
    if task in ("see", "hear") or facts.vocab:  # pictures; or a text that was prepared
        return {}
    if task == "write":
        if facts.characters < 4_000_000 and facts.source.alphabet < 1000:
            return {"tokenizer": "char"}
        return {"tokenizer": "bpe", "vocab": choose_vocab(facts.characters, True)}
    if task == "translate":
        source, target = (symbols(side, facts.rows) for side in (facts.source, facts.target))
        if source and target:
            return {"tokenizer": source} | ({"target_tokenizer": target} if source != target else {})
        return {"tokenizer": "bpe", "vocab": choose_vocab(facts.characters)}
    if task == "classify" and symbols(facts.source, facts.rows) == "char":
        return {"tokenizer": "char"}
    if task == "chat":
        vocab = choose_vocab(facts.characters)
        return {"tokenizer": "wordpiece", "target_tokenizer": "bpe", "vocab": vocab}
    kind = "bpe" if task == "restore" else "wordpiece"
    least = {"fill": 1000, "restore": 1000, "caption": 4000}.get(task, 8000)  # labels need no output
    return {"tokenizer": kind, "vocab": max(least, choose_vocab(facts.characters))}


def symbols(side: Side, rows: int) -> str | None:
    """The tokenizer for a side that is not running text: one of few symbols, or single words."""
    if side.vocabulary <= 500 and side.words >= 20 * side.vocabulary and side.words / max(1, rows) > 1.5:
        return "word"
    return "char" if side.words / max(1, rows) < 1.5 and side.alphabet < 1000 else None


def choose_vocab(characters: int, running: bool = False) -> int:
    """The vocabulary of word pieces, by the size of the text, and whether it is running text to continue.

    Measured: 4,000 for Multi30k (4 M characters; 2,000 and 8,192 are worse), 16,000 for reviews and
    WikiText-2 (44 M) for masked words. Interpolated by a power; small ones for little text, Sennrich & Zhang
    2019. Running text, WikiText-2 (11 M): 16,000 before 8,000 and 2,000 in 1.3 and in 5 passes.
    """
    size = 16000 * (characters / 11e6) ** 0.5 if running else 4000 * (max(1, characters) / 4e6) ** 0.6
    return int(min(32_000, max(1000, round(size, -3))))


def tokens_of(side: Side, kind: str, vocab: int) -> float:
    """The approximate number of tokens of a side's texts. Measured on English: 3.7 characters for each of
    4,000 word pieces, 4.5 for each of 16,000; a word and its space at most."""
    if kind in ("char", "byte"):
        return side.characters
    if kind == "word":
        return side.words
    word = side.characters / max(1, side.words)
    learnt = min(vocab, max(256, side.vocabulary))  # a small text has no more pieces than words
    each = min(word, 0.576 * math.log(learnt) - 1.07) if vocab < 4 * side.vocabulary else word
    return side.characters / max(1.0, each)


def choose_context(task: str, longest: float, dim: int, gpu: bool) -> int:
    """Tokens that a model reads at once; `longest` is that of nearly all texts.

    Running text: 256 characters on a GPU for Shakespeare (nanoGPT), and 128 on a laptop: 1.478 at dim 128 in
    4 M characters, against 1.573 with 64 in 1.5 M. 128 for masked words
    (Devlin et al. 2019 train on that for 90 % of the steps). Rows: nearly all of them whole.
    """
    if task == "write":
        return 64 if dim < 128 and not gpu else 128 if dim < 256 and not gpu else 256 if dim <= 512 else 512
    if task in ("fill", "restore"):
        return 128
    return min(512, max(128, 32 * math.ceil((longest + 3) / 32)))  # short ones cost no more: batches are cut


# Size


@dataclass(frozen=True)
class Size:
    """A rung of the ladder: one more is about twice the work."""

    dim: int
    depth: int
    heads: int
    hidden: int | None = None
    decoder_depth: int | None = None

    def weights(self, kind: str) -> float:
        """Approximate weights of the blocks: attention 4 dim², the feed-forward 8 dim² or 3 dim hidden."""
        feed = 8 * self.dim if self.hidden is None else (3 if kind == "transformer" else 2) * self.hidden
        layer = self.dim * (4 * self.dim + feed)
        if kind not in ("transformer", "t5", "captioner"):
            return self.depth * layer
        return self.depth * layer + (self.decoder_depth or self.depth) * (layer + 4 * self.dim**2)


def ladder(kind: str) -> list[Size]:
    """Sizes of a family, smallest first. Depth grows with width, as in its published and measured sizes."""
    depths = {
        "gpt": {64: 3, 96: 4, 128: 4, 192: 4, 256: 5, 320: 6, 384: 6, 512: 8, 640: 10, 768: 12, 1024: 16},
        "bert": {64: 2, 96: 2, 128: 2, 192: 3, 256: 4, 384: 4, 512: 4, 640: 8, 768: 12, 1024: 24},
        "transformer": {64: 2, 96: 3, 128: 4, 192: 4, 256: 4, 320: 4, 384: 4, 512: 6, 768: 6, 1024: 6},
        "vit": {64: 3, 96: 4, 128: 4, 192: 6, 256: 7, 320: 8, 384: 12, 512: 12, 768: 12},
        "captioner": {64: 1, 128: 1, 192: 1, 256: 2, 384: 2, 512: 2},
    }  # fmt: skip
    depths["t5"] = depths["transformer"]
    double = kind in ("transformer", "vit")  # measured on Multi30k and Fashion-MNIST: hidden = 2 dim
    return [
        Size(
            dim,
            depth,
            max(2, dim // (32 if dim <= 128 and kind != "bert" else 64)),
            2 * dim if double and dim > 128 else None,
            min(3, depth + 1) if kind == "captioner" and dim >= 256 else None,
        )
        for dim, depth in depths.get(kind, {}).items()
    ]


def too_large_for(advice: Advice, weights: float, units: float, readable: float) -> str:
    """What a model is too large for, the data or the time, if it reads `readable` units; nothing if it fits.

    With strong regularisation, models far larger than Hoffmann et al. 2022 advise win on repeated data (Kim
    et al. 2025; measured: 10 M weights for 1 M characters). How long a weight must be trained is measured.
    """
    if weights > advice.weights_per_unit * units:
        return "the data"
    return "the time" if weights * advice.units_per_weight > readable else ""


# Steps


def choose_batch(advice: Advice, units: float, row: float, gpu: bool, free: float = 0.0) -> int:
    """Units of a step, by the units that are read: the critical batch grows with their square root (Zhang et
    al. 2025), and a gradient needs eight rows at least. A GPU takes larger ones in the same time, and so does
    a CPU if the model is tiny: `free` units take as long as the rest of a step, such as Muon's update. With
    1 + c / batch as many steps (McCandlish et al. 2018) of 1 + batch / free, √(c free) is best; c: half."""
    batch = max(8 * row, advice.batch[gpu] * math.sqrt(units))
    return round_power(max(batch, min(math.sqrt(batch / 2 * free), LARGER * batch)))


def choose_passes(advice: Advice, units: float, readable: float) -> float:
    """Passes over the data in the time, up to the number after which a model memorises.

    Muennighoff et al. 2023: four are as good as new data, and after about 16 little is left to learn;
    dropout, weight decay and augmentation allow more."""
    limit = advice.passes * min(10.0, max(1.0, 1e6 / max(1.0, units)) ** advice.repeats)
    return min(limit, readable / max(1.0, units))


def choose_warmup(steps: int) -> int:
    """Good values, measured: 50 of 600 steps, 300 of 5,300, 400 of 6,000 and of 9,000."""
    return min(400, max(min(20, steps // 4), round(0.07 * steps)))


def choose_lr(advice: Advice, dim: int, batch: float, steps: float = math.inf) -> float:
    """Muon's steps have the same size in every shape (Liu et al. 2025), so that one rate suits many widths:
    measured, 0.004 is within 1.3 % of the best loss from dim 64 to 512. That of AdamW falls with the width
    (Yang et al. 2022). Large batches need more: 0.004 for 4,096 characters, 0.006 - 0.008 for 16,384.
    So do Muon's short runs, whose weights move no further than rate times steps: 0.016 before 0.008 in 97."""
    lr = advice.lr * min(1.0, advice.known / dim) ** advice.falls
    lr *= min(2.0, max(1.0, (batch / 4096) ** advice.rises))
    if advice.optimizer == "muon":
        lr *= min(FASTEST, max(1.0, MANY / steps))
    return float(f"{lr:.2g}")


def choose_schedule(task: str, pressure: float) -> str:
    """Measured on Shakespeare: linear is best for a small model in one or two passes (1.574 against 1.604), a
    constant rate with a linear end (wsd) for a large one in ten, with strong weight decay (1.413, 1.426)."""
    return "wsd" if task == "write" and pressure > 0.1 else "linear"


# Against memorising


def pressure_to_memorise(passes: float, weights_per_unit: float) -> float:
    """From 0 to 1, on scales of doublings: 0 up to four passes (Muennighoff et al. 2023), and for a model
    with half a weight for each unit of data; 1 from 32 passes and eight weights on. Measured on Shakespeare
    in 33 passes: 0.7 weights for each character don't memorise, 10 rise from 1.50 to 2.81."""
    often = min(1.0, max(0.0, math.log2(max(1.0, passes) / 4) / 3))
    large = min(1.0, max(0.0, (math.log2(max(1e-6, weights_per_unit)) + 1) / 4))
    return often * large


def choose_dropout(advice: Advice, pressure: float, passes: float) -> float:
    """Shakespeare, 10 M weights: 0.1 at 10 passes, 0.3 at 33; none for 0.8 M. Multi30k: 0.3 at 40 passes.

    None in one pass, which can't be memorised (Geiping & Goldstein 2023), and all of it from four on."""
    few, many = advice.dropout
    repeated = min(1.0, max(0.0, math.log2(max(1.0, passes)) / 2))
    return round(20 * repeated * (few + (many - few) * pressure)) / 20


def choose_weight_decay(advice: Advice, pressure: float) -> float:
    """Grows where data are repeated (Kim et al. 2025). Shakespeare: 0.1 in one pass (0.5 is worse by 0.02), 1
    in ten passes of 10 M weights, which alone prevents memorising in 30."""
    few, many = advice.weight_decay
    return float(f"{few * (many / few) ** min(1.0, 2.5 * pressure):.2g}")


def choose_patience(passes: float) -> int | None:
    """Evaluations without improvement after which a run stops, if it may only memorise repeated data."""
    return 6 if passes > 4 else None


def count_evaluations(passes: float, share: float = 0.0) -> float:
    """Evaluations of a run: four to sixteen. One of a held-out tenth costs as much as a thirtieth of a pass,
    so that short runs have few: if one takes a `share` of the time, as many as take a tenth, or one."""
    limit = 0.1 / share if share else math.inf
    return max(1.0, min(16.0, max(4.0, 2 * passes), limit))


def choose_evaluation(steps: int, passes: float, share: float = 0.0) -> int:
    """Steps between evaluations."""
    return max(10, round_nice(steps / count_evaluations(passes, share)))


# Pictures


def choose_patch(size: int, gpu: bool, passes: float) -> int:
    """Pixels of a patch; `passes` is the number of passes with patches of a fourteenth of the size.

    Measured on Fashion-MNIST (28): 7 on a CPU, where 16 patches leave time for more passes. On a GPU 2
    before 4 where there is time (94.5 against 93.9 without blending, 7,000 steps). The default of 4 for the
    drawn shapes (32)."""
    across = (14 if passes > 200 else 8) if gpu or size % 7 else 4
    return next((p for p in range(max(1, size // across), size + 1) if size % p == 0), size)


MODERN = {"model.positions": "rotary", "model.norm": "rms", "model.ffn": "swiglu", "model.bias": False}


def other_settings(task: str, facts: Facts, passes: float, gpu: bool, tuned: bool = False) -> dict[str, Any]:
    """Settings that only some tasks have.

    Pictures: the more passes, the stronger the augmentation (Touvron et al. 2021); measured on
    Fashion-MNIST, 13 passes on a CPU and 77 on a GPU. Masked words: without next sentences (Liu et al. 2019;
    measured: 89.2 against 87.6 on SST-2), and norms before the layers, which train at any depth and batch
    (Xiong et al. 2020; measured: a loss of 4.83 against 5.12 at dim 512). Classes: the same norms, and the
    mean of all tokens (SST-2 from scratch: 82.1 against 81.1). Replies: the layers that translate best.
    Captions: the settings to fine-tune a pre-trained encoder, on Flickr8k.
    """
    flip = {"task.flip": True} if facts.mirrored else {}
    if task == "see" and passes > 30:
        mixing = {"mixup": 0.2, "cutmix": 1.0, "smoothing": 0.1, "erase": 0.25, "pad": 2}
        return {f"task.{name}": value for name, value in mixing.items()} | {"model.skip": 0.1} | flip
    if task == "see":
        return flip | ({"task.erase": 0.25, "task.pad": 1} if passes > 4 else {})
    if task == "classify":
        return {"task.mean": True, "model.pre": True}
    if task == "chat":
        return MODERN | ({"task.turns": facts.turns} if facts.turns > 1 else {})
    if task == "fill":
        return {"task.next": False, "model.pre": True}
    if task == "caption" and tuned:
        tune = {"train.lr": 4e-4, "train.layer_decay": 0.1} if gpu else {"train.freeze": 1, "train.lr": 1e-3}
        return {"task.flip": True, "task.area": 0.7, **tune}
    return {}


def choose_r_drop(task: str, passes: float, gpu: bool) -> float | None:
    """Pairs that are often repeated, on a GPU: steps take twice the time (38.9 against 37.7 BLEU)."""
    return 1.0 if task == "translate" and gpu and passes > 30 else None


def are_photographs(facts: Facts) -> bool:
    """Return whether an encoder that was pre-trained on photographs helps, and is installed."""
    return facts.has_encoder and facts.channels == 3 and facts.size >= 64


def choose_encoder(facts: Facts) -> dict[str, Any]:
    """The parts of a captioner. Flickr8k: a Transformer on EfficientNet at twice the size of 112."""
    if not are_photographs(facts):
        return {}
    return {"encoder": "efficientnet", "decoder": "transformer", "zoom": 2 if facts.size <= 128 else 1}


# Numbers


def round_power(value: float) -> int:
    """The nearest power of two."""
    return int(2 ** round(math.log2(value)))


def round_nice(value: float) -> int:
    """The nearest of 1, 2, 2.5, 5 times a power of ten."""
    value = max(1.0, value)
    power = 10 ** math.floor(math.log10(value))
    return int(min((n * power for n in (1, 2, 2.5, 5, 10)), key=lambda n: abs(math.log(n / value))))
