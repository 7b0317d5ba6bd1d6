"""The scene stays beside every panel: one canvas, with the same token and head selected everywhere."""

import pytest

from helpers.browsing import VIEWS, axe_violations, close, shown
from helpers.slow import slow_after

WIDE = {"viewport": {"width": 1440, "height": 900}}
BOXES = """() => ["#scene .stage", "main section"].map((one) => {
  const { left, right, top, bottom } = document.querySelector(one).getBoundingClientRect();
  return { left, right, top, bottom };
})"""
STATE = "() => Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"


def ribbons(it):
    """The weights on the strong ribbons of the scene, by key."""
    it.page.wait_for_selector(".ribbons.strong path")
    script = "all => all.map(p => [Number(p.dataset.of), Number(p.dataset.weight)])"
    return dict(it.page.eval_on_selector_all(".ribbons.strong path", script))


def check(it, kind, head, token):
    """The scene has the weights of this head and token, in the layer that the address names."""
    name = shown(kind).manifest["attentions"]["masked"][int(it.page.evaluate(STATE)["layer"])]["name"]
    row = shown(kind).trace[f"{name}.weights"][head, token].tolist()
    assert ribbons(it) == {i: pytest.approx(w, abs=1e-6) for i, w in enumerate(row) if w >= 0.01}


def test_a_panel_opens_beside_the_scene_and_both_select(tab):
    it = tab("gpt", **WIDE)
    it.page.click("#strip-text-3")
    it.page.click("#head-1")
    it.page.wait_for_selector("#head-1[aria-pressed=true]")
    it.visit("attention")
    it.page.wait_for_selector("#scene .stage")
    scene, panel = it.page.evaluate(BOXES)
    assert scene["right"] <= panel["left"]
    assert scene["right"] - scene["left"] > 500
    it.wait("main h2", "head 1")
    check(it, "gpt", 1, 3)
    it.page.click("#scene #head-2")  # in the scene
    it.wait("main h2", "head 2")
    it.page.wait_for_selector("#scene #head-2[aria-pressed=true]")
    check(it, "gpt", 2, 3)
    it.page.click("#head-previous")  # in the panel
    it.page.wait_for_selector("#scene #head-1[aria-pressed=true]")
    it.page.click("#queries-4")
    it.page.wait_for_selector("#strip-text-4[aria-pressed=true]")
    it.page.wait_for_selector("#scene #queries-4[aria-pressed=true]")
    check(it, "gpt", 1, 4)
    it.page.go_back()  # before the token: selecting replaces the address, opening a panel adds to it
    it.page.wait_for_selector("main section.look")
    assert not it.page.is_visible("#scene")


def test_depths_beside_a_panel(tab):
    it = tab("gpt", "#view=next&depth=head", **WIDE)
    it.page.wait_for_selector("#scene .layer.head")
    it.press("-")
    it.page.wait_for_selector("#scene .layer.block:only-child")
    assert it.page.query_selector("section.next")
    it.press("+")
    it.page.wait_for_selector("#scene .layer.head:only-child")
    it.press("Escape")
    it.page.wait_for_selector("main section.look .layer.head")
    assert it.page.evaluate(STATE)["depth"] == "head"


def test_the_scene_is_drawn_again_when_anything_that_it_shows_changes(tab):
    it = tab("gpt", "#view=next&depth=product&layer=1&head=1&at=3,0&token=3", **WIDE)
    scores = shown("gpt").trace["blocks.1.attn.scores"][1, 3]
    for key in (1, 2):  # in the same row
        it.page.focus("#scene #product")
        it.press("ArrowRight")
        it.page.wait_for_function("(at) => location.hash.includes(encodeURIComponent(at))", arg=f"3,{key}")
        it.wait_until_still()
        assert close(it.text("#scene .total b"), float(scores[key]))
    colour = "() => document.querySelector('#scene .pixels').toDataURL()"
    it.page.wait_for_selector("#scene .pixels")
    light = it.page.evaluate(colour)
    it.page.evaluate("() => { document.querySelector('#scene .stage').dataset.before = 1; }")
    it.turn("#view=next&depth=product&layer=1&head=1&at=3,2&token=3&temperature=0.5")
    assert it.page.query_selector("#scene .stage[data-before]")  # nothing of it has changed
    it.page.emulate_media(color_scheme="dark")
    it.page.wait_for_selector("#scene .stage:not([data-before]) .pixels")
    assert it.page.evaluate(colour) != light
    it.page.emulate_media(color_scheme="light")


