"""Several conversations in one row: none attends to another, and the loss is the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.errors import user_error
from helpers.runs import rows as log_rows
from helpers.runs import tiny, write_text
from regard.data.conversations import Turn
from regard.models import GPT, GPTConfig, RecurrentLM, RecurrentLMConfig
from regard.tasks import Converse, ConverseConfig
from regard.tasks.chat_rows import ChatDataset, encode_conversations
from regard.text.chat_template import PLAIN, Template
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

TALKS = [[Turn("user", "how " * n), Turn("assistant", "fine " * (n % 3 + 1))] for n in (1, 5, 2, 7, 3, 4, 1)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("bpe", ["user assistant how are you fine\n"] * 9, 290, ["<|endoftext|>"])


@pytest.fixture(scope="module")
def data(tokenizer: Tokenizer) -> ChatDataset:
    template = Template(PLAIN, {"eos_token": "<|endoftext|>"})
    rows = [(str(n), turns) for n, turns in enumerate(TALKS)]
    return encode_conversations(rows, tokenizer, template, [tokenizer.end or 0], 99)[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"positions": "rotary"},
        {"positions": "learned"},
        {"positions": "alibi"},
        {"positions": "relative"},
        {"positions": "sinusoidal", "sliding_window": 5, "kv_heads": 1},
    ],
)
def test_the_loss_is_that_of_single_rows(tokenizer: Tokenizer, data: ChatDataset, settings) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=tokenizer.vocab, context=99, dim=16, depth=2, heads=2, **settings))
    torch.nn.init.normal_(model.embed.weight)
    task, packed = Converse(ConverseConfig(name="converse"), tokenizer, 99), data.pack(50)
    assert 1 < len(packed) < len(data) == packed.conversations
    assert packed.ids.lengths.max() <= 50
    assert "7 conversations" in packed.describe()
    losses, gradients = [], []
    for each in (data, packed):
        model.zero_grad()
        loss = task.loss(model, *task.collate(each, np.arange(len(each))))
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    batch = task.collate(packed, np.arange(len(packed)))
    padded = task.pad_to_bucket(batch)
    assert [t.shape for t in padded] == [(len(packed), 51)] * 4 != [t.shape for t in batch]
    assert task.loss(model, *padded).item() == pytest.approx(losses[0], rel=1e-5)


def test_a_step_has_as_many_conversations(tokenizer: Tokenizer, data: ChatDataset) -> None:
    task, packed = Converse(ConverseConfig(name="converse"), tokenizer, 99), data.pack(50)
    assert len(task.samples(packed, 1, 7, None).rows(0)) == len(packed)
    assert len(task.samples(data, 1, 7, None).rows(0)) == 7


def test_a_recurrent_model_is_refused(tokenizer: Tokenizer, data: ChatDataset) -> None:
    model = RecurrentLM(RecurrentLMConfig(vocab=tokenizer.vocab, context=99, dim=8, depth=1))
    task, packed = Converse(ConverseConfig(name="converse"), tokenizer, 99), data.pack(50)
    user_error(lambda: task.loss(model, *task.collate(packed, np.arange(1))), "data.pack", "recurrent")


def test_a_run_with_packing(tmp_path: Path) -> None:
    path, out = tmp_path / "chats.jsonl", tmp_path / "run"
    talk = {"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]}
    path.write_text((json.dumps(talk) + "\n") * 20)
    settings = {"data.pack": 32, "train.device": "cpu", "train.log": 1, "train.batch": 6}
    base = tiny(write_text(tmp_path / "a.txt"), tmp_path / "base", steps=1, model__context=71).folder
    train("chat", str(path), out=out, base=base, steps=2, set=settings)
    assert sum("loss" in row for row in log_rows(out)) == 2
    assert "pack = 32" in (out / "recipe.toml").read_text()
