"""Replayed steps: which calls are replayed, and that training by replays is training.

No graph can be captured without a GPU. Here a replay calls the function once more, with the graph's buffers.
"""

import contextlib
import json

import pytest
import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.runs import DIFFERENT, RUNS, others_are_slow, tiny, write_data
from regard.training import compilation
from regard.training.graphs import MOST_GRAPHS, Graphs, set_value
from regard.training.step import TrainStep
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")


def read_log(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


class Recorded:
    def __init__(self, function, buffers):
        self.function, self.buffers, self.replays = function, buffers, 0

    def replay(self):
        self.replays += 1
        self.function(*self.buffers)


def capture(graphs, key, function, inputs):
    buffers = tuple(t.clone() for t in inputs)
    graphs.graphs[key] = Recorded(function, buffers), buffers


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(Graphs, "capture", capture)


def test_the_second_call_of_a_shape_is_replayed(recorded):
    calls, graphs = [], Graphs(pytest.fail)

    def add(x):
        calls.append(x.data_ptr())

    inputs = [torch.zeros(n) for n in (2, 2, 3, 2, 3)]
    for x in inputs:
        graphs(add, x)
    assert calls[0] == inputs[0].data_ptr()
    assert calls[2] == inputs[2].data_ptr()  # the first of its shape
    assert calls[1] == calls[3] != inputs[1].data_ptr()  # the buffer of the graph
    assert [graph.replays for graph, _ in graphs.graphs.values()] == [2, 1]


def test_a_replay_reads_the_new_inputs(recorded):
    total, graphs = torch.zeros(2), Graphs(pytest.fail)

    def add(x):
        total.add_(x)

    for n in range(5):
        graphs(add, torch.full((2,), float(n)))
    assert total.tolist() == [10.0, 10.0]


def test_what_cannot_be_captured_is_reported_once_and_called_as_usual():
    """Without a GPU, nothing can be."""
    reports, calls = [], []

    def count():
        calls.append(1)

    graphs = Graphs(lambda what, error: reports.append(what))
    for _ in range(4):
        graphs(count)
    assert reports == ["CUDA graphs"]
    assert len(calls) >= 4


def test_there_are_not_too_many_graphs(monkeypatch):
    graphs = Graphs(pytest.fail)
    graphs.graphs = dict.fromkeys(range(MOST_GRAPHS))
    for _ in range(3):
        graphs(lambda x: None, torch.zeros(2))
    assert len(graphs.graphs) == MOST_GRAPHS


def test_a_step_that_fails_while_it_is_captured_leaves_no_gradient(tmp_path, monkeypatch):
    """Its gradients are tensors of the graph, which nobody has computed."""
    data, settings = write_data("write", tmp_path), {"steps": 4, "model__dropout": 0.0}
    tiny(data, tmp_path / "direct", **settings)
    capturing, update = [], TrainStep.update

    @contextlib.contextmanager
    def graph(*args, **how):
        capturing.append(True)
        yield

    def fail_once(step):
        if capturing == [True]:
            capturing.append(False)
            raise RuntimeError("operation not permitted when stream is capturing")
        update(step)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(TrainStep, "update", fail_once)
    monkeypatch.setattr(compilation, "use_graphs", lambda *how: True)
    tiny(data, tmp_path / "failed", **settings)
    assert capturing == [True, False]
    direct, failed = (
        [(row["loss"], row["grad_norm"]) for row in read_log(tmp_path / name) if "grad_norm" in row]
        for name in ("direct", "failed")
    )
    assert len(direct) == 4
    assert failed == [pytest.approx(row, rel=1e-4) for row in direct]


class HostReads(TorchDispatchMode):
    """Notes which operations of a step on the meta device read tensors or numbers of the host."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves([args, kwargs, result]) if isinstance(t, torch.Tensor)]
        if len({t.device.type for t in tensors}) > 1:
            self.calls.append(str(function))
        return result


class TensorsOfNumbers(TorchFunctionMode):
    """Notes tensors that are made of numbers, which is no operation to a dispatcher."""

    def __init__(self):
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor):
            self.calls.append(str(args))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", others_are_slow(c for c in DIFFERENT if not c.endswith(("gru", "elmo"))))
def test_steps_read_nothing_of_the_host(tmp_path, monkeypatch, case):
    class Ready(BaseException):
        pass

    def stop(trainer):
        raise Ready(trainer)

    monkeypatch.setattr(Trainer, "run", stop)
    weighted = {"task__balanced": True} if RUNS[case][0] in ("classify", "tag", "see", "hear") else {}
    with pytest.raises(Ready) as caught:
        tiny(write_data(case, tmp_path), tmp_path / "out", case, steps=1, **weighted)
    (trainer,) = caught.value.args
    objective, samples = trainer.objective, trainer.samples
    tensors = [*objective.named_parameters(), *objective.named_buffers()]
    shapes = {n: torch.empty_like(t, device="meta", requires_grad=t.requires_grad) for n, t in tensors}
    batch = tuple(t.to("meta") for t in trainer.task.batch(samples, samples.rows(0)))
    functional_call(objective, shapes, batch)  # what stays the same is copied once
    with HostReads() as copied, TensorsOfNumbers() as copies:
        functional_call(objective, shapes, batch).backward()
    assert not copied.calls + copies.calls


def test_values_stay_in_their_tensor():
    lr = torch.tensor(0.5)
    assert set_value(lr, 0.25) is lr
    assert float(lr) == 0.25
    assert set_value(0.5, 0.25) == 0.25


@pytest.mark.parametrize("case", ["write", "fill-bert", "translate-transformer"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_replayed_steps_train_as_direct_ones(tmp_path, monkeypatch, recorded, case, optimizer):
    """Learning rates and the scale of the loss are in tensors, and pairs are padded to buckets."""
    data, settings = write_data(case, tmp_path), {"steps": 9, "train__optimizer": optimizer}
    tiny(data, tmp_path / "direct", case, **settings)
    monkeypatch.setattr(compilation, "use_graphs", lambda *how: True)
    tiny(data, tmp_path / "replayed", case, **settings)
    direct, replayed = (read_log(tmp_path / name) for name in ("direct", "replayed"))
    for a, b in zip(direct, replayed, strict=True):
        for key in a.keys() & {"loss", "valid_loss", "grad_norm", "lr"}:
            assert a[key] == pytest.approx(b[key], rel=2e-3), (a, b)


def test_without_a_gpu_nothing_is_replayed(tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr("regard.training.step.Graphs", lambda report: used.append(1))
    tiny(write_data("write", tmp_path), tmp_path / "out", "write", steps=1)
    assert not used
