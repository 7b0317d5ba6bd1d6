"""The scene: the whole model in one picture, down to one number; every number shown is torch's."""

import pytest
import torch

from helpers import looking
from helpers.browsing import WORDS, Session, axe_violations, close, number, shown
from helpers.looking import noise, reader, seer
from helpers.serving import serve_session
from helpers.slow import slow_after
from regard.viewer.head_corpus import measure_heads

KINDS = ["transformer", "vit", "gru", "gpt", "bert", "t5", "captioner"]
SIZES = [(390, 844), (1440, 900), (2560, 1440)]
NUMBER = "&cell=decoder.1.cross.scores:1,2,3"
MODEL = """() => [document.querySelectorAll(".layer.model .chip").length,
  document.querySelector(".layer.model .card-open").style.width]"""
PAUSE = """() => {  // every motion that begins
  const { animate } = Element.prototype;
  Element.prototype.animate = function (...how) {
    const motion = animate.apply(this, how);
    motion.pause();
    return motion;
  };
}"""
GAP = """() => {  // pixels between the two sides, once the picture is drawn
  const [key, query] = [".keys", ".queries"].map((side) => document.querySelector(`${side} .chip`));
  return key && query && [query.getBoundingClientRect().left - key.getBoundingClientRect().right];
}"""
ABOVE = """() => {  // pixels between the head of a block and its tokens
  const [head, chip] = [".card-head", ".queries .chip"].map((one) => document.querySelector(one));
  return head && chip && [chip.getBoundingClientRect().top - head.getBoundingClientRect().bottom];
}"""
SHARE = """() => {  // of the window, within the bounds of all that is drawn
  const parts = "button, canvas, path, rect, text, .card-open, .caption, .leaves, .terms, .cell, .legend";
  const boxes = [...document.querySelectorAll(".layer *")].filter((one) => one.matches(parts))
    .map((one) => one.getBoundingClientRect()).filter(({ width, height }) => width && height);
  if (!boxes.length) return 0;
  const stage = document.querySelector(".stage").getBoundingClientRect();
  const low = (side) => Math.max(stage[side], Math.min(...boxes.map((box) => box[side])));
  const high = (side) => Math.min(stage[side], Math.max(...boxes.map((box) => box[side])));
  return (high("right") - low("left")) * (high("bottom") - low("top")) / (innerWidth * innerHeight);
}"""
PAINTED = """async (buttons) => {  // the shape and numbers of the image in, or before, each button
  const { painted } = await import("/page/scene_paint.js");
  const images = [...document.querySelectorAll(".layer .pixels")];
  return Object.fromEntries([...document.querySelectorAll(buttons)].map((button) => {
    const before = images.filter((one) => one.compareDocumentPosition(button) & 4);
    const { shape, data } = painted.get(button.querySelector(".pixels") ?? before.at(-1));
    return [button.id, [shape, Array.from(data, String)]];
  }));
}"""
WHEEL = """([deltaY, ctrlKey]) => {
  const stage = document.querySelector(".stage");
  stage.dispatchEvent(new WheelEvent("wheel", { deltaY, ctrlKey, cancelable: true }));
  return stage.firstElementChild.style.transform;
}"""
FINGERS = """([type, pixels]) => {  // two fingers, so far apart
  const stage = document.querySelector(".stage");
  const { x, y, width, height } = stage.getBoundingClientRect();
  for (const [pointerId, by] of [[1, -0.5], [2, 0.5]]) {
    const [clientX, clientY] = [x + width / 2 + by * pixels, y + height / 2];
    const event = { pointerId, pointerType: "touch", clientX, clientY, bubbles: true };
    stage.firstElementChild.dispatchEvent(new PointerEvent(type, event));
  }
  return stage.firstElementChild.style.transform;
}"""
FRAMES = """() => {  // where frames of rows and columns lie in their matrices, from 0 to 1
  const boxes = (all) => [...document.querySelectorAll(all)].map((one) => one.getBoundingClientRect());
  const inside = (a, b) => a.left >= b.left - 3 && a.right <= b.right + 3 && a.top >= b.top - 3
    && a.bottom <= b.bottom + 3;
  const images = boxes(".layer.head canvas.pixels");
  return boxes(".layer.head .frame").map((frame) => {
    const image = images.find((one) => inside(frame, one));
    if (!image) return ["outside", -1];
    return Math.abs(frame.width - image.width) < 1
      ? ["row", (frame.top + frame.height / 2 - image.top) / image.height]
      : ["column", (frame.left + frame.width / 2 - image.left) / image.width];
  });
}"""


