"""Figures computed from numbers: attention pooling, word maps, waves; and the views that use them."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from helpers.errors import user_error
from helpers.figures import NS, dots, polylines
from helpers.looking import captioner, reader, seer
from regard.core.positions import sinusoids
from regard.models import Word2Vec, WordsConfig
from regard.runs.model import Model
from regard.tasks import TASKS
from regard.text.tokenizer_kinds import train_tokenizer
from regard.viewer import draw, look
from regard.viewer.figures import pooling, similarity_matrix, waves, word_map
from regard.viewer.views import Choice, view, views

RNG = np.random.default_rng(11)
X, Y = RNG.uniform(0, 5, 23), RNG.normal(0, 1, 23)
KERNELS = {  # Hastie, Tibshirani & Friedman 2009, section 6.1, without their constants, which cancel
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "boxcar": lambda u: (abs(u) <= 1).astype(float),
    "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
    "average": lambda u: np.ones_like(u),
}


# Attention pooling


@pytest.mark.parametrize("width", [0.3, 1.7])
@pytest.mark.parametrize("kernel", KERNELS)
def test_pooling_is_nadaraya_watson(kernel, width):
    figure = pooling(X.tolist(), Y.tolist(), kernel, width, queries=31)
    K = KERNELS[kernel]((figure.queries[:, None] - X) / width)
    near = K.sum(1) > 0
    np.testing.assert_allclose(figure.weights[near], K[near] / K[near].sum(1, keepdims=True), atol=1e-12)
    np.testing.assert_allclose(figure.fitted[near], K[near] @ Y / K[near].sum(1), atol=1e-12)
    assert np.isnan(figure.fitted[~near]).all()
    assert (figure.queries[0], figure.queries[-1]) == (X.min(), X.max())


def test_plain_averaging_is_drawn():
    svg = draw(pooling([0, 1, 2], [5, 5, 8], "average")).svg()
    assert "plain averaging" in svg
    assert ">0.33<" in svg  # the largest weight


def test_pooling_far_from_all_points_is_undefined():
    figure = pooling([0, 1, 9], [1, 2, 3], "boxcar", 0.6, queries=10)
    assert np.isnan(figure.fitted).tolist() == [False, False, *[True] * 7, False]
    assert len(polylines(figure)) == 1


def test_wrong_arguments_of_pooling():
    user_error(lambda: pooling([1, 2], [1, 2], "gausian"), "gausian", "gaussian")
    user_error(lambda: pooling([1, 2], [1, 2], width=0), "width=0")
    user_error(lambda: pooling([1, 2], [1]), "2 values of x and 1 of y")


# Words


def test_a_word_map_shows_principal_components():
    x = RNG.normal(size=(13, 5)) * [5, 1, 3, 0.1, 0.2]
    figure = word_map("t", list("abcdefghijklm"), torch.from_numpy(x))
    u, s, v = np.linalg.svd(x - x.mean(0), full_matrices=False)
    true = u[:, :2] * s[:2]
    np.testing.assert_allclose(abs(figure.places), abs(true), atol=1e-9)
    for i in (0, 1):  # of a direction, the largest number is positive
        direction = v[i] * np.sign(v[i][abs(v[i]).argmax()])
        np.testing.assert_allclose(figure.places[:, i], (x - x.mean(0)) @ direction, atol=1e-9)
    at = dots(figure)
    gaps, drawn_gaps = (np.linalg.norm(p[:, None] - p, axis=-1) for p in (figure.places, at))
    np.testing.assert_allclose(drawn_gaps, gaps * drawn_gaps.max() / gaps.max(), atol=0.05)
    assert (np.argsort(at[:, 1]) == np.argsort(-figure.places[:, 1])).all()  # up is more


# By `look`


def test_positions_as_waves_and_by_similarity():
    model = reader("translate", "transformer")
    table = sinusoids(torch.arange(23), 12).numpy()
    figure = view(model, "fox", "waves")
    assert list(figure.curves) == ["number 0", "number 2", "number 3", "number 4"]
    for name, (x, y) in figure.curves.items():
        np.testing.assert_allclose(y, table[:, int(name.split()[1])], atol=1e-6)
        assert (x == np.arange(23)).all()
    near = view(model, "fox", "similarity")
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    np.testing.assert_allclose(near.weights, unit @ unit.T, atol=1e-5)
    assert near.low == near.weights.min()
    for distance in (1, 5):  # which is all that counts
        assert np.ptp(np.diagonal(near.weights, distance)) < 1e-5
    assert similarity_matrix("t", np.zeros((2, 3))).weights.tolist() == [[0, 0], [0, 0]]
    assert len(waves("t", table[:, :1]).curves) == 1
    for model in (seer(), captioner()):
        assert {"positions", "waves", "similarity"} <= set(views(model))
        assert "embeddings" not in views(model)


def test_the_embeddings_of_a_text_as_a_map(tmp_path):
    model = reader("write", "gpt")
    figure = view(model, "the quick fox the lazy dog", "embeddings")
    assert figure.words == ["the", "quick", "fox", "lazy", "dog"]
    ids = [model.tokenizer.id(word) for word in figure.words]
    x = model.model.embed.weight.detach().double().numpy()[ids]
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    np.testing.assert_allclose(abs(figure.places), abs(u[:, :2] * s[:2]), atol=1e-6)
    look(model, "the quick fox", "embeddings").save(tmp_path / "map.svg")
    assert len(ET.parse(tmp_path / "map.svg").getroot().findall(f"{NS}circle")) == 3
    user_error(lambda: view(model, "the fox the", "embeddings"), "2 different tokens", "3 or more")
    user_error(lambda: view(model, "the quick fox", "embeddings", Choice(head=1)), "head=1", "takes nothing")


def test_models_without_attention_have_a_map():
    recurrent = reader("translate", "gru", attention="none")
    user_error(lambda: view(recurrent, "the quick fox"), "no attention", "view=embeddings")
    assert view(recurrent, "the quick fox", "embeddings").words == ["the", "quick", "fox"]
    cls, config = TASKS["words"]
    tokenizer = train_tokenizer("word", ["the quick brown fox"], 61, cls.specials)
    model = Model(
        Word2Vec(WordsConfig(vocab=tokenizer.vocab, dim=5)), cls(config(name="words"), tokenizer, 5), {}
    )
    assert view(model, "the quick fox", "embeddings").words == ["the", "quick", "fox"]
    user_error(lambda: view(model, "the quick fox", "heads"), "heads", "embeddings")
