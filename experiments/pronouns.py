"""Pronouns: what "it" is, and the head that decides.

A BERT of two layers with one head each reads sentences such as "The animal did not cross the street because
it was too tired" (or "wide"), and predicts at "it" which noun it is. The combinations of animal, place and
adjective that it is tested on are new. Then each head is silenced in turn by `regard.change`: without the
second, which goes from "it" to the right noun, the model can only guess which of the two it is.

Shapes: B sentences, T tokens.
"""

from pathlib import Path

import torch
from torch import Tensor

import regard
from experiments.texts.pronouns import ANIMALS, PLACES
from experiments.training import Result, cross_entropy, fit, percent
from regard.tasks import Task
from regard.tasks.fill import Fill, FillConfig
from regard.text.tokenizer_kinds import word_tokenizer

STEPS = 750
LAYERS = 2  # each has one head
BUILTIN = Path(regard.__file__).parent / "builtin"


class Pronouns:
    """The sentences of a file as ids (B, T), where "it" is in each, and the id of the noun that it is."""

    def __init__(self, name: str, task: Task):
        assert isinstance(task, Fill)
        rows = [line.split("\t") for line in (BUILTIN / name).read_text("utf-8").splitlines()]
        texts = [task.whole_text(sentence) for sentence, _ in rows]
        longest, it = max(map(len, texts)), task.tokenizer.encode("it")[0]
        self.ids = torch.tensor([text + [task.pad] * (longest - len(text)) for text in texts])
        self.mask = self.ids != task.pad
        self.it = torch.tensor([text.index(it) for text in texts])
        self.referent = torch.tensor([task.tokenizer.id(noun) for _, noun in rows])


def make_model() -> regard.Model:
    texts = (BUILTIN / "it.tsv").read_text("utf-8").replace("\t", " ").splitlines()
    tokenizer = word_tokenizer(texts, 1000, Fill.specials, lower=True, signs=True)
    config = regard.BertConfig(
        vocab=tokenizer.vocab, context=24, dim=32, depth=LAYERS, heads=1, segments=0, dropout=0.0
    )
    task = Fill(FillConfig(name="fill"), tokenizer, config.context)
    return regard.Model(regard.Bert(config), task, {}, kind="bert")


def train_model(seed: int, steps: int) -> regard.Model:
    torch.manual_seed(seed)
    model = make_model()
    bert, rows = model.model, Pronouns("it.tsv", model.task)

    def loss() -> Tensor:
        batch = torch.randint(len(rows.ids), (64,))
        logits = bert(rows.ids[batch], rows.mask[batch])
        return cross_entropy(logits[torch.arange(64), rows.it[batch]], rows.referent[batch])

    fit(bert, loss, steps, lr=3e-3)
    return model


@torch.no_grad()
def accuracy(model: regard.Model, rows: Pronouns) -> float:
    logits = model.model(rows.ids, rows.mask)[torch.arange(len(rows.ids)), rows.it]
    return percent(logits.argmax(-1) == rows.referent)


@torch.no_grad()
def attention_of_it(model: regard.Model, rows: Pronouns, part: str) -> tuple[float, float]:
    """The mean weights from "it" to the right noun and to the other one, in percent."""
    with regard.watch(model.model) as records:
        model.model(rows.ids, rows.mask)
    weights = records[f"{part}.f"][0]["weights"][:, 0]  # (B, T, T)
    weights = weights[torch.arange(len(rows.ids)), rows.it]  # (B, T)
    right = rows.ids == rows.referent[:, None]
    nouns = torch.isin(rows.ids, torch.tensor([model.tokenizer.id(word) for word in ANIMALS + PLACES]))
    to_right, to_other = ((weights * of).sum(-1).mean().item() for of in (right, nouns & ~right))
    return 100 * to_right, 100 * to_other


def run(seed: int, steps: int = STEPS) -> Result:
    model = train_model(seed, steps)
    rows = Pronouns("it.valid.tsv", model.task)
    result = {"all heads": {"right, %": accuracy(model, rows)}}
    for layer in range(LAYERS):
        part = f"blocks.{layer}.attn"
        with regard.change(model, silence={part: [0]}):
            right = accuracy(model, rows)
        to_right, to_other = attention_of_it(model, rows, part)
        result[f"without the head of layer {layer}"] = {
            "right, %": right,
            "its attention from it to the right noun, %": to_right,
            "to the other noun, %": to_other,
        }
    return result