def opening(kind):
    """The attention, head and weights (T, S) that the page opens with."""
    manifest = shown(kind).manifest
    where = manifest["opening"]
    (attention,) = (one for one in manifest["attentions"][where["part"]] if one["layer"] == where["layer"])
    return attention, where["head"], shown(kind).trace[f"{attention['name']}.weights"][where["head"]]


def state(it):
    """What the address holds."""
    return dict(it.page.evaluate("[...new URLSearchParams(location.hash.slice(1))]"))


@pytest.mark.parametrize("kind", slow_after(3, KINDS))
def test_the_page_opens_on_the_scene_with_torchs_numbers(tab, kind):
    it = tab(kind)
    attention, head, weights = opening(kind)
    it.page.wait_for_selector(".ribbons.strong path")
    address = state(it)
    assert (address["view"], int(address["layer"]), int(address["head"])) == (
        "look",
        attention["layer"],
        head,
    )
    row = weights[int(address["token"])]
    ribbons = it.page.eval_on_selector_all(
        ".ribbons.strong path", "all => all.map(p => [Number(p.dataset.of), Number(p.dataset.weight)])"
    )
    assert {key for key, _ in ribbons} == {i for i, w in enumerate(row.tolist()) if w >= 0.01}
    for key, weight in ribbons:
        assert weight == pytest.approx(float(row[key]), abs=1e-6)
    assert f"({row.max():.2f})" in it.text("#sentence")
    logits = shown(kind).trace["logits"]
    logits = logits if logits.ndim == 1 or len(logits) == 1 else logits[int(address["token"])]
    best = logits.flatten().softmax(-1).topk(min(5, logits.numel())).values
    shares = it.page.eval_on_selector_all(".leaf", "all => all.map(e => Number(e.dataset.p))")
    assert shares == pytest.approx(best.tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", slow_after(3, ["gpt", "vit", "lstm", "transformer", "t5", "captioner"]))
def test_what_is_drawn_fills_the_window_and_no_chip_is_cut_off(tab, kind):
    it = tab(kind)
    attention, head, weights = opening(kind)
    cell = f"{attention['name']}.scores:{head},{len(weights) - 1},0"
    depths = {"model": "", "block": "&depth=block", "head": "&depth=head", "number": f"&cell={cell}"}
    if kind != "captioner":  # its scores are no product
        depths["product"] = "&depth=product"
    for width, height in SIZES:
        it.page.set_viewport_size({"width": width, "height": height})
        for depth, address in depths.items():
            it.turn(f"#view=look{address}")
            it.page.wait_for_selector(f".layer.{depth}:only-child > *")
            assert it.page.evaluate(SHARE) >= 0.6, (width, depth)
            assert it.page.evaluate("document.documentElement.scrollWidth") <= width
            widths = "all => all.map(b => [b.scrollWidth, b.clientWidth])"
            if width == 1440:
                chips = it.page.eval_on_selector_all(".chip bdi", widths)
                assert all(full <= room for full, room in chips)


def test_ribbons_have_room_at_every_width(tab):
    """Where the parts of the model would leave none, they stand in a row below."""
    it = tab("transformer", viewport={"width": 1440, "height": 900})
    for width in (320, 730, 800, 1024, 1200):
        it.page.set_viewport_size({"width": width, "height": 900})
        it.turn("#view=look")
        assert it.page.wait_for_function(GAP).json_value()[0] > 100, width


@pytest.mark.parametrize("kind", ["vit", "captioner"])
def test_the_picture_shows_what_a_token_looks_at(tab, kind):
    """In colour, as shares of the largest weight; in the model and in the head."""
    _, _, weights = opening(kind)
    before = weights.shape[1] - 9
    it = tab(kind)
    for depth in ("", "&depth=head"):
        it.turn(f"#view=look{depth}")
        it.page.wait_for_selector(".picture-in .patch")
        row = weights[int(state(it)["token"])][before:]
        lit = it.page.eval_on_selector_all(
            ".patch", "all => all.map(b => Number(b.style.getPropertyValue('--weight')))"
        )
        assert lit == pytest.approx((row / row.max()).tolist(), abs=1e-5)
        picture = it.page.evaluate(
            "() => { const b = document.querySelector('.picture-in').getBoundingClientRect();"
            " return [b.left >= 0, b.right <= innerWidth, b.width] }"
        )
        assert picture[:2] == [True, True]
        assert picture[2] > 120
    if kind == "vit":
        it.open()
        it.page.click("#keys-5")
        it.page.wait_for_selector("#keys-5[aria-pressed=true]")
        assert "row 2, column 2" in it.text("#sentence")


@pytest.mark.parametrize("kind", slow_after(1, ["transformer", "gpt", "vit"]))
def test_zoom_from_the_model_to_one_number_and_back(tab, kind):
    """By keyboard, through every depth; each has an address that reload and back open again."""
    motion = {"reduced_motion": "no-preference"} if kind == "gpt" else {}  # of one, which is drawn often
    it = tab(kind, "", viewport={"width": 1600, "height": 900}, **motion)
    attention, head, _ = opening(kind)
    it.page.click("#open-block")
    it.page.wait_for_selector(".layer.block .card-box")
    shape = " × ".join(map(str, shown(kind).trace[f"{attention['name']}.weights"].shape))
    assert it.text(f"[id='card-{attention['name']}.weights'] small") == shape
    it.press("+")
    it.page.wait_for_selector(".layer.head #open-scores")
    it.page.wait_for_selector(".layer.block", state="detached")  # the zoom has ended
    if kind != "vit":  # too many cells for numbers in them
        weights = shown(kind).trace[f"{attention['name']}.weights"][head].flatten().tolist()
        cells = it.page.eval_on_selector_all(
            ".cell-numbers", "all => [...all.at(-1).children].map(one => one.textContent)"
        )
        assert [number(cell) for cell in cells] == pytest.approx([w for w in weights if w > 0], abs=5.1e-3)
    it.page.focus("#open-scores")
    it.press("Enter")
    it.page.wait_for_selector(".layer.product #product")
    assert it.page.get_attribute(".terms .tick", "data-fits") == "true"
    scores = shown(kind).trace[f"{attention['name']}.scores"][head]
    it.page.focus("#product")
    it.press("ArrowLeft")
    query, key = map(int, state(it)["at"].split(","))
    assert close(it.text(".terms .total b"), float(scores[query, key]))
    it.page.click("#open-number")
    it.page.wait_for_selector(".layer.number .tick.right")
    assert close(it.text(".cell .total b"), float(scores[query, key]))
    ends = it.page.eval_on_selector_all(
        ".waterfall [data-to]", "all => all.map(bar => Number(bar.dataset.to))"
    )
    assert ends[-1] == pytest.approx(float(scores[query, key]), abs=1e-5 * float(scores.abs().max()))
    it.page.reload()
    it.page.wait_for_selector(".layer.number .tick.right")
    it.page.go_back()
    it.page.wait_for_selector(".layer.product #product")
    for outer in ("head", "block", "model"):
        it.press("Escape")
        it.page.wait_for_selector(f".layer.{outer}:only-child")
    assert "depth" not in state(it)


def test_the_wheel_and_a_pinch_zoom_and_the_picture_follows(tab):
    """The wheel with Ctrl, which is how browsers tell of two fingers on a touch pad."""
    it = tab("gpt", reduced_motion="no-preference")
    it.page.wait_for_selector(".queries .chip")
    it.page.evaluate("import('/page/scene_gestures.js').then(() => {})")  # comes after the picture
    assert "scale" not in it.page.evaluate(WHEEL, [-80, False])
    assert "scale(1." in it.page.evaluate(WHEEL, [-80, True])
    it.page.wait_for_function("() => !document.querySelector('.stage .layer').style.transform")
    assert "depth" not in state(it)  # it fell back
    it.page.evaluate(WHEEL, [-200, True])
    it.page.wait_for_selector(".layer.block:only-child .card-box")
    it.page.wait_for_timeout(700)  # one depth at a time
    it.page.evaluate(WHEEL, [200, True])
    it.page.wait_for_selector(".layer.model:only-child .chip")
    it.page.wait_for_timeout(700)  # one depth at a time
    it.page.evaluate(FINGERS, ["pointerdown", 100])  # on a touch screen
    assert "scale(1.2" in it.page.evaluate(FINGERS, ["pointermove", 120])
    it.page.evaluate(FINGERS, ["pointerup", 120])
    assert it.page.eval_on_selector(".stage .layer", "one => one.style.transform") == ""
    assert "depth" not in state(it)
    it.page.evaluate(FINGERS, ["pointerdown", 100])
    it.page.evaluate(FINGERS, ["pointermove", 150])
    it.page.wait_for_selector(".layer.block:only-child .card-box")
    it.page.wait_for_timeout(700)  # one depth at a time
    it.page.evaluate(FINGERS, ["pointerdown", 150])
    it.page.evaluate(FINGERS, ["pointermove", 90])
    it.page.wait_for_selector(".layer.model:only-child .chip")


@pytest.mark.parametrize("kind", slow_after(2, ["alibi", "gru", *KINDS]))
def test_every_number_that_is_drawn_is_the_traces(tab, kind):
    """Of a head its queries, keys, values, scores, weights and outputs, and all boxes of its block."""
    it, trace = tab(kind), shown(kind).trace
    attention, head, _ = opening(kind)
    it.turn("#view=look&depth=head")
    it.page.wait_for_selector(".layer.head .pixels")
    drawn = it.page.evaluate(PAINTED, ".layer.head .cover")
    assert [name.removeprefix("open-") for name in drawn][-1] == "heads"
    assert {"open-scores", "open-weights"} <= set(drawn)
    drawn = {f"{attention['name']}.{name.removeprefix('open-')}": x for name, x in drawn.items()}
    it.turn("#view=look&depth=block")
    it.page.wait_for_selector(".layer.block .pixels")
    cards = it.page.evaluate(PAINTED, ".layer.block .card-box")
    assert len(cards) >= 3
    for name, (shape, numbers) in [
        *drawn.items(),
        *((name.removeprefix("card-"), one) for name, one in cards.items()),
    ]:
        want = trace[name]
        if want.ndim > 2:  # keys may be shared by several heads
            want = want[head * len(want) // attention["heads"]]
        want = torch.atleast_2d(want).float()
        assert list(want.shape) == shape, name
        numbers = torch.tensor([float(x) for x in numbers]).view(*shape)
        assert torch.allclose(numbers, want, rtol=1e-5, atol=1e-5), name


def test_what_is_left_moves_away_as_it_was(tab):
    """In a zoom: it is not drawn again for the place that it has no more."""
    it = tab("gpt", reduced_motion="no-preference")
    it.page.wait_for_selector(".queries .chip")
    before = it.page.evaluate(MODEL)
    it.page.evaluate(PAUSE)
    it.press("+")
    it.page.wait_for_selector(".layer.block + .layer.model")
    it.wait_until_drawn()
    assert it.page.evaluate(MODEL) == before


def test_frames_of_long_inputs_lie_on_their_tokens(tab, monkeypatch):
    """Matrices are drawn with at most 512 rows; above 1,024 tokens, weights are read row by row."""
    monkeypatch.setattr(looking, "CONTEXT", 2400)
    model = reader("write", "gpt", depth=1, heads=2, dim=8, context=1200)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
    cases = [
        (count, token, text, Session(model, text).trace["blocks.0.attn.weights"][1, token])
        for count, token in ((600, 590), (1100, 900))
        for text in [" ".join(words[i * i % 9] for i in range(count))]
    ]  # before the server traces: one thread at a time may watch a model
    with serve_session(Session(model, WORDS)) as server:
        it = tab(server.url, viewport={"width": 1440, "height": 900})
        for count, token, text, weights in cases:
            it.turn(f"#view=look&depth=head&head=1&token={token}&input={text}")
            it.page.wait_for_selector(".layer.head #open-weights")
            rows = [at for kind, at in it.page.evaluate(FRAMES) if kind == "row"]
            columns = [at for kind, at in it.page.evaluate(FRAMES) if kind == "column"]
            best = (int(weights.argmax()) + 0.5) / count
            # queries, scores, weights and outputs; keys and values
            assert sorted(rows) == pytest.approx(sorted([(token + 0.5) / count] * 4 + [best] * 2), abs=2e-3)
            assert columns == pytest.approx([best] * 2, abs=2e-3)
            assert f"{count} × 4" in it.text(".matrix-title")


def test_a_product_plays_term_by_term(tab):
    it = tab("gpt", "#view=look&depth=product&layer=1&head=1&at=3,1&token=3")
    trace = shown("gpt").trace
    q, k = trace["blocks.1.attn.q"][1, 3], trace["blocks.1.attn.k"][1, 1]
    it.page.click("#play")
    it.page.wait_for_selector(".running[data-done=true]")
    assert close(it.text(".running b"), float(q @ k))
    for name in ("product", "of"):  # its name in older links, which Space has, too
        it.turn(f"#view=look&depth=product&{name}=heads&layer=1&head=1&at=3,2&token=3")
        it.page.wait_for_selector(".crumbs [aria-current]:has-text('Weights × V')")
        assert close(it.text(".terms .total b"), float(trace["blocks.1.attn.heads"][1, 3, 2]))
        it.visit("space")
        it.page.wait_for_selector("section.space")
        assert state(it)["product"] == "heads"
        assert "of" not in state(it)


def test_the_selected_token_and_head_stay_selected(tab):
    it = tab("gpt")
    it.page.click("#strip-text-2")
    it.page.wait_for_selector("#strip-text-2[aria-pressed=true]")
    it.page.click("#head-1")
    it.page.wait_for_selector("#head-1[aria-pressed=true]")
    layer = int(state(it)["layer"])
    weights = shown("gpt").trace[f"blocks.{layer}.attn.weights"][1, 2]
    lit = it.page.eval_on_selector_all(
        "#strip button", "all => all.map(b => Number(b.style.getPropertyValue('--weight')))"
    )
    assert lit == pytest.approx(weights.tolist(), abs=1e-5)
    it.visit("attention")
    it.wait("h2", f"layer {layer}, head 1")
    assert it.text(".readout").startswith("query brown, key ")
    assert it.page.get_attribute("#strip-text-2", "aria-pressed") == "true"
    it.visit("next")
    it.wait("h2", "brown")


def test_slabs_show_the_numbers_that_flow(tab):
    """The first numbers of each token, where it leaves a part of the model."""
    it = tab("transformer", viewport={"width": 1440, "height": 900})
    it.page.wait_for_selector(".slab .beads")
    names = it.page.eval_on_selector_all(".slab[data-tensor]", "all => all.map(one => one.dataset.tensor)")
    assert "encoder.embed" in names
    assert "logits" not in names
    trace = shown("transformer").trace
    lengths = {len(trace.tokens["source"]), len(trace.tokens["target"])}
    assert {trace[name].shape[0] for name in names} <= lengths
    it.page.wait_for_function(f"() => document.querySelectorAll('.slab .beads').length === {len(names)}")


def test_a_picture_without_a_class_token_opens_on_a_patch_that_looks_elsewhere(tab):
    session = Session(seer(pool="mean"), noise(6))
    where = session.manifest["opening"]
    weights = session.trace[f"blocks.{where['layer']}.attn.weights"][where["head"]].clone()
    best = [0.0 if int(row.argmax()) == i else float(row.max()) for i, row in enumerate(weights)]
    with serve_session(session) as server:
        assert int(state(tab(server.url))["token"]) == best.index(max(best))


def test_pointing_at_a_token_lights_up_what_it_looks_at(tab):
    it = tab("transformer", "#view=look&part=cross&layer=0&head=0&token=0")
    weights = shown("transformer").trace["decoder.0.cross.weights"][0, 2]
    it.page.focus("#queries-2")
    assert f"({weights.max():.2f})" in it.text("#sentence")
    lit = "all => all.map(b => Number(b.style.getPropertyValue('--weight')))"
    assert it.page.eval_on_selector_all(".keys .chip", lit) == pytest.approx(weights.tolist(), abs=1e-5)
    assert "token=0" in it.page.url


def test_heads_say_what_they_do_with_evidence(tab):
    """On this input, and beside it on built-in texts."""
    attention, head, _ = opening("gpt")
    there = measure_heads(shown("gpt").model)["attentions"][attention["name"]]["patterns"]
    it = tab("gpt", "#depth=head")
    it.wait("#evidence summary", "on 20 built-in texts")
    it.page.click("#evidence summary")
    it.page.wait_for_selector("#evidence th:nth-child(7)")
    rows = it.page.eval_on_selector_all(
        "#evidence tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert len(rows) == len(attention["patterns"] | there)
    cells = [*(row[1:4] for row in rows if row[1]), *(row[4:] for row in rows if row[4])]
    for row, pattern in zip(cells, [*attention["patterns"].values(), *there.values()], strict=True):
        assert number(row[0]) == pytest.approx(pattern["weights"][head], abs=1e-4)
        assert number(row[1]) == pytest.approx(pattern["chance"], abs=1e-4)
        assert int(row[2]) == pattern["rows"]


def test_a_model_without_attention_flows_through_time(tab):
    it = tab("plain")
    it.page.wait_for_selector(".stage .time")
    it.page.click("#open-block")
    it.page.wait_for_selector("[id='card-encoder.cells.0.forward.update_gate']")
    assert "gates" in it.text("#sentence")
    titles = "all => Object.fromEntries(all.map(one => [one.id, one.querySelector('small').textContent]))"
    both = it.page.eval_on_selector_all(".card-box", titles)
    assert both["card-encoder.cells.0.backward.update_gate"].startswith("backward: ")
    it = tab("lstm", "#view=look&depth=block")
    it.page.wait_for_selector("[id='card-decoder.cells.1.forget_gate'] .pixels")
    deep = it.page.eval_on_selector_all(".card-box", titles)
    gates = [f"{layer}.{gate}_gate" for layer in (0, 1) for gate in ("input", "forget", "output")]
    assert {f"card-decoder.cells.{name}" for name in gates} <= set(deep)
    assert deep["card-decoder.cells.1.forget_gate"].startswith("layer 1: ")


def test_the_scene_in_one_file(tab, tmp_path):
    shown("gpt").save(tmp_path / "a.html")
    it = tab(f"file://{tmp_path / 'a.html'}")
    it.page.wait_for_selector(".ribbons.strong path")
    it.press("+", "+", "+")
    it.page.wait_for_selector(".layer.product .tick.right")


def test_presentation_and_table(tab):
    it = tab("gpt")
    it.press("f")
    it.page.wait_for_selector("body.present")
    assert not it.page.is_visible("header")
    assert it.page.is_visible("#strip")
    it.press("f")
    it.page.wait_for_selector("body:not(.present)")
    it.page.click("#evidence ~ .twin summary")
    it.page.wait_for_selector("#evidence ~ .twin table")
    cells = it.page.eval_on_selector_all("#evidence ~ .twin td", "all => all.map(cell => cell.textContent)")
    _, _, weights = opening("gpt")
    assert list(map(float, cells)) == pytest.approx(weights.flatten().tolist(), abs=5.1e-5)


def test_a_handout_has_the_whole_picture(tab):
    """As it is on the screen, and as wide as the paper."""
    it = tab("gpt", viewport={"width": 1440, "height": 900})
    it.page.wait_for_selector(".slab .beads")
    it.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    it.page.emulate_media(media="print")
    assert not it.page.is_visible("header")
    stage = it.page.locator(".stage").bounding_box()
    assert 1000 < stage["x"] + stage["width"] <= 1040
    chips = it.page.eval_on_selector_all(
        ".chip, .leaf", "all => all.map(e => e.getBoundingClientRect().right)"
    )
    assert max(chips) <= stage["x"] + stage["width"]


@pytest.mark.parametrize("kind", ["transformer", "vit"])
def test_presentation_cuts_no_word_off(tab, kind):
    it = tab(kind, "#view=look&present=1", viewport={"width": 1440, "height": 900})
    it.page.wait_for_selector("body.present .queries .chip")
    widths = "all => all.map(b => [b.scrollWidth, b.clientWidth])"
    assert all(full <= room for full, room in it.page.eval_on_selector_all(".chip bdi", widths))
    assert it.page.evaluate(SHARE) >= 0.6
    assert it.page.evaluate("document.documentElement.scrollHeight <= innerHeight + 1")


@pytest.mark.parametrize("scheme", slow_after(1, ["light", "dark"]))
def test_axe_finds_nothing(tab, scheme):
    for kind, depths in {
        "transformer": ["", "&depth=block", "&depth=head", "&depth=product", NUMBER],
        "vit": [""],
    }.items():
        it = tab(kind, color_scheme=scheme)
        for depth in depths:
            assert axe_violations(it.turn(f"#view=look{depth}").page, scheme) == ""
        it.turn("#view=look")
        it.page.click("#change")
        it.page.wait_for_selector("dialog section")
        assert axe_violations(it.page, scheme) == ""


def test_tokens_of_a_short_side_are_its_own(tab):
    """The selected token of a long answer is beyond the end of what was read, which does not fit either."""
    answer = " ".join(["Hund"] * 20)
    session = Session(shown("gru").model, "the quick brown fox jumps over the lazy dog", answer)
    with serve_session(session) as server:
        it = tab(server.url, "#view=look&token=19", viewport={"width": 390, "height": 640})
        it.page.wait_for_selector(".chips.keys .chip")
        chosen = it.page.locator("#strip [aria-pressed=true]").bounding_box()
        assert chosen["x"] + chosen["width"] <= 390  # the strip is scrolled to it
        words = it.page.eval_on_selector_all(".chips.keys .chip", "all => all.map(one => one.textContent)")
    assert len(words) < len(session.trace.tokens["source"])
    assert set(words) <= set(session.trace.tokens["source"])


def test_a_few_large_numbers_do_not_hide_the_others(tab):
    it = tab("gpt")
    script = """async (outlier) => {
      const { paint } = await import("/page/scene_paint.js");
      const data = Float32Array.from({ length: 400 }, (_, i) => Math.sin(i));
      data[7] = outlier;
      const canvas = paint({ tensor: { shape: [20, 20], data } });
      const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, 20, 20).data.buffer);
      return new Set(pixels).size;
    }"""
    assert it.page.evaluate(script, 500) > 50
    assert it.page.evaluate(script, 1) > 100


def test_the_head_of_a_block_covers_no_token(tab):
    """Its buttons take as many lines as they need, of which the tokens know."""
    with serve_session(Session(reader("write", "gpt", dim=22, heads=11), WORDS)) as server:
        it = tab(server.url)
        for width in (390, 800, 1120, 1440):
            it.page.set_viewport_size({"width": width, "height": 800})
            it.turn("#view=look")
            assert it.page.wait_for_function(ABOVE).json_value()[0] >= 0, width
