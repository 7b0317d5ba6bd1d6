"""Views show what the model computed: weights by name, layer, head and part, with their words."""

import numpy as np
import pytest
import torch

from helpers.errors import user_error
from helpers.looking import CONTEXT, TEXT, captioner, noise, reader, seer
from regard.describe.watch import watch
from regard.draw.arcs import Arcs
from regard.draw.heat import Atlas, Matrix
from regard.draw.maps import Maps
from regard.draw.word_map import Points
from regard.models import Word2Vec, WordsConfig
from regard.runs.model import Model
from regard.viewer import look
from regard.viewer.views import Choice, view, views

WORDS = "the quick brown fox"
ANSWER = "der Fuchs springt"
PAIRED = [
    ("translate", "transformer", {}),
    ("translate", "transformer", {"decoder_depth": 1}),
    ("chat", "t5", {}),
    ("translate", "gru", {"attention": "additive"}),
    ("chat", "lstm", {"attention": "dot", "depth": 2}),
]
READERS = [
    ("write", "gpt", {}, WORDS.split()),
    ("fill", "bert", {}, ["[CLS]", *WORDS.split(), "[SEP]"]),
    ("fill", "bert", {"task_replaced": True}, ["[CLS]", *WORDS.split(), "[SEP]"]),
    ("classify", "bert", {"task_labels": ("a", "b")}, ["[CLS]", *WORDS.split(), "[SEP]"]),
    ("classify", "gpt", {"task_labels": ("a", "b")}, ["[CLS]", *WORDS.split(), "[SEP]"]),
    ("classify", "t5", {"task_labels": ("fox", "dog")}, ["[CLS]", *WORDS.split(), "[SEP]"]),
    ("tag", "bert", {"task_labels": ("a", "b")}, ["[CLS]", *WORDS.split(), "[SEP]"]),
    ("embed", "bert", {}, ["[CLS]", *WORDS.split(), "[SEP]"]),
]


def named(cases):
    return ["-".join([*case[:2], *map(str, case[2].values())]) for case in cases]


def sums_to_one(weights):
    np.testing.assert_allclose(weights.sum(-1), np.ones(weights.shape[:-1]), rtol=1e-5)


# Texts


@pytest.mark.parametrize(("task", "kind", "settings"), PAIRED, ids=named(PAIRED))
def test_an_alignment_has_the_weights_of_the_task(task, kind, settings):
    model = reader(task, kind, **settings)
    result = view(model, WORDS, choice=Choice(answer=ANSWER))
    weights, rows, columns = model.task.cross_attention(model.model, WORDS, ANSWER)
    assert type(result) is Matrix
    np.testing.assert_allclose(result.weights, weights.numpy(), rtol=1e-5)
    assert (result.rows, result.columns) == (rows, columns)
    assert rows == [*ANSWER.split(), "</s>"]
    assert columns == [*WORDS.split(), "</s>"]
    sums_to_one(result.weights)
    assert result.weights.std() > 0.01  # uniform weights would prove nothing


def test_the_default_answer_is_the_models_own():
    model = reader("translate", "transformer")
    own = model.ask(WORDS)
    assert own
    a, b = view(model, WORDS), view(model, WORDS, choice=Choice(answer=own))
    assert a.rows == b.rows
    assert (a.weights == b.weights).all()


def recorded(model, part, layer):
    """The recorded weights of one part of a layer."""
    source = [*model.tokenizer.encode(WORDS), model.task.end]
    target = [model.task.begin, *model.tokenizer.encode(ANSWER)]
    with torch.inference_mode(), watch(model.model) as records:
        model.model(torch.tensor([source]), torch.tensor([target]))
    name = {"cross": "decoder.%d.cross.f", "encoder": "encoder.%d.attn.f", "decoder": "decoder.%d.attn.f"}
    return records[name[part] % layer][0]["weights"][0].numpy()


@pytest.mark.parametrize("part", ["cross", "encoder", "decoder"])
def test_every_part_layer_and_head_has_the_recorded_weights(part):
    model = reader("translate", "transformer")
    for layer in (0, 1):
        true = recorded(model, part, layer)
        for head in (0, 1, 2):
            result = view(model, WORDS, "heads", Choice(layer=layer, head=head, part=part, answer=ANSWER))
            np.testing.assert_allclose(result.weights, true[head], rtol=1e-5)
            assert result.title == f"layer {layer}, head {head}"
            assert result.weights.shape == (len(result.rows), len(result.columns))
            sums_to_one(result.weights)
        arcs = view(model, WORDS, "arcs", Choice(layer=layer, part=part, answer=ANSWER))
        assert type(arcs) is Arcs
        np.testing.assert_allclose(arcs.weights, true.mean(0), rtol=1e-5)
        atlas = view(model, WORDS, "atlas", Choice(part=part, answer=ANSWER))
        assert type(atlas) is Atlas
        np.testing.assert_allclose(atlas.weights[layer], true, rtol=1e-5)
    if part == "decoder":  # what it reads, from the beginning
        assert result.rows == result.columns == ["<s>", *ANSWER.split()]
        assert not np.triu(result.weights, 1).any()


