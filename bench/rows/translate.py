"""Rows of translation: beam search, and training on the pairs of Multi30k."""

import itertools

import regard
from regard.bench import peers
from regard.bench.folders import transformer_run
from regard.bench.measure import Job, Options, Row, repeated, step_job, train_by_recipe, train_job
from regard.data.files import read_lines
from regard.models import TransformerConfig
from regard.tasks import Translate
from regard.text.tokenizer_kinds import train_tokenizer


def pair_files(options: Options) -> list[str]:
    return [options.file("multi30k", f"train.{language}.gz") for language in ("en", "de")]


def beam(options: Options) -> Row:
    """64 sentences, four beams, 32 tokens each; random weights, and no answer ends before."""
    preset, count, new = options.size(("base", 64, 32), ("tiny", 3, 5))
    lines = itertools.islice(read_lines(pair_files(options)[0]), 5000)
    texts = [line.decode().strip() for line in lines]
    sizes = TransformerConfig.PRESETS[preset]

    def ours() -> Job:
        tokenizer = train_tokenizer("bpe", texts, 8000, Translate.specials)
        model = regard.load(transformer_run(options.scratch / "translator", preset, tokenizer))

        def translate() -> float:
            model.ask(texts[:count], num_beams=4, max_new_tokens=new)
            return float(count)

        return repeated(translate, options)

    def theirs() -> Job:
        return repeated(peers.marian_beams(sizes, 8000, (count, 16), new, options), options)

    return Row("sentences", {"regard": ours, "transformers Marian": theirs})


def train_base(options: Options) -> Row:
    """The base Transformer, about 16k tokens a step. Both train with AdamW."""
    preset, tokens = options.size(("base", 16384), ("tiny", 256))
    row = Row("target_tokens", {}, note="the peer has its batches ready on the device")
    changes = {"model.preset": preset, "data.vocab": 8000, "train.tokens": tokens}
    trainer = train_by_recipe(
        options, "translate", pair_files(options), changes | {"train.optimizer": "adamw", "train.lr": 3e-4}
    )

    def theirs() -> Job:
        return step_job(peers.TRAINED["translate"](trainer, options), options)

    row.contenders = {
        "regard": lambda: train_job(trainer, "target_tokens", options),
        "transformers Marian compiled": theirs,
    }
    return row


def train_tiny(options: Options) -> Row:
    """`regard train translate train.en.gz train.de.gz`, as the recipe is, also its number of steps: of many
    more, the model would be compiled."""
    changes = options.size({"train.steps": 3000}, {"train.tokens": 256})

    def ours() -> Job:
        trainer = train_by_recipe(options, "translate", pair_files(options), dict(changes))
        return train_job(trainer, "target_tokens", options)

    return Row("target_tokens", {"regard": ours})


ROWS = {"beam": beam, "base": train_base, "translator": train_tiny}
