"""The loop: parts of a batch, evaluations, best and last checkpoints, budgets, signals and errors."""

import copy
import json
import math
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.errors import user_error
from helpers.runs import (
    DIFFERENT,
    DRAWN,
    ONE_OF_EACH,
    UNDIVIDED,
    assert_rows_close,
    at_step,
    before,
    checkpoints,
    losses,
    others_are_slow,
    rows,
    same,
    stopped,
    tiny,
    write_data,
    write_text,
)
from helpers.slow import slow_after
from regard.runs.load import load
from regard.tasks import Classify, Write, targets
from regard.training import throughput as meter
from regard.training.config import TrainConfig
from regard.training.step import TrainStep
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

FLOPS = meter.flops  # which `quick` takes away
UNITS = {  # what the rate of a task is about, if not all tokens that it reads
    "chat": "target_tokens",
    "translate": "target_tokens",
    "restore": "target_tokens",
    "see": "images",
    "caption": "images",
    "hear": "seconds_of_sound",
}


def close(a: Path, b: Path, **tolerance):
    first, second = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], **tolerance)


# --------------------------------------------------------------------------------------- parts of a batch


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("micro", [3, 5, 1])
def test_parts_of_a_batch_are_the_batch(text, tmp_path, exact, micro, optimizer):
    """5 of 12 leaves an uneven last part."""
    settings = {"steps": 4, "train__batch": 12, "train__optimizer": optimizer}
    sizes = []
    tiny(text, tmp_path / "whole", **settings)
    with before(TrainStep, "forward", lambda trainer, ids, _: sizes.append(len(ids))):
        tiny(text, tmp_path / "parts", **settings, train__micro=micro)
    assert sizes[: -(-12 // micro)] == {3: [3] * 4, 5: [5, 5, 2], 1: [1] * 12}[micro]
    close(tmp_path / "whole", tmp_path / "parts", rtol=1e-9, atol=1e-12)
    assert_rows_close(rows(tmp_path / "whole"), rows(tmp_path / "parts"), rel=1e-9)


@pytest.mark.parametrize(
    "case", others_are_slow(case for case in DIFFERENT if case not in ("write", *DRAWN, *UNDIVIDED))
)
def test_every_models_parts_of_a_batch_are_the_batch(tmp_path, exact, case):
    """Parts may be narrower than the whole, which pads all rows to the longest; the last may be one row."""
    data, shapes = write_data(case, tmp_path), {}
    for micro in (None, 2):
        steps = shapes[micro] = []
        with before(TrainStep, "forward", lambda trainer, source, *_: steps.append(source.shape[:2])):  # noqa: B023
            tiny(data, tmp_path / f"{micro}", case, steps=2, train__micro=micro)
    wholes, parts = shapes[None], shapes[2]
    assert len(wholes) == 2
    assert sum(n for n, _ in parts) == sum(n for n, _ in wholes)
    assert max(n for n, _ in parts) == 2
    assert sum(n * width for n, width in parts) <= sum(n * width for n, width in wholes)
    # Keys' biases have no gradient but rounding, of which AdamW makes steps.
    close(tmp_path / "None", tmp_path / "2", rtol=1e-8, atol=1e-9)
    assert_rows_close(rows(tmp_path / "None"), rows(tmp_path / "2"), rel=1e-8)


def test_parts_of_a_batch_draw_their_own_masks(text, tmp_path):
    """The same rows, but other dropout; without it, the same result."""
    ids_read = {}

    def run(out, **settings):
        rows = ids_read.setdefault(out, [])
        with before(TrainStep, "forward", lambda trainer, ids, _: rows.append(ids)):
            tiny(text, tmp_path / out, steps=1, train__batch=12, **settings)
        return load_file(tmp_path / out / "model.safetensors")

    undivided, parts, again = (
        run(out, model__dropout=0.5, train__micro=micro)
        for out, micro in (("whole", 12), ("parts", 5), ("again", 5))
    )
    assert torch.equal(torch.cat(ids_read["whole"]), torch.cat(ids_read["parts"]))
    assert any(not torch.allclose(undivided[name], parts[name], atol=1e-6) for name in undivided)
    assert all(torch.equal(parts[name], again[name]) for name in parts)
    run("whole-0", model__dropout=0.0)
    run("parts-0", model__dropout=0.0, train__micro=5)
    close(tmp_path / "whole-0", tmp_path / "parts-0", rtol=1e-4, atol=1e-6)


def test_a_part_larger_than_the_batch_is_the_batch(text, tmp_path):
    tiny(text, tmp_path / "whole", steps=3)
    tiny(text, tmp_path / "part", steps=3, train__micro=100)
    close(tmp_path / "whole", tmp_path / "part", rtol=0, atol=0)


def test_the_loss_is_the_mean_of_the_batch_and_falls(text, tmp_path):
    tiny(text, tmp_path / "out", steps=40)
    losses_logged = [row["loss"] for row in rows(tmp_path / "out") if "loss" in row]
    vocab = load(tmp_path / "out").tokenizer.vocab
    assert losses_logged[0] == pytest.approx(math.log(vocab), rel=0.1)  # knows nothing yet
    assert losses_logged[-1] < 0.8 * losses_logged[0]


@pytest.mark.parametrize("case", slow_after(1, ["translate-transformer", "translate-gru"]))
def test_a_model_learns_its_pairs_by_heart(tmp_path, case):
    settings = {"steps": 150, "train__lr": 0.03, "train__log": 10, "task__smoothing": 0.0, "model__dim": 16}
    settings["train__weight_decay"] = 0.0
    tiny(write_data(case, tmp_path), tmp_path / "out", case, **settings)
    losses_logged = [row["loss"] for row in rows(tmp_path / "out") if "loss" in row]
    assert losses_logged[0] > 4  # knows nothing yet
    assert losses_logged[-1] < 0.4 * losses_logged[0]


# ------------------------------------------------------------------------------------- so many tokens a step


@pytest.mark.parametrize(("tokens", "batch"), [(33, 3), (43, 3), (1, 1)])
def test_tokens_instead_of_rows(text, tmp_path, tokens, batch):
    """A row of text has eleven tokens."""
    tiny(text, tmp_path / "tokens", steps=3, train__tokens=tokens)
    tiny(text, tmp_path / "rows", steps=3, train__batch=batch)
    close(tmp_path / "tokens", tmp_path / "rows", rtol=0, atol=0)


@pytest.mark.parametrize("tokens", [40, 120])
def test_tokens_of_pairs_with_their_padding(tmp_path, tokens):
    case, batches, counted = "translate-transformer", [], []

    def note(trainer, source, attention_mask, target, following):
        batches.append((source.shape, target.shape))

    data = write_data(case, tmp_path)
    with (
        before(TrainStep, "forward", note),
        before(meter.Pace, "add", lambda _, n: counted.append(n["target_tokens"])),
    ):
        tiny(data, tmp_path / "out", case, steps=12, train__tokens=tokens)
    assert max(max(s.numel(), t.numel()) for s, t in batches) <= tokens
    assert {len(s) for s, _ in batches} != {1}
    total = sum(t.numel() for _, t in batches)
    assert 0.7 * total < sum(counted) < total  # rates do not count padding


# -------------------------------------------------------------------------------------------- evaluations


@pytest.mark.parametrize("micro", [None, 1, 5])
def test_an_evaluation_covers_all_that_is_held_out(text, tmp_path, micro):
    valid = write_text(tmp_path / "valid.txt", lines=9)
    asked = []
    with before(Write, "metrics", lambda task, loss, count, stream: asked.append((count, len(stream)))):
        model = tiny(text, tmp_path / "out", steps=2, valid=valid, train__micro=micro, model__dropout=0.5)
    assert asked == [(len(Path(valid).read_text()) - 1, len(Path(valid).read_text()))]
    scored = model.score(valid)
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert rows(tmp_path / "out")[-1][f"valid_{name}"] == pytest.approx(scored[name], rel=1e-5)


def test_measuring_does_not_change_training(text, tmp_path):
    """Saving, logging and the size of a part change nothing either."""
    tiny(text, tmp_path / "a", steps=6, model__dropout=0.3)
    tiny(text, tmp_path / "b", steps=6, model__dropout=0.3, train__evaluate=1, train__save=1, train__log=4)
    same_weights = [(tmp_path / x / "checkpoints/step-6/model.safetensors").read_bytes() for x in "ab"]
    assert same_weights[0] == same_weights[1]


def test_the_best_is_the_model_and_the_last_is_for_going_on(text, tmp_path, monkeypatch, capsys):
    losses(monkeypatch, 5.0, 3.0, 4.0, 3.5)
    out = tmp_path / "out"
    tiny(text, out, steps=8, train__evaluate=2, train__save=2, train__keep=9)
    assert checkpoints(out) == ["step-2", "step-4", "step-6", "step-8"]
    top = (out / "model.safetensors").read_bytes()
    at = {n: (out / "checkpoints" / f"step-{n}" / "model.safetensors").read_bytes() for n in (2, 4, 6, 8)}
    assert [n for n in at if at[n] == top] == [4]
    assert "best valid 3.0000 at step 4" in capsys.readouterr().err
    assert "at step 4" in (out / "README.md").read_text()


def accuracies(monkeypatch, *values):
    """Make evaluations of classes return these losses and accuracies."""
    remaining = iter(values)
    monkeypatch.setattr(
        Classify, "metrics", lambda *_: dict(zip(("loss", "accuracy"), next(remaining), strict=True))
    )


BY_ACCURACY = {
    "task__metric": "accuracy",
    "train__evaluate": 2,
    "train__save": 2,
    "train__keep": 9,
    "train__patience": 3,
}


@pytest.mark.parametrize("stop", [None, 3, 5, 7])
def test_the_best_is_what_people_judge_by(tmp_path, monkeypatch, capsys, stop):
    """For equal accuracy, the lower loss is better; for equal loss, the earlier step."""
    accuracies(
        monkeypatch, (3.0, 0.5), (5.0, 0.7), (4.0, 0.7), (4.0, 0.7), (2.0, 0.6), (4.5, 0.7), (1.0, 0.9)
    )
    data, out = write_data("classify-bert", tmp_path), tmp_path / "out"
    if stop is not None:
        with stopped(Trainer, "train_step", at_step(stop)):
            tiny(data, out, "classify-bert", steps=100, **BY_ACCURACY)
    tiny(data, out, "classify-bert", steps=100, **BY_ACCURACY, resume=stop is not None)
    assert checkpoints(out)[-1] == "step-12"  # three that were no better
    top, checkpoint = (out / f"{at}model.safetensors" for at in ("", "checkpoints/step-6/"))
    assert top.read_bytes() == checkpoint.read_bytes()
    said = capsys.readouterr().err
    assert "step 6  valid 4.0000, accuracy 0.7000 (best)" in said
    assert "best valid 4.0000, accuracy 0.7000 at step 6" in said
    assert "best 4 at step 6" in (out / "curve.svg").read_text()


@pytest.mark.parametrize(
    ("column", "metric", "earlier"), [("score", "spearman", None), ("label", "matthews", "accuracy")]
)
def test_the_best_is_what_the_labels_call_for(tmp_path, monkeypatch, capsys, column, metric, earlier):
    lines = [f"fox {n}\t{n / 7 if column == 'score' else n % 9 > 0}\n" for n in range(40)]
    (tmp_path / "a.tsv").write_text(f"text\t{column}\n" + "".join(lines))
    args = {"train__evaluate": 1, "task__balanced": False}
    new, old = tmp_path / "new", tmp_path / "old"
    tiny(str(tmp_path / "a.tsv"), new, "classify-bert", steps=2, **args)
    assert load(new).task.best_metric == metric
    best = max(row[f"valid_{metric}"] for row in rows(new) if "valid_loss" in row)
    assert f"| valid_{metric} | {best:.4f} |" in (new / "README.md").read_text()
    assert f"{metric} {best:.4f}" in capsys.readouterr().err

    def read(request, of=Classify.read):
        corpus = of(request)
        del corpus.task_settings["metric"]
        return corpus

    with monkeypatch.context() as patch:  # a run from before there was such a setting keeps what it had
        patch.setattr(Classify, "read", read)
        tiny(str(tmp_path / "a.tsv"), old, "classify-bert", steps=2, **args)
    tiny(str(tmp_path / "a.tsv"), old, "classify-bert", steps=3, **args, resume=True)
    assert load(old).task.best_metric == earlier


def test_early_stopping(text, tmp_path, monkeypatch):
    settings = {"steps": 100, "train__evaluate": 2, "train__patience": 2}
    out = tmp_path / "out"
    losses(monkeypatch, 5.0, 6.0, 4.0, 4.5, 4.0)
    tiny(text, out, **settings)
    assert checkpoints(out) == ["step-10"]
    tiny(text, out, **settings, resume=True)  # stays over
    assert checkpoints(out) == ["step-10"]
    losses(monkeypatch, 5.0, 6.0)
    tiny(text, out, **settings | {"train__patience": 3}, resume=True)
    assert checkpoints(out) == ["step-10", "step-12"]


def test_patience_is_counted_across_sittings(text, tmp_path, monkeypatch):
    settings = {"steps": 100, "train__evaluate": 2, "train__patience": 3}
    losses(monkeypatch, 5.0, 6.0, 7.0, 8.0)
    with stopped(Trainer, "train_step", at_step(7)):
        tiny(text, tmp_path / "out", **settings)
    tiny(text, tmp_path / "out", **settings, resume=True)
    assert checkpoints(tmp_path / "out")[-1] == "step-8"


def test_old_checkpoints_go(text, tmp_path):
    tiny(text, tmp_path / "out", steps=7, train__save=1, train__keep=3)
    assert checkpoints(tmp_path / "out") == ["step-5", "step-6", "step-7"]


@pytest.mark.parametrize("case", slow_after(5, ["write-lstm-cells", *ONE_OF_EACH]))
def test_the_use_of_the_machine_is_logged_where_it_is_known(tmp_path, monkeypatch, case):
    monkeypatch.setattr(meter, "flops", FLOPS)
    tiny(write_data(case, tmp_path), tmp_path / "out", case, steps=2)
    lines = map(json.loads, (tmp_path / "out" / "log.jsonl").read_text().splitlines())
    first, second = (row for row in lines if "loss" in row)
    for row in (first, second):
        assert row["tokens_per_second"] > 0
        assert ("mfu" in row) == (not case.endswith(("rnn", "gru", "lstm", "elmo", "elmo-packed")))
        assert 0 < row.get("mfu", 1) <= 1
    assert first["first_step_seconds"] > 0
    assert "first_step_seconds" not in second
    unit = UNITS.get(case.split("-")[0], "tokens")
    assert next(key for key in second if key.endswith("_per_second")) == f"{unit}_per_second"


def test_a_step_is_logged_now_and_then_with_the_first_and_the_last(text, tmp_path):
    tiny(text, tmp_path / "out", steps=11, train__log=4)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in lines if "loss" in row] == [1, 4, 8, 11]
    assert set(lines[0]) == {"step", "loss", "lr", "grad_norm", "elapsed", "tokens_per_second", "mfu"} | {
        "first_step_seconds"
    }
    assert set(lines[-1]) == {"step", "valid_loss", "valid_perplexity", "valid_bits_per_byte", "best"}


# ------------------------------------------------------------------------------------------------- budgets


def test_minutes_are_enough(text, tmp_path):
    out, settings = tmp_path / "out", {"train__schedule": "linear", "train__warmup": 0, "train__save": 1000}
    tiny(text, out, minutes=0.005, **settings)
    (last,) = checkpoints(out)
    about = json.loads((out / "checkpoints" / last / "state.json").read_text())
    assert about["elapsed"] >= 0.3
    rates = [row["lr"] for row in rows(out) if "lr" in row]
    assert rates == sorted(rates, reverse=True)  # falls with the clock
    tiny(text, out, minutes=0.005, resume=True, **settings)  # are used up
    assert checkpoints(out) == [last]


def test_the_first_budget_that_is_used_up_counts(text, tmp_path):
    tiny(text, tmp_path / "out", minutes=5, steps=2)
    assert checkpoints(tmp_path / "out") == ["step-2"]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "train.steps"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 1, "lr": -0.1}, "lr=-0.1"),
        ({"steps": 1, "lr": float("nan")}, "lr=nan"),
        ({"steps": 1, "batch": 0}, "batch=0"),
        ({"steps": 1, "micro": 0}, "micro=0"),
        ({"steps": 1, "tokens": 0}, "tokens=0"),
        ({"steps": 1, "average": 0}, "average=0"),
        ({"steps": 1, "seed": -1}, "seed=-1"),
        ({"minutes": 0.0}, "minutes=0"),
    ],
)
def test_settings_that_make_no_sense(settings, word):
    with pytest.raises(ValueError, match=word):
        TrainConfig(**settings)


