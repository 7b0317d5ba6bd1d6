"""The page shows what torch computed, in a real browser: every view, every kind of model, any tokens."""

import base64
import contextlib
import functools
import gzip
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from looking import captioner, noise, reader, seer
from PIL import Image
from serving import served

import regard
from regard.look import page
from regard.look.page import HERE, Shown
from regard.look.sums import operands, sums, weights

WORDS = "the quick brown fox jumps"
HOSTILE = [
    "</script><script>window.harmed=1</script>",
    '<img src=x onerror="window.harmed=1">',
    "\u202eright to left\u202c",
    "שלום",
    "a" * 10_000,
]
MODELS = {
    "gpt": lambda: (reader("write", "gpt"), WORDS),
    "gpt2": lambda: (reader("write", "gpt", positions="learned", norm="layer", ffn="gelu", bias=True), WORDS),
    "alibi": lambda: (reader("write", "gpt", positions="alibi", kv_heads=1), WORDS),
    "transformer": lambda: (reader("translate", "transformer"), WORDS),
    "t5": lambda: (reader("chat", "t5"), WORDS),
    "gru": lambda: (reader("translate", "gru", attention="additive"), WORDS),
    "lstm": lambda: (reader("chat", "lstm", attention="general", depth=2), WORDS),
    "plain": lambda: (reader("chat", "gru", attention="none"), WORDS),
    "bert": lambda: (reader("fill", "bert"), WORDS),
    "window": lambda: (reader("fill", "bert", pre=True, window=1), WORDS),
    "classes": lambda: (reader("classify", "bert", task_labels=("a", "b")), WORDS),
    "vit": lambda: (seer(), noise(6)),
    "captioner": lambda: (captioner(), noise(12)),
    "vit-captioner": lambda: (captioner(encoder="vit", decoder="transformer"), noise(12)),
}
TEXT = ["attention", "walk", "map", "next", "talk", "take"]
PAIRS = ["attention", "alignment", "walk", "map", "next", "talk", "take"]
SEEN = ["attention", "picture", "walk", "map", "next", "take"]
VIEWS = {"gpt": TEXT, "transformer": PAIRS, "gru": PAIRS, "bert": TEXT, "vit": SEEN, "captioner": SEEN}


@functools.cache
def shown(kind):
    model, given = MODELS[kind]()
    answer = {"transformer": "der Fuchs springt", "gru": "der Fuchs springt", "captioner": "the fox"}.get(
        kind
    )
    return Shown(model, given, answer)


# Without a browser


def needed(name):
    """A file, and those that it cannot do without."""
    found = {name}
    for other in re.findall(r'from "\./([\w.]+)"', (HERE / name).read_text("utf-8")):
        found |= needed(other)
    return found


def test_the_first_view_is_small():
    """150 KB, and 40 KB packed: what a browser loads before it draws; other views come when opened."""
    index = (HERE / "index.html").read_text("utf-8")
    assert set(re.findall(r'modulepreload" href="/page/([\w.]+)"', index)) == needed("app.js") - {"app.js"}
    first = [(HERE / name).read_bytes() for name in {"index.html", "page.css", *needed("app.js")}]
    assert len(first) < len(list(HERE.iterdir()))
    assert sum(map(len, first)) < 150_000
    assert sum(len(gzip.compress(data)) for data in first) < 40_000


def test_every_file_is_known():
    assert {path.name for path in HERE.iterdir()} == {*page.FILES, "index.html", "page.css"}
    before = set()
    for name in page.FILES:  # each needs only those before it
        text = (HERE / name).read_text("utf-8")
        assert set(re.findall(r'from "\./([\w.]+)"', text)) <= before
        before.add(name)
    app = (HERE / "app.js").read_text("utf-8")
    assert tuple(re.findall(r'^  \["(\w+)", .*(?:import|async)', app, re.MULTILINE)) == page.VIEWS


