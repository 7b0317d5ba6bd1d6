"""Figures are drawn from their numbers: each point, bar and line stands where its number says."""

import io
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from looking import captioner, reader, seer
from mistakes import mistake
from PIL import Image

from regard.look import drawn, look
from regard.look.draw import stacked
from regard.look.figures import Bars, Curves, Points, Pooling, Tree, pooling, waves, word_map
from regard.look.plots import HEIGHT, WIDTH, beside, scene, unbroken, written
from regard.look.views import Choice, Matrix, alike, view, views
from regard.models import Words, WordsConfig
from regard.positions import sinusoids
from regard.run import Model
from regard.tasks import TASKS
from regard.text import train_tokenizer

NS = "{http://www.w3.org/2000/svg}"
RNG = np.random.default_rng(11)
X, Y = RNG.uniform(0, 5, 23), RNG.normal(0, 1, 23)
KERNELS = {  # Hastie, Tibshirani & Friedman 2009, section 6.1, without their constants, which cancel
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "boxcar": lambda u: (abs(u) <= 1).astype(float),
    "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
    "average": lambda u: np.ones_like(u),
}
FIGURES = {
    "curves": Curves("two", "steps", {"a": (X, Y), "b": (X, -Y)}, (X, Y)),
    "one curve": Curves("one", "x", {"": (np.arange(3), np.array([1.0, math.nan, 2.0]))}),
    "points": Points("words", RNG.normal(size=(7, 2)), list("abcdef") + ["</text>&"]),
    "one place": Points("words", np.zeros((3, 2)), ["a", "b", "c"]),
    "bars": Bars(
        "p", ["fine", "good", "<ill>"], {"a": np.array([0.5, 0.3, 0.2]), "b": np.array([1.0, 0, 0])}
    ),
    "pooling": pooling(X.tolist(), Y.tolist(), "gaussian", 0.5),
    "tree": Tree("beams", {("I",): 0.6, ("We",): 0.4, ("We", "are"): 0.3, ("I", "am"): 0.2}, [("We",)]),
}


def elements(figure, kind):
    return list(ET.fromstring(drawn(figure).svg()).iter(NS + kind))


def polylines(figure):
    return [
        np.array([list(map(float, p.split(","))) for p in e.get("points").split()])
        for e in elements(figure, "polyline")
        if float(e.get("stroke-width")) == 2
    ]


def dots(figure):
    return np.array([[float(e.get("cx")), float(e.get("cy"))] for e in elements(figure, "circle")])


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_one_picture_both_ways(name):
    picture = drawn(FIGURES[name])
    root = ET.fromstring(picture.svg())
    with Image.open(io.BytesIO(picture.png())) as image:
        assert image.size == (2 * int(root.get("width")), 2 * int(root.get("height")))
        assert len(image.convert("RGB").getcolors(1 << 24)) > 5
    wide, high = float(root.get("width")), float(root.get("height"))
    for e in root.iter():  # nothing is drawn outside
        for x, y in ((e.get("x"), e.get("y")), (e.get("cx"), e.get("cy"))):
            assert x is None or (0 <= float(x) <= wide and 0 <= float(y) <= high)
    assert picture._repr_svg_() == picture.svg()


# Curves


def test_curves_and_dots_stand_where_their_numbers_say():
    x, y = np.array([0.0, 2.0, 3.0, 7.0]), np.array([-1.0, 4.0, 0.5, 2.0])
    figure = Curves("t", "x", {"a": (x, y)}, (x, y))
    (line,) = polylines(figure)
    np.testing.assert_allclose(line, dots(figure), atol=0.01)
    for axis, numbers, length in ((0, x, WIDTH), (1, -y, HEIGHT)):  # linear, down for less
        slope = np.diff(line[:, axis]) / np.diff(numbers)
        np.testing.assert_allclose(slope, slope[0], rtol=1e-3)
        assert 0.5 * length < np.ptp(line[:, axis]) <= length + 0.01
    texts = [e.text for e in elements(figure, "text")]
    assert {"t", "x", "a", "0", "2", "4", "6"} <= set(texts)


def test_a_gap_parts_a_curve():
    y = np.array([1.0, 2.0, math.nan, 3.0, math.nan, 4.0, 5.0, 6.0])
    assert [run.tolist() for run in unbroken(y)] == [[0, 1], [5, 6, 7]]
    assert [len(line) for line in polylines(Curves("t", "x", {"": (np.arange(8), y)}))] == [2, 3]


