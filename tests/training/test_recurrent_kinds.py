"""model.kind=rnn, gru or lstm is an encoder-decoder for pairs, and a language model elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest

import regard
from helpers.errors import user_error
from helpers.runs import rows, tiny, write_labels, write_pairs, write_tags, write_text
from regard.models import ModelWithHead, RecurrentLM, Seq2Seq

pytestmark = pytest.mark.usefixtures("quick")
WRITER = "write-lstm-cells"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, quick: None) -> Path:
    folder = tmp_path_factory.mktemp("run")
    tiny(write_text(folder / "text.txt"), folder / "out", WRITER, steps=4, train__save=2)
    return folder / "out"


def test_the_kind_names_the_cell(run: Path) -> None:
    model = regard.load(run, device="cpu")
    assert isinstance(model.model, RecurrentLM)
    assert model.model.config.cell == "lstm"
    assert json.loads((run / "config.json").read_text())["model_type"] == "regard-recurrent"


def test_a_run_is_resumed_by_the_name_it_was_begun_with(run: Path) -> None:
    steps = len(rows(run))
    regard.train("write", out=run, steps=4, resume=True, set={"model.kind": "lstm"})
    assert len(rows(run)) == steps
    user_error(
        lambda: regard.train("write", out=run, resume=True, set={"model.kind": "gru"}),
        "model.cell",
        "lstm",
        "gru",
    )


def test_a_recipe_may_name_it(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'about = "mine"\n[model]\nkind = "rnn"\ndim = 16\n[task]\nname = "write"\n'
        '[data]\ntokenizer = "char"\n[train]\nsteps = 1\ndevice = "cpu"\n'
    )
    model = regard.train(str(recipe), write_text(tmp_path / "text.txt"), out=tmp_path / "out")
    assert isinstance(model.model, RecurrentLM)
    assert (model.model.config.cell, model.model.config.dim) == ("rnn", 16)


def test_translation_has_an_encoder_decoder_as_before(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "pairs.tsv")
    assert isinstance(tiny(data, tmp_path / "out", "translate-gru", steps=1).model, Seq2Seq)
    options: dict[str, Any] = {"set": {"model.kind": "recurrent"}}
    user_error(
        lambda: regard.train("translate", data, out=tmp_path / "other", **options), "model.kind=recurrent"
    )


def test_a_writer_becomes_a_classifier_and_a_tagger(run: Path, tmp_path: Path) -> None:
    for task, data in (
        ("classify", write_labels(tmp_path / "labels.tsv")),
        ("tag", write_tags(tmp_path / "tags.conll")),
    ):
        model = regard.train(task, data, out=tmp_path / task, base=run, steps=2, set={"train.device": "cpu"})
        assert isinstance(model.model, ModelWithHead)
        assert isinstance(model.model.model, RecurrentLM)
        assert model.ask("8 go to the fox")


def test_what_reads_both_ways_cannot_write(tmp_path: Path) -> None:
    data = write_text(tmp_path / "text.txt")
    settings = {"model.kind": "lstm", "model.bidirectional": True}
    user_error(
        lambda: regard.train("write", data, out=tmp_path / "out", steps=1, set=settings),
        "model.bidirectional",
    )
    assert not (tmp_path / "out").exists()


def test_the_norm_of_the_gradient_is_logged_before_it_is_clipped(tmp_path: Path) -> None:
    data, norms = write_text(tmp_path / "text.txt"), []
    for clip in (0.0, 1e-3):
        tiny(data, tmp_path / str(clip), WRITER, steps=2, train__clip=clip)
        norms.append([row["grad_norm"] for row in rows(tmp_path / str(clip)) if "grad_norm" in row])
    assert norms[0][0] == norms[1][0] > 0.1
    assert norms[0][1] != norms[1][1]  # the first step was another one
    assert "gradient norm, before clipping" in (tmp_path / "0.0" / "curve.svg").read_text()
