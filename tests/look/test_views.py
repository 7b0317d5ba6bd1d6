"""What is seen is what the model computed: weights by name, layer, head and part, with their words."""

import numpy as np
import pytest
import torch
from looking import CONTEXT, TEXT, captioner, noise, reader, seer
from mistakes import mistake

from regard.look.views import Arcs, Atlas, Choice, Maps, Matrix, view, views
from regard.models import Words, WordsConfig
from regard.run import Model
from regard.watch import watch

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
def test_an_alignment_is_as_the_task_tells_it(task, kind, settings):
    model = reader(task, kind, **settings)
    found = view(model, WORDS, choice=Choice(answer=ANSWER))
    weights, rows, columns = model.task.looked(model.model, WORDS, ANSWER)
    assert type(found) is Matrix
    np.testing.assert_allclose(found.weights, weights.numpy(), rtol=1e-5)
    assert (found.rows, found.columns) == (rows, columns)
    assert rows == [*ANSWER.split(), "</s>"]
    assert columns == [*WORDS.split(), "</s>"]
    sums_to_one(found.weights)
    assert found.weights.std() > 0.01  # or nothing would be compared


def test_without_an_answer_the_models_own_is_looked_at():
    model = reader("translate", "transformer")
    own = model.ask(WORDS)
    assert own
    a, b = view(model, WORDS), view(model, WORDS, choice=Choice(answer=own))
    assert a.rows == b.rows
    assert (a.weights == b.weights).all()


def traced(model, part, layer):
    """One part's weights of a layer, by a trace of our own."""
    source = [*model.tokenizer.encode(WORDS), model.task.end]
    target = [model.task.begin, *model.tokenizer.encode(ANSWER)]
    with torch.inference_mode(), watch(model.model) as seen:
        model.model(torch.tensor([source]), torch.tensor([target]))
    name = {"cross": "decoder.%d.cross.f", "encoder": "encoder.%d.attn.f", "decoder": "decoder.%d.attn.f"}
    return seen[name[part] % layer][0]["weights"][0].numpy()


@pytest.mark.parametrize("part", ["cross", "encoder", "decoder"])
def test_every_part_layer_and_head_is_the_traced_one(part):
    model = reader("translate", "transformer")
    for layer in (0, 1):
        true = traced(model, part, layer)
        for head in (0, 1, 2):
            found = view(model, WORDS, "heads", Choice(layer=layer, head=head, part=part, answer=ANSWER))
            np.testing.assert_allclose(found.weights, true[head], rtol=1e-5)
            assert found.title == f"layer {layer}, head {head}"
            assert found.weights.shape == (len(found.rows), len(found.columns))
            sums_to_one(found.weights)
        arcs = view(model, WORDS, "arcs", Choice(layer=layer, part=part, answer=ANSWER))
        assert type(arcs) is Arcs
        np.testing.assert_allclose(arcs.weights, true.mean(0), rtol=1e-5)
        atlas = view(model, WORDS, "atlas", Choice(part=part, answer=ANSWER))
        assert type(atlas) is Atlas
        np.testing.assert_allclose(atlas.weights[layer], true, rtol=1e-5)
    if part == "decoder":  # what it reads, from the beginning
        assert found.rows == found.columns == ["<s>", *ANSWER.split()]
        assert not np.triu(found.weights, 1).any()


@pytest.mark.parametrize(("task", "kind", "settings", "tokens"), READERS, ids=named(READERS))
def test_a_text_looks_at_itself_as_the_task_reads_it(task, kind, settings, tokens):
    model = reader(task, kind, **settings)
    found = view(model, WORDS, "atlas")
    L, H, T, S = found.weights.shape
    assert (L, H, T, S) == (2, 3, len(tokens), len(tokens))
    sums_to_one(found.weights)
    one = view(model, WORDS)
    assert one.rows == one.columns == tokens
    assert (one.weights == found.weights[1, 0]).all()
    if kind == "gpt":
        assert not np.triu(one.weights, 1).any()
        ids = torch.tensor([[model.tokenizer.id(token) for token in tokens]])
        module = getattr(model.model, "model", model.model)
        with torch.inference_mode(), watch(module) as seen:
            module(ids)
        np.testing.assert_allclose(one.weights, seen["blocks.1.attn.f"][0]["weights"][0, 0], rtol=1e-5)
    assert not any(m.seen is not None for m in model.model.modules() if hasattr(m, "seen"))


def test_a_question_and_a_text():
    model = reader("span", "bert")
    assert view(model, f"the fox\t{WORDS}").rows == ["[CLS]", "the", "fox", "[SEP]", *WORDS.split(), "[SEP]"]


def test_a_blank_is_read_as_one():
    assert view(reader("fill", "bert"), "the ___ fox").rows == ["[CLS]", "the", "[MASK]", "fox", "[SEP]"]


def test_what_was_restored():
    model = reader("restore", "t5")
    found = view(model, "the ___ fox ___ dog", choice=Choice(answer="quick ___ lazy"))
    assert found.rows == ["<extra_id_0>", "quick", "<extra_id_1>", "lazy", "</s>"]
    assert found.columns == ["the", "<extra_id_0>", "fox", "<extra_id_1>", "dog", "</s>"]
    sums_to_one(view(model, "the ___ fox").weights)
    mistake(lambda: view(model, "the ___ fox", choice=Choice(answer="a ___ b")), "1 blank", "___")


