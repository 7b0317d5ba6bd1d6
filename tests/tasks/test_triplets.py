"""Triplets: each text has a partner, and one that is like it and means something else."""

import json

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.errors import user_error
from regard.models import MODELS
from regard.tasks import TASKS, similarity
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

TRIPLETS = [(f"it is {n}", f"{n} it is", f"it is not {n}") for n in ("one", "two", "three", "four", "five")]


def embed_task():
    cls, config = TASKS["embed"]
    tokenizer = train_tokenizer("word", [text for row in TRIPLETS for text in row], 99, cls.specials)
    return cls(config(name="embed", temperature=0.7), tokenizer, 17)


def test_negatives_are_candidates_for_the_partner_of_every_text() -> None:
    task = embed_task()
    examples, _ = task.examples(TRIPLETS, None)
    batch = task.collate(examples, torch.arange(5).numpy())
    cls, config, _ = MODELS["bert"]
    torch.manual_seed(0)
    model = cls(config(vocab=task.tokenizer.vocab, context=17, dim=10, depth=1, heads=2, dropout=0.0)).eval()
    u, v, w = (F.normalize(task.vectors(model, [row[i] for row in TRIPLETS]), dim=1) for i in range(3))
    forth = (torch.cat([u @ v.T, u @ w.T], dim=1) / 0.7).log_softmax(1)
    back = (v @ u.T / 0.7).log_softmax(1)
    with torch.no_grad():
        assert_close(task.loss(model, *batch), -(forth.diagonal().sum() + back.diagonal().sum()) / 2)
        (plain,) = task.evaluation_batches(examples, 99)  # among as many candidates as pairs have
        assert len(plain) == len(batch) - 2
        assert float(task.measure(model, *plain)[0]) < float(task.loss(model, *batch))


def test_a_negative_that_is_a_partner_is_no_candidate() -> None:
    task = embed_task()
    u, w = (F.normalize(torch.randn(3, 5), dim=1) for _ in range(2))
    numbers = torch.tensor([[0, 1, 6], [2, 3, 1], [4, 5, 2]])  # of the second, the first's partner
    logits = task.negative_logits(u, w, numbers, torch.zeros(3, dtype=torch.int64))
    assert logits.isinf().tolist() == [[False, True, False], [False, False, True], [False, False, False]]


@pytest.mark.usefixtures("quick")
def test_a_model_learns_from_triplets(tmp_path):
    path = tmp_path / "a.jsonl"
    names = ("anchor", "positive", "negative")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in TRIPLETS * 3))
    settings = {
        "model.dim": 8, "model.depth": 1, "model.heads": 2, "model.context": 17, "train.device": "cpu",
        "train.batch": 5, "data.tokenizer": "word",
    }  # fmt: skip
    model = train("embed", str(path), out=tmp_path / "run", steps=2, set=settings)
    assert set(model.score(str(path))) == {"loss", "accuracy", "recall_at_1"}
    (tmp_path / "b.csv").write_text("anchor,positive,negative\na,b,\n")
    user_error(lambda: similarity.read_similar_pairs([str(tmp_path / "b.csv")]), "b.csv:2: an empty negative")