def test_keys_that_a_panel_does_not_use_are_the_scenes(tab):
    it = tab("gpt", "#view=take&layer=1&head=0&token=2", **WIDE)
    it.page.wait_for_selector("#scene #head-0[aria-pressed=true]")
    it.press("n")
    it.page.wait_for_selector("#scene #head-1[aria-pressed=true]")
    check(it, "gpt", 1, 2)


IN_PANELS = {  # what shows the third token, or patch; and what the next one is chosen with
    "gpt": [
        ("view=walk&step=blocks.1.attn.q", ".readout:has-text('token brown')", "#matrix"),
        ("view=walk&step=blocks.1.attn.weights", ".readout:has-text('query brown')", "#matrix"),
        ("view=attention", ".readout:has-text('query brown')", "#matrix"),
        ("view=compare&with=lazy", ".readout:has-text('query brown')", "#matrix"),
        ("view=space&map=blocks.1.output", ".near h3:has-text('brown')", None),
        ("view=space", ".near h3:has-text('brown')", None),
        ("view=whatif&what=hide", "h3:has-text('after “brown”')", "#row"),
        ("view=whatif&what=hide", "#change-token:has(option:checked:has-text('brown'))", None),
        ("view=next", "h2:has-text('brown')", "#row"),
    ],
    "transformer": [("view=alignment", ".readout:has-text('answer springt')", "#matrix")],
    "captioner": [("view=picture", "#word-2[aria-pressed=true]", None)],
    "vit": [("view=picture", ".readout:has-text('patch 1 ')", None)],
}


@pytest.mark.parametrize("kind", slow_after(2, IN_PANELS))
def test_the_selected_token_is_selected_in_every_panel(tab, kind):
    """A click in the scene chooses it there, and what is chosen there is chosen in the scene."""
    it = tab(kind, **WIDE)
    chips = "#scene #keys-" if kind == "vit" else "#scene #queries-"
    for view, follows, where in IN_PANELS[kind]:
        it.turn(f"#{view}")
        it.page.wait_for_selector(f"{chips}2")
        it.wait_until_still()
        it.page.dispatch_event(f"{chips}2", "click")
        it.page.wait_for_selector(f"main {follows}")
        if where:
            it.wait_until_still()
            it.page.press(f"main {where}", "ArrowDown")
            it.page.wait_for_selector(f"{chips}3[aria-pressed=true]")
            assert it.page.evaluate(STATE)["token"] == "3", view


def test_a_panel_goes_on_with_the_head_that_it_opened_on(tab):
    """Also when a cell has been chosen in it: an address with a cell alone names the last layer."""
    where = shown("gpt").manifest["opening"]
    it = tab("gpt", "#view=attention", **WIDE)
    it.page.focus("#matrix")
    it.press("ArrowDown")
    it.page.click("#strip-text-3")
    it.page.wait_for_selector("#strip-text-3[aria-pressed=true]")
    it.wait_until_still()
    assert f"layer {where['layer']}, head {where['head']}" in it.text("main h2")
    it = tab("transformer", "#view=alignment")
    where = shown("transformer").manifest["opening"]
    assert f"Layer {where['layer']}, head {where['head']}" in it.text("main h2")
    it.page.select_option("#head", "")
    it.wait("main h2", "mean of")


def test_the_selected_head_is_marked_on_the_map_and_chosen_in_the_atlas(tab):
    it = tab("gpt", "#view=map&layer=1&head=2&token=1", **WIDE)
    assert it.page.get_attribute(".box.here", "id") == "box-blocks.1.attn.norm"
    it.turn("#view=attention&form=atlas&layer=1&head=2&token=1")
    it.page.focus("#atlas")
    it.press("ArrowLeft")
    it.page.wait_for_selector("#scene #head-1[aria-pressed=true]")
    check(it, "gpt", 1, 1)


def test_a_panel_opens_on_the_same_head_as_the_scene(tab):
    where = shown("gpt").manifest["opening"]
    it = tab("gpt", "#view=attention", **WIDE)
    it.wait("main h2", f"layer {where['layer']}, head {where['head']}")
    it.page.wait_for_selector(f"#scene #head-{where['head']}[aria-pressed=true]")


