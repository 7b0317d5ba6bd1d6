"""Every family with linear layers, in every precision."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from helpers.slow import slow_after
from regard.decode.beam import Hypothesis
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.models import MODELS
from regard.quantize.model import PRECISIONS, dequantize_model, is_quantized, quantize_model
from regard.runs.export import export
from regard.tasks.answers import search_beams

SIZES = {"vocab": 61, "context": 23, "dim": 64, "depth": 2, "heads": 4}
PAIR = {**SIZES, "target_vocab": 53, "dropout": 0.0}
WITHOUT_HEADS = {k: v for k, v in PAIR.items() if k != "heads"}
CAPTIONS = {**SIZES, "size": 16, "channels": 3, "patch": 8, "depth": 1, "dropout": 0.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", SIZES),
    "gpt2": ("gpt", {**SIZES, "positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True}),
    "untied": ("gpt", {**SIZES, "tied": False, "kv_heads": 2}),
    "transformer": ("transformer", PAIR),
    "t5": ("t5", {k: v for k, v in PAIR.items() if k != "target_vocab"}),
    "lstm": ("lstm", WITHOUT_HEADS),
    "captioner": ("captioner", {**CAPTIONS, "encoder": "vit", "decoder": "transformer"}),
    "captioner-lstm": ("captioner", CAPTIONS),
    "gru": ("gru", {**WITHOUT_HEADS, "attention": "dot", "tied": False}),
    "bert": ("bert", {**SIZES, "dropout": 0.0}),
    "vit": ("vit", {"size": 16, "channels": 3, "patch": 8, "dim": 64, "depth": 2, "heads": 4}),
}
WRITERS = [name for name in FAMILIES if name not in ("bert", "vit")]
CAPTIONERS = ("captioner", "captioner-lstm")
WITH_SOURCES = ("transformer", "t5", "lstm", "gru", *CAPTIONERS)
QUICK = ("gpt", "transformer", "captioner", "captioner-lstm")
SEVERAL = [*QUICK, *(name for name in WRITERS if name not in QUICK)]
ERRORS = {"bfloat16": 0.02, "int8": 0.06, "int4": 0.3}  # of what comes out, of its norm
ROUNDING = {"bfloat16": 0.03, "int4": 0.03}  # of scores: inputs become bfloat16
END = 2
FIXTURES = Path(__file__).parents[1] / "runs" / "fixtures"


def build(family: str) -> Any:
    """A model whose weights are so large that all of its parts matter."""
    torch.manual_seed(0)
    kind, settings = FAMILIES[family]
    cls, config, _ = MODELS[kind]
    model = cls(config(**settings)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * torch.randn_like(p)
    return model


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(256, (3, 16, 16), dtype=torch.uint8, generator=generator) for _ in range(3)]


def outputs(model: Any, family: str) -> torch.Tensor:
    """What comes out of a batch of 3."""
    generator = torch.Generator().manual_seed(1)
    if family == "vit":
        c = model.config
        return model.encode(torch.rand(3, c.channels, c.size, c.size, generator=generator))
    ids = torch.randint(53, (3, 11), generator=generator)
    if family in CAPTIONERS:
        return model(torch.stack(images()), ids)
    if family in WITH_SOURCES:
        return model(torch.randint(53, (3, 13), generator=generator), ids)
    return model(ids)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_outputs_are_close(family: str) -> None:
    model = build(family)
    expected = outputs(model, family)
    for dtype in PRECISIONS:
        small = build(family)
        quantize_model(small, dtype)
        assert is_quantized(small)
        error = float((outputs(small, family) - expected).norm() / expected.norm())
        assert 0 < error < ERRORS[dtype], (dtype, error)


@pytest.mark.parametrize("dtype", ["float32", *PRECISIONS])
@pytest.mark.parametrize("family", slow_after(4, SEVERAL))
def test_batched_or_alone_cached_or_not(family: str, dtype: str) -> None:
    model = build(family)
    if dtype != "float32":
        quantize_model(model, dtype)
    prompts, sources = [[3, 1, 4], [1, 5], [9, 2, 6, 5]], [[2, 7, 1], [8, 2, 8, 1, 8], [4, 5]]
    if has_source := family in WITH_SOURCES:
        prompts = [[3]] * 3
    all_sources: Any = images() if family in CAPTIONERS else sources

    def write(rows: list[int], cached: bool = True) -> list[list[int]]:
        steps = generate(
            model, [prompts[row] for row in rows], Sampling(max_new_tokens=12, temperature=0.7, seed=3),
            sources=[all_sources[row] for row in rows] if has_source else None, cached=cached,
        )  # fmt: skip
        return [[t for t in row if t is not None] for row in zip(*steps, strict=True)]

    together = write([0, 1, 2])
    assert [write([row])[0] for row in (0, 1, 2)] == together
    assert write([0, 1, 2], cached=False) == together

    def search(rows: list[int]) -> list[list[Hypothesis]]:
        begins, read = [prompts[row] for row in rows], [all_sources[row] for row in rows]
        beams = Sampling(max_new_tokens=7, num_beams=3)
        return search_beams(model, begins, beams, END, 2, read if has_source else None)

    beams = search([0, 1, 2])
    for row in (0, 1, 2):
        ((*alone,),) = search([row])
        assert [h.tokens for h in alone] == [h.tokens for h in beams[row]]
        best = beams[row][0]
        written = [*best.tokens, *([END] if len(best.tokens) < 7 else [])]
        ids = torch.tensor([[*prompts[row], *written]])[:, :-1]
        with torch.inference_mode():
            logits = model(torch.as_tensor(all_sources[row])[None], ids) if has_source else model(ids)
        log_p = logits[0, -len(written) :].log_softmax(-1)[range(len(written)), written].mean()
        near = pytest.approx(best.score, abs=ROUNDING.get(dtype, 1e-4))
        assert (alone[0].score, float(log_p)) == (near, near)


def test_output_layers_of_moderate_size_have_a_packed_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are embeddings, too; the answers are the same to the last bit."""
    (small, large), ids = (build("gpt"), build("gpt")), torch.arange(3, 9)[None]
    quantize_model(small, "int8")
    monkeypatch.setattr("regard.quantize.model.LARGEST_COPY", 1)
    quantize_model(large, "int8")
    assert small.output.parts
    assert small.output.packed is not None
    assert large.output.packed is None
    with torch.inference_mode():
        assert torch.equal(small(ids), large(ids))


