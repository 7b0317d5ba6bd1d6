"""What holds for every model: one line in CASES brings a new one under all of these tests."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from shapes import checked, promises
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from regard.attention import Attention
from regard.cache import State
from regard.layers import Block, FeedForward
from regard.models import MODELS
from regard.trace import trace

VOCAB, T = 61, 11
GPT = {"vocab": VOCAB, "context": 23, "dim": 40, "depth": 2, "heads": 4}


@dataclass(frozen=True)
class Case:
    """A model by its name in MODELS, and the settings to build it with."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, *(str(v) for k, v in self.settings.items() if k not in GPT)])

    def build(self) -> nn.Module:
        """Ready to use, with weights large enough that its parts matter."""
        cls, config, _ = MODELS[self.name]
        model = cls(config(**self.settings))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return model.eval()

    def inputs(self, rows: int = 3) -> Tensor:
        return torch.randint(VOCAB, (rows, T))


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
]
every_model = pytest.mark.parametrize("case", CASES, ids=str)
one_of_each = pytest.mark.parametrize("case", {case.name: case for case in CASES}.values(), ids=str)


def test_every_model_is_tested() -> None:
    assert {case.name for case in CASES} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_builds(name: str) -> None:
    cls, config, presets = MODELS[name]
    assert presets
    for preset in presets.values():
        with torch.device("meta"):
            cls(config(vocab=VOCAB, **preset))


# Step by step


@every_model
@torch.no_grad()
def test_stepwise_is_full(case: Case) -> None:
    model, ids = case.build(), case.inputs()
    full = model(ids)
    logits, state = model.start(ids[:, :4])
    assert_close(logits, full[:, 3], atol=1e-5, rtol=1e-4)
    for t in range(4, T):
        logits, state = model.step(ids[:, t : t + 1], state)
        assert state.length == t + 1
        assert_close(logits, full[:, t], atol=1e-5, rtol=1e-4)


@every_model
@torch.no_grad()
def test_chunked_is_full(case: Case) -> None:
    model, ids = case.build(), case.inputs()
    _, state = model.start(ids[:, :2])
    pieces = [model(chunk, state) for chunk in ids[:, 2:].split([5, 1, 3], dim=1)]
    assert_close(torch.cat(pieces, dim=1), model(ids)[:, 2:], atol=1e-5, rtol=1e-4)


@every_model
def test_watched_is_unwatched(case: Case) -> None:
    model, ids, answers = case.build(), case.inputs(), []
    for watched in False, True:
        model.zero_grad()
        if watched:
            with trace(model) as seen:
                logits = model(ids)
                assert all(len(records) == 1 for records in seen.values())
        else:
            logits = model(ids)
        logits.logsumexp(-1).sum().backward()
        answers.append([logits, *(p.grad for p in model.parameters())])
    assert_close(answers[1], answers[0], atol=1e-4, rtol=1e-4)
    assert_close(answers[1][0], answers[0][0], atol=1e-5, rtol=1e-5)


# Leaks


@every_model
@torch.no_grad()
def test_no_leak_from_the_future(case: Case) -> None:
    model, ids = case.build(), case.inputs()
    for t in 1, 4, T - 1:
        other = ids.clone()
        other[:, t:] = (other[:, t:] + 1) % VOCAB
        before, after = model(ids), model(other)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t:], after[:, t:])


@every_model
@torch.no_grad()
def test_no_leak_from_padding(case: Case) -> None:
    model, ids = case.build(), case.inputs()
    real = torch.arange(T) >= torch.tensor([[0], [3], [T - 1]])
    other = torch.where(real, ids, (ids + 1) % VOCAB)
    first, state = model.start(ids, real)
    second, other_state = model.start(other, real)
    assert torch.equal(first, second)
    following = torch.randint(VOCAB, (3, 1))
    assert torch.equal(model.step(following, state)[0], model.step(following, other_state)[0])
    alone, _ = model.start(ids[1:2, 3:])
    assert_close(first[1:2], alone, atol=1e-5, rtol=1e-4)


