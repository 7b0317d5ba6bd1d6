"""What if: the page makes the changes of `regard.change`, and shows the numbers that torch computes."""

import json
from urllib.parse import quote

import pytest
import torch
from torch import Tensor

import regard
from helpers.browsing import HOSTILE, close, number, shown
from helpers.looking import reader
from helpers.serving import serve_session
from helpers.slow import slow_after
from regard import UserError, change
from regard.viewer.session import Session
from regard.viewer.whatif import WhatIf

KINDS = ["gpt", "transformer", "gru", "bert", "vit", "captioner"]
PARTS = {"gpt": "blocks.1.attn", "transformer": "decoder.0.cross", "gru": "decoder.look"}
PARTS |= {"bert": "blocks.0.attn", "vit": "blocks.2.attn", "captioner": "decoder.look"}


def logits(kind):
    it = shown(kind)
    result = regard.trace(it.model, it.full_input)["logits"]
    return result if result.ndim == 2 else result[None]


def put(head, query, row):
    def edited(x: Tensor) -> Tensor:
        x = x.clone()
        x[head, query] = row(x[head, query])
        return x

    return edited


def agrees(result, before, after):
    """Compare the page's probabilities and distances with those of two runs."""
    p, q = before.log_softmax(-1), after.log_softmax(-1)
    assert result["kl"] == pytest.approx((p.exp() * (p - q)).sum(-1).tolist(), rel=1e-3, abs=2e-6)
    for one in result["top"]:
        assert one["before"] == pytest.approx(float(p[result["row"], one["id"]].exp()), rel=1e-4, abs=1e-7)
        assert one["after"] == pytest.approx(float(q[result["row"], one["id"]].exp()), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_changes_are_those_of_regard_change(kind):
    it, part = shown(kind), PARTS[kind]
    before, S = logits(kind), it.trace[f"{part}.weights"].shape[-1]
    whatif = it.whatif
    for input, values, more in (
        ([{"kind": "silence", "part": part, "head": 0}], {}, {"silence": {part: [0]}}),
        ([{"kind": "hide", "token": 1}, {"kind": "hide", "token": 0}], {}, {"hide": [1, 0]}),
        (
            [{"kind": "silence", "part": part, "head": 0}, {"kind": "hide", "token": 1}],
            {},
            {"silence": {part: [0]}, "hide": [1]},
        ),
    ):
        with change(it.model, values, **more):
            after = logits(kind)
        agrees(whatif.changed(input), before, after)
    if kind in ("gru", "captioner"):
        return  # their words come one by one: below
    own = [2.0, *[0.0] * (S - 2), 6.0]
    rest = torch.ones(S)
    rest[1] = 0
    for to, row in (
        (1, lambda x: torch.eye(S)[1]),
        ("even", lambda x: (x > 0) / (x > 0).sum()),
        (own, lambda x: torch.tensor(own) / 8),
        ((1, 0.25), lambda x: 0.75 * rest * x / (rest * x).sum() + 0.25 * torch.eye(S)[1]),
        ((1, 0), lambda x: rest * x / (rest * x).sum()),
    ):
        how = {"to": to[0], "weight": to[1]} if isinstance(to, tuple) else {"to": to}
        with change(it.model, {f"{part}.weights": put(0, 2, row)}):
            after = logits(kind)
        agrees(
            whatif.changed([{"kind": "weights", "part": part, "head": 0, "query": 2} | how]),
            before,
            after,
        )


@pytest.mark.parametrize("kind", ["gru", "captioner"])
def test_a_row_of_a_decoder_that_generates(kind):
    """The whole tensor with one changed row, where later rows are not attended to."""
    it = shown(kind)
    w = it.trace["decoder.look.weights"].clone()
    last = w.shape[1] - 1
    w[0, last] = torch.eye(w.shape[-1])[3]
    with change(it.model, {"decoder.look.weights": w}):
        after = logits(kind)
    edit = {"kind": "weights", "part": "decoder.look", "head": 0, "query": last, "to": 3}
    agrees(it.whatif.changed([edit], 0), logits(kind), after)


@pytest.mark.parametrize("kind", ["gpt", "transformer", "bert"])
def test_parts_of_another_input(kind):
    it = shown(kind)
    other = "the lazy brown dog jumps"
    part = {"transformer": "encoder.1.output"}.get(kind, "blocks.1.output")
    input = (other, "der Fuchs springt") if kind == "transformer" else other
    theirs = regard.trace(it.model, input)
    agrees(
        it.whatif.changed([{"kind": "take", "part": part, "input": other}]), logits(kind), theirs["logits"]
    )
    with change(it.model, {part: lambda x: torch.cat([x[:1], theirs[part][1:2], x[2:]])}):
        after = logits(kind)
    agrees(it.whatif.changed([{"kind": "take", "part": part, "input": other, "at": 1}]), logits(kind), after)


@pytest.mark.parametrize("kind", ["transformer", "gru", "captioner"])
def test_a_new_answer_is_generated(kind):
    """The first word of an answer under a change is the most likely one under it."""
    model, input = shown(kind).model, shown(kind).input
    it = WhatIf(Session(model, input))
    assert it.text == Session(model, input).answer
    it.shown.decode, part = list, PARTS[kind]
    for changes in (
        [{"kind": "silence", "part": part, "head": 0}],
        [{"kind": "weights", "part": part, "head": 0, "query": 0, "to": 1}],
        [{"kind": "hide", "token": 0}],
    ):
        result = it.changed(changes, 0)
        ids = it.changed(changes)["text"]["after"]
        assert max(result["top"], key=lambda one: one["after"])["id"] == ids[0]
    del it.shown.decode
    silent = {part: [0]}
    with change(model, silence=silent):
        expected = Session(model, input).answer
    assert it.changed([{"kind": "silence", "part": part, "head": 0}])["text"] == {
        "before": it.text,
        "after": expected,
    }
    part = next(name for name in it.patchable if name.startswith("decoder"))
    assert it.changed([{"kind": "take", "part": part, "input": input}])["text"]["after"] is None


def test_without_changes_the_answer_stays():
    result = shown("gpt").whatif.changed([])
    assert (result["kl"], result["mean"], result["row"]) == ([0.0] * 5, 0.0, 4)
    assert result["text"] == {"before": None, "after": None}
    assert shown("plain").whatif.changed([])["patchable"] == ["decoder.output"]


def test_the_ranking_is_that_of_effects():
    it = shown("transformer")
    expected = regard.effects(it.model, it.full_input)
    assert [(one["part"], one["head"], one["kl"]) for one in it.whatif.ranked()] == [
        (one.part, one.head, one.kl) for one in expected
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "none"}, "no such change"),
        ({}, "no such change"),
        ({"kind": "silence", "part": "blocks.9.attn", "head": 0}, "blocks.9.attn: not an attention"),
        ({"kind": "silence", "part": "blocks.0.attn", "head": 3}, "heads 0 to 2"),
        ({"kind": "silence", "part": "blocks.0.attn", "head": -1}, "whole number"),
        ({"kind": "silence", "part": "blocks.0.attn", "head": True}, "whole number"),
        ({"kind": "weights", "part": "blocks.0.attn", "head": 0, "query": 9, "to": 0}, "queries 0 to 4"),
        ({"kind": "weights", "part": "blocks.0.attn", "head": 0, "query": 0, "to": 9}, "keys 0 to 4, not 9"),
        ({"kind": "weights", "part": "blocks.0.attn", "head": 0, "query": 0, "to": [1, 2]}, "give 5 weights"),
        ({"kind": "weights", "part": "blocks.0.attn", "head": 0, "query": 0, "to": [0] * 5}, "not all 0"),
        (
            {"kind": "weights", "part": "blocks.0.attn", "head": 0, "query": 0, "to": [1, 1, 1, 1, -1]},
            "none below",
        ),
        (
            {"kind": "weights", "part": "blocks.0.attn", "head": 0, "query": 0, "to": 1, "weight": 2},
            "from 0 to 1",
        ),
        ({"kind": "take", "part": "blocks.0.output"}, "give the other input"),
        ({"kind": "take", "part": "logits", "input": "the fox"}, "logits: not a part"),
        ({"kind": "take", "part": "blocks.0.output", "input": "the fox"}, "has 2 tokens, this one 5"),
        ({"kind": "take", "part": "blocks.0.output", "input": "the fox", "at": 3}, "tokens 0 to 1"),
    ],
)
def test_wrong_changes(change, message):
    hooks = count_hooks(shown("gpt").model.model)  # a server leaves those that cancel work
    with pytest.raises(UserError, match=message):
        shown("gpt").whatif.changed([change])
    assert count_hooks(shown("gpt").model.model) == hooks


