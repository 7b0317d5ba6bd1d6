"""Every view can be exported: as an image, as numbers, and as Python lines that compute them."""

import collections
import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

import regard
from helpers.browsing import WORDS, shown, trained
from helpers.serving import serve_session
from helpers.slow import slow_after
from regard.viewer.session import Session

STATES = {
    "gpt": [
        *("layer=1", "form=arcs", "form=atlas", "view=walk&step=blocks.0.attn.q"),
        *("view=map", "view=next", "view=next&words=layers"),
    ],
    "gru": ["view=alignment&beams=2"],
    "vit": ["view=picture"],
    "captioner": ["view=picture&word=1"],
}


def download(tab, button):
    with tab.page.expect_download() as waiting:
        tab.page.click(button)
    return Path(waiting.value.path()).read_bytes()


def check(tab, state, space):
    """PNG, SVG and CSV can be read by other programs, and the Python lines run."""
    tab.turn(f"#{state}")
    tab.wait_until_drawn()
    tab.visit("take")
    tab.page.wait_for_selector("#python")
    rows = len(tab.page.query_selector_all("section.take .row")) - 1
    assert rows >= 1
    for after in ["", *range(1, rows)]:
        svg = ElementTree.fromstring(download(tab, f"#svg{after}"))
        size = [float(svg.get(side)) for side in ("width", "height")]
        with Image.open(io.BytesIO(download(tab, f"#png{after}"))) as picture:
            assert max(picture.size) >= 1999  # as large as slides need it
            assert picture.size[0] / size[0] == pytest.approx(picture.size[1] / size[1], rel=0.02)
            assert picture.convert("RGBA").getextrema()[3] == (255, 255)  # opaque
            assert (255, 255, 255) in {colour for _, colour in picture.convert("RGB").getcolors(10**8)}
            assert len(picture.convert("RGB").resize((200, 200)).getcolors(40_000)) > 2, state
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(svg.iter())) > 1
        head, *body = csv.reader(io.StringIO(download(tab, f"#csv{after}").decode()))
        assert body
        assert all(len(row) == len(head) for row in body)
    lines = tab.text("#python").splitlines()
    lines = [line for line in lines if not line.startswith("model = ")]
    lines = [line.replace('"picture.png"', "given") for line in lines]
    exec("\n".join(lines[:-1]), space)
    assert eval(lines[-1], space) is not None


CONTENT = """() => {  // what the scene shows: its words, and how many images, ribbons and tokens
  const count = (what) => document.querySelectorAll(`.layer ${what}`).length;
  const words = [...document.querySelectorAll(".layer bdi, .layer b, .layer .cell-numbers text")];
  return [words.map((one) => one.textContent), count("canvas"), count(".ribbons path"), count(".chip"),
    document.querySelector(".layer").clientWidth, document.querySelector(".layer").scrollHeight];
}"""


WEIGHTS = """() => {  // where the weights of the head are in the scene
  const { x, y } = document.querySelector(".layer").getBoundingClientRect();
  const box = document.querySelector("#open-weights").getBoundingClientRect();
  return [box.x - x, box.y - y, box.width, box.height];
}"""


def check_weights(picture, place, width):
    """The largest weight of each query has the lightest cell of its row, as the page is dark."""
    manifest = shown("gpt").manifest
    where = manifest["opening"]
    name = f"blocks.{where['layer']}.attn.weights"
    weights = shown("gpt").trace[name][where["head"]]
    x, y, wide, tall = (picture.width / width * side for side in place)
    rows, columns = weights.shape
    grey = picture.convert("L")
    for row in range(rows):
        at = [(x + (c + 0.15) * wide / columns, y + (row + 0.15) * tall / rows) for c in range(columns)]
        lightness = [grey.getpixel((int(left), int(top))) for left, top in at]
        assert max(range(row + 1), key=lightness.__getitem__) == int(weights[row].argmax())


@pytest.mark.parametrize(("kind", "depths"), [("gpt", ["", "head", "product"]), ("captioner", ["", "block"])])
def test_the_scene_is_taken_at_its_present_depth(kind, depths, tab):
    it = tab(kind)
    for depth in depths:
        scheme = "dark" if depth == "head" else "light"
        it.page.emulate_media(color_scheme=scheme)
        it.turn(f"#view=look&depth={depth}")
        it.page.wait_for_selector(f".layer.{depth or 'model'}:only-child > *")
        if not depth and kind == "gpt":
            it.page.wait_for_selector(".beads")
        it.page.wait_for_load_state("networkidle")  # names of heads come later, and change the picture
        words, canvases, ribbons, chips, width, height = it.page.evaluate(CONTENT)
        assert canvases
        place = it.page.evaluate(WEIGHTS) if depth == "head" else None
        it.visit("take")
        it.page.wait_for_selector("#python")
        svg = ElementTree.fromstring(download(it, "#svg"))
        parts = collections.Counter(element.tag.partition("}")[2] for element in svg.iter())
        texts = " ".join(element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}text"))
        assert [word for word in words if " ".join(word.split()) not in texts] == [], depth
        assert parts["image"] == canvases
        assert parts["path"] >= ribbons
        assert parts["rect"] > chips
        assert (int(svg.get("width")), int(svg.get("height"))) == (width, height)
        with Image.open(io.BytesIO(download(it, "#png"))) as picture:
            assert picture.width >= 2 * width
            assert picture.width / width == pytest.approx(picture.height / height, rel=1e-3)
            if depth == "head":
                check_weights(picture, place, width)
            ground = picture.convert("RGB").getpixel((3, picture.height // 2))
            assert ground == ((20, 24, 29) if scheme == "dark" else (255, 255, 255))
            assert len(picture.convert("RGB").getcolors(picture.width * picture.height)) > 50
    it.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("kind", slow_after(1, STATES))
def test_every_view_can_be_exported(tab, kind):
    it = tab(kind)
    for state in STATES[kind]:
        check(it, state, {"model": shown(kind).model, "given": shown(kind).input})


def test_export_of_a_training_run(tab, tmp_path):
    folder = trained(tmp_path / "run")
    model = regard.load(folder, "cpu")
    with serve_session(Session(model, WORDS)) as server:
        it = tab(server.url)
        check(it, "view=training", {"model": model})
        it.turn("#view=talk")
        it.page.click("#say")
        it.page.wait_for_selector(".said")
        it.visit("take")
        it.page.wait_for_selector("#python")
        assert download(it, "#csv").decode().splitlines()[1].startswith(f'"{WORDS}"')
        assert download(it, "#png").startswith(b"\x89PNG")
        assert f'model.ask("{WORDS}")' in it.text("#python")
