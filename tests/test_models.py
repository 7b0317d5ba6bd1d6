"""Tests for every model: one line in CASES adds a new one."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from helpers.shapes import checked, promises
from helpers.slow import slow_after
from regard.core.attention import Attention
from regard.core.layers import Block, FeedForward
from regard.describe.watch import watch
from regard.models import MODELS, ViT, ViTConfig

VOCAB, T, S = 61, 11, 13
GPT = {"vocab": VOCAB, "context": 23, "dim": 40, "depth": 2, "heads": 4}
PAIR = {**GPT, "target_vocab": 53, "dropout": 0.0}
RECURRENT = {k: v for k, v in PAIR.items() if k != "heads"}
ELMO = {k: v for k, v in RECURRENT.items() if k not in ("depth", "target_vocab")}
LAYERS = {k: v for k, v in RECURRENT.items() if k != "target_vocab"}
BERT = {**GPT, "dropout": 0.0}
CAPTIONER = {**GPT, "size": 20, "decoder_depth": 2, "depth": 1, "dropout": 0.0}
BIASED = ("learned", "relative")  # positions whose code depends on the direction, and the default
HIDDEN = VOCAB - 1  # what stands in place of a word to be guessed


@dataclass(frozen=True)
class Batch:
    """What a model reads: `ids`, of which it foretells the next, and an encoder-decoder also their source.

    An encoder alone looks at all of them, and tells them again. Called with a model, it gives the logits, of
    other `ids` if these are asked about.
    """

    ids: Tensor
    source: Tensor | None = None
    attention_mask: Tensor | None = None  # False where a source is padded; or the ids, without one
    segments: Tensor | None = None

    def __call__(self, model: Any, ids: Tensor | None = None) -> Tensor:
        ids = self.ids if ids is None else ids
        if self.source is not None:
            return model(self.source, ids, self.attention_mask)
        return (
            model(ids)
            if self.attention_mask is self.segments is None
            else model(ids, self.attention_mask, self.segments)
        )

    def everything(self, model: Any) -> Tensor:
        """A number that depends on every weight."""
        total = self(model).logsumexp(-1).sum()
        if not hasattr(model, "next_sentence"):
            return total
        x = model.encode(self.ids, self.attention_mask, self.segments)
        return total + model.next_sentence(x).logsumexp(-1).sum()

    def start(self, model: Any, ids: Tensor | None = None) -> tuple[Tensor, Any]:
        ids = self.ids if ids is None else ids
        return model.start(ids) if self.source is None else model.start(self.source, ids, self.attention_mask)

    def row(self, i: int) -> "Batch":
        """One row without its padding."""
        if self.attention_mask is None:
            return Batch(self.ids[i : i + 1], None if self.source is None else self.source[i : i + 1])
        if self.source is None:
            segments = None if self.segments is None else self.of_row(i, self.segments)
            return Batch(self.of_row(i, self.ids), segments=segments)
        return Batch(self.ids[i : i + 1], self.source[i : i + 1, self.attention_mask[i]])

    def of_row(self, i: int, each: Tensor) -> Tensor:
        """One row of a tensor with a value for each id, without its padding."""
        padded = self.attention_mask is not None and self.source is None
        return each[i : i + 1, self.attention_mask[i]] if padded else each[i : i + 1]


@dataclass(frozen=True)
class Case:
    """A model by its name in MODELS, and the settings to build it with."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    pair: bool = False  # an encoder-decoder: it reads a source, too
    looks: bool = False  # an encoder-decoder whose source is a picture
    reads: bool = False  # an encoder alone: it writes nothing
    lr: float = 1e-2  # with which it learns a batch by heart
    compiles: bool = True  # torch's recurrent layers do not; and some have no code of their own to compile
    itself: bool = True  # a prediction reads the word at its own place
    unlearned: tuple[str, ...] = ()  # weights that only the task's loss teaches

    def __str__(self) -> str:
        settings = {k: v for k, v in self.settings.items() if k not in PAIR}
        return "-".join([self.name, *(k if v is True else str(v) for k, v in settings.items())])

    @property
    def vocab(self) -> int:
        """The size of the output vocabulary."""
        return self.settings.get("target_vocab") or VOCAB

    def build(self) -> nn.Module:
        """The model in evaluation mode, with weights so large that all of its parts matter."""
        cls, config, _ = MODELS[self.name]
        model = cls(config(**self.settings))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return model.eval()

    def shallow(self) -> "Case":
        """With one block in each stack: the next one runs the same code, and takes as long to compile."""
        depths = {name: 1 for name in ("depth", "decoder_depth") if name in self.settings}
        return replace(self, settings=self.settings | depths)

    def inputs(self) -> Batch:
        """Three rows; padded inputs have the maximum, a medium and the minimum length."""
        ids = torch.randint(self.vocab, (3, T))
        if self.reads:
            count = self.settings.get("segments", MODELS[self.name][1].segments)
            segments = torch.randint(2, (3, T)) if count else None
            return Batch(
                ids, attention_mask=torch.arange(T) < torch.tensor([[T], [7], [1]]), segments=segments
            )
        if self.looks:
            return Batch(ids, torch.randint(256, (3, 3, 20, 20), dtype=torch.uint8))
        if not self.pair:
            return Batch(ids)
        return Batch(ids, torch.randint(VOCAB, (3, S)), torch.arange(S) < torch.tensor([[S], [7], [1]]))