def count_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_answers_that_are_not_distributions():
    with pytest.raises(UserError, match="words or classes"):
        _ = Session(reader("embed", "bert"), "the fox").whatif
    with pytest.raises(UserError, match="33 changes"):
        shown("gpt").whatif.changed([{"kind": "hide", "token": 0}] * 33)


def test_the_server_refuses(tmp_path):
    it, vit = shown("gpt"), shown("vit")
    with serve_session(it) as server:

        def answer(body, path="/api/change"):
            status, _, data = server.ask(path, {"trace": it.id} | body)
            return status, data.decode()

        assert answer({"changes": {}}) == (400, "changes: give a list of objects")
        assert answer({"changes": [3]})[0] == answer({"row": "1"})[0] == 400
        assert answer({"trace": "x"})[0] == answer({"trace": 3})[0] == 410
        take = {"kind": "take", "part": "blocks.0.output"}
        assert answer({"changes": [take | {"input": 3}]})[1] == "input: give a text"
        assert answer({"changes": [take | {"input": "a" * 100_001}]})[0] == 413
        assert server.ask("/api/effects", trace="x")[0] == 410
        assert json.loads(answer({"changes": [{"kind": "hide", "token": 1}]})[1])["row"] == 4
    with serve_session(vit) as server:
        (tmp_path / "a.png").write_bytes(b"")
        take = {"kind": "take", "part": "blocks.0.output", "input": str(tmp_path / "a.png")}
        status, _, data = server.ask("/api/change", {"trace": vit.id, "changes": [take]})
        assert (status, b"give the other input" in data) == (400, True)  # never a path


