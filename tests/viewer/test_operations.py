"""The page computes every operation of a sum as torch does, and describes it as the model declares it."""

import pytest
import torch
from torch.nn import functional as F

from helpers.browsing import Tab, saved_tensors
from regard.vision.cnn import SamePadConv2d

H, KV, T, D, WIDE = 4, 2, 3, 6, 5  # heads, key heads, tokens, width of a head, width of a vector

CELLS = """async ({ manifest, tensors }) => {
  const { Saved } = await import("/page/source.js");
  const { openCell } = await import("/page/cell.js");
  const opened = [];
  const app = { source: new Saved({ manifest, tensors }), manifest, go: ({ cell }) => opened.push(cell) };
  const { shape } = manifest.tensors.out;
  const cells = [];
  for (let head = 0; head < (shape.length > 2 ? shape[0] : 1); head++) {
    for (let row = 0; row < shape.at(-2); row++) {
      for (let column = 0; column < shape.at(-1); column++) {
        const panel = await openCell(app, `out:${head},${row},${column}`);
        for (const button of panel.querySelectorAll(".deeper")) button.click();
        cells.push({
          fits: panel.querySelector(".tick")?.dataset.fits,
          title: panel.querySelector("h3").firstChild.textContent,
          formula: panel.querySelector("math")?.textContent ?? null,
          text: panel.textContent,
          opened: opened.splice(0),
        });
      }
    }
  }
  return cells;
}"""


@pytest.fixture(scope="module")
def tab(browser, server):
    """One tab for all tests: they only use the page's modules."""
    opened = Tab(browser, server("gpt").url).open()
    yield opened
    opened.page.close()
    assert opened.wrong == []


def cells(tab, sum, out, text=None, tokens=None, **operands):
    """What the page shows of every number of `out`; names with _ for @ are weights."""
    named = {name.replace("_", "@", 1) if name[0] == "_" else name: t for name, t in operands.items()}
    tensors = {name: t if t.ndim > 1 else t[None] for name, t in (named | {"out": out}).items()}
    described = {
        name: {"shape": list(t.shape), "rows": None, "columns": None}
        for name, t in tensors.items()
        if name[0] != "@"
    }
    text = text or {"title": "Output", "about": "", "formula": None}
    manifest = {"tensors": described, "sums": {"out": sum}, "texts": {"out": text}, "tokens": tokens or {}}
    manifest |= {"model": {"dtype": "float32"}}
    return tab.page.evaluate(CELLS, {"manifest": manifest, "tensors": saved_tensors(tensors)})


def check(tab, sum, out, **operands):
    """Check that every number is ticked, and a wrong one is not."""
    shown = cells(tab, sum, out, **operands)
    assert len(shown) == out.numel()
    assert [one["fits"] for one in shown] == ["true"] * len(shown)
    assert all(one["fits"] == "false" for one in cells(tab, sum, out + 0.01, **operands))
    return shown


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def test_multiply(tab):
    x, by = noise(T, WIDE), noise(T, WIDE, seed=1)
    shown = check(tab, {"does": "multiply", "x": "x", "by": "by"}, x * by, x=x, by=by)
    assert shown[-1]["opened"] == [f"x:0,{T - 1},{WIDE - 1}", f"by:0,{T - 1},{WIDE - 1}"]


ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activate(tab, name):
    x, times = 2 * noise(T, WIDE), noise(T, WIDE, seed=1)
    f = ACTIVATIONS[name]
    check(tab, {"does": "activate", "x": "x", "f": name}, f(x), x=x)
    check(tab, {"does": "activate", "x": "x", "f": name, "times": "up"}, f(x) * times, x=x, up=times)


def test_blend(tab):
    """A GRU's new state: the update gate weighs the previous state against the candidate."""
    x, y, by = noise(T, WIDE), noise(T, WIDE, seed=1), noise(T, WIDE, seed=2).sigmoid()
    sum = {"does": "blend", "x": "candidate", "y": "before", "by": "update"}
    shown = check(tab, sum, by * y + (1 - by) * x, candidate=x, before=y, update=by)
    assert "candidate" in shown[0]["text"]
    assert "Sum of 2" in shown[0]["text"]


