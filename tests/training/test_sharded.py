"""Processes that share the weights: each writes its part, and any other number of processes goes on."""

import json
import os
from functools import partial

import pytest
import torch
from safetensors import safe_open

from helpers.errors import user_error
from helpers.forking import Process
from helpers.runs import DIFFERENT, DRAWN, checkpoints, rows, tiny, write_data
from regard.files.tensors import write_tensors
from regard.runs import checkpoints as checkpoint
from regard.runs.info import info
from regard.runs.load import load
from regard.runs.parts import Parts, part_names, write_part
from regard.training import background, distributed
from regard.training.background import BackgroundWriter
from regard.training.checkpointer import Checkpointer
from regard.training.config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick")

EACH = {"train__batch": 4, "train__evaluate": 2, "train__save": 2, "train__keep": 9}
EACH |= {"train__schedule": "noam"}  # which does not depend on how many steps there will be
WAYS = {
    "ddp": {"train__parallel": "ddp"},
    "fsdp": {"train__parallel": "fsdp"},
    "hybrid": {"train__parallel": "hybrid", "train__shard": 2},
}
# Between two steps, or while the second checkpoint is written in the background.
KILLS = {"ddp": {"killed_at": 3}, "fsdp": {"killed_writing": 4}, "hybrid": {"killed_at": 3}}


def train_with(processes, folder, runs):
    """Train these in so many processes, one after another."""
    plan = folder / f"plan-{processes}.json"
    plan.write_text(json.dumps({"commands": {}, "runs": runs}))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PROCESSES": str(processes)}
    process = Process("-m", "helpers.ranks", "--plan", plan, env=environment)
    _, said = process.communicate(timeout=600)
    return process.returncode, said


def kill_and_resume(folder, data, cases):
    """Train each way with four processes, which are killed after the first checkpoint; go on with two, with
    one, and with four again, two more steps each time. Return the folders."""
    outs = {way: folder / way for way in cases}

    def runs(steps, **more):
        return [[data, str(outs[way]), cases[way] | more | {"steps": steps}] for way in cases]

    for way in cases:
        code, said = train_with(4, folder, [[data, str(outs[way]), cases[way] | KILLS[way] | {"steps": 9}]])
        assert code != 0, said
        assert "ended with -9" in said
        assert checkpoints(outs[way]) == ["step-2"]
        left = outs[way] / "checkpoints" / ".step-4.partial"
        assert left.exists() == ("killed_writing" in KILLS[way])
    code, said = train_with(2, folder, runs(4, resume=True))
    assert code == 0, said
    for way in cases:
        tiny(data, outs[way], **cases[way], steps=6, resume=True)
    code, said = train_with(4, folder, runs(8, resume=True))
    assert code == 0, said
    return outs


def assert_same_losses(out, alone, case):
    """Every step stands in the log once, with the loss that one process alone has."""
    ours, theirs = ({r["step"]: r["loss"] for r in rows(o) if "loss" in r} for o in (out, alone))
    assert ours.keys() == theirs.keys()
    assert ours == pytest.approx(theirs, rel=0.05 if case in DRAWN else 1e-6)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, quick):
    """A run of each way, trained by 4, 2, 1 and 4 processes."""
    folder, was = tmp_path_factory.mktemp("sharded"), torch.get_default_dtype()
    text = write_data("write", folder)
    torch.set_default_dtype(torch.float64)
    try:
        outs = kill_and_resume(folder, text, {way: EACH | settings for way, settings in WAYS.items()})
        tiny(text, folder / "alone", **EACH, steps=8)
    finally:
        torch.set_default_dtype(was)
    return outs, folder / "alone"


@pytest.mark.parametrize(("way", "parts"), [("ddp", 1), ("fsdp", 4), ("hybrid", 2)])
def test_killed_with_four_and_on_with_two_one_and_four(resumed, way, parts):
    outs, alone = resumed
    out = outs[way]
    assert_same_losses(out, alone, "write")
    assert not list(out.rglob(".*"))
    assert checkpoints(out) == ["step-2", "step-4", "step-6", "step-8"]
    count = {name: checkpoint.count_parts(out / "checkpoints" / name) for name in checkpoints(out)}
    assert count == {"step-2": parts, "step-4": min(parts, 2), "step-6": 1, "step-8": parts}
    assert all(checkpoint.is_intact(out / "checkpoints" / name) for name in count)


def test_a_sharded_checkpoint_has_what_one_process_has(resumed):
    outs, alone = resumed
    path = outs["fsdp"] / "checkpoints/step-2"
    for mine, theirs in zip(
        checkpoint.load(path), checkpoint.load(alone / "checkpoints/step-2"), strict=True
    ):
        assert mine.keys() == theirs.keys()
        for name, t in mine.items():
            if isinstance(t, torch.Tensor):
                torch.testing.assert_close(t, theirs[name], rtol=1e-7, atol=1e-9)
    sizes = [os.path.getsize(path / name) for name in part_names("optimizer", 4)]
    size_alone = os.path.getsize(alone / "checkpoints/step-2/optimizer.safetensors")
    assert max(sizes) < 0.45 * size_alone  # headers and numbers take some of it
    assert json.loads((path / "state.json").read_text())["format"] == 2


def test_a_sharded_checkpoint_is_a_model_like_any_other(resumed):
    path = resumed[0]["fsdp"] / "checkpoints/step-8"
    model = load(path, "cpu")
    assert model.step == 8
    assert info(path)["parameters"] == sum(p.numel() for p in model.model.parameters())
    with safe_open(resumed[0]["fsdp"] / "model.safetensors", "pt") as published:  # one file
        assert set(published.keys()) == set(model.model.state_dict())


