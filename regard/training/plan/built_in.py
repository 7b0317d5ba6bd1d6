"""Settings that were chosen for the built-in data, which are small."""

from typing import Any

LABELLED = {
    "model.preset": "tiny", "data.tokenizer": "wordpiece", "data.vocab": 8000, "train.steps": 600,
    "train.lr": 5e-4, "train.schedule": "linear", "train.weight_decay": 0.01,
}  # fmt: skip
BUILT_IN: dict[str, dict[str, Any]] = {
    "write": {
        "model.preset": "tiny", "data.tokenizer": "char", "train.steps": 2000, "train.optimizer": "muon",
        "train.lr": 4e-3, "train.schedule": "linear",
    },
    "translate": {
        "model.preset": "tiny", "model.dropout": 0.1, "data.tokenizer": "bpe", "data.vocab": 4000,
        "train.steps": 3000, "train.tokens": 2048, "train.optimizer": "muon", "train.lr": 3e-3,
        "train.schedule": "linear", "train.weight_decay": 1.0,
    },
    "chat": {
        "model.preset": "tiny", "model.depth": 2, "data.tokenizer": "wordpiece",
        "data.target_tokenizer": "bpe", "data.vocab": 8000, "train.steps": 1000, "train.batch": 64,
        "train.lr": 2e-3, "train.beta2": 0.98,
        "train.schedule": "linear", "train.weight_decay": 0.01,
    },
    "fill": {
        "model.preset": "tiny", "data.tokenizer": "wordpiece", "data.vocab": 8000, "train.steps": 3000,
        "train.batch": 32, "train.optimizer": "muon", "train.lr": 2e-3, "train.schedule": "linear",
    },
    "restore": {
        "model.preset": "tiny", "data.tokenizer": "bpe", "data.vocab": 8000, "train.steps": 3000,
        "train.batch": 32, "train.optimizer": "muon", "train.lr": 3e-3, "train.schedule": "linear",
    },
    "classify": {**LABELLED, "train.batch": 32},
    "tag": {**LABELLED, "train.batch": 32},
    "span": {**LABELLED, "train.batch": 32},
    "embed": {**LABELLED, "train.batch": 64},
    "see": {
        "model.preset": "tiny", "task.pad": 1, "train.steps": 600, "train.batch": 64,
        "train.optimizer": "muon", "train.lr": 6e-3, "train.schedule": "linear", "train.warmup": 50,
        "train.weight_decay": 0.05,
    },
    "hear": {
        "model.preset": "tiny", "model.dropout": 0.1, "train.steps": 300, "train.batch": 64,
        "train.optimizer": "muon", "train.lr": 6e-3, "train.schedule": "linear", "train.warmup": 50,
        "train.weight_decay": 0.05,
    },
    "caption": {
        "model.preset": "tiny", "data.tokenizer": "wordpiece", "data.vocab": 4000, "train.steps": 1500,
        "train.batch": 32, "train.lr": 2e-3, "train.schedule": "linear", "train.weight_decay": 0.01,
    },
    "words": {
        "model.preset": "small", "data.tokenizer": "word", "train.steps": 1000, "train.tokens": 16384,
        "train.lr": 5e-2, "train.warmup": 20, "train.weight_decay": 0.2, "train.clip": 0.0,
    },
}  # fmt: skip