# ------------------------------------------------------------------------------------------------- signals


def test_signals_are_given_back(text, tmp_path):
    before_it = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    tiny(text, tmp_path / "out", steps=1)
    with stopped(Trainer, "train_step", at_step(1), signal.SIGINT):
        tiny(text, tmp_path / "stopped", steps=3)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before_it


def test_a_second_ctrl_c_does_not_wait_for_the_save(text, tmp_path):
    def interrupt_twice(trainer):
        if trainer.step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with before(Trainer, "train_step", interrupt_twice), pytest.raises(KeyboardInterrupt):
        tiny(text, tmp_path / "out", steps=5, train__save=2)
    assert checkpoints(tmp_path / "out") == ["step-2"]


def test_training_in_a_thread(text, tmp_path):
    """In a thread, where signals cannot be caught."""
    thread = threading.Thread(target=tiny, args=(text, tmp_path / "out"), kwargs={"steps": 2})
    thread.start()
    thread.join()
    tiny(text, tmp_path / "here", steps=2)
    same(tmp_path / "out", tmp_path / "here")


# -------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("log", [1, 1000])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_rate_far_too_high_is_reported_and_nothing_spoilt_is_kept(text, tmp_path, log, optimizer):
    """Also in steps that are not logged."""
    out = tmp_path / "out"
    settings = {"train__evaluate": 3, "train__save": 1, "train__log": log, "train__warmup": 0}
    user_error(
        lambda: tiny(text, out, steps=50, train__lr=1e20, train__optimizer=optimizer, **settings),
        "train.lr",
        "1e+20",
    )
    for path in out.rglob("*.safetensors"):
        assert all(t.isfinite().all() for t in load_file(path).values()), path