CASES = [
    *(
        Case("gpt", {**GPT, "positions": positions, "kv_heads": 2})
        for positions in ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")
    ),
    Case(
        "gpt",
        {**GPT, "positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True, "tied": False},
    ),
    Case("gpt", {**GPT, "ffn": "relu", "dropout": 0.1, "kv_heads": 1}),
    Case(
        "gpt", {**GPT, "sliding_window": 3, "qk_norm": True, "head_dim": 6, "qkv_bias": True, "base": 500.0}
    ),
    *(
        Case(
            "transformer",
            {**PAIR, "positions": positions, "kv_heads": 2},
            pair=True,
            lr=5e-3,
            compiles=positions in BIASED,
        )
        for positions in ("none", "sinusoidal", "learned", "rotary", "relative")
    ),
    Case("transformer", {**GPT, "pre": True, "decoder_depth": 3}, pair=True, lr=5e-3),
    Case(
        "transformer",
        {**PAIR, "output_bias": True, "positions": "rotary", "head_dim": 6, "ffn": "geglu"},
        pair=True,
        lr=5e-3,
    ),
    Case(
        "transformer",
        {**PAIR, "norm": "rms", "ffn": "swiglu", "bias": False, "tied": False, "hidden": 47},
        pair=True,
        lr=5e-3,
    ),
    Case("t5", {**PAIR, "positions": "relative"}, pair=True, lr=5e-3),
    Case("t5", {**GPT, "positions": "relative", "ffn": "gelu_tanh", "dropout": 0.0}, pair=True, lr=5e-3),
    *(  # dynamo does not take torch's recurrent layers
        Case(cell, {**RECURRENT, "attention": attention}, pair=True, compiles=False)
        for cell, attention in (("rnn", "none"), ("gru", "additive"), ("lstm", "dot"), ("gru", "general"))
    ),
    Case("gru", {**RECURRENT, "target_vocab": None, "bidirectional": False}, pair=True, compiles=False),
    Case("lstm", {**RECURRENT, "tied": False, "depth": 1}, pair=True, compiles=False),
    *(
        Case("recurrent", {**LAYERS, "cell": cell, **more}, lr=2e-2, compiles=False)
        for cell, more in (("rnn", {}), ("gru", {"depth": 1}), ("lstm", {"tied": False}))
    ),
    *(
        Case("bert", {**BERT, "positions": positions}, reads=True, compiles=positions in BIASED)
        for positions in ("none", "sinusoidal", "learned", "rotary", "relative")
    ),
    Case("bert", {**GPT, "pre": True, "segments": 0, "dropout": 0.1}, reads=True),
    Case("bert", {**BERT, "positions": "rotary", "window": 2}, reads=True),
    Case("bert", {**BERT, "norm": "rms", "ffn": "swiglu", "bias": False, "hidden": 47}, reads=True),
    Case("captioner", {**CAPTIONER, "decoder": "transformer"}, looks=True, lr=5e-3),
    Case("captioner", {**CAPTIONER, "decoder": "transformer", "encoder": "vit"}, looks=True, lr=5e-3),
    Case("captioner", {**CAPTIONER, "zoom": 2, "patch": 8}, looks=True, compiles=False),
    Case(
        "captioner",
        {**CAPTIONER, "attention": "hard"},
        looks=True,
        compiles=False,
        unlearned=tuple(f"decoder.look.score.{name}.weight" for name in ("W", "U", "w")),
    ),
    Case("elmo", ELMO, reads=True, lr=3e-2, compiles=False, itself=False),
]
COMPILED = [case for case in CASES if case.compiles]
DECODERS = [case for case in CASES if not case.reads]
WRITERS = [case for case in DECODERS if not case.pair and not case.looks]
every_model = pytest.mark.parametrize("case", CASES, ids=str)
# Positions of an encoder, or of both sides, are learnt as a GPT's are.
LEARNERS = [case for case in CASES if case.compiles or case.name not in ("transformer", "bert")]


def overfitted() -> list[Any]:
    """The first two of each family; others have a part or two that is different, and are slow."""
    cases_of = Counter[str]()
    cases: list[Any] = []
    for case in LEARNERS:
        cases_of[case.name] += 1
        cases.append(case if cases_of[case.name] <= 2 else pytest.param(case, marks=pytest.mark.slow))
    return cases


every_decoder = pytest.mark.parametrize("case", DECODERS, ids=str)
every_writer = pytest.mark.parametrize("case", WRITERS, ids=str)
every_pair = pytest.mark.parametrize("case", [case for case in CASES if case.pair], ids=str)
every_reader = pytest.mark.parametrize("case", [case for case in CASES if case.reads], ids=str)
ONE_OF_EACH = list({case.name: case for case in COMPILED}.values())
one_of_each = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
one_of_each_decoder = pytest.mark.parametrize("case", [c for c in ONE_OF_EACH if not c.reads], ids=str)


def test_every_model_is_tested() -> None:
    assert {case.name for case in CASES} == set(MODELS) - {"words", "vit"}  # tests of their own


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_builds(name: str) -> None:
    cls, config, presets = MODELS[name]
    assert presets
    for preset in presets.values():
        with torch.device("meta"):
            cls(config(**({"size": 32, "channels": 3} if name == "vit" else {"vocab": VOCAB}), **preset))


# Step by step


@every_decoder
@torch.no_grad()
def test_stepwise_is_full(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    full = batch(model)
    logits, state = batch.start(model, batch.ids[:, :4])
    assert_close(logits, full[:, 3], atol=1e-5, rtol=1e-4)
    for t in range(4, T):
        logits, state = model.step(batch.ids[:, t : t + 1], state)
        assert state.length == t + 1
        assert_close(logits, full[:, t], atol=1e-5, rtol=1e-4)


@every_decoder
@torch.no_grad()
def test_chunked_is_full(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    _, state = batch.start(model, batch.ids[:, :2])
    last = [model.step(chunk, state)[0] for chunk in batch.ids[:, 2:].split([5, 1, 3], dim=1)]
    assert_close(torch.stack(last, dim=1), batch(model)[:, [6, 7, 10]], atol=1e-5, rtol=1e-4)


@every_decoder
@torch.no_grad()
def test_reordered_state_goes_on_as_another_row(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    _, state = batch.start(model, batch.ids[:, :4])
    rows = torch.tensor([2, 0, 0, 1])
    state.reorder(rows)
    following = torch.randint(case.vocab, (4, 2))
    model.step(following[:, :1], state)
    logits, _ = model.step(following[:, 1:], state)
    for i, row in enumerate(rows.tolist()):
        alone = batch.row(row)(model, torch.cat([batch.ids[row : row + 1, :4], following[i : i + 1]], dim=1))
        assert_close(logits[i], alone[0, -1], atol=1e-5, rtol=1e-4)


@every_model
def test_watched_is_unwatched(case: Case) -> None:
    model, batch, answers = case.build(), case.inputs(), []
    for watched in False, True:
        model.zero_grad()
        if watched:
            with watch(model) as records:
                logits = batch(model)
                for calls in records.values():  # every query once, in one call or several
                    assert sum(record["weights"].shape[-2] for record in calls) in (T, S, 25)
        else:
            logits = batch(model)
        logits.logsumexp(-1).sum().backward()
        answers.append([logits, *(p.grad for p in model.parameters())])
    assert_close(answers[1], answers[0], atol=1e-4, rtol=1e-4)
    assert_close(answers[1][0], answers[0][0], atol=1e-5, rtol=1e-5)


# Leaks


@every_decoder
@torch.no_grad()
def test_no_leak_from_the_future(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    for t in 1, 4, T - 1:
        other = batch.ids.clone()
        other[:, t:] = (other[:, t:] + 1) % case.vocab
        before, after = batch(model), batch(model, other)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t:], after[:, t:])


@every_writer
@torch.no_grad()
def test_no_leak_from_padding(case: Case) -> None:
    model, ids = case.build(), case.inputs().ids
    attention_mask = torch.arange(T) >= torch.tensor([[0], [3], [T - 1]])
    other = torch.where(attention_mask, ids, (ids + 1) % VOCAB)
    first, state = model.start(ids, attention_mask)
    second, other_state = model.start(other, attention_mask)
    assert torch.equal(first, second)
    following = torch.randint(VOCAB, (3, 1))
    assert torch.equal(model.step(following, state)[0], model.step(following, other_state)[0])
    alone, _ = model.start(ids[1:2, 3:])
    assert_close(first[1:2], alone, atol=1e-5, rtol=1e-4)


@every_pair
@torch.no_grad()
def test_no_leak_from_a_padded_source(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    assert batch.source is not None
    assert batch.attention_mask is not None
    filled = torch.where(batch.attention_mask, batch.source, (batch.source + 1) % VOCAB)
    other, following = replace(batch, source=filled), torch.randint(case.vocab, (3, 1))
    assert torch.equal(batch(model), other(model))
    (first, state), (second, other_state) = batch.start(model), other.start(model)
    assert torch.equal(first, second)
    assert torch.equal(model.step(following, state)[0], model.step(following, other_state)[0])


@every_pair
@torch.no_grad()
def test_every_word_of_the_source_matters(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    assert batch.source is not None
    for s in 0, 6, S - 1:
        source = batch.source.clone()
        source[:, s] = (source[:, s] + 1) % VOCAB
        changed = (replace(batch, source=source)(model) != batch(model)).any(-1)
        assert changed[0].all(), s  # the row without padding
        assert changed.all(1).tolist() == batch.attention_mask[:, s].tolist()


@every_reader
@torch.no_grad()
def test_no_leak_from_padding_on_the_right(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    other = torch.where(batch.attention_mask, batch.ids, (batch.ids + 1) % VOCAB)
    before, after = batch(model), batch(model, other)
    assert torch.equal(before[batch.attention_mask], after[batch.attention_mask])
    assert not torch.equal(before, batch(model, (batch.ids + 1) % VOCAB))


@every_reader
@torch.no_grad()
def test_every_word_is_seen_from_everywhere(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    for t in 0, 6, T - 1:
        for name in ("ids", "segments") if batch.segments is not None else ("ids",):
            other = getattr(batch, name).clone()
            other[:, t] = (other[:, t] + 1) % (VOCAB if name == "ids" else 2)
            changed = (replace(batch, **{name: other})(model) != batch(model)).any(-1) | ~batch.attention_mask
            if not case.itself:
                assert not changed[batch.attention_mask[:, t], t].any()
                changed[:, t] = True
            assert changed[0].all(), (name, t)  # the row without padding
            assert changed.all(1).tolist() == batch.attention_mask[:, t].tolist()


@every_model
@torch.no_grad()
def test_rows_do_not_see_each_other(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    for i in range(3):
        assert_close(batch.of_row(i, batch(model)), batch.row(i)(model), atol=1e-5, rtol=1e-4)


# Weights


@every_model
@torch.no_grad()
def test_save_and_load_is_exact(case: Case, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, again, batch = case.build(), case.build(), case.inputs()
    assert not torch.equal(batch(model), batch(again))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(batch(model), batch(again))


@every_model
def test_every_weight_learns(case: Case) -> None:
    model = case.build()
    case.inputs().everything(model).backward()
    for name, p in model.named_parameters():
        if name in case.unlearned:
            assert p.grad is None or not p.grad.any(), name
            continue
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


@pytest.mark.parametrize("case", overfitted(), ids=str)
def test_one_batch_overfits(case: Case) -> None:
    cls, config, _ = MODELS[case.name]
    model, batch = cls(config(**case.settings)), case.inputs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.lr, weight_decay=0.0, fused=True)

    def loss() -> Tensor:
        if case.reads:  # every word, of which one in a row is hidden
            ids = batch.ids.scatter(1, torch.tensor([[3], [5], [0]]), HIDDEN)
            return F.cross_entropy(batch(model, ids)[batch.attention_mask], batch.ids[batch.attention_mask])
        return F.cross_entropy(batch(model, batch.ids[:, :-1]).flatten(0, 1), batch.ids[:, 1:].flatten())

    for _ in range(70):
        optimizer.zero_grad()
        (now := loss()).backward()
        if now < 0.05:  # from about 4
            break
        optimizer.step()
    model.eval()
    assert loss() < 0.1


@every_model
@torch.no_grad()
def test_runs_in_half_precision(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    exact, half = batch(model), batch(model.bfloat16())
    assert half.dtype == torch.bfloat16
    assert F.cosine_similarity(half.float(), exact, dim=-1).min() > 0.99
    with watch(model):
        assert F.cosine_similarity(batch(model).float(), exact, dim=-1).min() > 0.99


@every_model
def test_runs_under_autocast(case: Case) -> None:
    model, batch = case.build(), case.inputs()
    exact = batch(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.cosine_similarity(batch(model).float(), exact, dim=-1).min() > 0.99
        with watch(model):
            assert F.cosine_similarity(batch(model).float(), exact, dim=-1).min() > 0.99


# Compiled


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in COMPILED if case not in ONE_OF_EACH], ids=str)
def test_compiles_without_graph_breaks(case: Case) -> None:
    """Those whose gradients are not compared below."""
    torch._dynamo.reset()
    model, batch = case.shallow().build(), case.inputs()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(batch(compiled), batch(model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", slow_after(1, ONE_OF_EACH), ids=str)
def test_compiled_gradients(case: Case) -> None:
    """Of two blocks, too, for a GPT."""
    torch._dynamo.reset()
    model, batch = (case if case.name == "gpt" else case.shallow()).build(), case.inputs()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    answers = []
    for run in model, compiled:
        model.zero_grad()
        logits = batch(run)
        logits.logsumexp(-1).sum().backward()
        answers.append([logits, *(p.grad for p in model.parameters())])
    assert_close(answers[1], answers[0], atol=1e-4, rtol=1e-4)


@one_of_each_decoder
def test_compiled_steps(case: Case) -> None:
    torch._dynamo.reset()
    model, batch = case.build(), case.inputs()
    step = torch.compile(model.step, fullgraph=True, backend="eager")
    with torch.no_grad():
        _, state = batch.start(model, batch.ids[:, :-1])
        assert_close(step(batch.ids[:, -1:], state)[0], batch(model)[:, -1], atol=1e-5, rtol=1e-4)
        assert state.length == T


# Shape comments

HERE = Path(regard.__file__).parent
CORE = [path for name in ("core/*.py", "models/*.py") for path in HERE.glob(name)]


def test_shape_comments_are_true() -> None:
    """Every shape comment in the core is reached by a model, and is correct."""
    decoder = Block(22, Attention(22, 2, causal=True), FeedForward(22), Attention(22, 2))
    sizes = {"channels": 3, "patch": 5, "dim": 12, "heads": 3, "depth": 1}
    sight = ViT(ViTConfig(size=15, positions="sinusoidal", **sizes))
    heard, mask = (
        ViT(ViTConfig(size=20, mels=7, pool="mean", **sizes)),
        torch.arange(4) < torch.tensor([[4], [2]]),
    )
    with checked(*CORE) as checks:
        decoder(torch.randn(3, 5, 22), torch.randn(3, 7, 22))
        sight(torch.randn(3, 3, 10, 15))
        heard.pooled(heard(torch.randn(2, 3, 7, 20), mask), mask)
    for case in CASES:
        model, batch = case.build(), case.inputs()
        attention_mask = torch.arange(T) >= torch.tensor([[0], [3], [T - 1]])
        with checked(*CORE) as records, torch.no_grad():
            batch(model)
            with watch(model):
                batch(model)
            if case.reads:
                batch.everything(model)
            else:
                model.step(batch.ids[:, :1], batch.start(model)[1])
            if case in WRITERS:
                model.step(batch.ids[:, :1], model.start(batch.ids, attention_mask)[1])
        checks += records
    used = {path for path, _ in checks}  # a file that no model of MODELS needs has only its own tests
    comments = {(str(path), promise.last) for path in CORE if str(path) in used for promise in promises(path)}
    assert len(comments) > 20
    assert not {f"{Path(path).name}:{line}" for path, line in comments if not checks[path, line]}


@pytest.mark.parametrize("path", [path for path in CORE if promises(path)], ids=lambda path: path.name)
def test_shape_letters_are_in_the_legend(path: Path) -> None:
    legend = path.read_text().split('"""')[1].replace(",", " ").split()
    for promise in promises(path):
        for letter in "".join(c if c.isalnum() else " " for c in " ".join(promise.dims)).split():
            assert letter.isdigit() or letter in legend, f"{path.name}: {letter}"


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("y = x.mT  # (B, T, D)", "y is"),
        ("y = x[0]  # (B, T)", "B = 2"),
        ("y = x[..., :1]  # (B, T, 3)", "3 = 3"),
        ("y = x[..., None]  # (B, T, D)", "y is"),
        ("y = x[..., :2]  # (B, T, D/2)", "D/2 = 2.5"),
        ("T = 4; y = x  # (B, T, D)", "T = 4"),
        ("return x[0]  # (B, T, D)", "result is"),
        ("y = (\n        x[0]\n    )  # (..., 1, T, D)", "y is"),
    ],
)
def test_a_shape_comment_that_lies_is_caught(lie: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "lie.py"
    path.write_text(f"def f(x):\n    x = x  # (B, T, D)\n    {lie}\n    return x  # (B, T, D)\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path.resolve()), "exec"), names)
    with pytest.raises(AssertionError, match=why), checked(path):
        names["f"](torch.zeros(2, 3, 5))


def test_true_shape_comments_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "true.py"
    path.write_text("def f(x):\n    y, z = x, x.mT[0]  # (..., 3, D)\n    return y, y  # (2, 3, D)\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text().replace("x.mT[0]", "x[0]"), str(path.resolve()), "exec"), names)
    with checked(path) as checks:
        names["f"](torch.zeros(2, 3, 5))
    assert dict(checks) == {(str(path.resolve()), 2): 2, (str(path.resolve()), 3): 2}


@pytest.mark.parametrize(
    "comment", ["x: int  # (B or none, T)", "print(x)  # (B, T)", "self.x = x  # (B, T)"]
)
def test_a_shape_comment_that_cannot_be_checked_is_refused(comment: str, tmp_path: Path) -> None:
    path = tmp_path / "vague.py"
    path.write_text(comment + "\n")
    with pytest.raises(ValueError, match="cannot be checked"):
        promises(path)