def test_combine(tab):
    """An LSTM's cell: f · c' + i · g."""
    f, c, i, g = (noise(T, WIDE, seed=seed) for seed in range(4))
    sum = {"does": "combine", "terms": [["f", "c"], ["i", "g"]]}
    shown = check(tab, sum, f * c + i * g, f=f, c=c, i=i, g=g)
    assert "f · c" in shown[0]["text"]
    assert "i · g" in shown[0]["text"]
    assert len(shown[0]["opened"]) == 4


def test_linear_of_several_inputs(tab):
    x, y, W, b = noise(T, WIDE), noise(T, 2, seed=1), noise(7, WIDE + 2, seed=2), noise(7, seed=3)
    sum = {"does": "linear", "x": ["x", "y"], "W": "@W", "b": "@b"}
    check(tab, sum, torch.cat([x, y], -1) @ W.T + b, x=x, y=y, _W=W, _b=b)


@pytest.mark.parametrize("rms", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_norm_of_each_head(tab, rms, flat):
    """Query and key norms: a weight of the width of a head; neighbouring heads share their keys."""
    x, W, b = noise(KV, T, D), noise(D, seed=1), noise(D, seed=2)
    normed = F.rms_norm(x, (D,), W, 1e-5) if rms else F.layer_norm(x, (D,), W, b, 1e-5)
    sum = {"does": "norm", "x": "x", "W": "@W", "eps": 1e-5, "share": H // KV}
    sum |= {"rms": True} if rms else {"b": "@b"}
    rows = x.transpose(0, 1).flatten(1) if flat else x
    check(tab, sum, normed.repeat_interleave(H // KV, 0), x=rows, _W=W, _b=b)


@pytest.mark.parametrize("flat", [True, False])
def test_turn_of_each_head(tab, flat):
    x, angles = noise(KV, T, D), noise(T, D // 2, seed=1)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, -1)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    sum = {"does": "turn", "x": "x", "cos": "cos", "sin": "sin", "share": H // KV}
    rows = x.transpose(0, 1).flatten(1) if flat else x
    check(tab, sum, turned.repeat_interleave(H // KV, 0), x=rows, cos=cos, sin=sin)


@pytest.mark.parametrize(("kernel", "stride", "groups"), [(3, 1, 1), (3, 2, 1), (5, 2, 4), (1, 1, 2)])
def test_convolutions(tab, kernel, stride, groups):
    """Zeros around; an odd one is at the right and below. Channels in groups are on their own."""
    layer = SamePadConv2d(4, 8, kernel, stride, groups=groups)
    x, b = noise(4, 5, 6), noise(8, seed=1)
    W = noise(*layer.weight.shape, seed=2)
    layer.load_state_dict({"weight": W, "bias": b})
    sum = {"does": "conv", "x": "x", "W": "@W", "b": "@b", "size": kernel, "stride": stride}
    sum |= {"groups": groups, "f": "relu6"}
    with torch.no_grad():
        out = layer(F.relu6(3 * x))
    shown = check(tab, sum, out, x=3 * x, _W=W.flatten(1), _b=b)
    assert any(link.startswith("x:") for link in shown[0]["opened"])


def test_words_and_formula_are_the_models(tab):
    x = noise(T, WIDE)
    own = {"title": "Query <b>", "about": "What it asks.", "formula": "softmax(Q Kᵀ / √d)"}
    (first, *_) = cells(tab, {"does": "same", "x": "x"}, x, own, x=x)
    assert (first["title"], first["formula"]) == (own["title"], "softmax(QK⊤d)")


def test_an_operation_that_the_page_does_not_know_is_named(tab):
    x = noise(1, 2)
    (first, _) = cells(tab, {"does": "fold", "x": "x"}, x, x=x)
    assert first["fits"] is None
    assert "fold" in first["text"]