def test_a_device_that_is_not_there(text, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: there is none to miss")
    user_error(lambda: tiny(text, tmp_path / "out", steps=1, train__device="cuda"), "train.device=cuda")
    assert list(tmp_path.iterdir()) == []


def test_targets_are_counted_without_those_left_out():
    assert targets((torch.zeros(2, 3), torch.tensor([[1, 2, -100], [3, -100, -100]]))) == 3


# ---------------------------------------------------------------------------------------------- fine-tuning

TUNING = {
    "decay": {"train__layer_decay": 0.5},
    "freeze": {"train__freeze": 1},
    "lora": {"train__lora": 2},
    "all": {"train__layer_decay": 0.5, "train__freeze": 1, "train__lora": 2},
}


@pytest.mark.parametrize(
    ("tuning", "optimizer"), [*((tuning, "adamw") for tuning in TUNING), ("all", "muon")]
)
@pytest.mark.parametrize("case", slow_after(1, ["translate-transformer", "write"]))
def test_tuning_is_resumed_bit_for_bit(tmp_path, case, tuning, optimizer):
    data = write_data(case, tmp_path)
    settings = TUNING[tuning] | {"steps": 5, "train__optimizer": optimizer, "train__evaluate": 2}
    tiny(data, tmp_path / "whole", case, **settings)
    with stopped(Trainer, "train_step", at_step(3)):
        tiny(data, tmp_path / "parts", case, **settings)
    tiny(data, tmp_path / "parts", case, **settings, resume=True)
    same(tmp_path / "whole", tmp_path / "parts")
    load(tmp_path / "parts")


@pytest.mark.parametrize("tuning", ["decay", "freeze"])
def test_tuning_a_recurrent_model_is_resumed_bit_for_bit(tmp_path, tuning):
    data, settings = write_data("translate-gru", tmp_path), TUNING[tuning] | {"steps": 5}
    tiny(data, tmp_path / "whole", "translate-gru", **settings)
    with stopped(Trainer, "train_step", at_step(3)):
        tiny(data, tmp_path / "parts", "translate-gru", **settings)
    tiny(data, tmp_path / "parts", "translate-gru", **settings, resume=True)
    same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(
    ("case", "freeze", "below"),
    [
        ("write", 1, ("embed.", "blocks.0.")),
        ("write", 2, ("embed.", "blocks.")),
        ("translate-transformer", 3, ("embed.", "encoder.", "decoder.0.")),
        ("translate-gru", 1, ("embed.", "encoder.")),
    ],
)
def test_what_is_frozen_stays_as_it_was(tmp_path, case, freeze, below, optimizer):
    data, settings = write_data(case, tmp_path), {"train__optimizer": optimizer, "train__warmup": 0}
    tiny(data, tmp_path / "base", case, **settings, steps=2)
    out = tmp_path / "out"
    tiny(data, out, case, **settings, steps=3, base=tmp_path / "base", train__freeze=freeze)
    old, new = (load_file(o / "model.safetensors") for o in (tmp_path / "base", out))
    assert old.keys() == new.keys()
    for name, t in old.items():
        assert t.equal(new[name]) == name.startswith(below), name
    state = load_file(out / "checkpoints" / "step-3" / "optimizer.safetensors")
    assert not any(name.startswith(below) for name in state)
    assert {name.split("/")[0] for name in state} == {name for name in old if not name.startswith(below)}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_lower_layers_take_smaller_steps(text, tmp_path, optimizer):
    """AdamW's first step is the learning rate for any gradient; Muon's update always has the same size."""
    settings = {"train__optimizer": optimizer, "train__weight_decay": 0.0, "train__warmup": 0, "steps": 1}
    starts, moved = [], {}
    for decay in (1.0, 0.5):
        out = tmp_path / f"{decay}"
        with before(
            Trainer, "run", lambda trainer: starts.append(copy.deepcopy(trainer.checkpointer.weights()))
        ):
            tiny(text, out, **settings, train__layer_decay=decay)
        end = load_file(out / "checkpoints" / "step-1" / "model.safetensors")
        moved[decay] = {name: float((t - starts[-1][name]).norm()) for name, t in end.items()}
        assert [row["lr"] for row in rows(out) if "lr" in row] == [0.01]
    for name, far in moved[1.0].items():
        share = 0.25 if name.startswith("embed") else 0.5 if name.startswith("blocks.0") else 1.0
        assert moved[0.5][name] == pytest.approx(share * far, rel=1e-3), name


def test_without_tuning_all_is_as_it_was(text, tmp_path):
    tiny(text, tmp_path / "plain", steps=3)
    tiny(text, tmp_path / "told", steps=3, train__layer_decay=1.0, train__freeze=0, train__lora=0)
    same(tmp_path / "plain", tmp_path / "told")


def test_how_much_learns_is_reported(text, tmp_path):
    tiny(text, tmp_path / "all", steps=1)
    assert "trained" not in (tmp_path / "all" / "README.md").read_text()
    tiny(text, tmp_path / "few", steps=1, train__freeze=2)
    assert "(8 trained)" in (tmp_path / "few" / "README.md").read_text()  # the last norm


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train__freeze": 3}, ["train.freeze=3", "2 blocks"]),
        ({"train__freeze": -1}, ["freeze=-1"]),
        ({"train__layer_decay": 0.0}, ["layer_decay=0.0"]),
        ({"train__layer_decay": 1.5}, ["layer_decay=1.5"]),
    ],
)
def test_tuning_that_makes_no_sense(text, tmp_path, settings, words):
    user_error(lambda: tiny(text, tmp_path / "out", steps=1, **settings), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tuning", ["decay", "freeze", "lora"])
def test_tuning_cannot_be_changed_on_the_way(text, tmp_path, tuning):
    tiny(text, tmp_path / "out", steps=1)
    key = next(iter(TUNING[tuning])).replace("__", ".")
    user_error(lambda: tiny(text, tmp_path / "out", steps=2, resume=True, **TUNING[tuning]), key)
