"""The page shows what torch computed, in a real browser: every view, every kind of model, any tokens."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import regard
from helpers.browsing import VIEWS, WORDS, close, hostile, number, shown
from helpers.looking import noise
from helpers.slow import slow_after


@pytest.mark.parametrize("kind", slow_after(2, VIEWS))
def test_every_view_opens(tab, kind):
    it = tab(kind)
    assert it.views() == set(VIEWS[kind])
    for view in VIEWS[kind]:
        it.visit(view)
        it.page.wait_for_selector(f"main section.{view}")
        assert f"view={view}" in it.page.url
        assert it.page.query_selector("main .wrong") is None
    difference = it.page.get_attribute("#difference", "data-value")
    assert float(difference) == shown(kind).trace.difference


@pytest.mark.parametrize("kind", slow_after(1, ["transformer", "gpt", "captioner"]))
def test_every_sum_is_ticked(tab, kind):
    """The last number of every tensor that can be opened, recomputed in the page, is torch's.

    By the server's routes; test_page_sums.py has all families.
    """
    it = tab(kind)
    script = """async () => {
      const { Server } = await import("/page/source.js");
      const { openCell } = await import("/page/cell.js");
      const source = new Server();
      const app = { source, manifest: await source.trace({}), go() {} };
      const found = {};
      await Promise.all(Object.keys(app.manifest.sums).map(async (name) => {
        const shape = app.manifest.tensors[name].shape;
        const [heads, tall] = [shape.length > 2 ? shape[0] : 1, shape.length > 1 ? shape.at(-2) : 1];
        const at = [heads - 1, tall - 1, shape.at(-1) - 1];
        const tick = (await openCell(app, `${name}:${at}`)).querySelector(".tick");
        found[name] = [tick?.dataset.fits, tick?.parentNode.querySelector("b").textContent];
      }));
      return found;
    }"""
    ticks, trace = it.page.evaluate(script), shown(kind).trace
    assert len(ticks) > 4
    for name, (fits, printed) in ticks.items():
        assert fits == "true", name
        want = float(trace[name].flatten()[-1])
        assert number(printed) == pytest.approx(want, rel=6e-4, abs=2e-5), name


def test_a_heat_map_is_torchs(tab):
    w = shown("gpt").trace["blocks.1.attn.weights"][2]
    rows = tab("gpt", "#layer=1&head=2").table()
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            assert (cell == "masked") if j > i else close(cell, float(w[i, j]))


def test_keys_move_over_a_matrix_and_open_its_sums(tab):
    it = tab("gpt", "#layer=1&head=0")
    it.page.focus("#matrix")
    it.press("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight")
    w = shown("gpt").trace["blocks.1.attn.weights"]
    said = it.text(".readout")
    assert said.startswith("query brown, key quick, ")
    assert float(said.split()[-1]) == pytest.approx(float(w[0, 2, 1]), abs=0.0051)
    assert "at=2%2C1" in it.page.url
    it.press("End")
    assert it.text(".readout") == "query brown, key jumps, masked: it comes later (future)"
    it.press("Enter")  # where there is nothing to open
    assert it.page.query_selector(".cell") is None
    it.press("Home", "Enter")
    it.page.wait_for_selector(".cell .tick.right")
    assert close(it.text(".cell b"), float(w[0, 2, 0]))
    it.page.click(".cell .deeper")  # deeper: a scaled score
    it.wait(".cell .name", "blocks.1.attn.scaled")
    it.page.wait_for_selector(".cell .tick.right")
    it.page.focus("#close")
    it.press("Escape")
    it.page.wait_for_selector(".cell", state="detached")
    it.press("n")
    it.wait("h2", "layer 1, head 1")
    it.press("k")
    it.wait("h2", "layer 0, head 1")
    it.press("4")
    it.page.wait_for_selector("section.walk")
    it.press("?")
    it.page.wait_for_selector("dialog[open]")
    it.press("Escape")


def test_digits_open_the_views_in_order(tab):
    """0 is the tenth; a digit beyond the last view, one that is typed, and one with another key open none."""
    it = tab("gpt", "#view=talk")
    for at, name in reversed([*enumerate(VIEWS["gpt"])]):
        it.press(str((at + 1) % 10))
        it.page.wait_for_selector(f"main section.{name}")
        it.page.wait_for_selector(f"body[data-view={name}]")
        assert f"view={name}" in it.page.url
    before = it.page.url
    it.press("Control+4", "Alt+4")
    assert it.page.url == before
    it.page.focus("#input")
    it.press("4")
    it.page.wait_for_function("location.hash.includes('4')")
    it.wait_until_still()
    assert it.page.evaluate("document.body.dataset.view") == "look"
    it = tab("plain", "#view=look")
    it.press("0")
    assert "view=look" in it.page.url  # it has nine


def test_a_link_opens_the_same_view(tab):
    state = "#view=walk&step=blocks.0.attn.q&head=1&cell=blocks.0.attn.q:1,2,3&at=2,3"
    it = tab("gpt", state)
    assert "step=blocks.0.attn.q" in it.page.url
    assert it.text("h2").startswith("Queries Q")
    assert close(it.text(".cell b"), float(shown("gpt").trace["blocks.0.attn.q"][1, 2, 3]))
    it.page.click("#next")
    it.wait("h2", "Keys")
    it.page.go_back()
    it.wait("h2", "Queries")


def test_the_walk_goes_from_tokens_to_probabilities(tab):
    it = tab("gpt", "#view=walk")
    titles = it.page.eval_on_selector_all("section.walk ol a", "all => all.map(a => a.textContent)")
    steps = [
        "Embedding",
        "Queries Q",
        "Scores",
        "Scaled",
        "Mask",
        "Weights: softmax",
        "Weighted values",
        "Residual",
    ]
    order = [titles.index(title) for title in steps]
    assert order == sorted(order)
    assert titles[-2:] == ["Logits", "Probabilities"]
    assert close(it.table()[1][2], float(shown("gpt").trace["embed"][1, 2]))
    it.press("ArrowRight")
    it.wait("h2", "Embedding without positions")  # which rotate queries and keys
    for step in ("blocks.0.attn.weights", "probabilities"):
        it.turn(f"#view=walk&step={step}")
        assert it.page.query_selector("math mi") is not None


def test_the_atlas_opens_a_head(tab):
    it = tab("transformer", "#form=atlas&part=encoder&by=entropy")
    rows = it.table()
    w = shown("transformer").trace["encoder.1.attn.weights"]
    entropy = -(w * w.log2()).sum(-1).mean(-1)
    assert [number(row[0]) for row in rows[3:]] == pytest.approx(entropy.tolist(), rel=1e-3)
    it.page.focus("#atlas")
    it.press("ArrowUp", "ArrowRight", "ArrowRight")
    assert it.text(".readout").startswith("layer 0, head 2: ")
    it.press("Enter")
    it.page.wait_for_selector("#matrix")
    assert it.text("h2").startswith("Encoder self attention, layer 0, head 2")


def test_arcs(tab):
    it = tab("transformer", "#form=arcs&part=cross&layer=1&head=1")
    w = shown("transformer").trace["decoder.1.cross.weights"][1]
    assert len(it.page.query_selector_all("#arcs path")) == int((w >= 0.02).sum())
    it.page.focus("#arcs")
    it.press("ArrowDown", "ArrowDown")
    best = shown("transformer").trace.tokens["source"][int(w[1].argmax())]
    assert it.text(".readout").startswith(f"query der looks at {best} {w[1].max():.2f}")


def test_an_alignment_is_the_mean_of_heads(tab):
    it = tab("transformer", "#view=alignment&layer=0")
    w = shown("transformer").trace["decoder.0.cross.weights"].mean(0)
    rows = it.table()
    assert len(rows) == 4
    assert all(close(cell, float(w[i, j])) for i, row in enumerate(rows) for j, cell in enumerate(row))
    it.turn("#view=alignment&word=1")
    assert it.text(".readout") != ""
    assert it.table()[2] == ["masked"] * 6


def test_next_tokens_are_the_softmax_and_what_settings_leave(tab):
    it = tab("gpt", "#view=next&temperature=0.7&k=7&p=0.8")
    logits = shown("gpt").trace["logits"][-1]
    rows = it.table()
    order = logits.argsort(descending=True)
    assert all(close(row[1], float(logits.softmax(-1)[i])) for row, i in zip(rows, order, strict=True))
    from regard.decode.filters import top_k, top_p
    from regard.decode.sampling import temperature

    left = top_p(top_k(temperature(logits[None], 0.7), 7), 0.8)[0].softmax(-1)
    for row, i in zip(rows, order, strict=True):
        assert close(row[2], float(left[i]))
        assert bool(row[3]) == (left[i] == 0)
    assert {row[3] for row in rows} == {"", "top-k 7", "top-p 0.8"}
    assert it.text("section .readout").startswith(f"{int((left > 0).sum())} of 17 tokens")
    it.page.focus("#slide-k")
    it.press("ArrowLeft")
    assert "k=6" in it.page.url
    it.page.click(".bars button")  # the likeliest goes on
    it.page.wait_for_url("**input=the+quick+brown+fox+jumps**")


def test_a_picture_is_lit_where_it_was_looked_at(tab):
    it = tab("vit", "#view=picture&layer=2&head=1")
    w = shown("vit").trace["blocks.2.attn.weights"][1, 0, 1:]
    rows = it.table()
    assert all(close(rows[r][c], float(w[3 * r + c])) for r in range(3) for c in range(3))
    it.page.focus("#patches")
    it.press("ArrowRight")
    it.wait(".readout", "patch 5 (row 1, column 2)")
    it = tab("captioner", "#view=picture&word=1")
    w = shown("captioner").trace["decoder.look.weights"][0, 1]
    rows = it.table()
    assert all(close(rows[r][c], float(w[3 * r + c])) for r in range(3) for c in range(3))
    words = it.page.eval_on_selector_all(".strip button", "all => all.map(b => b.textContent)")
    assert words == ["the", "fox", "</s>"]


def test_talk_and_look_inside_the_answer(tab):
    it = tab("transformer", "#view=talk")
    it.page.fill("#asked", "the lazy dog")
    it.press("Enter")
    it.page.wait_for_selector(".said")
    assert it.text(".said") == shown("transformer").model.ask("the lazy dog")
    it.page.click(".inside")
    it.page.wait_for_selector("section.attention")
    assert it.page.input_value("#input") == "the lazy dog"


def test_an_answer_does_not_go_on_from_the_question(tab):
    it = tab("gpt", "#view=talk")
    assert it.text("#say") == "Go on"
    it.page.fill("#asked", "the lazy dog")
    it.press("Enter")
    it.page.wait_for_selector(".said")
    assert it.text(".said").startswith("the lazy dog")
    manifest = shown("gpt").manifest
    changed = manifest | {"model": manifest["model"] | {"talks": True}}
    it.page.route("**/api/trace", lambda route: route.fulfill(json=changed))
    it.page.reload()
    it.page.wait_for_selector("#asked")
    assert it.text("#say") == "Say"
    it.page.fill("#asked", "the lazy dog")
    it.press("Enter")
    it.page.wait_for_selector(".said")
    assert not it.text(".said").startswith("the lazy dog")


def test_another_input(tab):
    it = tab("gpt", "#layer=0")
    it.press("/")
    it.page.fill("#input", "lazy dog")
    it.press("Enter")
    it.page.wait_for_selector("#matrix[aria-label*='2 × 2']")
    assert "input=lazy+dog" in it.page.url
    it.page.fill("#input", " ")
    it.press("Enter")
    it.wait("#ask .wrong", "nothing to trace")


def test_another_picture(tab, tmp_path):
    it = tab("vit", "#view=picture&layer=2")
    pixels = noise(6).flip(1)
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    before = it.table()
    it.page.set_input_files("#file", tmp_path / "a.png")
    it.page.wait_for_selector(".twin table", state="detached")
    rows = it.table()
    assert rows != before
    w = regard.trace(shown("vit").model, pixels)["blocks.2.attn.weights"].mean(0)[0, 1:]
    assert all(close(rows[r][c], float(w[3 * r + c])) for r in range(3) for c in range(3))


def test_any_address_is_answered(tab):
    wild = [
        "layer=99&head=-3&at=7,x&cell=none",
        "view=none",
        "view=walk&step=none&head=x",
        "form=none&part=none",
    ]
    wild += [
        "cell=logits:0,99,99",
        "cell=embed:0,1,2:",
        "view=next&row=99&temperature=x&k=-1&p=7",
        "%ff=%&&=&=",
    ]
    it = tab("gpt")
    for state in wild:
        it.turn(f"#{state}")
        assert it.page.query_selector("main .wrong") is None, state


def test_take_away(tab):
    it = tab("gpt", "#layer=1&head=2")
    it.visit("take")
    it.page.wait_for_selector("#python")
    w = shown("gpt").trace["blocks.1.attn.weights"][2]
    with it.page.expect_download() as waiting:
        it.page.click("#csv")
    head, *rows = Path(waiting.value.path()).read_text("utf-8").splitlines()
    assert head == ",".join(f'"{word}"' for word in ["", *WORDS.split()])
    assert close(rows[4].split(",")[2].strip('"'), float(w[4, 1]))
    with it.page.expect_download() as waiting:
        it.page.click("#png")
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")
    with it.page.expect_download() as waiting:
        it.page.click("#html")
    assert Path(waiting.value.path()).read_bytes().startswith(b"<!doctype html>")
    lines = it.text("#python").replace('regard.load("RUN")', "model")
    space = {"model": shown("gpt").model}
    exec(lines.rsplit("\n", 1)[0], space)
    assert torch.equal(eval(lines.rsplit("\n", 1)[1], space), w)


@pytest.mark.parametrize("kind", ["gpt", "transformer", "vit"])
def test_a_saved_page_needs_no_server(tab, tmp_path, kind):
    shown(kind).save(tmp_path / "a.html", {"view": "walk"})
    it = tab(f"file://{tmp_path / 'a.html'}")
    assert it.page.query_selector("section.walk") is not None
    views = [view for view in VIEWS[kind] if view != "talk"]
    assert it.views() == set(views)
    for view in views:
        it.visit(view)
        it.page.wait_for_selector(f"main section.{view}")
        assert it.page.query_selector("main .wrong") is None
    part = next(iter(shown(kind).manifest["attentions"].values()))[0]["name"]
    it.turn(f"#cell={part}.scores:1,0,1&layer=0&head=1")
    it.page.wait_for_selector(".cell .tick.right")
    assert close(it.text(".cell b"), float(shown(kind).trace[f"{part}.scores"][1, 0, 1]))
    it.turn("#form=atlas")


@pytest.mark.parametrize("where", ["server", "file"])
def test_hostile_tokens_do_no_harm(tab, tmp_path, where):
    kind = "hostile"
    if where == "file":
        hostile().save(tmp_path / "a.html")
        kind = f"file://{tmp_path / 'a.html'}"
    it = tab(kind)
    weights = "blocks.0.attn.weights"
    opened = f"#view=walk&step={weights}&cell={weights}:0,4,1"
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for state in ("", "#form=arcs", "#form=atlas", opened, "#view=map", "#view=take", "#view=next"):
        it.turn(state)
        assert it.page.evaluate("window.harmed") is None
        assert it.page.query_selector("main img, main script, header img, header script") is None
        assert it.page.evaluate(over) <= 0
    assert "</script><script>window." in it.text(".bars")
    assert "\u202e" not in it.page.content().replace("&#x202e;", "")


def test_a_phone_is_wide_enough_and_dark_is_dark(tab):
    it = tab(
        "transformer",
        "",
        viewport={"width": 360, "height": 700},
        color_scheme="dark",
        reduced_motion="reduce",
    )
    for view in VIEWS["transformer"]:
        it.turn(f"#view={view}&cell=decoder.0.cross.weights:0,1,1")
        assert it.page.evaluate("document.documentElement.scrollWidth") <= 360, view
    ground = it.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(n) for n in re.findall(r"\d+", ground)) < 40
