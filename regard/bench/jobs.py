"""The measurements of `regard bench`: writing, beams, serving, and training of each family."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from regard.bench import data, peers
from regard.bench.folders import gpt_run, transformer_run
from regard.bench.measure import Job, Options, Row, repeated, step_job, train_by_recipe, train_job
from regard.bench.serving import Server
from regard.data import Corpus, Stream
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.models import GPT, MODELS, GPTConfig, TransformerConfig
from regard.runs import recipe
from regard.runs.load import load
from regard.tasks import Translate, Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.config import TrainConfig
from regard.training.trainer import Trainer

SIZES = {  # preset: vocabulary, batch size of a training step
    "pico": (67, 3),
    "tiny": (65, 12),
    "mini": (65, 64),
    "gpt2": (50257, 8),
}
BATCHES = 1, 16  # texts generated at once
STREAMS = 16  # clients of the server
PEER = "transformers"
FAMILIES = {  # recipe: its data, in words, if they are not built in
    "translate": "",
    "fill": "",
    "restore": "",
    "classify": "",
    "tag": "",
    "embed": "",
    "span": "",
    "words": "",
    "see": "jpegs",
    "caption": "captions",
    "hear": "sounds",
}
PICO = {"model.dim": 16, "model.depth": 1, "model.heads": 2}


def model_sizes(size: str) -> tuple[int, int, dict[str, Any]]:
    """Return the vocabulary, the batch size and the configuration of a GPT-2, which both libraries have."""
    vocab, rows = SIZES[size]
    return vocab, rows, GPTConfig.PRESETS["gpt2"] | GPTConfig.PRESETS[size]


def random_tokens(vocab: int) -> np.ndarray:
    """Token ids, of which some are more frequent: a model has something to learn."""
    numbers = np.random.default_rng(0).integers(vocab, size=2_000_000)
    return (numbers**2 // vocab).astype(np.uint16)


def gpt_trainer(
    shape: dict[str, Any], tokens: np.ndarray, vocab: int, changes: dict[str, Any], options: Options
) -> Trainer:
    sections = recipe.change(recipe.read("write"), {"train.steps": 1_000_000} | changes)
    model = GPT(GPTConfig(vocab=vocab, **shape)).to(options.device).train()
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    task = Write(WriteConfig(name="write"), tokenizer, shape["context"])
    corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    config = recipe.fill("train", sections["train"], TrainConfig)
    folder = options.scratch / f"gpt-{id(model)}"
    return Trainer(folder, task, model, corpus, config, options.device)


def make_rows(size: str, options: Options) -> dict[str, Callable[[], Row]]:
    """All rows by name; each is built when it is measured."""
    rows: dict[str, Callable[[], Row]] = {"learning": partial(learning, size, options)}
    rows |= {f"writing, {n} at once": partial(writing, size, n, options) for n in BATCHES}
    rows["beams, 4 of 16 texts"] = partial(beams, size, options)
    rows[f"serving, {STREAMS} streams"] = partial(serving, size, options)
    return rows | {f"training, {name}": partial(learning_family, name, size, options) for name in FAMILIES}


def learning(size: str, options: Options) -> Row:
    """Steps of the full training loop of a GPT: data, model, optimizer."""
    vocab, rows, shape = model_sizes(size)
    tokens, row = random_tokens(vocab), Row("tokens", {})

    def ours() -> Job:
        changes = {"train.batch": rows, "train.optimizer": "adamw"}
        trainer = gpt_trainer(shape, tokens, vocab, changes, options)
        row.flops = trainer.pace.flops
        return train_job(trainer, "tokens", options)

    def theirs() -> Job:
        ids = torch.randint(vocab, (rows, shape["context"]), device=options.device)
        return step_job(peers.gpt2_training(peers.hf_gpt2(shape, vocab, options), ids, options), options)

    row.contenders = {"regard": ours, PEER: theirs}
    if options.nanogpt:
        row.contenders["nanoGPT"] = lambda: step_job(
            peers.nanogpt_training(size, tokens, rows, options), options
        )
    return row


def make_prompts(vocab: int, context: int, batch: int) -> tuple[list[list[int]], int]:
    """Return random prompts, and the number of tokens to generate: together at most half of the context."""
    rng = np.random.default_rng(1)
    return rng.integers(vocab, size=(batch, context // 4)).tolist(), min(64, context // 4)


def writing(size: str, batch: int, options: Options) -> Row:
    vocab, _, shape = model_sizes(size)
    prompts, new = make_prompts(vocab, shape["context"], batch)
    row = Row("tokens", {})

    def ours() -> Job:
        model = GPT(GPTConfig(vocab=vocab, **shape)).to(options.device).eval()
        row.bytes = sum(p.nbytes for p in model.parameters()) / batch  # once a step

        def write() -> float:
            steps = generate(model, prompts, Sampling(max_new_tokens=new, temperature=0))
            return float(sum(token is not None for tokens in steps for token in tokens))

        return repeated(write, options)

    def theirs() -> Job:
        ids = torch.tensor(prompts, device=options.device)
        return repeated(peers.hf_write(shape, vocab, ids, new, options), options)

    row.contenders = {"regard": ours, PEER: theirs}
    if options.gptfast:
        row.contenders["gpt-fast"] = lambda: repeated(
            peers.gptfast_write(shape, vocab, batch, len(prompts[0]), new, options), options
        )
    return row


def beams(size: str, options: Options) -> Row:
    """Sixteen sentences, four beams, none of which ends early."""
    preset, new = ("base", 32) if size == "gpt2" else ("tiny", 6 if size == "pico" else 24)
    count, sizes = 16, TransformerConfig.PRESETS[preset]
    texts = [" ".join(words) for words in itertools.permutations(["one", "two", "red", "car"])][:count]

    def ours() -> Job:
        tokenizer = train_tokenizer("byte", texts, 300, Translate.specials)
        folder = transformer_run(options.scratch / "beams", preset, tokenizer)
        model = load(folder, options.device)

        def translate() -> float:
            model.ask(texts, num_beams=4, max_new_tokens=new)
            return float(count)

        return repeated(translate, options)

    def theirs() -> Job:
        return repeated(peers.marian_beams(sizes, 300, (count, len(texts[0])), new, options), options)

    return Row("sentences", {"regard": ours, PEER: theirs})


def serving(size: str, options: Options) -> Row:
    """Streamed answers over HTTP, from a server in another process."""
    vocab, _, shape = model_sizes(size)
    _, new = make_prompts(vocab, shape["context"], 1)

    def ours() -> Job:
        folder, text = gpt_run(options.scratch / "served", size, vocab)
        server = Server(folder, text[: shape["context"] // 4], STREAMS)
        return lambda: server.ask(STREAMS, new)

    return Row("tokens", {"regard": ours})


def learning_family(name: str, size: str, options: Options) -> Row:
    """Training by a recipe on its built-in data or on files that are made for it, and the peer if it has
    such a model: on the first batches of ours, ready on the device."""
    kind = recipe.read(name)["model"]["kind"]
    changes: dict[str, Any] = {}
    if size == "pico":
        changes = {k: v for k, v in PICO.items() if name != "words" or k == "model.dim"}
    elif size == "gpt2" and "base" in MODELS[kind][2]:
        changes = {"model.preset": "base"}
    make = {
        "": lambda folder: [],
        "jpegs": lambda folder: [str(data.make_jpegs(folder, 80, 64))],
        "captions": lambda folder: [data.make_captions(folder, 40, 64)],
        "sounds": lambda folder: [str(data.make_sounds(folder, 40, 1.0))],
    }[FAMILIES[name]]
    trainer = train_by_recipe(options, name, make(options.scratch / name), changes)
    unit = next(iter(trainer.task.count_read(trainer.batches(0)[0])))
    contenders = {"regard": lambda: train_job(trainer, unit, options)}
    if name in peers.TRAINED:
        contenders[PEER] = lambda: step_job(peers.TRAINED[name](trainer, options), options)
    tokens = trainer.task.count_read(trainer.batches(0)[0])
    flops = trainer.pace.flops * tokens["tokens"] / tokens[unit]
    return Row(unit, contenders, flops=flops if flops == flops else None)