def test_ticks_are_written_as_short_as_they_can_be():
    assert [written(t, [0.0, 0.25]) for t in (-1e-17, 0.25)] == ["0.0", "0.2"]
    assert [written(t, [-0.01, 0.0]) for t in (-0.01, 0.02)] == ["-0.01", "0.02"]
    assert written(1000.0, [0.0, 500.0]) == "1000"


# Attention pooling


@pytest.mark.parametrize("width", [0.3, 1.7])
@pytest.mark.parametrize("kernel", KERNELS)
def test_pooling_is_nadaraya_watson(kernel, width):
    found = pooling(X.tolist(), Y.tolist(), kernel, width, queries=31)
    K = KERNELS[kernel]((found.queries[:, None] - X) / width)
    near = K.sum(1) > 0
    np.testing.assert_allclose(found.weights[near], K[near] / K[near].sum(1, keepdims=True), atol=1e-12)
    np.testing.assert_allclose(found.fitted[near], K[near] @ Y / K[near].sum(1), atol=1e-12)
    assert np.isnan(found.fitted[~near]).all()
    assert (found.queries[0], found.queries[-1]) == (X.min(), X.max())


def test_pooling_is_drawn_with_its_points_and_its_weights():
    figure = pooling(X.tolist(), Y.tolist(), "gaussian", 0.5)
    assert len(dots(figure)) == len(X)
    (line,) = polylines(figure)
    assert len(line) == len(figure.queries)
    order = np.argsort(dots(figure)[:, 1], kind="stable")  # what is higher has the larger y
    assert (np.diff(Y[order]) < 0.02).all()
    with Image.open(io.BytesIO(drawn(figure).png())) as image:
        assert image.size[0] > 2 * (WIDTH + HEIGHT)
    plain = drawn(pooling([0, 1, 2], [5, 5, 8], "average")).svg()
    assert "plain averaging" in plain
    assert ">0.33<" in plain  # the largest weight


def test_pooling_far_from_all_points_says_nothing():
    found = pooling([0, 1, 9], [1, 2, 3], "boxcar", 0.6, queries=10)
    assert np.isnan(found.fitted).tolist() == [False, False, *[True] * 7, False]
    assert len(polylines(found)) == 1


def test_mistakes_in_pooling():
    mistake(lambda: pooling([1, 2], [1, 2], "gausian"), "gausian", "gaussian")
    mistake(lambda: pooling([1, 2], [1, 2], width=0), "width=0")
    mistake(lambda: pooling([1, 2], [1]), "2 values of x and 1 of y")


# Words


def test_a_map_of_words_is_their_principal_components():
    x = RNG.normal(size=(13, 5)) * [5, 1, 3, 0.1, 0.2]
    found = word_map("t", list("abcdefghijklm"), torch.from_numpy(x))
    u, s, v = np.linalg.svd(x - x.mean(0), full_matrices=False)
    true = u[:, :2] * s[:2]
    np.testing.assert_allclose(abs(found.places), abs(true), atol=1e-9)
    for i in (0, 1):  # of a direction, the largest number is positive
        direction = v[i] * np.sign(v[i][abs(v[i]).argmax()])
        np.testing.assert_allclose(found.places[:, i], (x - x.mean(0)) @ direction, atol=1e-9)
    at = dots(found)
    gaps, drawn_gaps = (np.linalg.norm(p[:, None] - p, axis=-1) for p in (found.places, at))
    np.testing.assert_allclose(drawn_gaps, gaps * drawn_gaps.max() / gaps.max(), atol=0.05)
    assert (np.argsort(at[:, 1]) == np.argsort(-found.places[:, 1])).all()  # up is more


def test_labels_of_a_map_do_not_lie_on_each_other():
    figure = Points("t", np.zeros((5, 2)), ["one", "two", "three", "four", "five"])
    at = [(float(e.get("x")), float(e.get("y"))) for e in elements(figure, "text")][1:]
    assert len(set(at)) == 5


# Bars and trees