def test_back_to_float32() -> None:
    model, small = build("gpt"), build("gpt")
    quantize_model(small, "int8")
    dequantize_model(small)
    assert not is_quantized(small)
    for p, q in zip(model.parameters(), small.parameters(), strict=True):
        assert_close(q, p, rtol=0, atol=float(p.detach().abs().max()) / 200)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chatbot that was trained for a step."""
    out = tmp_path_factory.mktemp("runs") / "chat"
    regard.train("chat", out=out, steps=1, set={"model.dim": 64, "model.depth": 1, "data.shortlist": 7})
    return out


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_folder_in_fewer_bits(run: Path, tmp_path: Path, dtype: str) -> None:
    line = export(regard.load(run, "cpu"), tmp_path / "small", dtype=dtype, license="mit")
    assert "MiB" in line
    head = yaml.safe_load((tmp_path / "small" / "README.md").read_text().split("---")[1])
    assert (head["license"], head["library_name"]) == ("mit", "regard")
    small, same = regard.load(tmp_path / "small", "cpu"), regard.load(run, "cpu", dtype)
    size = (tmp_path / "small" / "model.safetensors").stat().st_size
    assert (
        size < (run / "model.safetensors").stat().st_size * {"bfloat16": 0.6, "int8": 0.4, "int4": 0.4}[dtype]
    )
    question = "Hi how are you"
    assert small.ask(question, max_new_tokens=8) == same.ask(question, max_new_tokens=8)
    listed = [m.ask(question, max_new_tokens=8, shortlist=True, num_beams=2) for m in (small, same)]
    assert listed[0] == listed[1]
    for name, t in same.model.state_dict().items():
        assert_close(small.model.state_dict()[name] + 0, t + 0)
    again = regard.load(tmp_path / "small", "cpu", "float32")
    assert not is_quantized(again.model)
    assert is_quantized(small.model)


def test_weights_that_do_not_fit_are_refused(run: Path, tmp_path: Path) -> None:
    from regard.files.tensors import read_tensors, write_tensors

    export(regard.load(run, "cpu"), tmp_path / "small", dtype="int8")
    path = tmp_path / "small" / "model.safetensors"
    tensors = read_tensors(path)
    name = next(name for name in tensors if name.endswith(".weight.scale"))
    for change in ({name: tensors[name][:-1]}, {name: tensors[name].double()}):
        write_tensors(path, tensors | change)
        with pytest.raises(regard.UserError, match="does not fit"):
            regard.load(tmp_path / "small", "cpu")


def test_an_unknown_precision() -> None:
    with pytest.raises(regard.UserError, match="int2"):
        regard.load(FIXTURES / "write", "cpu", "int2")


def test_an_earlier_step_in_fewer_bits() -> None:
    model = regard.load(FIXTURES / "write", "cpu", "int8")
    step = regard.runs.load.steps_of(model)[-1]
    earlier = regard.at_step(model, step)
    assert is_quantized(earlier.model)
    weight = regard.at_step(regard.load(FIXTURES / "write", "cpu"), step).model.blocks[0].ffn.f.up.weight
    assert_close(
        F.linear(torch.eye(8), earlier.model.blocks[0].ffn.f.up.weight).T, weight, rtol=0.02, atol=0.01
    )
