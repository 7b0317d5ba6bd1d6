"""Traces of generation, step by step and with beams."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.traced import close, model_and_input
from regard import trace
from regard.runs.model import Model


@pytest.mark.parametrize(
    "kind", ["gpt", "transformer-pre", "t5", "gru", "lstm", "captioner", "captioner-vit"]
)
def test_steps_are_rows_of_the_whole(kind: str) -> None:
    model, input = model_and_input(kind)
    source = input[0] if isinstance(input, tuple) else input
    steps = trace(model, source, steps=True, temperature=0.0)
    written = [id for step in steps for id in step.ids["written"]]
    if kind == "gpt":
        text = " ".join(steps[-1].tokens["text"])
        full, first = trace(model, text), len(steps[0].ids["text"]) - 1
    else:
        full, first = trace(model, source), 0
        assert full.ids["written"][: len(written)] == written
    for n, step in enumerate(steps):
        assert step.about["step"] == n
        assert step.difference < 1e-5
        close(step["logits"], full["logits"][first + n])
        assert step["logits"].argmax() == written[n]
        for part in step.attentions:
            if not part.startswith("encoder"):
                row = step[f"{part}.weights"][:, -1]
                close(row, full[f"{part}.weights"][:, first + n, : row.shape[-1]])
                rows, columns = step.sides(part)
                assert (len(rows), len(columns)) == step[f"{part}.weights"].shape[1:]
    assert any(name.startswith("encoder") for name in steps[0]) == (kind != "gpt")
    assert not any(name.startswith("encoder") for step in steps[1:] for name in step)


@pytest.mark.parametrize("kind", ["gpt", "transformer", "gru", "captioner"])
def test_beams(kind: str) -> None:
    """Every candidate's score is the sum of its words' log-probabilities in a full forward pass."""
    model, input = model_and_input(kind)
    source = input[0] if isinstance(input, tuple) else input
    steps = trace(model, source, steps=True, num_beams=3, max_new_tokens=4, length_penalty=0.0)
    beams = [()]
    for step in steps:
        beam = step.about["beam"]
        assert [one["score"] for one in beam] == sorted((one["score"] for one in beam), reverse=True)
        for one in beam:
            assert tuple(one["text"][:-1]) == beams[one["parent"]]
            close(torch.tensor(one["score"]), torch.tensor(likelihood(model, source, one["text"])))
        texts = [tuple(one["text"]) for one in beam if one["kept"]]
        assert len(texts) == (3 if step is not steps[-1] else 0)
        beams = texts
    (answers,) = model.answers([source], num_beams=3, max_new_tokens=4, length_penalty=0.0)
    scores = [one["score"] for step in steps for one in step.about["beam"]]
    assert any(math.isclose(answers[0].score or 0.0, score, abs_tol=1e-5) for score in scores)


@torch.no_grad()
def likelihood(model: Model, source: Any, text: list[int]) -> float:
    if isinstance(source, str) and model.task.config.name == "write":
        prompt = model.task.tokenizer.encode(source)
        logits = model.model(torch.tensor([prompt + text[:-1]]))[0, len(prompt) - 1 :]
    else:
        read = (
            source[None] if isinstance(source, Tensor) else torch.tensor([[*model.task.parts(source)[0], 2]])
        )
        if not isinstance(source, Tensor):
            read[0, -1] = model.task.source_end
        logits = model.model(read, torch.tensor([[model.task.begin, *text[:-1]]]))[0]
    return float(logits.log_softmax(-1).gather(1, torch.tensor(text)[:, None]).sum())