@pytest.mark.parametrize(("task", "kind", "settings", "tokens"), READERS, ids=named(READERS))
def test_self_attention_of_the_tokens_that_the_task_reads(task, kind, settings, tokens):
    model = reader(task, kind, **settings)
    result = view(model, WORDS, "atlas")
    L, H, T, S = result.weights.shape
    assert (L, H, T, S) == (2, 3, len(tokens), len(tokens))
    sums_to_one(result.weights)
    one = view(model, WORDS)
    assert one.rows == one.columns == tokens
    assert (one.weights == result.weights[1, 0]).all()
    if kind == "gpt":
        assert not np.triu(one.weights, 1).any()
        ids = torch.tensor([[model.tokenizer.id(token) for token in tokens]])
        module = getattr(model.model, "model", model.model)
        with torch.inference_mode(), watch(module) as records:
            module(ids)
        np.testing.assert_allclose(one.weights, records["blocks.1.attn.f"][0]["weights"][0, 0], rtol=1e-5)
    assert not any(m.records is not None for m in model.model.modules() if hasattr(m, "records"))


def test_a_question_and_a_text():
    model = reader("span", "bert")
    assert view(model, f"the fox\t{WORDS}").rows == ["[CLS]", "the", "fox", "[SEP]", *WORDS.split(), "[SEP]"]


def test_a_blank_is_a_mask_token():
    assert view(reader("fill", "bert"), "the ___ fox").rows == ["[CLS]", "the", "[MASK]", "fox", "[SEP]"]


def test_restored_blanks():
    model = reader("restore", "t5")
    result = view(model, "the ___ fox ___ dog", choice=Choice(answer="quick ___ lazy"))
    assert result.rows == ["<extra_id_0>", "quick", "<extra_id_1>", "lazy", "</s>"]
    assert result.columns == ["the", "<extra_id_0>", "fox", "<extra_id_1>", "dog", "</s>"]
    sums_to_one(view(model, "the ___ fox").weights)
    user_error(lambda: view(model, "the ___ fox", choice=Choice(answer="a ___ b")), "1 blank", "___")


def test_a_long_text_is_cut_to_the_context():
    model = reader("write", "gpt")
    long = " ".join([TEXT] * 5)
    assert view(model, long).rows == long.split()[-CONTEXT:]


def test_the_training_mode_is_restored():
    model = reader("translate", "transformer", dropout=0.5)
    model.model.train()
    a, b = (view(model, WORDS, choice=Choice(answer=ANSWER)).weights for _ in range(2))
    assert (a == b).all()
    assert model.model.training


# Images


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_attention_over_the_patches_of_an_image(pool):
    model, pixels = seer(pool), noise(6)
    with torch.inference_mode(), watch(model.model) as records:
        model.task.logits(model.model, pixels[None])
    layers = [records[f"model.blocks.{i}.attn.f"][0]["weights"][0] for i in range(3)]
    first = pool == "first"

    def row(x):
        return (x[0, 1:] if first else x.mean(0)).view(1, 3, 3).numpy()

    result = view(model, pixels)
    assert type(result) is Maps
    np.testing.assert_allclose(result.maps, row(layers[2].mean(0)), rtol=1e-5)
    one = view(model, pixels, "classes", Choice(layer=1, head=1))
    np.testing.assert_allclose(one.maps, row(layers[1][1]), rtol=1e-5)
    flow = torch.eye(9 + first)  # by hand: from s to t through all u of the layer between
    for layer in layers:
        A, before = layer.mean(0), flow.clone()
        for t in range(len(A)):
            flow[t] = 0.5 * before[t] + sum(0.5 * A[t, u] * before[u] for u in range(len(A)))
    np.testing.assert_allclose(view(model, pixels, "rollout").maps, row(flow), rtol=1e-5)
    np.testing.assert_allclose(flow.sum(1), 1, rtol=1e-5)
    patches = view(model, pixels, "patches", Choice(layer=0, patch=5))
    np.testing.assert_allclose(patches.maps[0], layers[0].mean(0)[5 + first, first:].view(3, 3), rtol=1e-5)
    assert list(patches.marks) == [5]
    assert view(model, pixels, "patches").maps.shape == (9, 3, 3)


def test_the_image_and_the_answer_are_shown():
    model, pixels = seer(), noise(6)
    result = view(model, pixels)
    assert (result.picture == pixels.permute(1, 2, 0).numpy()).all()
    ((best,),) = model.answers([pixels])
    assert result.title == f"{best.text} {best.score:.0%}; layer 2, mean of 2 heads"


