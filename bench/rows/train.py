"""Rows of training: GPT-2, a small GPT on characters, BERT, ViT."""

import numpy as np

from regard.bench import peers
from regard.bench.data import make_jpegs
from regard.bench.jobs import SIZES, gpt_trainer, random_tokens
from regard.bench.measure import Job, Options, Row, step_job, train_by_recipe, train_job
from regard.data import Corpus, Stream
from regard.models import Bert, BertConfig, GPTConfig
from regard.models.vit import ViTConfig
from regard.runs import recipe
from regard.tasks import Fill, FillConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.config import TrainConfig
from regard.training.trainer import Trainer


def train_gpt2(options: Options) -> Row:
    """32 sequences of 1024 tokens."""
    size = options.size("gpt2", "tiny")
    vocab, rows = SIZES[size][0], options.size(32, 12)
    tokens, row = random_tokens(vocab), Row("tokens", {})

    def ours(optimizer: str) -> Job:
        changes = {"train.batch": rows, "train.optimizer": optimizer}
        trainer = gpt_trainer(dict(GPTConfig.PRESETS[size]), tokens, vocab, changes, options)
        row.flops = trainer.pace.flops
        return train_job(trainer, "tokens", options)

    units = float(rows * GPTConfig.PRESETS[size]["context"])
    row.contenders = {
        "regard AdamW": lambda: ours("adamw"),
        "nanoGPT": lambda: step_job(peers.nanogpt_training(size, tokens, rows, options, units), options),
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

    tokens = random_tokens(65)
    theirs = {"nanoGPT": lambda: step_job(peers.nanogpt_training(size, tokens, rows, options, 1.0), options)}
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
