"""Compare: two runs side by side; the differences that are printed are torch's."""

import json
from urllib.parse import urlencode

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import regard
from helpers.browsing import HOSTILE, close, hostile, number, shown
from helpers.looking import noise, reader, seer
from helpers.serving import PageServer, serve_app, serve_session
from helpers.slow import slow_after
from regard import UserError
from regard.cli.looking import look
from regard.cli.parser import build_parser
from regard.runs import checkpoints as checkpoint
from regard.runs.load import at_step
from regard.serve.page_app import page_app
from regard.viewer.session import Session
from regard.viewer.whatif import compare_runs

KINDS = ["gpt", "gru", "vit", "captioner"]
OTHER = "the lazy brown dog jumps"


def expected(a, b):
    return F.kl_div(b.log_softmax(-1), a.log_softmax(-1), log_target=True, reduction="sum").item()


def test_what_both_runs_predict():
    one = shown("gpt")
    other = Session(one.model, "the lazy dog")
    result = compare_runs(one, other, None, None)
    p, q = one.trace["logits"][4], other.trace["logits"][2]
    assert result["rows"] == [4, 2]
    assert result["kl"] == pytest.approx(expected(p, q), rel=1e-4)
    first = result["top"][0]
    assert first["id"] == int(torch.maximum(p.softmax(-1), q.softmax(-1)).argmax())
    assert first["after"] == pytest.approx(float(q.softmax(-1)[first["id"]]))
    assert compare_runs(one, other, 1, 99)["rows"] == [1, 2]
    assert compare_runs(one, one, 3, 3)["kl"] == pytest.approx(0, abs=1e-6)