def test_nothing_is_parsed_as_html_and_nothing_comes_from_elsewhere():
    for path in HERE.iterdir():
        text = path.read_text("utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert word not in text, f"{path.name}: {word}"
        addresses = set(re.findall(r"https?://[^\"'\s)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}


@pytest.mark.parametrize("kind", MODELS)
def test_sums_name_what_is_there(kind):
    it = shown(kind)
    made, known = sums(it.model, it.trace), set(it.trace) | set(weights(it.model))
    for name, how in made.items():
        assert name in it.trace
        assert operands(how) <= known
    kinds = re.compile(r"\.(q|v|scores|weights|heads|out|residual|down)$")
    blocks = [name for name in it.trace if kinds.search(name) and "layers" not in name]
    opened = [name for name in blocks if name in made or name == "decoder.look.q"]
    assert opened == blocks


def test_the_graph_is_the_models():
    columns = shown("transformer").manifest["graph"]
    titles = [[box["title"] for box in column["boxes"]] for column in columns]
    block = ["Masked self-attention", "Cross-attention", "Feed-forward"]
    assert titles[0] == ["Embedding + positions", *["Self-attention", "Feed-forward"] * 2]
    assert titles[1] == ["Embedding + positions", *block * 2, "Linear", "Softmax"]
    crossing = [box["from"] for box in columns[1]["boxes"] if box["title"] == "Cross-attention"]
    assert crossing == [columns[0]["boxes"][-1]["name"]] * 2
    (alone,) = shown("vit").manifest["graph"]
    assert [box["title"] for box in alone["boxes"]][:2] == ["Picture", "Patches"]


def test_what_heads_do():
    w = torch.eye(5)[None].repeat(2, 1, 1)
    w[1] = 0.2
    itself, even = page.kinds(w)
    assert itself == pytest.approx({"entropy": 0, "diagonal": 1, "previous": 0, "first": 0.2})
    assert even["entropy"] == pytest.approx(2.321928, abs=1e-5)


def test_rollout_is_that_of_the_picture():
    it = shown("vit")
    maps = regard.look(it.model, noise(6), "rollout").scene
    assert maps.title.startswith(it.answer.split()[0])
    assert it.rollout.sum(1) == pytest.approx(torch.ones(10), abs=1e-5)


def hostile():
    """A run whose every word is out to do harm."""
    model = reader("write", "gpt")
    it = Shown(model, WORDS)
    it.trace.tokens["text"] = HOSTILE
    it.given = HOSTILE[0]
    it.words = lambda ids: [HOSTILE[i % 5] for i in ids]
    return it


@pytest.mark.parametrize("kind", ["gpt", "captioner", "hostile"])
def test_one_file_is_all_there_is(kind):
    html = (hostile() if kind == "hostile" else shown(kind)).html({"view": "walk"})
    assert len(html) < 8_000_000
    assert not re.search(r'(?:src|href)="(?!data:,|#)', html)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 2
    assert "<" not in scripts[0]
    kept = json.loads(scripts[0])
    assert kept["state"] == {"view": "walk"}
    assert not re.search(r"^(import|export) ", scripts[1], re.MULTILINE)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'; ")
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    for text in (scripts[1], style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert "unsafe" not in policy


def test_a_file_stays_small_whatever_the_model(monkeypatch):
    monkeypatch.setattr(page, "IN_FILE", 3000)
    kept = shown("gpt").kept()["tensors"]
    assert "blocks.1.attn.weights" in kept
    assert "@embed.weight" not in kept
    assert sum(len(base64.b64decode(one["data"])) for one in kept.values()) <= 3000


def test_of_a_long_input_one_block_is_kept(monkeypatch):
    """5 tokens: 5 x 5 weights of 3 heads in 2 blocks; weights in a file are the largest of neighbours."""
    monkeypatch.setattr(page, "MOST_NUMBERS", 149)
    model = reader("write", "gpt")
    it = Shown(model, WORDS)
    assert (it.manifest["layers"], it.manifest["depth"]) == ([1], 2)
    assert it.trace.attentions == ["blocks.1.attn"]
    assert [one["layer"] for one in it.manifest["attentions"]["masked"]] == [1]
    assert Shown(model, WORDS, layers=[0]).trace.attentions == ["blocks.0.attn"]
    assert Shown(model, "the quick").manifest["layers"] is None
    monkeypatch.setattr(page, "POOLED", 2)
    assert it.kept()["tensors"]["blocks.1.attn.weights"]["shape"] == [3, 2, 2]


def test_a_file_is_whole_or_not_there(tmp_path):
    it = shown("gpt")
    it.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(FileNotFoundError):
        it.save(tmp_path / "none" / "a.html")


# In a browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium to look with: apt-get install -y chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield made
        made.close()


@pytest.fixture(scope="module")
def server():
    """A server for each kind of model, while the tests run."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(kind):
            it = hostile() if kind == "hostile" else shown(kind)
            return stack.enter_context(served(it.model, it))

        yield started


class Tab:
    """A page that has nothing to hide: errors, and requests to elsewhere, fail the test."""

    def __init__(self, browser, url, **options):
        self.page, self.url, self.wrong, self.opened = browser.new_page(**options), url, [], 0
        self.page.set_default_timeout(10_000)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.wrong.append(said.text))
        self.page.on("request", self.requested)

    def requested(self, request):
        if not request.url.startswith((self.url, "blob:", "data:")):
            self.wrong.append(request.url)

    def open(self, state="", wait="main section"):
        self.opened += 1  # a new address, or only the part after # would change
        self.page.goto(f"{self.url}?{self.opened}{state}")
        self.page.wait_for_selector(wait)
        return self

    def table(self):
        """The picture's twin: its rows, without the words at the sides."""
        self.page.click(".twin summary")
        self.page.wait_for_selector(".twin table")
        script = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
        return self.page.eval_on_selector_all(".twin tbody tr", script)

    def text(self, selector):
        return self.page.text_content(selector)

    def wait(self, selector, text):
        """Until there is an element with this text."""
        self.page.wait_for_selector(f'{selector}:has-text("{text}")')

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)


@pytest.fixture
def tab(browser, server):
    made = []

    def opened(kind, state="", **options):
        url = kind if kind.startswith("file:") else server(kind).url
        made.append(Tab(browser, url, **options))
        return made[-1].open(state)

    yield opened
    for one in made:
        one.page.close()
        assert one.wrong == []


def number(text):
    return float(text.replace("−", "-"))


def close(text, want):
    """As printed, with four figures."""
    return number(text) == pytest.approx(want, rel=6e-4, abs=1e-9)


@pytest.mark.parametrize("kind", VIEWS)
def test_every_view_opens(tab, kind):
    it = tab(kind)
    assert it.page.eval_on_selector_all("nav a", "all => all.map(a => a.id.slice(5))") == VIEWS[kind]
    for view in VIEWS[kind]:
        it.page.click(f"#view-{view}")
        it.page.wait_for_selector(f"main section.{view}")
        assert f"view={view}" in it.page.url
        assert it.page.query_selector("main .wrong") is None
    difference = it.page.get_attribute("#difference", "data-value")
    assert float(difference) == shown(kind).trace.difference


@pytest.mark.parametrize("kind", MODELS)
def test_every_sum_is_ticked(tab, kind):
    """The last number of every tensor that can be opened, recomputed in the page, is torch's."""
    it = tab(kind)
    script = """async () => {
      const { Server } = await import("/page/source.js");
      const { cell } = await import("/page/cell.js");
      const source = new Server();
      const app = { source, manifest: await source.trace({}), go() {} };
      const found = {};
      await Promise.all(Object.keys(app.manifest.sums).map(async (name) => {
        const shape = app.manifest.tensors[name].shape;
        const [heads, tall] = [shape.length > 2 ? shape[0] : 1, shape.length > 1 ? shape.at(-2) : 1];
        const at = [heads - 1, tall - 1, shape.at(-1) - 1];
        const tick = (await cell(app, `${name}:${at}`)).querySelector(".tick");
        found[name] = [tick?.dataset.fits, tick?.parentNode.querySelector("b").textContent];
      }));
      return found;
    }"""
    found, trace = it.page.evaluate(script), shown(kind).trace
    assert len(found) > 4
    for name, (fits, printed) in found.items():
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
    it.press("2")
    it.page.wait_for_selector("section.walk")
    it.press("?")
    it.page.wait_for_selector("dialog[open]")
    it.press("Escape")


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
    some = [
        "Embedding",
        "Queries Q",
        "Scores",
        "Scaled",
        "Mask",
        "Weights: softmax",
        "Weighted values",
        "Residual",
    ]
    order = [titles.index(title) for title in some]
    assert order == sorted(order)
    assert titles[-2:] == ["Logits", "Probabilities"]
    assert close(it.table()[1][2], float(shown("gpt").trace["embed"][1, 2]))
    it.press("ArrowRight")
    it.wait("h2", "Embedding +")
    for step in ("blocks.0.attn.weights", "probabilities"):
        it.open(f"#view=walk&step={step}")
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
    it.open("#view=alignment&word=1")
    assert it.text(".readout") != ""
    assert it.table()[2] == ["masked"] * 6


def test_next_tokens_are_the_softmax_and_what_settings_leave(tab):
    it = tab("gpt", "#view=next&temperature=0.7&k=7&p=0.8")
    logits = shown("gpt").trace["logits"][-1]
    rows = it.table()
    order = logits.argsort(descending=True)
    assert all(close(row[1], float(logits.softmax(-1)[i])) for row, i in zip(rows, order, strict=True))
    from regard.generate import temperature, top_k, top_p

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
    it.page.click("#inside")
    it.page.wait_for_selector("section.attention")
    assert it.page.input_value("#input") == "the lazy dog"


def test_another_input(tab):
    it = tab("gpt", "#layer=0")
    it.press("/")
    it.page.fill("#input", "lazy dog")
    it.press("Enter")
    it.page.wait_for_selector("#matrix[aria-label*='2 × 2']")
    assert "input=lazy+dog" in it.page.url
    it.page.fill("#input", " ")
    it.press("Enter")
    it.page.wait_for_selector("main .wrong")
    assert "nothing to trace" in it.text("main .wrong")
    it.wrong.clear()  # the browser's own word on a status of 400


def test_another_picture(tab, tmp_path):
    it = tab("vit", "#view=picture")
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
        it.open(f"#{state}")
        assert it.page.query_selector("main .wrong") is None, state


def test_take_away(tab):
    it = tab("gpt", "#layer=1&head=2")
    it.page.click("#view-take")
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
    assert it.page.eval_on_selector_all("nav a", "all => all.map(a => a.id.slice(5))") == views
    for view in views:
        it.page.click(f"#view-{view}")
        it.page.wait_for_selector(f"main section.{view}")
        assert it.page.query_selector("main .wrong") is None
    part = next(iter(shown(kind).manifest["attentions"].values()))[0]["name"]
    it.open(f"#cell={part}.scores:1,0,1&layer=0&head=1")
    it.page.wait_for_selector(".cell .tick.right")
    assert close(it.text(".cell b"), float(shown(kind).trace[f"{part}.scores"][1, 0, 1]))
    it.open("#form=atlas")


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
        it.open(state)
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
        it.open(f"#view={view}&cell=decoder.0.cross.weights:0,1,1")
        assert it.page.evaluate("document.documentElement.scrollWidth") <= 360, view
    ground = it.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(n) for n in re.findall(r"\d+", ground)) < 40