@pytest.mark.parametrize(
    "settings", [{}, {"decoder": "transformer", "encoder": "vit", "decoder_depth": 2}], ids=["lstm", "vit"]
)
def test_the_words_of_a_caption_have_the_weights_of_the_task(settings):
    model, pixels = captioner(**settings), noise(12)
    result = view(model, pixels, choice=Choice(answer=ANSWER))
    maps, tokens, _ = model.task.cross_attention(model.model, pixels, ANSWER)
    np.testing.assert_allclose(result.maps, maps[:-1].numpy(), rtol=1e-5)  # the end token is not a word
    assert list(result.words) == tokens[:-1] == ANSWER.split()
    assert result.maps.shape == (3, 3, 3)
    sums_to_one(result.maps.reshape(3, 9))
    own = view(model, pixels)
    assert own.title.startswith(model.ask([pixels])[0])


# Positions


def test_positions_show_the_vectors_that_are_added():
    waves = view(reader("translate", "transformer"), WORDS, "positions")
    for pos, i in ((0, 3), (7, 4), (19, 11)):  # Vaswani et al. 2017, section 3.5
        angle = pos / 10_000 ** (2 * (i // 2) / 12)
        assert waves.weights[pos, i] == pytest.approx(np.cos(angle) if i % 2 else np.sin(angle), abs=1e-5)
    assert waves.weights.shape == (CONTEXT, 12)
    assert waves.low == waves.weights.min()
    bert, see, soft = reader("fill", "bert"), seer(), captioner()
    tables = [bert.model.positions.table, see.model.model.positions, soft.model.encoder.positions.table]
    for model, table in zip((bert, see, soft), tables, strict=True):
        assert (view(model, None, "positions").weights == table.weight.detach().numpy()).all()
    turned = reader("write", "gpt")  # rotary positions are not added
    user_error(lambda: view(turned, WORDS, "positions"), "positions", "heads, atlas, arcs")


# Errors


def test_errors_name_the_known_values():
    model, see = reader("translate", "transformer"), seer()
    user_error(lambda: view(model, WORDS, "rollout"), "rollout", "alignment, heads, atlas, arcs, positions")
    user_error(lambda: view(see, noise(6), "heads"), "heads", "classes, rollout, patches, positions")
    user_error(lambda: view(model, WORDS, choice=Choice(layer=2)), "layer=2", "layers 0 to 1")
    user_error(lambda: view(model, WORDS, choice=Choice(layer=-1)), "layer=-1", "layers 0 to 1")
    user_error(lambda: view(model, WORDS, "heads", Choice(head=3)), "head=3", "heads 0 to 2")
    user_error(
        lambda: view(model, WORDS, "heads", Choice(part="middle")), "middle", "cross, encoder, decoder"
    )
    user_error(
        lambda: view(model, WORDS, choice=Choice(patch=1)), "patch=1", "alignment takes layer, head, answer"
    )
    user_error(lambda: view(see, noise(6), "rollout", Choice(layer=1)), "layer=1", "takes nothing")
    user_error(lambda: view(see, noise(6), "patches", Choice(patch=9)), "patch=9", "0 to 8")
    user_error(lambda: look(see, "missing.png"), "missing.png", "no such image")
    user_error(lambda: view(reader("write", "gpt"), WORDS, "heads", Choice(part="self")), "part=self")
    recurrent = reader("translate", "gru")
    user_error(lambda: view(recurrent, WORDS, choice=Choice(layer=1)), "layer=1", "there is one layer, 0")
    assert list(views(captioner())) == ["words", "positions", "waves", "similarity", "map"]


def test_arcs_between_too_many_words():
    model = reader("write", "gpt", context=211)
    model.task.context = 211
    many = ["fox"] * 201
    user_error(lambda: view(model, " ".join(many), "arcs"), "201 words", "view=heads")
    assert len(view(model, " ".join(many[1:]), "arcs").rows) == 200


@pytest.mark.parametrize("text", ["", "  \n "])
def test_nothing_to_look_at(text):
    for model in (reader("translate", "transformer"), reader("write", "gpt")):
        user_error(lambda model=model: view(model, text), "nothing to look at")


def test_a_text_of_several_sentences():
    model = reader("translate", "transformer", task_longest=5)
    user_error(lambda: view(model, "the quick fox . the lazy dog . the fox"), "parts", "one sentence")


def test_a_model_without_attention():
    without = reader("translate", "gru", attention="none")
    user_error(lambda: view(without, WORDS), "no attention", "model.attention")
    bare = Model(Word2Vec(WordsConfig(vocab=61, dim=12)), None, {})  # without a tokenizer
    for name in (None, "embeddings"):
        user_error(lambda name=name: view(bare, "fox", name), "no attention")


def test_words_have_a_map():
    model = reader("words", "words")
    points = view(model, "the quick fox and the dog")
    assert isinstance(points, Points)
    assert list(points.words) == model.task.tokenizer.tokens(
        list(dict.fromkeys(model.task.tokenizer.encode("the quick fox and the dog")))
    )