def test_a_text_that_is_too_long_is_seen_as_far_as_it_is_read():
    model = reader("write", "gpt")
    long = " ".join([TEXT] * 5)
    assert view(model, long).rows == long.split()[-CONTEXT:]


def test_an_untrained_mode_is_given_back():
    model = reader("translate", "transformer", dropout=0.5)
    model.model.train()
    a, b = (view(model, WORDS, choice=Choice(answer=ANSWER)).weights for _ in range(2))
    assert (a == b).all()
    assert model.model.training


# Pictures


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_what_stands_for_a_picture_looks_at_patches(pool):
    model, pixels = seer(pool), noise(6)
    with torch.inference_mode(), watch(model.model) as seen:
        model.task.logits(model.model, pixels[None])
    layers = [seen[f"model.blocks.{i}.attn.f"][0]["weights"][0] for i in range(3)]
    first = pool == "first"

    def row(x):
        return (x[0, 1:] if first else x.mean(0)).view(1, 3, 3).numpy()

    found = view(model, pixels)
    assert type(found) is Maps
    np.testing.assert_allclose(found.maps, row(layers[2].mean(0)), rtol=1e-5)
    one = view(model, pixels, "classes", Choice(layer=1, head=1))
    np.testing.assert_allclose(one.maps, row(layers[1][1]), rtol=1e-5)
    flow = torch.eye(9 + first)  # by hand: what reaches t comes from s through all u of the layer between
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


def test_the_picture_is_the_one_that_is_seen():
    model, pixels = seer(), noise(6)
    found = view(model, pixels)
    assert (found.picture == pixels.permute(1, 2, 0).numpy()).all()
    ((best,),) = model.answers([pixels])
    assert found.title == f"{best.text} {best.score:.0%}; layer 2, mean of 2 heads"


@pytest.mark.parametrize(
    "settings", [{}, {"decoder": "transformer", "encoder": "vit", "decoder_depth": 2}], ids=["lstm", "vit"]
)
def test_the_words_of_a_caption_look_as_the_task_tells_it(settings):
    model, pixels = captioner(**settings), noise(12)
    found = view(model, pixels, choice=Choice(answer=ANSWER))
    maps, told = model.task.looked(model.model, pixels, ANSWER)
    np.testing.assert_allclose(found.maps, maps[:-1].numpy(), rtol=1e-5)  # the end is no word
    assert list(found.words) == told[:-1] == ANSWER.split()
    assert found.maps.shape == (3, 3, 3)
    sums_to_one(found.maps.reshape(3, 9))
    own = view(model, pixels)
    assert own.title.startswith(model.ask([pixels])[0])


# Positions


def test_positions_are_what_is_added():
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
    turned = reader("write", "gpt")  # whose positions are not added
    mistake(lambda: view(turned, WORDS, "positions"), "positions", "heads, atlas, arcs")


# Mistakes


def test_what_there_is_not_is_named_with_what_there_is():
    model, see = reader("translate", "transformer"), seer()
    mistake(lambda: view(model, WORDS, "rollout"), "rollout", "alignment, heads, atlas, arcs, positions")
    mistake(lambda: view(see, noise(6), "heads"), "heads", "classes, rollout, patches, positions")
    mistake(lambda: view(model, WORDS, choice=Choice(layer=2)), "layer=2", "layers 0 to 1")
    mistake(lambda: view(model, WORDS, choice=Choice(layer=-1)), "layer=-1", "layers 0 to 1")
    mistake(lambda: view(model, WORDS, "heads", Choice(head=3)), "head=3", "heads 0 to 2")
    mistake(lambda: view(model, WORDS, "heads", Choice(part="middle")), "middle", "cross, encoder, decoder")
    mistake(
        lambda: view(model, WORDS, choice=Choice(patch=1)), "patch=1", "alignment takes layer, head, answer"
    )
    mistake(lambda: view(see, noise(6), "rollout", Choice(layer=1)), "layer=1", "takes nothing")
    mistake(lambda: view(see, noise(6), "patches", Choice(patch=9)), "patch=9", "0 to 8")
    mistake(lambda: view(see, "missing.png"), "missing.png", "no such picture")
    mistake(lambda: view(reader("write", "gpt"), WORDS, "heads", Choice(part="self")), "part=self")
    recurrent = reader("translate", "gru")
    mistake(lambda: view(recurrent, WORDS, choice=Choice(layer=1)), "layer=1", "there is one layer, 0")
    assert list(views(captioner())) == ["words", "positions", "waves", "similarity"]


def test_arcs_between_too_many_words():
    model = reader("write", "gpt", context=211)
    model.task.context = 211
    many = ["fox"] * 201
    mistake(lambda: view(model, " ".join(many), "arcs"), "201 words", "view=heads")
    assert len(view(model, " ".join(many[1:]), "arcs").rows) == 200


@pytest.mark.parametrize("text", ["", "  \n "])
def test_nothing_to_look_at(text):
    for model in (reader("translate", "transformer"), reader("write", "gpt")):
        mistake(lambda model=model: view(model, text), "nothing to look at")


def test_a_text_of_several_sentences():
    model = reader("translate", "transformer", task_longest=5)
    mistake(lambda: view(model, "the quick fox . the lazy dog . the fox"), "parts", "one sentence")


def test_a_model_without_attention_says_so():
    without = reader("translate", "gru", attention="none")
    mistake(lambda: view(without, WORDS), "no attention", "model.attention")
    words = Model(Words(WordsConfig(vocab=61, dim=12)), None, {})
    mistake(lambda: view(words, "fox"), "no attention")
