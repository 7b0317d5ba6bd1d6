"""Tiny models with weights so large that their attention is not uniform."""

from typing import Any

import torch
from torch import Tensor

from regard.models import MODELS, Captioner, CaptionerConfig, ViT, ViTConfig
from regard.runs.model import Model
from regard.tasks import TASKS, Caption, CaptionConfig, Hear, HearConfig, See, SeeConfig
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import train_tokenizer

CONTEXT = 23
TEXT = "the quick brown fox jumps over the lazy dog and der Fuchs springt über den Hund"
SIZES = {"context": CONTEXT, "dim": 12, "dropout": 0.0}
DEEP = SIZES | {"depth": 2, "heads": 3}
GREEDY = {"max_new_tokens": 7, "temperature": 0.0}


def words(cls: Any) -> Tokenizer:
    return train_tokenizer("word", [TEXT], 211, cls.specials)


def shaken(module: Any) -> Any:
    torch.manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.4 * torch.randn_like(p))
    return module.eval()


def spelled(task: str = "write", kind: str = "gpt", **settings: Any) -> Model:
    """Return a model that reads sub-words, by default a GPT; settings are those of its task."""
    cls, config = TASKS[task]
    tokenizer, task_config = train_tokenizer("bpe", [TEXT], 280, cls.specials), config(name=task, **settings)
    torch.manual_seed(0)
    module, model_config, _ = MODELS[kind]
    model = cls.add_head(module(model_config(vocab=tokenizer.vocab, **DEEP | {"context": 64})), task_config)
    return Model(shaken(model), cls(task_config, tokenizer, 64), GREEDY if cls.generation else {})


def reader(task: str, kind: str, **settings: Any) -> Model:
    """Return a model of texts; settings with `task_` are those of its task."""
    cls, config = TASKS[task]
    own = {k.removeprefix("task_"): settings.pop(k) for k in list(settings) if k.startswith("task_")}
    tokenizer, task_config = words(cls), config(name=task, **own)
    module, model_config, _ = MODELS[kind]
    sizes = DEEP if kind in ("gpt", "bert", "transformer", "t5") else {} if kind == "words" else SIZES
    model = cls.add_head(module(model_config(vocab=tokenizer.vocab, **sizes | settings)), task_config)
    return Model(shaken(model), cls(task_config, tokenizer, CONTEXT), GREEDY if cls.generation else {})


def seer(pool: str = "first", **settings: Any) -> Model:
    """Pictures of 6 x 6 pixels, in patches of 2."""
    labels = ("cat", "dog", "fox")
    config = SeeConfig(name="see", size=6, channels=3, mean=(0.4,) * 3, std=(0.3,) * 3, labels=labels)
    vit = ViT(ViTConfig(size=6, channels=3, patch=2, dim=12, depth=3, heads=2, pool=pool, **settings))  # type: ignore[arg-type]
    return Model(shaken(See.add_head(vit, config)), See(config, None, vit.config.context), {}, kind="vit")


def hearer(pool: str = "first", **settings: Any) -> Model:
    """Spectrograms of 5 bands and up to 24 frames, in patches of 4."""
    labels = ("yes", "no", "stop")
    config = HearConfig(name="hear", seconds=0.24, mels=5, mean=(0.4,), std=(0.3,), labels=labels)
    sizes: dict[str, Any] = {
        "size": 24,
        "channels": 1,
        "mels": 5,
        "patch": 4,
        "dim": 12,
        "depth": 3,
        "heads": 2,
    }
    vit = ViT(ViTConfig(pool=pool, **sizes | settings))  # type: ignore[arg-type]
    return Model(shaken(Hear.add_head(vit, config)), Hear(config, None, vit.config.context), {}, kind="vit")


def recording(frames: int = 16, seed: int = 5) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (1, 5, frames), generator=g, dtype=torch.uint8)


def captioner(**settings: Any) -> Model:
    """Return a captioner of images of 12 x 12 pixels, in regions of 4."""
    task = Caption(CaptionConfig(name="caption", size=12, channels=3), words(Caption), CONTEXT)
    sizes = {"vocab": task.tokenizer.vocab, "size": 12, "context": CONTEXT, "dim": 16, "heads": 2}
    return Model(shaken(Captioner(CaptionerConfig(**sizes | settings))), task, GREEDY)


def noise(side: int) -> Tensor:
    g = torch.Generator().manual_seed(5)
    return torch.randint(256, (3, side, side), generator=g, dtype=torch.uint8)


def every_task() -> dict[str, Model]:
    """A model for each task, by the name of the task."""
    kinds = {"chat": "t5", "restore": "t5", "translate": "transformer", "write": "gpt"}
    labels = {"classify": ("a", "b"), "tag": ("O", "B-X")}
    models = {
        "see": seer(),
        "hear": hearer(),
        "caption": captioner(),
        "words": reader("write", "gpt").words(),
    }
    for task in TASKS:
        if task not in models:
            settings = {"task_labels": labels[task]} if task in labels else {}
            models[task] = reader(task, kinds.get(task, "bert"), **settings)
    return models
