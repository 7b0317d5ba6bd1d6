"""`regard train` and `regard prepare`."""

import json
import shlex
import signal

import pytest
from safetensors.torch import load_file

from helpers.commands import PAIR, PICO, WORDS, call, check_refused, regard, stdout_of
from helpers.runs import checkpoints, rows, same
from regard.runs import checkpoints as checkpoint

pytestmark = pytest.mark.usefixtures("quick")


def test_train(capsys, tmp_path, text):
    """Only the folder is on standard output."""
    assert call("train", "write", text, "--out", tmp_path / "out", "--steps", 3, *PICO) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'out'}\n"
    assert "step 3/3" in output.err
    assert call("train", "write", "--out", tmp_path / "out", "--resume") == 0  # finished: nothing to do
    assert checkpoints(tmp_path / "out") == ["step-3"]
    check_refused(capsys, tmp_path, ["train", "write", text, "--out", tmp_path / "out"], "--resume")


def test_train_on_what_ships_with_it(capsys, tmp_path):
    assert call("train", "write", "--out", tmp_path / "out", "--steps", 1, *PICO) == 0
    assert rows(tmp_path / "out")[-1]["valid_loss"] > 0


def test_train_by_a_recipe_of_ones_own(capsys, tmp_path, text):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[model]\nkind = "gpt"\npreset = "pico"\n[task]\nname = "write"\n[train]\nsteps = 2\n')
    assert call("train", recipe, text, "--out", tmp_path / "out") == 0
    assert checkpoints(tmp_path / "out") == ["step-2"]


def test_prepare_then_train_is_to_train(capsys, tmp_path, text):
    assert stdout_of(capsys, "prepare", text, "--out", tmp_path / "shards") == f"{tmp_path / 'shards'}\n"
    for name, data in (("straight", text), ("prepared", tmp_path / "shards")):
        assert call("train", "write", data, "--out", tmp_path / name, "--steps", 4, *PICO) == 0
    same(tmp_path / "straight", tmp_path / "prepared")


def test_train_from_a_model(capsys, tmp_path, text, model):
    line = ["train", "write", text, "--from", model, "--out", tmp_path / "out", "--steps", 1]
    assert call(*line, "--set", "train.device=cpu", "--set", "train.lr=1e-9") == 0
    old, new = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "out"))
    assert all(old[name].allclose(new[name], atol=1e-6) for name in old)


def test_minutes(capsys, tmp_path, text):
    assert call("train", "write", text, "--out", tmp_path / "out", "--minutes", 0.005, *PICO) == 0
    assert "steps" not in checkpoint_recipe(tmp_path / "out")


def checkpoint_recipe(out):
    return (out / "recipe.toml").read_text().split("[train]")[1]


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal(tmp_path, text, how, status):
    out = tmp_path / "out"
    line = ["train", "write", text, "--out", out, "--steps", 1_000_000, *PICO, "--set", "train.log=1"]
    with regard(*line) as process:
        while "step 3/" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(how)
        answer, output = process.communicate(timeout=60)
    assert process.returncode == status
    assert answer == ""
    assert "Traceback" not in output
    (last,) = checkpoints(out)
    assert int(last[5:]) >= 3
    assert checkpoint.is_intact(out / "checkpoints" / last)
    stop, _, advice = output.strip().splitlines()[-1].partition("; continue with: regard ")
    assert stop == f"stopped at step {last[5:]}"
    assert call(*shlex.split(advice), "--steps", int(last[5:]) + 1) == 0
    assert last[:5] + str(int(last[5:]) + 1) in checkpoints(out)


def test_train_on_pairs(capsys, tmp_path, pairs):
    """For each kind of model; dropped pairs are reported."""
    odd = tmp_path / "odd.tsv"
    odd.write_text(pairs.read_text() + "a\t\n")
    for kind in ("rnn", "gru", "lstm"):
        settings = [word for word in PAIR if word != "model.heads=2"]
        del settings[settings.index("model.depth=1") + 1]
        line = ["train", "translate", odd, "--out", tmp_path / kind, "--steps", 2, *settings]
        assert call(*line, "--set", f"model.kind={kind}", "--set", "task.forcing=0.5") == 0
        output = capsys.readouterr().err
        assert "empty" in output
        assert "batches" in output
        assert stdout_of(capsys, "ask", tmp_path / kind, "a bag", "--max-new-tokens", 3).count("\n") == 1
    line = ["train", "translate", odd, "--out", tmp_path / "out", *PAIR, "--set", "task.forcing=0.5"]
    check_refused(capsys, tmp_path, line, "task.forcing", "recurrent")


def test_two_vocabularies_are_kept(translator, chatter):
    assert not (translator / "target_tokenizer.json").exists()
    assert (chatter / "target_tokenizer.json").exists()
    one, two = (json.loads((folder / "config.json").read_text()) for folder in (translator, chatter))
    assert "target_vocab" not in one
    assert one["task"]["longest"] == max(len(f"{a} {b}") for a in WORDS for b in WORDS if len(a + b) < 20)
    assert two["task"]["turns"] == 3
    assert two["target_vocab"] != two["vocab"]
