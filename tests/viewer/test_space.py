"""Maps of vectors: points and neighbours are those that NumPy and torch compute."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helpers.browsing import HOSTILE, close, hostile, number, shown
from helpers.looking import reader
from helpers.serving import serve_session
from helpers.slow import slow_after
from regard.core.positions import ALiBi, Relative
from regard.errors import UserError
from regard.runs.model import Model
from regard.tasks import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.tracing.names import trace_names
from regard.viewer import space
from regard.viewer.session import Session
from regard.viewer.space import Space, Tokens

KINDS = ["gpt", "gru", "vit", "captioner"]


def components(x):
    """The two principal components by NumPy, with any sign."""
    x = x.double().numpy()
    x = x - x.mean(0)
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False))
    return x @ vectors[:, :-3:-1], values[:-3:-1] / values.sum()


def test_neighbours_are_exact():
    it = Space(shown("gpt").model, shown("gpt").trace)
    W, fox = it.model.model.embed.weight.detach(), it.model.tokenizer.encode("fox")[0]
    cosine = F.cosine_similarity(W, W[fox : fox + 1], dim=1)
    far = torch.cdist(W, W[fox : fox + 1])[:, 0]
    for way, values, least in (("cosine", cosine, -1), ("euclidean", far, 1)):
        result = it.near("tokens", "fox", way)
        order = [i for i in (least * values).argsort().tolist() if i != fox][:12]
        assert [one["row"] for one in result["found"]] == order
        assert [one["value"] for one in result["found"]] == pytest.approx(values[order].tolist(), rel=1e-4)
        assert result == it.near("tokens", fox, way)
    ids = [it.model.tokenizer.encode(word)[0] for word in ("fox", "dog", "lazy")]
    aim = F.normalize(W[ids]).T @ torch.tensor([1.0, -1.0, 1.0])
    best = F.cosine_similarity(W, aim[None], dim=1)
    best[ids] = -9
    result = it.near("tokens", "fox - dog + lazy")
    assert result["found"][0]["row"] == int(best.argmax())
    assert [one["value"] for one in result["of"]] == [1, -1, 1]


def test_a_run_has_its_own_neighbours():
    it = Space(shown("bert").model, shown("bert").trace)
    x = it.trace["blocks.1.output"]
    result = it.near("blocks.1.output", 2)["found"]
    cosine = F.cosine_similarity(x, x[2:3], dim=1)
    assert [one["row"] for one in result] == [i for i in cosine.argsort(descending=True).tolist() if i != 2]
    assert it.mapped("blocks.1.output")["words"] == it.trace.tokens["text"]
    for name, asked in (("blocks.1.attn.q", 0), ("none", 0), ("blocks.1.output", 99)):
        with pytest.raises(UserError, match=r"no such map|there are 0 to 6"):
            it.near(name, asked)


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_tokens_are_found_by_their_text(kind):
    tokenizer = train_tokenizer(kind, ["the fox and the foxes, the dog"] * 5, 290, Write.specials)
    model = reader("write", "gpt")
    module = type(model.model)(type(model.model.config)(vocab=tokenizer.vocab + 3, dim=8, heads=2, depth=1))
    loaded = Model(module, Write(WriteConfig(name="write"), tokenizer, 11), {})
    it = Tokens(loaded)
    assert len(it) == tokenizer.vocab  # padding rows of the table have no words
    text = "e" if kind == "char" else "the"
    assert it.words[it.row(text)].strip() == text
    with pytest.raises(UserError, match="zebra: not among"):
        it.row("zebra")


def test_the_points_of_a_map(monkeypatch):
    monkeypatch.setattr(space, "POINTS", 7)
    it = Space(shown("gpt").model, shown("gpt").trace)
    result = it.mapped("tokens")
    assert result["words"][:5] == it.trace.tokens["text"]
    assert (result["own"], len(result["points"]), result["of"]) == (5, 7, 17)
    assert Space(shown("vit").model, shown("vit").trace).names[0] == "input"
    assert "encoder.states" in Space(shown("gru").model, shown("gru").trace).names
    points = it.pack_for_file()
    assert json.loads(json.dumps(points))["near"]["tokens"].keys() == {str(i) for i in it.own}
    few = it.pack_for_file(len(json.dumps(it.mapped("embed"))) + 11)
    assert list(few["maps"]) == ["embed"]
    assert few["near"] == {"embed": {}}


def test_positions_as_vectors():
    table = shown("transformer").space.tensors["~encoder.table"].double().numpy()
    pos, i = np.meshgrid(np.arange(23), np.arange(0, 12, 2), indexing="ij")
    assert table[:, ::2] == pytest.approx(np.sin(pos / 10_000 ** (i / 12)), abs=1e-5)
    it = shown("gpt").space
    speed = 10_000 ** (-np.arange(0, 4, 2) / 4)
    apart = np.arange(23)[:, None] - np.arange(23)
    expected = np.cos(apart[..., None] * speed).mean(-1)  # equal queries and keys, rotated
    assert it.tensors["~model.cosine"].numpy() == pytest.approx(expected, abs=1e-5)
    assert it.tensors["~model.dot"].numpy() == pytest.approx(2 * expected, abs=1e-5)
    assert it.positions == [{"part": "model", "kind": "rotary", "of": 23}]
    learned = shown("bert").space.tensors
    weight = shown("bert").model.model.positions.table.weight.detach()
    assert torch.equal(learned["~model.table"], weight)
    assert learned["~model.dot"][3, 5] == pytest.approx(float(weight[3] @ weight[5]), rel=1e-5)
    assert [one["kind"] for one in shown("vit").space.positions] == ["learned in two dimensions"]
    assert shown("gru").space.positions == []


def test_positions_as_biases():
    bias = shown("alibi").space.tensors["~model.bias"]
    slopes = next(m for _, m in trace_names(shown("alibi").model.model) if isinstance(m, ALiBi)).slopes
    assert bias[1, 7, 3] == pytest.approx(-4 * float(slopes[1]))
    m = next(m for _, m in trace_names(shown("t5").model.model) if isinstance(m, Relative))
    assert torch.equal(shown("t5").space.tensors["~encoder.bias"], m.bias(23, 23).detach())


# In a browser


@pytest.mark.parametrize("kind", slow_after(2, KINDS))
def test_every_map_opens(tab, kind):
    it = tab(kind, "#view=space")
    forms = it.page.eval_on_selector_all("[aria-label=map] button", "all => all.map(b => b.id.slice(4))")
    assert forms == (["tokens"] * (kind != "vit")) + ["run", "positions"]
    for form in forms:
        it.page.click(f"#map-{form}")
        it.page.wait_for_selector(f"#map-{form}[aria-selected=true]")
        assert it.page.query_selector("main .wrong") is None
    if kind == "gru":
        assert "no position is encoded" in it.text("section.space")
    else:
        assert it.page.query_selector("#matrix") is not None


def test_points_and_neighbours_are_torchs(tab):
    it = tab("gpt", "#view=space&of=fox&near=euclidean")
    known = Space(shown("gpt").model, shown("gpt").trace)
    W = shown("gpt").model.model.embed.weight.detach()
    want, _ = components(W[known.ids])
    rows = it.table()
    assert len(rows) == 17
    for row, place in zip(rows, want, strict=True):
        assert [abs(number(cell)) for cell in row] == pytest.approx(
            np.abs(place).tolist(), rel=6e-4, abs=1e-6
        )
    fox = known.model.tokenizer.encode("fox")[0]
    values = sorted(torch.cdist(W, W[fox : fox + 1])[:, 0].tolist())[1:13]
    printed = it.page.eval_on_selector_all(".near .exact", "all => all.map(a => a.textContent)")
    assert all(close(text, value) for text, value in zip(printed, values, strict=True))
    it.page.click("#near-cosine")
    it.wait(".near .small", "cosine")
    best = F.cosine_similarity(W, W[fox : fox + 1], dim=1).sort(descending=True).values[1]
    assert close(it.text(".near .exact"), float(best))


def test_keys_alone_find_neighbours(tab):
    it = tab("transformer", "#view=space")
    it.page.focus("#space")
    it.press("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown")
    word = it.text(".readout").rsplit(", at ", 1)[0].split(", cos")[0]
    it.press("Enter")
    it.wait(".near h3", f"Nearest to {word}")
    assert "point=" in it.page.url
    assert it.page.evaluate("document.activeElement.id") == "space"
    before = it.text(".near h3")
    it.press("n", "Enter")
    it.page.wait_for_function("text => document.querySelector('.near h3').textContent !== text", arg=before)
    it.page.focus("#of-a")
    it.press(*"fox", "Tab", *"dog", "Tab", *"lazy", "Enter")
    it.wait(".near h3", "Nearest to fox − dog + lazy")
    assert "of=fox+-+dog+%2B+lazy" in it.page.url
    it.page.fill("#of-a", "zebra")
    it.press("Enter")
    it.wait(".near .wrong", "zebra: not among the words of this model")
    it.wrong.clear()  # the browser's own word on a status of 400
    it.turn("#view=space&map=encoder.1.output&point=2")
    assert it.text(".near h3") == "Nearest to brown"
    assert it.text("section h2").startswith("This run's tokens, encoder, after block 1")


def test_positions_are_torchs(tab):
    it = tab("gpt", "#view=space&map=positions&as=cosine")
    want = shown("gpt").space.tensors["~model.cosine"]
    rows = it.table()
    assert all(abs(number(rows[r][c]) - float(want[r, c])) < 1e-4 for r in range(23) for c in range(23))
    it.turn("#view=space&map=positions&as=waves")
    assert len(it.page.query_selector_all(".wave polyline")) == 2  # both pairs of each head
    assert close(it.table()[3][0], math.cos(3))
    it.turn("#view=space&map=positions&as=waves&dim=1")
    assert close(it.table()[3][0], math.cos(0.03))
    it = tab("alibi", "#view=space&map=positions&head=2")
    want = shown("alibi").space.tensors["~model.bias"][2]
    assert close(it.table()[9][2], float(want[9, 2]))
    it.page.click("#as-waves")
    it.page.wait_for_selector(".wave polyline")
    assert close(it.table()[7][2], float(want[9, 2]))


def test_any_address_is_answered(tab):
    it = tab("gpt")
    for state in (
        "map=none&point=x",
        "map=tokens&near=none&point=-1",
        "map=positions&as=none&places=none&dim=99",
    ):
        it.turn(f"#view=space&{state}")
        assert it.page.query_selector("main .wrong") is None, state


def test_a_saved_page_has_its_own_words(tab, tmp_path):
    shown("gpt").save(tmp_path / "a.html", {"view": "space"})
    it = tab(f"file://{tmp_path / 'a.html'}")
    it.page.wait_for_selector("#space")
    printed = it.text(".near .exact")
    want = shown("gpt").space.near("tokens", shown("gpt").space.own[0])["found"][0]["value"]
    assert close(printed, want)
    it.turn("#view=space&map=blocks.1.output&point=3&near=euclidean")
    x = shown("gpt").trace["blocks.1.output"]
    assert close(it.text(".near .exact"), torch.cdist(x, x[3:4])[:, 0].sort().values[1].item())
    it.turn("#view=space&map=tokens&point=0")
    it.wait(".near .wrong", "not one of the input's")
    it.turn("#view=space&map=positions&as=dot")
    assert it.page.query_selector("#matrix") is not None


def test_hostile_words_do_no_harm(browser, tab):
    it = hostile()
    it.space.all.words = [HOSTILE[i % 5] for i in range(len(it.space.all))]
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with serve_session(it) as server:
        page = browser.new_page(viewport={"width": 360, "height": 700}, color_scheme="dark")
        for map in ("tokens", "run", "positions"):
            page.goto(f"{server.url}?{map}#view=space&map={map}")
            page.wait_for_selector("section.space h2")
            if map != "positions":
                page.click(".twin summary")
                page.wait_for_selector(".twin table")
            assert page.evaluate("window.harmed") is None
            assert page.query_selector("main img, main script") is None
            assert page.evaluate(over) <= 0, map
            assert "\u202e" not in page.content()
        page.close()


def test_what_is_asked_has_limits():
    it = shown("gpt")
    with serve_session(it) as server:

        def answer(path, **query):
            status, _, data = server.ask(path, trace=it.id, **query)
            return status, data.decode()

        assert answer("/api/space", name="none")[0] == 400
        assert answer("/api/near", name="tokens", text="")[0] == 400
        status, text = answer("/api/near", name="tokens", text="z" * 10_000)
        assert (status, len(text) < 400) == (400, True)
        assert answer("/api/near", name="tokens", row="99")[0] == 400
        assert "known are cosine" in answer("/api/near", name="tokens", text="fox", distance="x")[1]
        assert server.ask("/api/space", trace="x", name="tokens")[0] == 410
        nearest = json.loads(answer("/api/near", name="tokens", text="FOX")[1])
        assert nearest["of"][0]["word"].strip() == "fox"


def test_all_tokens_are_decoded_once(monkeypatch):
    model = reader("write", "gpt")
    times = []
    tokens = type(model.tokenizer).tokens
    monkeypatch.setattr(
        type(model.tokenizer), "tokens", lambda self, ids: times.append(len(list(ids))) or tokens(self, ids)
    )
    first, second = Session(model, "the fox"), Session(model, "the dog")
    assert first.manifest["maps"][0] == "tokens"
    assert 17 not in times
    for one in (first, second):
        one.space.mapped("tokens")
    assert times.count(17) == 1