@pytest.mark.parametrize("width", slow_after(2, [320, 1440, 390, 760, 1120, 1399, 2560]))
def test_bar_and_panels_fit_the_window(tab, width):
    it = tab("transformer", viewport={"width": width, "height": 800})
    for view in VIEWS["transformer"]:
        it.turn(f"#view={view}")
        if view != "look":
            it.page.wait_for_selector("#scene .stage .layer > *", state="attached")
            assert it.page.query_selector(
                "#scene .stage[inert]" if width < 1400 else "#scene .stage:not([inert])"
            )
        assert it.page.evaluate("document.documentElement.scrollWidth") <= width, view
        links = it.page.eval_on_selector_all("nav a", "all => all.map(a => a.getBoundingClientRect().right)")
        assert max(links) <= width, view
        assert not it.page.eval_on_selector("#views", "nav => nav.scrollWidth > nav.clientWidth")


def test_a_small_scene_selects_and_leads_back(tab):
    it = tab("gpt", "#view=next", viewport={"width": 390, "height": 844})
    it.page.wait_for_selector("#scene .stage[inert] .chip", state="attached")
    chip = it.page.locator("#scene #queries-2").bounding_box()
    it.page.mouse.click(chip["x"] + chip["width"] / 2, chip["y"] + chip["height"] / 2)
    it.page.wait_for_selector("#scene #queries-2[aria-pressed=true]", state="attached")
    it.wait("main h2", "brown")
    stage = it.page.locator("#scene .stage").bounding_box()
    assert stage["height"] < 120
    it.page.mouse.click(stage["x"] + 40, stage["y"] + 5)
    it.page.wait_for_selector("main section.look")
    it.visit("next")
    it.page.focus("#whole")
    it.press("Enter")
    it.page.wait_for_selector("main section.look")


def test_old_addresses_open_their_panel_in_its_mode(tab):
    it = tab("transformer")
    for address, view, mode in (
        ("#layer=1&head=0", "attention", "look"),
        ("#view=walk&step=logits", "walk", "walk"),
        ("#view=talk", "talk", "try"),
    ):
        it.turn(address)
        it.page.wait_for_selector(f"section.{view}")
        assert it.page.query_selector(f"#view-{view}[aria-current=page]")
        assert it.page.query_selector_all(f"#mode-{mode}[aria-current], .modes [aria-current]")[1:] == []
        it.page.reload()
        it.page.wait_for_selector(f"section.{view}")


def test_the_scene_moves_to_its_place(tab):
    """Where motion is welcome."""
    it = tab("gpt", reduced_motion="no-preference", **WIDE)
    it.page.wait_for_selector(".stage .chip")
    it.page.evaluate(
        """() => {
          const start = document.startViewTransition.bind(document);
          document.startViewTransition = (change) => { window.moved = start(change); return window.moved; };
        }"""
    )
    it.visit("next")
    it.page.wait_for_selector("section.next")
    it.page.evaluate("() => window.moved.finished")
    it.page.wait_for_selector("#scene .stage .chip")
    it.page.evaluate("() => { window.moved = null; }")
    it.page.click("#whole")
    it.page.wait_for_selector("main section.look .chip")
    it.page.evaluate("() => window.moved.finished")


def test_in_one_file(tab, tmp_path):
    shown("gpt").save(tmp_path / "a.html", {"view": "next"})
    it = tab(f"file://{tmp_path / 'a.html'}", **WIDE)
    it.page.wait_for_selector("section.next .bars")
    it.page.wait_for_selector("#scene .ribbons.strong path")


@pytest.mark.parametrize("width", slow_after(1, [1440, 390]))
def test_axe_finds_nothing(tab, width):
    views = ["attention", "attention&form=arcs", "attention&form=atlas", "next", "next&words=layers", "walk"]
    views += ["whatif", "alignment", "map", "space", "space&map=positions", "compare&with=lazy", "talk"]
    views += ["take"]
    for kind, shown_views in (("transformer", views), ("vit", ["picture"])):
        it = tab(kind, viewport={"width": width, "height": 900})
        for view in shown_views:
            it.turn(f"#view={view}")
            it.page.wait_for_selector("#scene .stage .chip", state="attached")
            it.page.wait_for_function(
                "() => getComputedStyle(document.getElementById('main')).opacity === '1'"
            )
            assert axe_violations(it.page) == "", view
