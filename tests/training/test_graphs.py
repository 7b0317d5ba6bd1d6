"""Replayed steps: which calls are replayed, and that training by replays is training.

No graph can be captured without a GPU. Here a replay calls the function once more, with the graph's buffers.
"""

import json

import pytest
import torch

from helpers.runs import tiny, write_data
from regard.training import compilation
from regard.training.graphs import MOST_GRAPHS, Graphs, set_value

pytestmark = pytest.mark.usefixtures("quick")


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
    direct, replayed = (
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("direct", "replayed")
    )
    for a, b in zip(direct, replayed, strict=True):
        for key in a.keys() & {"loss", "valid_loss", "grad_norm", "lr"}:
            assert a[key] == pytest.approx(b[key], rel=2e-3), (a, b)


def test_without_a_gpu_nothing_is_replayed(tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr("regard.training.step.Graphs", lambda report: used.append(1))
    tiny(write_data("write", tmp_path), tmp_path / "out", "write", steps=1)
    assert not used
