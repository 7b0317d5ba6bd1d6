"""Compiling: what is compiled, and training continues if the compiler fails."""

import json

import pytest
import torch

from helpers.runs import DIFFERENT, FIXED_SHAPES, at_step, others_are_slow, same, stopped, tiny, write_data
from regard.errors import UserError
from regard.models import Transformer, TransformerConfig
from regard.tasks import Translate, Write
from regard.training import compilation
from regard.training.config import TrainConfig
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("task", "graphs", "steps", "minutes"),
    [(Write, True, 5000, 3), (Write, False, 1000, 3), (Translate, True, 50_000, 15)],
)
def test_long_runs_are_compiled_on_a_gpu(task, graphs, steps, minutes):
    """As docs/training.md says."""

    def compiles(**settings):
        return compilation.should_compile(task, TrainConfig(**settings), torch.device("cuda"), graphs)

    assert compiles(steps=steps)
    assert not compiles(steps=steps - 1, minutes=10**6)
    assert compiles(minutes=minutes)
    assert not compiles(minutes=minutes - 0.1)
    assert not compiles(steps=10**6, compile="off")
    assert compiles(steps=1, compile="on")


@pytest.mark.parametrize("case", others_are_slow(DIFFERENT))
def test_what_has_many_shapes_is_compiled_only_if_asked(tmp_path, monkeypatch, case):
    """By default, long runs in bf16 whose batches have one shape are compiled."""
    compiled = []

    class Enough(BaseException):
        pass

    def enough(trainer):
        raise Enough

    monkeypatch.setattr(torch, "compile", lambda module: compiled.append(1) or module)
    monkeypatch.setattr(Trainer, "run", enough)
    data = write_data(case, tmp_path)

    def compiles(steps=1000, precision="bf16", **more):
        compiled.clear()
        with pytest.raises(Enough):
            tiny(data, tmp_path / "out", case, steps=steps, train__precision=precision, **more)
        return bool(compiled)

    assert compiles() == (case in FIXED_SHAPES)
    assert compiles(train__compile="on", steps=1)
    assert not compiles(train__compile="off")
    assert not compiles(steps=999)
    assert not compiles(precision="fp32")


class Broken(torch.nn.Module):
    """A compiled module that raises an error, in the forward or in the backward pass."""

    def __init__(self, module, error, backward=False):
        super().__init__()
        self.module, self.error, self.backward = module, error, backward

    def forward(self, *batch):
        if not self.backward:
            raise self.error
        loss = self.module(*batch)
        loss.register_hook(self.fail)
        return loss

    def fail(self, gradient):
        raise self.error


class WithoutGradient(torch.nn.Module):
    """torch 2.11 compiled a loss to one without a gradient, and raised no error."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *batch):
        loss = self.module(*batch)
        return loss.detach() + 0 * loss


def unsupported(module):
    raise RuntimeError("no compiler here")


COMPILERS = {
    "forward": (lambda m: Broken(m, RuntimeError("no compiler here\nsecond line")), "no compiler here"),
    "backward": (lambda m: Broken(m, RuntimeError("no compiler here"), backward=True), "no compiler here"),
    "unsupported": (unsupported, "no compiler here"),
    "without a message": (lambda m: Broken(m, NotImplementedError()), "NotImplementedError"),
    "zero gradient": (WithoutGradient, "zero"),
}


def notices(out):
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [(row["step"], row["notice"]) for row in lines if "notice" in row]


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_that_fails_says_so_and_training_continues(text, tmp_path, monkeypatch, capsys, name):
    compiler, reason = COMPILERS[name]
    settings = {"steps": 3, "model__dropout": 0.1, "train__micro": 4}
    tiny(text, tmp_path / "plain", **settings, train__compile="off")
    assert not notices(tmp_path / "plain")
    capsys.readouterr()
    monkeypatch.setattr(torch, "compile", compiler)
    tiny(text, tmp_path / "out", **settings, train__compile="on")
    shown = [line for line in capsys.readouterr().err.splitlines() if "torch.compile" in line]
    assert len(shown) == 1
    assert reason in shown[0]
    assert "second line" not in shown[0]
    assert "continuing without torch.compile" in shown[0]
    assert notices(tmp_path / "out") == [(0, shown[0])]
    same(tmp_path / "plain", tmp_path / "out")


def test_a_compiler_that_fails_when_a_run_is_resumed(text, tmp_path, monkeypatch):
    tiny(text, tmp_path / "plain", steps=3)
    monkeypatch.setattr(torch, "compile", COMPILERS["forward"][0])
    with stopped(Trainer, "train_step", at_step(2)):
        tiny(text, tmp_path / "again", steps=3, train__compile="on")
    tiny(text, tmp_path / "again", steps=3, train__compile="on", resume=True)
    same(tmp_path / "plain", tmp_path / "again")
    assert [step for step, _ in notices(tmp_path / "again")] == [0, 2]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), UserError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), UserError),
        (MemoryError(), UserError),
        (UserError("the user's own"), UserError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_errors_that_are_not_the_compilers(text, tmp_path, monkeypatch, capsys, error, expected, backward):
    monkeypatch.setattr(torch, "compile", lambda m: Broken(m, error, backward))
    with pytest.raises(expected):
        tiny(text, tmp_path / "out", steps=1, train__compile="on")
    assert "torch.compile" not in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, while it traces
def test_blocks_are_compiled_once_for_all_layers_and_shapes(monkeypatch):
    """For pairs, whose shapes change: the whole model for changing shapes takes minutes."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compile_by_inductor = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile_by_inductor(f, backend=backend, **how))
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab=20, context=16, dim=8, heads=2, depth=3, dropout=0.0))
    compiled = compilation.CompiledBlocks(model)
    for B, T in ((3, 5), (2, 7), (4, 9)):
        ids = torch.randint(20, (2, B, T))
        torch.testing.assert_close(compiled(*ids), model(*ids))
    assert len(graphs) == 2  # of the encoder and of the decoder
    assert all(m._compiled_call_impl is None for m in model.modules()), "the model itself is as it was"
