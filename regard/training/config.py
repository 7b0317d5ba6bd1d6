"""The settings of a training run."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from regard.training.trackers import Name

POSITIVE = (
    *("steps", "epochs", "minutes", "batch", "tokens", "micro", "lr", "lora_alpha"),
    *("evaluate", "save", "keep", "average", "patience", "log", "shard"),
)
WARMUP_SHARE = 0.25  # of a run, at most, unless train.warmup is set
NOT_NEGATIVE = ("warmup", "weight_decay", "clip", "freeze", "lora", "seed", "folds")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The [train] section of a recipe."""

    ALIASES: ClassVar[dict[str, str]] = {"tensorboard": "tracker"}
    FORMER_VALUES: ClassVar = {"tracker": {True: "tensorboard", False: "none"}}

    steps: int | None = None
    epochs: float | None = None  # passes over the data, from which the number of steps follows
    minutes: float | None = None
    batch: int = 12  # sequences per step, over all processes
    tokens: int | None = None  # per step, padding included, instead of a number of sequences
    # Sequences per forward pass (gradient accumulation): less memory. The gradient is that of the batch, up
    # to rounding; but dropout and stochastic depth draw other masks, as with another seed.
    micro: int | None = None
    recompute: bool = False  # compute the blocks twice instead of keeping what they computed: less memory
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-3
    warmup: int = 100  # steps; fewer in a short run, see WARMUP_SHARE
    schedule: Literal["noam", "cosine", "linear", "wsd"] = "cosine"
    weight_decay: float = 0.1
    beta2: float = 0.99
    clip: float = 1.0
    layer_decay: float = 1.0  # learning rate of a layer, relative to the layer above it
    freeze: int = 0  # number of blocks that are not trained, together with the embeddings below them
    lora: int = 0  # rank of the low-rank updates that are trained instead of the blocks; 0: off
    lora_alpha: float = 16.0  # the updates are scaled by lora_alpha / lora
    adapter: bool = False  # train only the low-rank updates, and keep them in a separate file
    seed: int = 1337
    evaluate: int = 250  # steps between evaluations
    save: int = 250  # steps between checkpoints
    keep: int = 2  # how many checkpoints to keep
    ema: float = 0.0  # also try the average of the weights, in which this share of the steps counts half
    average: int = 1  # at the end, try the average of this many checkpoints as the model
    patience: int | None = None  # stop early after this many evaluations without improvement
    guard: bool = True  # go back with a lower rate if training fails; stop if it only memorises
    folds: int = 0  # cross-validate up to `steps` on this many parts of the data, then train on all; 0: off
    log: int = 10  # steps between rows of the log
    tracker: Name = "none"  # a tracker that also gets the log
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    # What each of several processes has of the weights: all (ddp), a share (fsdp); or a share in a group of
    # `shard` processes that has all (hybrid).
    parallel: Literal["ddp", "fsdp", "hybrid"] = "ddp"
    shard: int | None = None  # processes of such a group (default: those of a machine)

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ValueError("give train.steps, train.epochs or train.minutes")
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be more than 0")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.folds and (self.folds < 2 or self.steps is None):
            raise ValueError(f"folds={self.folds} must be 2 or more, with train.steps as the most to try")
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"beta2={self.beta2} must be from 0 to less than 1")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema={self.ema} must be a share of the steps, from 0 to less than 1")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay={self.layer_decay} must be more than 0 and at most 1")


def limit_warmup(config: TrainConfig) -> TrainConfig:
    """Return the settings with a warm-up that leaves enough steps after it."""
    steps = config.steps
    return replace(config, warmup=min(config.warmup, int(steps * WARMUP_SHARE))) if steps else config
