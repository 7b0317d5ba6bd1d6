"""Changing what a model computes: silenced heads, values of other inputs, hidden tokens."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from helpers.looking import captioner, noise, reader, seer
from regard import UserError, change, effects, trace
from regard.runs.model import Model
from regard.tracing.intervene import changeable

PAIR = "the quick brown fox", "der Fuchs springt"
OTHER = "over the lazy dog", "der Hund springt"

# How a model is made, two inputs of the same length, an attention, and where a whole layer's output is
CASES: dict[str, tuple[Callable[[], Model], Any, Any, str, str]] = {
    "gpt": (
        lambda: reader("write", "gpt"),
        "the quick brown fox",
        "over the lazy dog",
        "blocks.0.attn",
        "blocks.1.output",
    ),
    "bert": (
        lambda: reader("fill", "bert"),
        "the [MASK] brown fox",
        "[MASK] the lazy dog",
        "blocks.1.attn",
        "blocks.1.output",
    ),
    "bert-classify": (
        lambda: reader("classify", "bert", task_labels=("a", "b"), window=1),
        "the quick brown fox",
        "over the lazy dog",
        "blocks.0.attn",
        "blocks.0.output",
    ),
    "transformer": (
        lambda: reader("translate", "transformer"),
        PAIR,
        OTHER,
        "decoder.1.cross",
        "decoder.1.output",
    ),
    "t5": (
        lambda: reader("restore", "t5"),
        ("the ___ fox", "lazy"),
        ("the ___ dog", "quick"),
        "encoder.0.attn",
        "decoder.norm",
    ),
    "gru": (lambda: reader("translate", "gru"), PAIR, OTHER, "decoder.look", "decoder.output"),
    "lstm": (
        lambda: reader("translate", "lstm", attention="dot"),
        PAIR,
        OTHER,
        "decoder.look",
        "decoder.output",
    ),
    "vit": (lambda: seer(), noise(6), 255 - noise(6), "blocks.2.attn", "blocks.2.output"),
    "captioner": (
        lambda: captioner(),
        (noise(12), "the fox"),
        (255 - noise(12), "the dog"),
        "decoder.look",
        "decoder.output",
    ),
    "captioner-vit": (
        lambda: captioner(encoder="vit", decoder="transformer"),
        (noise(12), "the fox"),
        (255 - noise(12), "the dog"),
        "decoder.blocks.0.cross",
        "decoder.blocks.0.output",
    ),
}
every_case = pytest.mark.parametrize("case", CASES)


def close(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=2e-6, rtol=2e-5)


def module(model: Model, part: str) -> Any:
    inner = getattr(model.model, "model", model.model)
    for name in part.split("."):
        inner = inner[int(name)] if name.isdecimal() else getattr(inner, name)
    return getattr(inner, "f", inner)


def weights(model: Model) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in model.model.state_dict().items()}


def hooks(model: Model) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.model.modules())


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Check after every test that no model was changed."""
    models: list[tuple[Model, dict[str, Tensor]]] = []
    begin = Model.__init__

    def remembered(self: Model, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        models.append((self, weights(self)))

    monkeypatch.setattr(Model, "__init__", remembered)
    yield
    assert models
    for model, before in models:
        assert hooks(model) == 0
        assert all(m.records is None for m in model.model.modules() if hasattr(m, "records"))
        assert all(torch.equal(t, before[name]) for name, t in model.model.state_dict().items())


@every_case
@torch.no_grad()
def test_a_silent_head_is_one_whose_output_weights_are_zero(case: str) -> None:
    build, input, _, part, _ = CASES[case]
    model = build()
    m, plain = module(model, part), trace(model, input)
    with change(model, silence={part: [0]}):
        silent = trace(model, input)
    assert not torch.equal(silent["logits"], plain["logits"])
    assert (silent[f"{part}.heads"][0] == 0).all()
    if not hasattr(m, "out"):
        assert (silent[f"{part}.output"] == 0).all()
        return
    before, d = m.out.weight.clone(), m.out.weight.shape[1] // m.heads
    m.out.weight[:, :d] = 0
    cut = trace(model, input)
    m.out.weight.copy_(before)
    close(silent["logits"], cut["logits"])
    assert torch.equal(silent[f"{part}.weights"], plain[f"{part}.weights"])
    with change(model, silence={part: []}):
        close(trace(model, input)["logits"], plain["logits"])


@every_case
def test_a_layer_of_another_input_gives_its_answer(case: str) -> None:
    build, text, other, _, last = CASES[case]
    model = build()
    plain, expected = trace(model, text), trace(model, other)
    assert (plain["logits"] - expected["logits"]).abs().max() > 1e-3
    with change(model, {last: expected[last]}):
        patched = trace(model, text)
    if case == "bert-classify":  # all of the layer before the last
        assert torch.equal(patched["blocks.0.output"], expected["blocks.0.output"])
    close(patched["logits"], expected["logits"])
    close(trace(model, text)["logits"], plain["logits"])


@every_case
def test_weights_can_be_given(case: str) -> None:
    build, text, other, part, _ = CASES[case]
    model = build()
    plain, taken = trace(model, text), trace(model, other)[f"{part}.weights"]
    with change(model, {f"{part}.weights": plain[f"{part}.weights"]}):
        close(trace(model, text)["logits"], plain["logits"])
    with change(model, {f"{part}.weights": taken}):
        patched = trace(model, text)
    assert torch.equal(patched[f"{part}.weights"], taken)
    close(patched[f"{part}.heads"], taken @ patched[f"{part}.v"])
    assert (patched["logits"] - plain["logits"]).abs().max() > 1e-4
    with change(model, {f"{part}.weights": lambda w: torch.full_like(w, 1 / w.shape[-1])}):
        even = trace(model, text)
        model.ask([text[0] if isinstance(text, tuple) else text])
    mean = even[f"{part}.v"].mean(1, keepdim=True).expand_as(even[f"{part}.heads"])
    if case != "gpt":
        close(even[f"{part}.heads"], mean)


@every_case
def test_a_hidden_token_is_looked_at_by_nobody(case: str) -> None:
    build, text, _, _, _ = CASES[case]
    model = build()
    plain = trace(model, text)
    with change(model, hide=[1]):
        patched = trace(model, text)
        model.ask([text[0] if isinstance(text, tuple) else text])  # also step by step
    there = [part for part in patched.attentions if sides(part)]
    assert there
    for part in there:
        assert (patched[f"{part}.weights"][..., 1] == 0).all()
        assert (patched[f"{part}.reason"][:, 1] > 0).all()
        visible = torch.ones(plain[f"{part}.weights"].shape[-1], dtype=torch.bool)
        visible[1] = False
        assert_close(
            patched[f"{part}.weights"][..., visible].sum(-1),
            torch.ones(patched[f"{part}.weights"].shape[:-1]),
        )
    assert not torch.equal(patched["logits"], plain["logits"])


def sides(part: str) -> bool:
    """Whether the part attends to the source, or to the only text."""
    return part.startswith("encoder") or "cross" in part or "look" in part or not part.startswith("decoder")


def test_hidden_is_as_left_out_where_there_are_no_positions() -> None:
    """Compared with a text without the word; the hidden word still has its own row."""
    model = reader("write", "gpt", positions="none")
    with change(model, hide=[1]):
        hidden = trace(model, "the quick brown fox")["logits"][[0, 2, 3]]
    close(hidden, trace(model, "the brown fox")["logits"])


@torch.no_grad()
def test_what_can_be_changed_in_a_block() -> None:
    """Changes by functions, each compared with the same computed by hand."""
    model, text = reader("write", "gpt", ffn="gelu"), "the quick brown fox"
    m, plain = model.model, trace(model, text)
    block = m.blocks[1]

    def rest(x: Tensor) -> Tensor:
        return F.linear(m.norm(x), m.output)

    with change(model, {"blocks.1.ffn.hidden": lambda x: 2 * x}):
        logits = trace(model, text)["logits"]
    close(logits, rest(plain["blocks.1.attn.residual"] + block.ffn.f.down(2 * plain["blocks.1.ffn.hidden"])))
    with change(model, {"blocks.1.attn.residual": torch.zeros_like}):
        logits = trace(model, text)["logits"]
    close(logits, rest(block.ffn.f(block.ffn.norm(torch.zeros(4, 12)))))
    with change(model, {"norm": lambda x: x.flip(0)}):
        close(trace(model, text)["logits"], plain["logits"].flip(0))
    with change(model, {"input": plain["input"], "blocks.0.attn.joined": plain["blocks.0.attn.joined"]}):
        close(trace(model, text)["logits"], plain["logits"])
    with change(
        model, {"embed": m.embed.weight[torch.tensor(trace(model, "over the lazy dog").ids["text"])]}
    ):
        close(trace(model, text)["logits"], trace(model, "over the lazy dog")["logits"])


def test_the_answer_changes_and_comes_back() -> None:
    model = reader("translate", "transformer")
    before, records = model.ask(PAIR[0]), [trace(model, (x[0], "der"))["logits"] for x in (PAIR, OTHER)]
    every = {f"decoder.{i}.cross": [0, 1, 2] for i in range(2)}
    with change(model, silence=every):
        assert model.ask(PAIR[0]) == model.ask(OTHER[0])  # the source is not seen
        blind = [trace(model, (x[0], "der"))["logits"] for x in (PAIR, OTHER)]
        with change(model, hide=[0]):
            model.ask(PAIR[0], num_beams=3)
    assert model.ask(PAIR[0]) == before
    assert torch.equal(*blind)
    assert not torch.equal(*records)


def test_nothing_is_left_after_an_error() -> None:
    model = reader("write", "gpt")
    before = trace(model, "the fox")["logits"]
    parts = {"blocks.0.attn.weights": torch.zeros(3, 9, 9), "blocks.0.output": lambda x: x}
    with (
        pytest.raises(
            UserError, match=r"blocks\.0\.attn\.weights: \(3, 9, 9\) was given, \(3, 2, 2\) is there"
        ),
        change(model, parts, silence={"blocks.1.attn": [0]}, hide=[1]),
    ):
        trace(model, "the fox")
    assert hooks(model) == 0
    assert torch.equal(trace(model, "the fox")["logits"], before)


def test_mistakes() -> None:
    model = reader("write", "gpt")
    for values, message in (
        ({"values": {"blocks.0.outputs": torch.ones(1)}}, r"did you mean blocks\.0\.output"),
        ({"silence": {"blocks.0.att": [0]}}, r"is not an attention .* did you mean blocks\.0\.attn"),
    ):
        with pytest.raises(UserError, match=message), change(model, **values):
            pass
    with (
        pytest.raises(UserError, match="there are heads 0 to 2, not 3"),
        change(model, silence={"blocks.0.attn": [3]}),
    ):
        trace(model, "the fox")
    with pytest.raises(UserError, match="can't be ranked"):
        effects(reader("embed", "bert"), "the fox")


# Ranking


@every_case
@torch.no_grad()
def test_effects_by_hand(case: str) -> None:
    build, text, _, part, _ = CASES[case]
    model = build()
    result = effects(model, text)
    plain = trace(model, text)
    assert len(result) == sum(len(plain[f"{name}.weights"]) for name in plain.attentions)
    assert [effect.kl for effect in result] == sorted((effect.kl for effect in result), reverse=True)
    with change(model, silence={part: [0]}):
        silent = trace(model, text)
    (mine,) = (effect for effect in result if (effect.part, effect.head) == (part, 0))
    p, q = (t["logits"].log_softmax(-1) for t in (plain, silent))
    p, q = (x if x.ndim == 2 else x[None] for x in (p, q))
    if case == "gpt":
        p, q = p[-1:], q[-1:]
    if case == "bert":
        p, q = p[2:3], q[2:3]  # [CLS] the [MASK]
    expected = F.kl_div(q, p, log_target=True, reduction="batchmean")
    assert mine.kl == pytest.approx(float(expected), abs=1e-6)
    answer = torch.tensor(plain.ids.get("written", p.argmax(-1).tolist()))
    change_of = (q - p)[range(len(p)), answer].mean()
    assert mine.log_probability == pytest.approx(float(change_of), abs=1e-5)


@contextmanager
def useless(model: Model, part: str, head: int) -> Any:
    """A head whose output weights are zero: no output depends on it."""
    out = module(model, part).out
    d = out.weight.shape[1] // module(model, part).heads
    before = out.weight.clone()
    with torch.no_grad():
        out.weight[:, head * d : (head + 1) * d] = 0
        yield
        out.weight.copy_(before)


def test_a_useless_head_is_last() -> None:
    model = reader("classify", "bert", task_labels=("a", "b"))
    with useless(model, "blocks.1.attn", 2):
        last = effects(model, "the quick brown fox")[-1]
    assert (last.part, last.head) == ("blocks.1.attn", 2)
    assert last.kl == last.log_probability == 0


@every_case
def test_every_layer_by_its_own_name(case: str) -> None:
    """Every value that can be changed has its name in the trace; replaced by itself, it changes no output."""
    build, text, *_ = CASES[case]
    model = build()
    t, names = trace(model, text), changeable(model.model)
    # of other heads, and tables
    unused = {"transform", "transform_norm", "pooler", "pooled", "next", "first", "positions"}
    assert {name for name in names if name not in t} <= {*unused, "encoder.net.positions"}
    with change(model, {name: t[name] for name in names if name in t}):
        close(trace(model, text)["logits"], t["logits"])


def test_threads_trace_and_change_one_model_as_one_after_another_does() -> None:
    build, text, other, part, layer = CASES["gpt"]
    model = build()
    model.model.train()
    slow = [
        m.register_forward_hook(lambda *_: time.sleep(0.001))  # so that all others come in between
        for m in module(model, "blocks")
    ]

    def traced(inputs: str) -> list[Tensor]:
        return list(trace(model, inputs).tensors.values())

    def silenced() -> list[Tensor]:
        with change(model, {layer: torch.zeros_like}, silence={part: [0]}):
            return traced(text)

    def measured() -> list[Tensor]:
        return [torch.tensor([effect.kl, effect.log_probability]) for effect in effects(model, text)]

    work = [lambda: traced(text), lambda: traced(other), silenced, measured] * 2
    expected = [each() for each in work]
    with ThreadPoolExecutor(len(work)) as threads:
        for got, alone in zip(threads.map(lambda each: each(), work), expected, strict=True):
            assert [t.tolist() for t in got] == [t.tolist() for t in alone]
    for hook in slow:
        hook.remove()
    assert all(m.training for m in model.model.modules())


def test_the_package_gives_it() -> None:
    assert regard.change is change
    assert regard.effects is effects
    reader("write", "gpt")