def test_bars_are_as_high_as_their_numbers():
    figure = FIGURES["bars"]
    heights = [float(e.get("height")) for e in elements(figure, "rect") if e.get("width") == "20"]
    true = [*figure.groups["a"], *figure.groups["b"]]
    np.testing.assert_allclose(heights, np.array(true) * max(heights) / max(true), atol=1e-3)
    texts = [e.text for e in elements(figure, "text")]
    assert [f"{p:.2f}" for p in figure.groups["a"]] == [t for t in texts if re.fullmatch(r"0\.\d\d", t)][:3]
    assert "<ill>" in texts


def test_a_tree_has_a_line_for_each_text_the_wider_the_likelier():
    figure = FIGURES["tree"]
    lines = elements(figure, "line")
    widths = [float(e.get("stroke-width")) for e in lines]
    assert widths == [round(0.5 + 6 * p, 2) for p in figure.texts.values()]
    at = {e.text.split()[0]: (float(e.get("x")), float(e.get("y"))) for e in elements(figure, "text")}
    assert at["I"][0] == at["We"][0] < at["are"][0]
    assert at["I"][1] == at["am"][1]  # its only child
    assert [e.get("stroke-opacity") for e in lines] == ["0.25", "0.90", "0.25", "0.25"]


# Scenes beside each other


def test_scenes_stand_side_by_side():
    one = scene(Matrix("m", np.eye(3), "abc", "abc"))
    two = beside([one, scene(FIGURES["curves"])], "both")
    assert two.width == one.width + scene(FIGURES["curves"]).width
    assert len(two.parts) == len(one.parts) + len(scene(FIGURES["curves"]).parts)
    below = stacked([one, scene(FIGURES["curves"])])
    assert below.height == one.height + scene(FIGURES["curves"]).height


# By `look`


def test_positions_as_waves_and_by_likeness():
    model = reader("translate", "transformer")
    table = sinusoids(torch.arange(23), 12).numpy()
    found = view(model, "fox", "waves")
    assert list(found.curves) == ["number 0", "number 2", "number 3", "number 4"]
    for name, (x, y) in found.curves.items():
        np.testing.assert_allclose(y, table[:, int(name.split()[1])], atol=1e-6)
        assert (x == np.arange(23)).all()
    near = view(model, "fox", "similarity")
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    np.testing.assert_allclose(near.weights, unit @ unit.T, atol=1e-5)
    assert near.low == near.weights.min()
    for distance in (1, 5):  # which is all that counts
        assert np.ptp(np.diagonal(near.weights, distance)) < 1e-5
    assert alike("t", np.zeros((2, 3))).weights.tolist() == [[0, 0], [0, 0]]
    assert len(waves("t", table[:, :1]).curves) == 1
    for model in (seer(), captioner()):
        assert {"positions", "waves", "similarity"} <= set(views(model))
        assert "embeddings" not in views(model)


def test_the_words_of_a_text_on_a_map(tmp_path):
    model = reader("write", "gpt")
    found = view(model, "the quick fox the lazy dog", "embeddings")
    assert found.words == ["the", "quick", "fox", "lazy", "dog"]
    ids = [model.tokenizer.id(word) for word in found.words]
    x = model.model.embed.weight.detach().double().numpy()[ids]
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    np.testing.assert_allclose(abs(found.places), abs(u[:, :2] * s[:2]), atol=1e-6)
    look(model, "the quick fox", "embeddings").save(tmp_path / "map.svg")
    assert len(ET.parse(tmp_path / "map.svg").getroot().findall(f"{NS}circle")) == 3
    mistake(lambda: view(model, "the fox the", "embeddings"), "2 different tokens", "3 or more")
    mistake(lambda: view(model, "the quick fox", "embeddings", Choice(head=1)), "head=1", "takes nothing")


def test_models_without_attention_have_a_map():
    recurrent = reader("translate", "gru", attention="none")
    mistake(lambda: view(recurrent, "the quick fox"), "no attention", "view=embeddings")
    assert view(recurrent, "the quick fox", "embeddings").words == ["the", "quick", "fox"]
    cls, config = TASKS["words"]
    tokenizer = train_tokenizer("word", ["the quick brown fox"], 61, cls.specials)
    model = Model(
        Words(WordsConfig(vocab=tokenizer.vocab, dim=5)), cls(config(name="words"), tokenizer, 5), {}
    )
    assert view(model, "the quick fox", "embeddings").words == ["the", "quick", "fox"]
    mistake(lambda: view(model, "the quick fox", "heads"), "heads", "embeddings")
    assert isinstance(pooling([1, 2], [3, 4]), Pooling)
