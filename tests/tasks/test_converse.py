"""Conversing: exactly the answers are learned, in the model's template. A language model learns to chat."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.errors import user_error
from helpers.runs import tiny, write_text
from regard.data.conversations import Turn
from regard.models import GPT, GPTConfig
from regard.runs.layout import read_log
from regard.runs.load import load
from regard.runs.model import Model
from regard.tasks import Converse, ConverseConfig, DataRequest, Write, WriteConfig
from regard.tasks.chat_rows import encode_conversations, encode_rows
from regard.tasks.loss import IGNORED
from regard.text.chat_template import PLAIN, Template
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import plan, train
from regard.training.plan.facts import Facts, Side
from regard.training.plan.follow import plan_from_base
from regard.training.plan.sizes import Request
from regard.training.plan.speed import cpu

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}=>{% generation %}{{ m.content + eos_token }}"
    "{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}{% if add_generation_prompt %}=>"
    "{% endif %}"
)
# Earlier answers lose what stands before "!": as templates drop what a model thought.
FORGETFUL = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{{ m.content if loop.last else "
    "m.content.split('!')[-1] }}{{ eos_token }}{% else %}Q:{{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)
DETACHED = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}??{% endif %}"
PICKY = (
    "{% for m in messages %}{% if 'no' in m.content %}{{ raise_exception('No no') }}{% endif %}"
    "{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% else %}>{% endif %}{% endfor %}"
)
TALK = [Turn("user", "Hi how"), Turn("assistant", "well!fine"), Turn("user", "Good"), Turn("assistant", "ok")]
ENDS = ["<|im_end|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["user assistant Hi how are you well fine Good ok abcdefghijklmnopqrstuvwxyz Q:A:=>[]!\n"] * 9
    return train_tokenizer("bpe", texts, 320, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def encode(
    tokenizer: Tokenizer, text: str, rows: list[list[Turn]], longest: int = 99
) -> tuple[Any, list[str]]:
    template = Template(text, {"eos_token": "<|endoftext|>"})
    where = [(f"file:{n}", turns) for n, turns in enumerate(rows, 1)]
    return encode_conversations(where, tokenizer, template, list(map(tokenizer.id, ENDS)), longest)


def spell(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    return tokenizer.inner.decode(ids.tolist(), skip_special_tokens=False)


def learned_rows(tokenizer: Tokenizer, data: Any) -> Iterator[tuple[str, str]]:
    for row in range(len(data)):
        ids = data.ids[row]
        learned = data.learned[data.ids.offsets[row] : data.ids.offsets[row + 1]]
        yield spell(tokenizer, ids), spell(tokenizer, ids[learned])


@pytest.mark.parametrize(
    ("template", "learned"),
    [
        (CHATML, ["well!fine<|im_end|>ok<|im_end|>"]),
        (MARKED, ["well!fine<|endoftext|>ok<|endoftext|>"]),
        (PLAIN, ["well!fine<|endoftext|>ok<|endoftext|>"]),
        (FORGETFUL, ["well!fine<|endoftext|>", "ok<|endoftext|>"]),
    ],
)
def test_exactly_the_answers_and_their_ends_are_learned(tokenizer, template, learned) -> None:
    data, notes = encode(tokenizer, template, [TALK])
    rows = list(learned_rows(tokenizer, data))
    assert [answers for _, answers in rows] == learned
    assert not notes
    rendered = Template(template, {"eos_token": "<|endoftext|>"}).render(
        [{"role": role, "content": text} for role, text in TALK], add_generation_prompt=False
    )
    assert rows[-1][0] == rendered
    assert data.bytes == len("well!fineok")


@pytest.mark.parametrize("template", [CHATML, MARKED, PLAIN, FORGETFUL])
def test_an_answer_follows_the_very_tokens_that_the_model_is_asked_with(tokenizer, template) -> None:
    task = Converse(ConverseConfig(name="converse"), tokenizer, 99)
    task.use_template(Template(template, {"eos_token": "<|endoftext|>"}))
    data, _ = encode(tokenizer, template, [TALK])
    prompts = [
        task.prompt([{"role": role, "content": text} for role, text in TALK[:count]]) for count in (1, 3)
    ]
    starts = []
    for row in range(len(data)):
        ids = data.ids[row].tolist()
        learned = data.learned[data.ids.offsets[row] : data.ids.offsets[row + 1]]
        starts += [ids[:n] for n in range(1, len(ids)) if learned[n] and not learned[n - 1]]
    assert starts == prompts


def test_an_answer_may_begin_within_a_token() -> None:
    """Then it is learned from that token on."""
    tokenizer = train_tokenizer("bpe", ["say goodbye goodbye goodbye"] * 20, 300, ["<|endoftext|>"])
    ((ids, learned),) = encode_rows([("say goodbye", [(8, 11)])], tokenizer, [])
    assert spell(tokenizer, ids[learned]) == " goodbye"


def test_what_is_left_out_is_counted(tokenizer) -> None:
    long = [Turn("", "a b " * 30), Turn("", "ok")]
    _, notes = encode(tokenizer, CHATML, [TALK, [Turn("user", "Hi"), Turn("user", "Hi")], long, TALK], 30)
    assert len(notes) == 3
    for note, facts in zip(
        notes,
        (("1 of 4", "no answer"), ("1 of 4", "first 30 tokens"), ("cut 2 of 4", "data.longest")),
        strict=True,
    ):
        assert all(fact in note for fact in facts), note
    user_error(lambda: encode(tokenizer, CHATML, [long], 20), "no conversation is left", "20 tokens")


def test_few_conversations_may_be_refused(tokenizer) -> None:
    bad = [Turn("", "no"), Turn("", "ok")]
    data, (note,) = encode(tokenizer, PICKY, [TALK] * 30 + [bad])
    assert len(data) == 30
    assert "1 of 31" in note
    assert "file:31" in note
    assert "No no" in note
    user_error(lambda: encode(tokenizer, PICKY, [TALK, bad]), "file:2", "refuses", "No no")
    user_error(lambda: encode(tokenizer, DETACHED, [TALK]), "file:1", "generation")


def test_speakers_without_roles_take_turns(tokenizer) -> None:
    turns = [Turn("", text) for text in ("Hi how", "fine", "Good", "ok", "bye")]
    data, _ = encode(tokenizer, CHATML, [turns])
    assert [answers for _, answers in learned_rows(tokenizer, data)] == ["fine<|im_end|>ok<|im_end|>"]


def test_the_loss_is_that_of_the_answers_alone_or_together(tokenizer) -> None:
    data, _ = encode(tokenizer, CHATML, [TALK, TALK[:2], [Turn("", "a b c"), Turn("", "ok")]])
    task = Converse(ConverseConfig(name="converse"), tokenizer, 99)
    torch.manual_seed(3)
    model = GPT(GPTConfig(vocab=tokenizer.vocab, context=99, dim=12, depth=2, heads=3)).eval()
    together = task.collate(data, np.arange(3))
    alone = [task.collate(data, np.array([row])) for row in range(3)]
    losses = [task.loss(model, *batch).item() for batch in alone]
    assert task.loss(model, *together).item() == pytest.approx(sum(losses), rel=1e-5)
    padded = task.pad_to_bucket(together)
    assert padded[0].shape[1] >= together[0].shape[1]
    assert task.loss(model, *padded).item() == pytest.approx(sum(losses), rel=1e-5)
    ids, mask, following = alone[0]
    expected = torch.nn.functional.cross_entropy(model(ids)[0], following[0], reduction="none")
    assert losses[0] == pytest.approx(expected[following[0] != IGNORED].sum().item(), rel=1e-5)
    assert int(mask.sum()) == ids.numel() == task.count_read(alone[0])["tokens"]
    assert task.token_losses(model, *alone[0]).sum().item() == pytest.approx(losses[0], rel=1e-5)


# Whole runs


SETTINGS = {"train.device": "cpu", "train.batch": 5, "train.lr": 0.05, "train.log": 1, "train.guard": False}


@pytest.fixture(scope="module")
def files(tmp_path_factory, quick) -> dict[str, Path]:
    """A model that continues texts, conversations, and the model that learned to chat."""
    folder = tmp_path_factory.mktemp("converse")
    text = write_text(folder / "text.txt")
    tiny(text, folder / "base", steps=2, model__context=71)
    with (folder / "chat.jsonl").open("w") as file:
        for n in range(30):
            turns = [
                ("user", f"dogs {n}?"),
                ("assistant", "lazy"),
                ("user", "then?"),
                ("assistant", "sleeps"),
            ]
            messages = [{"role": role, "content": text} for role, text in turns]
            file.write(json.dumps({"messages": messages}) + "\n")
    chat, out = str(folder / "chat.jsonl"), folder / "run"
    train("chat", chat, out=out, base=folder / "base", steps=8, set=SETTINGS | {"train.save": 4})
    return {name: folder / name for name in ("base", "chat.jsonl", "run")}


def test_a_language_model_learns_to_chat(files) -> None:
    log = read_log(files["run"] / "log.jsonl")
    before, *_, after = (row["valid_perplexity"] for row in log if "valid_perplexity" in row)
    assert next(row["step"] for row in log if "valid_perplexity" in row) == 0
    assert after < 0.8 * before
    assert f"{before:.2f} before training, {after:.2f}" in (files["run"] / "README.md").read_text()
    model = load(files["run"], "cpu")
    assert model.task.converses
    assert model.kind == "gpt"
    scores = model.score(str(files["chat.jsonl"]), details=True)
    assert scores["conversations"] == 30
    assert scores["perplexity"] < before
    assert isinstance(model.ask("dogs 3?", max_new_tokens=9), str)
    data = model.task.held_out([str(files["chat.jsonl"])])
    messages = data.examples[0][:-1]
    answer = " ".join(model.ask(messages, max_new_tokens=40, seed=3).split())
    shown = model.task.preview(model.model, data, 3).splitlines()
    assert shown[:2] == ["then?", f"  → {answer}"]
    assert shown[::2] == ["then?"] * len(data.examples)
    assert model.task.prompt([{"role": "user", "content": "x"}]) == model.tokenizer.encode(
        "User:\nx\n\nAssistant:\n"
    )


def test_its_template_stays_with_it(files, tmp_path) -> None:
    from transformers import AutoTokenizer

    assert (files["run"] / "chat_template.jinja").read_text() == PLAIN
    theirs = AutoTokenizer.from_pretrained(files["run"])
    messages = [{"role": "user", "content": "dogs"}]
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(ids) == load(files["run"], "cpu").task.prompt(messages)
    # and goes on to the next run
    next_run = train("chat", str(files["chat.jsonl"]), out=tmp_path / "next", base=files["run"], steps=1)
    assert next_run.task.template.text == PLAIN


def test_it_resumes_bit_for_bit(files, tmp_path) -> None:
    shutil.copytree(files["run"], tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-8")
    train("chat", out=tmp_path / "again", resume=True)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (files["run"], tmp_path / "again")]
    assert weights[0] == weights[1]


def test_the_plan_knows_conversations(files) -> None:
    planned = plan("chat", str(files["chat.jsonl"]), base=files["base"], minutes=60)
    assert planned.request.task == "converse"
    assert planned.request.facts.rows == 27  # but for those held out
    assert planned.settings["data.held_out"] == 200  # there is time
    adapter = plan("chat", str(files["chat.jsonl"]), base=files["base"], steps=9, set={"train.adapter": True})
    assert adapter.settings["train.lora"] == 16
    assert adapter.settings["train.lr"] > planned.settings["train.lr"]


def test_a_large_model_gets_small_steps_on_a_slow_machine(files) -> None:
    talk = Side(characters=10**6, words=2 * 10**5, alphabet=80, vocabulary=8000, longest=400)
    request = Request("converse", "gpt", {}, Facts(rows=5000, source=talk), cpu("slow", 1e9, 1e10))
    fast = Request("converse", "gpt", {}, request.facts, cpu("fast", 1e14, 1e12))
    tokenizer = load(files["base"], "cpu").tokenizer
    large = GPT(GPTConfig(vocab=tokenizer.vocab, context=256, dim=256, depth=8, heads=4))
    parent = Model(large, Write(WriteConfig(name="write"), tokenizer, 256), {}, None, "gpt")
    slow_plan, fast_plan = (plan_from_base(each, parent, validated=False) for each in (request, fast))
    assert (slow_plan.settings["train.batch"], fast_plan.settings["train.batch"]) == (4, 32)
    assert slow_plan.settings["data.held_out"] == 20
    assert 150 <= fast_plan.settings["data.held_out"] <= 200, "as many as there is time for, or all"
    assert slow_plan.settings["train.lr"] < fast_plan.settings["train.lr"]


def test_few_conversations_are_enough_to_evaluate_on(files) -> None:
    base, data = load(files["base"], "cpu"), str(files["chat.jsonl"])
    section, few = ConverseConfig(name="converse"), Converse.data_config(held_out=2)
    for valid in ([], [data]):
        corpus = Converse.read(DataRequest([data], valid, few, section, 71, base.tokenizers, base.task))
        assert len(corpus.valid) == 2
        assert any("2 of 30" in note for note in corpus.notes) == bool(valid)
        assert len(corpus.train) == (30 if valid else 28)


def test_dialogues_that_begin_alike_are_on_one_side(tmp_path, files) -> None:
    data = tmp_path / "alike.jsonl"
    roles = ("system", "user", "assistant")
    texts = [("be brief", f"start {n % 11}", f"reply {n}") for n in range(44)]
    rows = [
        {"messages": [{"role": r, "content": t} for r, t in zip(roles, text, strict=True)]} for text in texts
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = load(files["base"], "cpu")
    section = ConverseConfig(name="converse")
    request = DataRequest([str(data)], [], Converse.data_config(), section, 71, base.tokenizers, base.task)
    corpus = Converse.read(request)
    assert len(corpus.train) + len(corpus.valid) == 44
    assert len(corpus.valid) == 4


def test_what_cannot_chat(files, tmp_path) -> None:
    data = str(files["chat.jsonl"])
    user_error(lambda: train("chat", data, out=tmp_path / "a", set={"model.kind": "gpt"}), "gpt", "chat")
    missing = tmp_path / "missing"
    user_error(lambda: train("chat", data, out=tmp_path / "a", base=missing), "missing")
    user_error(
        lambda: train("chat", data, out=tmp_path / "a", set={"train.adapter": True}, steps=1), "--from"
    )
    assert not (tmp_path / "a").exists()