@every_model
@torch.no_grad()
def test_rows_do_not_see_each_other(case: Case) -> None:
    model, ids = case.build(), case.inputs()
    assert_close(model(ids)[1:2], model(ids[1:2]), atol=1e-5, rtol=1e-4)


# Weights


@every_model
@torch.no_grad()
def test_save_and_load_is_exact(case: Case, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, again, ids = case.build(), case.build(), case.inputs()
    assert not torch.equal(model(ids), again(ids))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model(ids), again(ids))


@every_model
def test_every_weight_learns(case: Case) -> None:
    model = case.build()
    model(case.inputs()).logsumexp(-1).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


@every_model
def test_one_batch_overfits(case: Case) -> None:
    cls, config, _ = MODELS[case.name]
    model, ids = cls(config(**case.settings)), case.inputs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(70):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    assert F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) < 0.05


@every_model
@torch.no_grad()
def test_runs_in_half_precision(case: Case) -> None:
    model, ids = case.build(), case.inputs()
    exact, half = model(ids), model.bfloat16()(ids)
    assert half.dtype == torch.bfloat16
    assert F.cosine_similarity(half.float(), exact, dim=-1).min() > 0.99
    with trace(model):
        assert F.cosine_similarity(model(ids).float(), exact, dim=-1).min() > 0.99


@every_model
def test_runs_under_autocast(case: Case) -> None:
    model, ids = case.build(), case.inputs()
    exact = model(ids)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.cosine_similarity(model(ids).float(), exact, dim=-1).min() > 0.99
        with trace(model):
            assert F.cosine_similarity(model(ids).float(), exact, dim=-1).min() > 0.99


# Compiled


@every_model
def test_compiles_without_graph_breaks(case: Case) -> None:
    torch._dynamo.reset()
    model, ids = case.build(), case.inputs()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(ids), model(ids), atol=1e-5, rtol=1e-5)


@one_of_each
def test_compiled_gradients_and_steps(case: Case) -> None:
    torch._dynamo.reset()
    model, ids = case.build(), case.inputs()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    answers = []
    for run in model, compiled:
        model.zero_grad()
        run(ids).logsumexp(-1).sum().backward()
        answers.append([p.grad for p in model.parameters()])
    assert_close(answers[1], answers[0], atol=1e-4, rtol=1e-4)
    step = torch.compile(model.step, fullgraph=True, backend="eager")
    with torch.no_grad():
        _, state = model.start(ids[:, :-1])
        assert_close(step(ids[:, -1:], state)[0], model(ids)[:, -1], atol=1e-5, rtol=1e-4)
        assert state.length == T


# Shape comments

HERE = Path(regard.__file__).parent
CORE = [
    path
    for name in ("positions.py", "cache.py", "attention.py", "layers.py", "recurrent.py", "models/*.py")
    for path in HERE.glob(name)
]


def test_shape_comments_are_true() -> None:
    """Every comment on a shape in the core is reached by some model, and agrees with what is there."""
    decoder = Block(22, Attention(22, 2, causal=True), FeedForward(22), Attention(22, 2))
    with checked(*CORE) as checks:
        decoder(torch.randn(3, 5, 22), torch.randn(3, 7, 22))
    for case in CASES:
        model, ids = case.build(), case.inputs()
        real = torch.arange(T) >= torch.tensor([[0], [3], [T - 1]])
        with checked(*CORE) as seen, torch.no_grad():
            model(ids)
            with trace(model):
                model(ids)
            for prompt in (ids,), (ids, real):
                _, state = model.start(*prompt)
                assert isinstance(state, State)
                model.step(ids[:, :1], state)
        checks += seen
    comments = {(str(path), promise.last) for path in CORE for promise in promises(path)}
    assert comments
    assert not {f"{Path(path).name}:{line}" for path, line in comments if not checks[path, line]}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_shape_letters_are_in_the_legend(path: Path) -> None:
    legend = path.read_text().split('"""')[1]
    for promise in promises(path):
        for letter in "".join(c if c.isalnum() else " " for c in " ".join(promise.dims)).split():
            assert letter.isdigit() or f" {letter} " in legend.replace(",", " "), f"{path.name}: {letter}"


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
