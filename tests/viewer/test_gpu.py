"""A saved model computes its products with WebGPU where that pays: its answers and numbers stay the same.

Chromium has an adapter in software for this (SwiftShader). It is slow, so that nothing pays here by itself.
"""

import json

import pytest
import torch

from helpers.families import FAMILIES
from helpers.looking import TEXT, reader
from helpers.saved import open_saved, prompts
from helpers.slow import slow_after
from regard.quantize.model import dequantize_model, quantize_model
from regard.viewer import head_corpus
from regard.viewer.model_file import model_content
from regard.viewer.session import Session

KINDS = ["gpt", "vit", "transformer", "gru", "classes"]
ADD = """async (content) => {
  const model = new regard.constructor(content);
  (globalThis.models ??= {})[content.kind] = model;
  const gpu = await model.useGpu();
  if (gpu) gpu.least = 1;
  return gpu !== null;
}"""
TRACE = """async ([kind, request]) => {
  const { [kind]: model } = globalThis.models;
  const { gpu } = model.model.program;
  const done = gpu.products;
  const { tensors } = await model.trace(request);
  const numbers = {};
  for (const name of Object.keys(tensors)) {
    const { shape, data } = await model.tensor(name);
    numbers[name] = { shape, data: Array.from(data, (x) => (Number.isFinite(x) ? x : null)) };
  }
  return { tensors: numbers, products: gpu.products - done };
}"""
ASK = """async ([kind, inputs]) => {
  const { [kind]: model } = globalThis.models;
  const answers = [];
  for (const input of inputs) answers.push((await model.ask({ input })).output);
  return answers;
}"""
GPU = "globalThis.models[kind].model.program.gpu"
BREAKS = {  # what a processor may do between two products, and no later one is computed there
    "lost": f"(kind) => {{ {GPU}.device.destroy(); }}",
    "invalid": f"""(kind) => {{
      const {{ device }} = {GPU};
      const create = device.createBuffer;
      device.createBuffer = (about) => create.call(device, {{ ...about, usage: about.usage & ~8 }});
    }}""",  # a buffer that nothing may be copied into: an error of validation, which comes later
    "fails": f"(kind) => {{ {GPU}.device.createBindGroup = () => {{ throw new Error('broken'); }}; }}",
}


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_corpus, "TEXTS", 1)
        patch.setattr(head_corpus, "REPEATS", 1)
        yield from open_saved(browser, reader("write", "gpt"), tmp_path_factory)


@pytest.fixture(scope="module")
def add(opened):
    """Add a model to the page, which computes all products there that it can."""

    def added(kind, model, input=None):
        content = json.loads(json.dumps(model_content(model, input))) | {"kind": kind}
        if not opened.evaluate(ADD, content):
            pytest.skip("Chromium offers no WebGPU here, not even in software")

    return added


def same_numbers(tensors, session, near=1e-5):
    for name, one in tensors.items():
        have = torch.tensor([torch.nan if x is None else float(x) for x in one["data"]]).reshape(one["shape"])
        want = session.tensor(name).float()
        known = want.isfinite()
        tolerance = near * float(1 + want[known].abs().max())
        torch.testing.assert_close(have[known], want[known], atol=tolerance, rtol=0)


@pytest.mark.parametrize("kind", slow_after(2, KINDS))
def test_answers_and_numbers_are_the_models_own(kind, opened, add):
    model, input = FAMILIES[kind]()
    add(kind, model, input)
    other = {} if kind == "vit" else {"input": "jumps over the fox den"}
    result = opened.evaluate(TRACE, [kind, other])
    assert result["products"] > 10
    same_numbers(result["tensors"], Session(model, other.get("input", input)))
    if kind != "vit":
        texts = [text for text in prompts(6) if len(text.split()) < 15]
        options = {"temperature": 0, "num_beams": 1} if model.task.generates else {}
        assert opened.evaluate(ASK, [kind, texts]) == model.ask(texts, **options)


def test_weights_of_eight_bits_stay_so(opened, add):
    model = reader("write", "gpt", dim=48)
    quantize_model(model.model, "int8")
    add("int8", model)
    sizes = opened.evaluate(f"""async () => {{
      const kind = "int8", sizes = [], {{ device }} = {GPU}, create = device.createBuffer;
      device.createBuffer = (about) => {{ sizes.push(about.size); return create.call(device, about); }};
      await models[kind].trace({{ input: "{TEXT}" }});
      return sizes;
    }}""")
    weight = model.model.blocks[0].attn.f.q.weight
    assert weight.numel() in sizes
    assert 4 * weight.numel() not in sizes
    result = opened.evaluate(TRACE, ["int8", {"input": TEXT}])
    dequantize_model(model.model)  # the page rounds the weights alone
    same_numbers(result["tensors"], Session(model, TEXT), near=1e-4)


@pytest.mark.parametrize("how", BREAKS)
def test_goes_on_without_it(how, opened, add):
    model = reader("write", "gpt")
    add(how, model)
    texts = prompts(5)
    want = model.ask(texts, temperature=0)
    assert opened.evaluate(ASK, [how, texts[:2]]) == want[:2]
    done = opened.evaluate(f"(kind) => {GPU}.products", how)
    assert done > 10
    opened.evaluate(BREAKS[how], how)
    assert opened.evaluate(ASK, [how, texts]) == want
    assert opened.evaluate(f"(kind) => [{GPU}.products, {GPU}.least]", how) == [done, float("inf")]


def test_what_pays(opened, add):
    """What is large enough, fits, and has rows of fours; for a small model, no processor is asked for."""
    add("sizes", reader("write", "gpt"))
    script = (
        f"([kind, shape, rows, least]) => {{ {GPU}.least = least; return {GPU}.pays({{ shape }}, rows); }}"
    )
    for shape, rows, least, result in (
        ([8, 16], 2, 256, True),
        ([8, 16], 2, 257, False),
        ([8, 18], 2, 1, False),
        ([8, 16], 0, 1, False),
        ([2**16, 2**16], 1, 1, False),
    ):
        assert opened.evaluate(script, ["sizes", shape, rows, least]) is result
    assert opened.evaluate("regard.model.program.gpu") is None
    measured = opened.evaluate(f"async (kind) => {{ await {GPU}.measure(); return {GPU}.least; }}", "sizes")
    assert measured > 0
