"""The view `map`: the parts of a model, from what it computes."""

import pytest

from helpers.errors import user_error
from helpers.looking import captioner, noise, reader, seer
from regard.draw.diagram import Diagram
from regard.viewer import look
from regard.viewer.views import Choice, view

WORDS = "the quick brown fox"


def column(diagram, title):
    return dict(diagram.columns)[title]


def test_a_transformer_has_an_encoder_and_a_decoder_that_reads_it():
    result = view(reader("chat", "transformer"), WORDS, "map")
    assert type(result) is Diagram
    reads, writes = column(result, "reads"), column(result, "writes")
    assert [box.title for box in reads] == ["Embedding + positions", *["Self-attention", "Feed-forward"] * 2]
    block = ["Masked self-attention", "Cross-attention", "Feed-forward"]
    assert [box.title for box in writes] == ["Embedding + positions", *block * 2, "Linear", "Softmax"]
    crossing = [box.source for box in writes if box.title == "Cross-attention"]
    assert crossing == [reads[-1].name] * 2  # keys and values are the encoder's output
    assert all(box.residual == (box.group is not None) for box in [*reads, *writes])
    assert {box.note for box in reads if box.group} == {"3 heads, post-norm", "48 wide, post-norm"}
    assert {tuple(box.shape) for box in reads} == {(5, 12)}  # four words and the end token


@pytest.mark.parametrize(
    ("model", "input", "parts"),
    [
        (reader("write", "gpt"), WORDS, {"Masked self-attention", "Feed-forward", "Norm"}),
        (reader("fill", "bert"), WORDS, {"Self-attention", "Feed-forward"}),
        (reader("translate", "gru", attention="none"), WORDS, {"Recurrent cells"}),
        (reader("translate", "gru", attention="additive"), WORDS, {"Recurrent cells", "Attention"}),
        (seer(), noise(6), {"Patches", "Self-attention"}),
        (captioner(), noise(12), {"Attention"}),
    ],
    ids=["gpt", "bert", "gru", "gru with attention", "vit", "captioner"],
)
def test_every_model_has_a_map(model, input, parts):
    result = view(model, input, "map")
    assert parts <= {box.title for _, boxes in result.columns for box in boxes}
    assert result.scene().shapes


def test_a_model_names_its_parts():
    """What the description calls a box is one, whatever its value is called."""
    model = reader("write", "gpt")
    true = model.model.describe

    def describe(d, head=True):
        x = d.norm("norm", model.model.norm, true(d, head=False), box="Last vectors")
        del d.boxes["embed"]
        return d.logits(x, model.model.output)

    model.model.describe = describe
    ((_, boxes),) = view(model, WORDS, "map").columns
    titles = [box.title for box in boxes]
    assert titles == [*["Masked self-attention", "Feed-forward"] * 2, "Last vectors", "Linear", "Softmax"]


def test_pre_norm_and_post_norm_differ():
    boxes = {
        kind: view(reader(task, kind), WORDS, "map").columns[0][1]
        for task, kind in (("write", "gpt"), ("fill", "bert"))
    }
    notes = {
        kind: {box.note.rpartition(", ")[2] for box in each if box.residual} for kind, each in boxes.items()
    }
    assert notes == {"gpt": {"pre-norm"}, "bert": {"post-norm"}}


def test_a_map_can_be_saved(tmp_path):
    model = reader("chat", "transformer")
    for name in ("map.svg", "map.png"):
        look(model, WORDS, "map").save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    assert ">Cross-attention<" in (tmp_path / "map.svg").read_text("utf-8")


def test_a_map_has_no_choices():
    model = reader("write", "gpt")
    user_error(lambda: view(model, WORDS, "map", Choice(layer=1)), "layer=1", "map")
