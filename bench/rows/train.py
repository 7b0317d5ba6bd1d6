"""Rows of training: GPT-2, a small GPT on characters, BERT, ViT."""

from typing import Any

import numpy as np
from bench.rows import peers
from bench.rows.harness import Job, Options, Row, step_job, train_by_recipe, train_job
from bench.rows.pictures import make_jpegs
from bench.train import SIZES, make_nanogpt_step

from regard.data import Corpus, Stream
from regard.models import GPT, Bert, BertConfig, GPTConfig
from regard.models.vit import ViTConfig
from regard.runs import recipe
from regard.tasks import Fill, FillConfig, Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.config import TrainConfig
from regard.training.trainer import Trainer


def random_stream(vocab: int) -> np.ndarray:
    """Token ids, of which some are more frequent: a model has something to learn."""
    numbers = np.random.default_rng(0).integers(vocab, size=2_000_000)
    return (numbers**2 // vocab).astype(np.uint16)


def gpt_trainer(
    size: str, vocab: int, tokens: np.ndarray, changes: dict[str, Any], options: Options
) -> Trainer:
    sections = recipe.change(recipe.read("write"), {"train.steps": 1_000_000} | changes)
    model = GPT(GPTConfig(vocab=vocab, **GPTConfig.PRESETS[size])).to(options.device).train()
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    task = Write(WriteConfig(name="write"), tokenizer, model.config.context)
    corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    config = recipe.fill("train", sections["train"], TrainConfig)
    return Trainer(options.scratch / f"gpt-{id(model)}", task, model, corpus, config, options.device)


def nanogpt_job(size: str, tokens: np.ndarray, units: float, options: Options) -> Job:
    if options.nanogpt is None:
        raise FileNotFoundError("give --nanogpt FOLDER")
    step = make_nanogpt_step(str(options.nanogpt), size, tokens, options.device)

    def take() -> float:
        step()
        return units

    return step_job(take, options)


def train_gpt2(options: Options) -> Row:
    """32 sequences of 1024 tokens."""
    size = options.size("gpt2", "tiny")
    vocab, rows, _ = SIZES[size]
    tokens, row = random_stream(vocab), Row("tokens", {})

    def ours(optimizer: str) -> Job:
        changes = {"train.batch": rows, "train.optimizer": optimizer}
        trainer = gpt_trainer(size, vocab, tokens, changes, options)
        row.flops = trainer.pace.flops
        return train_job(trainer, "tokens", options)

    units = float(rows * GPTConfig.PRESETS[size]["context"])
    row.contenders = {
        "regard AdamW": lambda: ours("adamw"),
        "nanoGPT": lambda: nanogpt_job(size, tokens, units, options),
        "regard Muon": lambda: ours("muon"),
    }
    return row


def train_shakespeare(options: Options) -> Row:
    """The 10 M model on characters; `regard train write input.txt --set model.preset=mini`."""
    size = options.size("mini", "tiny")
    rows = SIZES[size][1]
    file = options.file("tinyshakespeare", "input.txt.gz")
    changes = {"model.preset": size, "train.batch": rows}

    def ours() -> Job:
        return train_job(train_by_recipe(options, "write", [file], changes), "steps", options)

    tokens = random_stream(65)
    theirs = {"nanoGPT": lambda: nanogpt_job(size, tokens, 1.0, options)}
    return Row("steps", {"regard": ours} | theirs, note="with the recipe's own optimizer, Muon")


def train_bert(options: Options) -> Row:
    """256 rows of 128 tokens; all that are read count, not only the hidden ones."""
    rows, length, preset = options.size((256, 128, "base"), (4, 16, "tiny"))
    sizes = dict(BertConfig.PRESETS[preset]) | {"vocab": 30522}
    row = Row("tokens", {})

    def ours() -> Job:
        changes = {"train.batch": rows, "train.optimizer": "adamw", "train.lr": 1e-4}
        sections = recipe.change(recipe.read("fill"), changes | {"train.steps": 1_000_000})
        tokenizer = train_tokenizer("wordpiece", ["any text at all"] * 9, 256, Fill.specials)
        tokens = np.random.default_rng(0).integers(5, tokenizer.vocab, size=2_000_000).astype(np.uint16)
        model = Bert(BertConfig(**sizes | {"context": length})).to(options.device).train()
        task = Fill(FillConfig(name="fill", next=False), tokenizer, length)
        config = recipe.fill("train", sections["train"], TrainConfig)
        corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
        trainer = Trainer(options.scratch / "bert", task, model, corpus, config, options.device)
        row.flops = trainer.pace.flops
        return train_job(trainer, "tokens", options)

    def theirs() -> Job:
        return step_job(peers.bert_training(rows, length, sizes, options), options)

    row.contenders = {"regard": ours, "transformers compiled": theirs}
    return row


def train_vit(options: Options) -> Row:
    """From a folder of JPEGs, which fit in memory or are ten times as large."""
    rows, side, patch, preset, count = options.size((256, 224, 16, "base", 5120), (4, 32, 16, "tiny", 40))
    folder = make_jpegs(options.scratch / "jpegs", count, side)
    row = Row("images", {}, note="the peer has its pixels ready on the device")
    changes = {
        "model.preset": preset,
        "model.patch": patch,
        "model.pool": "first",
        "task.size": side,
        "task.flip": True,
        "train.batch": rows,
        "train.optimizer": "adamw",
        "train.lr": 1e-4,
    }

    def ours(memory_gb: float) -> Job:
        changed = changes | {"data.memory_gb": memory_gb}
        trainer = train_by_recipe(options, "see", [str(folder)], changed)
        row.flops = trainer.pace.flops * trainer.task.context
        return train_job(trainer, "images", options)

    def theirs() -> Job:
        sizes = dict(ViTConfig.PRESETS[preset])
        return step_job(peers.vit_training(rows, side, patch, sizes, options), options)

    size = count * 3 * side * side / 2**30
    row.contenders = {
        "regard": lambda: ours(2 * size),
        "regard, ten times its memory": lambda: ours(size / 10),
        "transformers compiled, ready tensors": theirs,
    }
    return row


ROWS = {
    "gpt2": train_gpt2,
    "shakespeare": train_shakespeare,
    "bert": train_bert,
    "vit": train_vit,
}