def test_vocabularies_must_be_the_same():
    with pytest.raises(UserError, match="other words or classes"):
        compare_runs(shown("gpt"), shown("bert"), None, None)
    with pytest.raises(UserError, match="words or classes"):
        compare_runs(shown("gpt"), Session(reader("embed", "bert"), "the fox"), None, None)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A server of a model with a checkpoint of its run, against another model."""
    model, other = reader("write", "gpt"), reader("write", "gpt")
    earlier = {name: 0.7 * t for name, t in model.model.state_dict().items()}
    model.folder, other.folder = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("other")
    checkpoint.save(model.folder / "checkpoints", 1000, earlier, {"a": torch.zeros(1)}, {})
    with torch.no_grad():
        other.model.embed.weight.mul_(1.3)
    first = Session(model, "the quick brown fox")
    with serve_app(page_app(model, first, [other])) as port:
        yield PageServer(port, first), other


def test_the_browser_can_not_name_paths(both):
    server, _ = both
    for asked in ({"model": 1}, {"model": -1}, {"model": "/etc"}, {"model": True}, {"checkpoint": "../.."}):
        status, _, data = server.ask("/api/trace", {"input": "fox"} | asked)
        assert status == 400, data
    assert json.loads(server.ask("/api/models")[2]) == [str(both[1].folder)]
    status, _, answer = server.ask("/api/trace", {"input": "fox", "model": 0})
    assert status == 200
    for wrong in ({"other": "x"}, {}, {"other": json.loads(answer)["id"], "row": "x"}):
        assert server.ask("/api/versus", trace=server.first.id, **wrong)[0] in (400, 410)


def test_the_command_takes_other_models(monkeypatch):
    models, served_with = {"a": reader("write", "gpt"), "b": reader("write", "gpt")}, []
    monkeypatch.setattr("regard.runs.load.load", lambda path, **_: models[path])
    monkeypatch.setattr(
        "regard.serve.server.serve_page", lambda *_, compared_models: served_with.extend(compared_models)
    )
    parse = build_parser().parse_args
    with pytest.raises(KeyboardInterrupt):  # as if it had been stopped
        look(parse(["look", "a", "the fox", "--against", "b", "--against", "a"]))
    assert served_with == [models["b"], models["a"]]
    models["c"] = seer()
    with pytest.raises(UserError, match=r"--against c: it reads image, not text"):
        look(parse(["look", "a", "the fox", "--against", "c"]))
    with pytest.raises(UserError, match="leave --save out"):
        look(parse(["look", "a", "the fox", "--against", "b", "--save", "a.html"]))


# In a browser


def address(**state):
    return f"#{urlencode({'view': 'compare'} | state)}"


def twin(it, number):
    """The rows of the n-th table."""
    it.page.click(f".twin >> nth={number} >> summary")
    table = it.page.wait_for_selector(f".twin >> nth={number} >> table")
    script = """table => [...table.querySelectorAll("tbody tr")].map(
        (row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent))"""
    return table.evaluate(script)


@pytest.mark.parametrize("kind", slow_after(2, KINDS))
def test_every_model_has_something_to_compare_with(tab, tmp_path, kind):
    it = tab(kind, "#view=compare")
    assert "to see both" in it.text("section.compare")
    if shown(kind).manifest["model"]["sees"]:
        side = shown(kind).trace["pixels"].shape[-1]
        pixels = noise(side).flip(1)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
        theirs = regard.trace(shown(kind).model, pixels)
        it.page.set_input_files("#beside", tmp_path / "a.png")
        it.page.click("#compare")
    else:
        theirs = regard.trace(shown(kind).model, OTHER)
        it.page.fill("#with", OTHER)
        it.press("Enter")
    it.page.wait_for_selector(".versus")
    assert len(it.page.query_selector_all(".panels canvas.matrix")) >= 2
    mine = shown(kind).trace
    a, b = (t["logits"] if t["logits"].ndim == 2 else t["logits"][None] for t in (mine, theirs))
    row = len(a) - 1 if kind == "gpt" else 0
    assert close(it.text("#kl").split()[0], expected(a[row], b[len(b) - 1 if kind == "gpt" else 0]))


def test_a_difference_map_is_torchs(tab):
    it = tab("gpt", address(**{"with": OTHER}, layer=1, head=2, at="1,1"))
    mine, theirs = (
        t["blocks.1.attn.weights"][2] for t in (shown("gpt").trace, regard.trace(shown("gpt").model, OTHER))
    )
    for n, want in enumerate((mine, theirs, theirs - mine)):
        rows = twin(it, n)
        for i, row in enumerate(rows):
            for j, cell in enumerate(row):
                assert (cell == "masked") if j > i else abs(number(cell) - float(want[i, j])) < 6e-5
    assert close(it.text("#largest").rstrip(".").split()[-1], float((theirs - mine).abs().max()))
    it.page.focus("#difference-map")
    it.press("ArrowDown")
    said = it.page.eval_on_selector_all(".panels .readout", "all => all.map(p => p.textContent)")
    assert said[0].startswith("query brown, key quick, ")
    assert said[1].startswith("query brown, key lazy, ")
    assert said[2].startswith("query brown, key quick / lazy, ")
    assert number(said[2].split()[-1]) == pytest.approx(float(theirs[2, 1] - mine[2, 1]), abs=0.0051)


def test_lengths_that_differ(tab):
    it = tab("gpt", address(**{"with": "lazy dog"}, row=3, row2=0))
    assert "No difference map: 5 × 5 weights here, 2 × 2 there." in it.text("#largest")
    a, b = shown("gpt").trace["logits"][3], regard.trace(shown("gpt").model, "lazy dog")["logits"][0]
    assert close(it.text("#kl").split()[0], expected(a, b))
    it.page.select_option("#row2", "1")
    it.page.wait_for_url("**row2=1**")


def test_the_same_answer(tab):
    it = tab("transformer", address(**{"with": OTHER}, part="cross"))
    it.page.focus("#same")
    it.press("Enter")
    it.page.wait_for_selector("#difference-map")
    assert it.text("#says-0") == it.text("#says-1") == "→ der Fuchs springt"


def test_another_model_and_a_checkpoint(browser, both):
    server, other = both
    page = browser.new_page()
    page.goto(f"{server.url}#view=compare")
    page.wait_for_selector("#other")
    values = page.eval_on_selector_all("#other option", "all => all.map(o => o.value)")
    assert values == ["", "model:0", "step:1000"]
    earlier = at_step(server.first.model, 1000)
    for value, words, model in (("model:0", other.folder.name, other), ("step:1000", "step 1,000", earlier)):
        b = regard.trace(model, "the quick brown fox")
        page.select_option("#other", value)
        page.click("#compare")
        page.wait_for_selector(f'.cards:has-text("{words}")')
        a = server.first.trace
        want = expected(a["logits"][-1], b["logits"][-1])
        assert close(page.text_content("#kl").split()[0], want)
        apart = (b["blocks.1.attn.weights"] - a["blocks.1.attn.weights"])[0].abs().max()
        assert close(page.text_content("#largest").rstrip(".").split()[-1], float(apart))
    page.goto(f"{server.url}?1#view=compare&checkpoint=1000&other=final")  # the other way round
    page.wait_for_selector("#kl")
    assert close(page.text_content("#kl").split()[0], expected(b["logits"][-1], a["logits"][-1]))
    page.close()


def test_a_saved_page_shows_the_lines(tab, tmp_path):
    shown("gpt").save(tmp_path / "a.html")
    it = tab(f"file://{tmp_path / 'a.html'}", address(**{"with": OTHER}))
    assert "holds the numbers of one run" in it.text("section.compare")
    lines, last = it.text("#lines").replace('regard.load("RUN")', "model").rsplit("\n", 1)
    space = {"model": shown("gpt").model}
    exec(lines, space)
    w = "blocks.0.attn.weights"
    assert torch.equal(
        eval(last, space), regard.trace(space["model"], OTHER)[w] - shown("gpt").trace[w].clone()
    )


def test_hostile_words_do_no_harm(browser):
    it = hostile()
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with serve_session(it) as server:
        page = browser.new_page(viewport={"width": 360, "height": 700}, color_scheme="dark")
        for n, word in enumerate([*HOSTILE, OTHER]):
            page.goto(f"{server.url}?{n}{address(**{'with': word}, other='none:x', row='x', same=1)}")
            page.wait_for_selector("section.compare h2")
            assert page.evaluate("window.harmed") is None
            assert page.query_selector("main img, main script") is None
            assert page.evaluate(over) <= 0, word[:20]
            assert "\u202e" not in page.content()
        assert "</script><script>window." in page.text_content(".versus")
        page.close()