# In a browser


def address(changes, **more):
    state = {"view": "whatif", "changes": json.dumps(changes)} | more
    return "#" + "&".join(f"{name}={quote(str(value))}" for name, value in state.items())


def changes_of(it):
    """What the address says is changed."""
    return json.loads(it.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('changes')") or "[]")


def test_the_scene_itself_is_changed(tab):
    """A click on the selected token or head, or on a ribbon, opens what can be changed; `u` undoes it."""
    it, part = tab("transformer", "#view=look&part=cross&layer=1&head=2&token=2"), "decoder.1.cross"
    weights = shown("transformer").trace[f"{part}.weights"][2, 2]
    key = int(weights.argmax())
    ribbon = f".ribbons.strong path[data-of='{key}']"
    it.page.wait_for_selector(ribbon)
    it.page.dispatch_event(ribbon, "click", {"clientX": 500, "clientY": 500, "bubbles": True})
    it.page.focus("#change-weight")
    assert float(it.page.input_value("#change-weight")) == pytest.approx(float(weights[key]), abs=5e-3)
    it.page.fill("#change-weight", "0.25")
    it.page.wait_for_selector(f"{ribbon}[data-weight='0.25']")
    it.page.fill("#change-weight", "0.5")  # in place of the first change
    it.page.wait_for_selector(f"{ribbon}[data-weight='0.5']")
    edge = {"kind": "weights", "part": part, "head": 2, "query": 2, "to": key}
    assert changes_of(it) == [edge | {"weight": 0.5}]
    it.page.click("#change-cut")
    it.page.wait_for_selector(ribbon, state="detached")
    assert changes_of(it) == [edge | {"weight": 0}]
    assert it.page.query_selector("dialog") is None
    it.page.click("#head-2")  # the selected one
    it.page.click("#change-silence")
    it.page.wait_for_selector("#head-2.gone")
    it.page.dispatch_event("#keys-1", "contextmenu")
    it.page.click("#change-hide")
    it.page.wait_for_selector("#keys-1.gone")
    assert [one["kind"] for one in changes_of(it)] == ["weights", "silence", "hide"]
    it.visit("whatif")  # they are there in all views
    it.wait(".changes li", "looks at")
    assert len(it.page.query_selector_all(".changes li")) == 3
    it.turn("#view=look&part=cross&layer=1&head=2&token=2" + quote_changes(changes_of(it)))
    for kinds in (["weights", "silence"], ["weights"]):
        it.press("u")
        assert [one["kind"] for one in changes_of(it)] == kinds
    it.page.wait_for_selector("#head-2:not(.gone)")
    it.page.dispatch_event("#keys-1", "contextmenu")
    it.page.fill("#change-word", "lazy")
    it.press("Enter")
    it.wait("#keys-1", "lazy")
    assert it.page.input_value("#input") == "the lazy brown fox jumps"
    it.page.click("#undo")
    it.wait("#keys-1", "quick")
    it.page.click("#queries-2")  # a word of the answer
    it.page.fill("#change-word", "Hund")
    it.press("Enter")
    it.wait("#queries-2", "Hund")
    it.page.click("#change")
    it.wait("dialog h3", "Head 2")
    assert len(it.page.query_selector_all("dialog section")) == 3
    it.press("Escape")
    it.page.wait_for_selector("dialog", state="detached")


def quote_changes(changes):
    return f"&changes={quote(json.dumps(changes, separators=(',', ':')))}"


@pytest.mark.parametrize("kind", slow_after(3, KINDS))
def test_before_and_after_are_torchs(tab, kind):
    part = PARTS[kind]
    it = tab(kind, address([{"kind": "silence", "part": part, "head": 0}], row=0))
    with change(shown(kind).model, silence={part: [0]}):
        after = logits(kind)[0].softmax(-1)
    before = logits(kind)[0].softmax(-1)
    it.page.click(".versus + .twin summary")
    it.page.wait_for_selector(".versus + .twin table")
    script = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    rows = it.page.eval_on_selector_all(".versus + .twin tbody tr", script)
    order = torch.maximum(before, after).argsort(descending=True)
    for row, id in zip(rows[:3], order, strict=False):
        assert close(row[0], float(before[id]))
        assert close(row[1], float(after[id]))
        assert number(row[2]) == pytest.approx(float(after[id] - before[id]), rel=6e-4, abs=1e-6)
    mean = shown(kind).whatif.changed([{"kind": "silence", "part": part, "head": 0}])["mean"]
    assert close(it.text("#moved").split()[0], mean)
    assert it.page.query_selector("main .wrong") is None


def test_keys_alone_change_and_take_back(tab):
    it = tab("transformer", "#view=whatif&part=cross&layer=0&head=0")
    assert "Nothing is changed yet" in it.text("section.whatif")
    it.page.focus("#change-part")
    it.press("Tab", "ArrowDown", "Tab", "Enter")
    it.wait(".changes li", "Head 1 of cross attention, layer 0 is silenced")
    assert it.page.evaluate("document.activeElement.id") == "add"
    it.page.focus("#what-silence")
    it.press("ArrowRight")
    it.page.wait_for_selector("#change-query")
    it.press("ArrowRight")
    it.page.wait_for_selector("#change-token")
    it.page.focus("#change-token")
    it.press("ArrowDown", "Tab", "Enter")
    it.wait(".changes li", "No token may look at “quick” (1)")
    it.page.focus("#what-hide")
    it.press("ArrowRight")
    it.page.fill("#change-input", "the lazy brown dog jumps")
    it.press("Enter")
    it.wait(".changes li", "encoder.input is taken from “the lazy brown dog jumps”")
    assert len(it.page.query_selector_all(".changes li")) == 3
    it.page.focus("#remove-0")
    it.press("Enter")
    it.page.wait_for_selector(".changes li:nth-child(3)", state="detached")
    it.page.focus("#places")
    it.press("End", "Enter")
    it.wait("h3", "What the model predicts after “springt”")
    it.page.reload()  # all of it is in the address
    it.page.wait_for_selector(".changes li:nth-child(2)")


def test_weights_as_they_are_typed(tab):
    it = tab("gpt", "#view=whatif&what=weights&layer=0&head=0")
    it.page.select_option("#change-query", "4")
    it.page.select_option("#change-to", "own")
    it.page.fill("#change-weights", "1 0 0 0 3")
    it.page.click("#add")
    it.wait(".changes li", "“jumps” (4) looks with 1 0 0 0 3")
    part = shown("gpt").trace.attentions[0]
    edit = {"kind": "weights", "part": part, "head": 0, "query": 4, "to": [1, 0, 0, 0, 3]}
    assert close(it.text("#moved").split()[0], shown("gpt").whatif.changed([edit])["mean"])
    it.page.fill("#change-weights", "1 2")
    it.page.click("#add")
    it.wait("main .wrong", "give 5 weights")
    assert len(it.page.query_selector_all(".changes li")) == 2  # to be taken back
    it.wrong.clear()


def test_all_heads_are_ranked(tab):
    it = tab("gpt", "#view=whatif")
    it.page.click("#rank")
    it.page.wait_for_selector("#ranking")
    want = regard.effects(shown("gpt").model, shown("gpt").full_input)
    script = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    rows = it.page.eval_on_selector_all("#ranking tbody tr", script)
    assert len(rows) == 6
    for (words, kl, likelier, _), effect in zip(rows, want, strict=True):
        assert words == f"Masked self attention, layer {effect.part.split('.')[1]}, head {effect.head}"
        assert close(kl, effect.kl)
        assert close(likelier, effect.log_probability)
    it.page.focus("#effects")
    it.press("ArrowDown", "ArrowRight", "Enter")
    it.wait(".changes li", "Head 1 of masked self attention, layer 1 is silenced")
    it.visit("take")
    it.page.wait_for_selector("#python")
    assert 'with regard.change(model, silence={"blocks.1.attn":[1]}):' in it.text("#python")


def test_a_saved_page_shows_the_lines(tab, tmp_path):
    shown("gpt").save(tmp_path / "a.html")
    part = "blocks.1.attn"
    changes = [
        {"kind": "silence", "part": part, "head": 1},
        {"kind": "weights", "part": part, "head": 0, "query": 4, "to": 2},
        {"kind": "hide", "token": 0},
        {"kind": "take", "part": "blocks.0.output", "at": 1, "input": "the lazy fox"},
        {"kind": "weights", "part": part, "head": 2, "query": 4, "to": 3, "weight": 0.125},
    ]
    it = tab(f"file://{tmp_path / 'a.html'}", address(changes))
    assert "this file holds only its numbers" in it.text("section.whatif")
    body = it.text("#lines").replace('regard.load("RUN")', "model").rsplit("\n", 1)[0]
    lines, last = body.rsplit("\n", 1)
    exec(lines, space := {"model": shown("gpt").model})
    q = eval(last, space)[-1]
    changed = shown("gpt").whatif.changed(changes)
    for one in changed["top"]:
        assert one["after"] == pytest.approx(float(q[one["id"]]), rel=1e-4, abs=1e-7)


def test_hostile_changes_and_words_do_no_harm(tab):
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    wild = [[{"kind": "take", "part": "embed", "at": 0, "input": word}] for word in HOSTILE]
    wild += [[{"kind": word, "part": word, "head": word, "to": word} for word in HOSTILE]]
    wild += ["<b>", [[]], {}]
    it = tab("hostile", "#view=whatif", viewport={"width": 360, "height": 700}, color_scheme="dark")
    for changes in wild:
        it.turn(address(changes, what="weights"))
        assert it.page.evaluate("window.harmed") is None
        assert it.page.query_selector("main img, main script") is None
        assert it.page.evaluate(over) <= 0
        assert "\u202e" not in it.page.content()
    assert "</script><script>window." in it.text(".versus")
    it.turn("#view=whatif&changes=%ff&row=x&what=none&rank=0")
    it.page.wait_for_selector("#ranking")
    it.wrong.clear()