def test_damage_of_any_part_is_noticed(resumed):
    path = resumed[0]["hybrid"] / "checkpoints/step-8"
    for name in (*part_names("model", 2), *part_names("optimizer", 2)):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert not checkpoint.is_intact(path)
        shares = [checkpoint.is_intact(path, slice(rank, None, 3)) for rank in range(3)]
        assert shares.count(False) == 1  # each process checks some of the files
        (path / name).write_bytes(content)
    assert checkpoint.is_ours(path)
    (path / "model-00001-of-00002.safetensors").rename(path / "model-00003-of-00002.safetensors")
    assert not checkpoint.is_intact(path)
    assert not checkpoint.is_ours(path)
    (path / "model-00003-of-00002.safetensors").rename(path / "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("holdout", [0.0, 0.1])
def test_the_background_writes_what_one_process_writes(tmp_path, monkeypatch, holdout):
    """Without held-out texts, each checkpoint is also the model; with them, the first one is, until the first
    evaluation."""
    text, outs = write_data("write", tmp_path), [tmp_path / name for name in ("plain", "background")]
    settings = EACH | {"data__holdout": holdout, "train__evaluate": 3, "steps": 4}
    tiny(text, outs[0], **settings)
    init, writers = Checkpointer.__init__, []

    def init_with_background(self, *args):
        init(self, *args)
        self.background = BackgroundWriter()
        writers.append(self.background)

    monkeypatch.setattr(Checkpointer, "__init__", init_with_background)
    tiny(text, outs[1], **settings)
    names = [path.relative_to(outs[0]) for path in sorted(outs[0].rglob("*.safetensors"))]
    assert len(names) == 1 + 2 * 2
    for name in names:
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes()
    assert not list(outs[1].rglob(".*"))
    assert writers[0].reserving.done()


def test_the_first_checkpoint_is_copied_to_memory_that_is_there(tmp_path, monkeypatch):
    """New memory is cleared page by page when it is touched: that is done before training has to wait."""
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7)}
    writer = BackgroundWriter()
    writer.reserve(tensors)
    writer.reserving.result()
    places = {name: copy.data_ptr() for name, copy in writer.copies.items()}
    monkeypatch.setattr(background, "empty_copy", lambda t: pytest.fail("new memory"))
    folder = tmp_path / "run" / "checkpoints" / ".model.partial"
    begin = partial(checkpoint.make_partial, folder)
    for _ in range(2):
        writer.start(folder, begin, {"model": tensors}, lambda digests: list(digests))
        assert writer.wait() == ["model.safetensors"]
        assert {name: copy.data_ptr() for name, copy in writer.copies.items()} == places
        tensors["a"] += 1
    writer.close()
    assert torch.equal(writer.copies["b"], tensors["b"])


@pytest.mark.slow
@pytest.mark.parametrize("case", DIFFERENT)
def test_every_family_in_every_way(tmp_path, exact, case):
    """Killed with four processes, resumed with two, one and four: DDP, FSDP and hybrid."""
    data = write_data(case, tmp_path)
    cases = {way: EACH | settings | {"case": case} for way, settings in WAYS.items()}
    outs = kill_and_resume(tmp_path, data, cases)
    tiny(data, tmp_path / "alone", **EACH, case=case, steps=8)
    for out in outs.values():
        assert_same_losses(out, tmp_path / "alone", case)


# ------------------------------------------------------------------------------------------------- parts


def test_rows_are_read_in_any_other_division(tmp_path):
    t, number = torch.arange(77.0).view(11, 7), torch.tensor(5.0)
    for n, (a, b) in enumerate([(0, 5), (5, 6), (6, 11)]):
        write_part(tmp_path / str(n), {"t": t[a:b]} | ({} if n else {"n": number}), {"t": (a, 11)})
    parts = Parts([tmp_path / str(n) for n in (2, 0, 1)])
    write_tensors(tmp_path / "joined", parts)
    write_tensors(tmp_path / "whole", {"t": t, "n": number})
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()
    assert {name: x.shape for name, x in parts.headers().items()} == {"t": (11, 7), "n": ()}
    for start in range(12):
        for stop in range(start, 12):
            assert torch.equal(parts.read("t", start, stop), t[start:stop])
    assert parts.read("n") == 5
    assert torch.equal(parts.read_all()["t"], t)


@pytest.mark.parametrize(
    "second",
    [{"t": (6, 11)}, {"t": (4, 11)}, {"t": (5, 10)}, {"t": (5, 12)}, {"t": (-1, 11)}, {"u": (5, 11)}],
)
def test_rows_that_do_not_fit_are_refused(tmp_path, second):
    t = torch.arange(77.0).view(11, 7)
    write_part(tmp_path / "0", {"t": t[:5]}, {"t": (0, 11)})
    write_part(tmp_path / "1", {"t": t[5:]}, second)
    user_error(lambda: Parts([tmp_path / "0", tmp_path / "1"]), tmp_path)
    for text in ("[", "[1]", "[" * 10**5, '{"t": 3}', '{"t": [0, "11"]}', '{"t": [0, null]}'):
        write_tensors(tmp_path / "0", {"t": t[:5]}, {"rows": text})
        user_error(lambda: Parts([tmp_path / "0"]), tmp_path / "0")


def test_groups_divide_the_processes_evenly(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 6)
    user_error(lambda: distributed.make_mesh("cpu", 4), "train.shard=4", "6")
    with pytest.raises(ValueError, match="shard=0"):
        TrainConfig(steps=1, shard=0)
