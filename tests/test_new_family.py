"""A new model family takes one file and one line: the whole package works with it unchanged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from helpers.browsing import OPEN_CELLS, Tab
from helpers.gated import GatedConfig, GatedLM
from helpers.runs import unmeasured
from helpers.serving import serve_models, serve_session
from helpers.sums import check_sums
from regard.files.tensors import read_tensors
from regard.models import MODELS
from regard.runs.export import export
from regard.runs.model import Model
from regard.tracing.jacobians import jacobian_norms
from regard.viewer.session import Session

SETTINGS: dict[str, Any] = {
    "model.kind": "gated", "model.dim": 16, "model.context": 24, "model.dropout": 0.1, "data.vocab": 300,
    "train.batch": 4, "train.save": 3, "train.evaluate": 3, "train.log": 1, "train.device": "cpu",
    "train.schedule": "noam", "train.warmup": 2,
}  # fmt: skip
PROMPT = "The old fox"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "gated", (GatedLM, GatedConfig, GatedConfig.PRESETS))  # the one line
        unmeasured(patch)
        folder = tmp_path_factory.mktemp("gated") / "run"
        regard.train("write", out=folder, steps=6, set=SETTINGS)
        yield folder


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return regard.load(run, device="cpu")


def test_it_is_trained_and_loaded(run: Path, model: Model) -> None:
    assert json.loads((run / "config.json").read_text())["model_type"] == "regard-gated"
    assert isinstance(model.model, GatedLM)
    losses = [
        json.loads(line)["loss"] for line in (run / "log.jsonl").read_text().splitlines() if '"lr"' in line
    ]
    assert losses[-1] < losses[0]


def test_it_resumes_bit_for_bit(run: Path, tmp_path: Path) -> None:
    """A run that is stopped after three steps and resumed ends with the same weights."""
    regard.train("write", out=tmp_path / "run", steps=3, set=SETTINGS)
    regard.train("write", out=tmp_path / "run", steps=6, resume=True)
    path = Path("checkpoints") / "step-6" / "model.safetensors"
    ends = [read_tensors(folder / path) for folder in (run, tmp_path / "run")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(t, ends[1][name]) for name, t in ends[0].items())


def test_it_is_asked_and_scored(model: Model, tmp_path: Path) -> None:
    greedy = {"temperature": 0.0, "max_new_tokens": 6}
    answer = model.ask(PROMPT, **greedy)
    assert answer == model.ask([PROMPT, "A dog and a cat"], **greedy)[0]
    assert len(model.ask(PROMPT, num_beams=3, max_new_tokens=6)) > 0
    (tmp_path / "text.txt").write_text("The old fox sleeps. " * 40)
    assert model.score(str(tmp_path / "text.txt"))["perplexity"] > 1


def test_it_learns_to_converse_by_an_adapter(run: Path, model: Model, tmp_path: Path) -> None:
    """With several conversations in a row, and an adapter in PEFT's layout that has this family's names."""
    (tmp_path / "chat.tsv").write_text("".join(f"a{n}?\tb{n}\n" for n in range(20)))
    settings = {
        "data.pack": 24,
        "train.lr": 0.1,
        "train.lora": 3,
        "train.adapter": True,
        "train.device": "cpu",
    }
    out = tmp_path / "run"
    chat = regard.train("chat", str(tmp_path / "chat.tsv"), base=run, out=out, steps=2, set=settings)
    adapter = read_tensors(out / "adapter_model.safetensors")
    assert "base_model.model.blocks.1.attn.f.v.lora_B.weight" in adapter
    ids = torch.arange(11)[None]
    changed = chat.model(ids)
    assert not torch.allclose(changed, model.model(ids))
    assert torch.equal(regard.load(run, device="cpu", adapter=out).model(ids), changed)


def test_its_states_matter_to_later_ones(model: Model) -> None:
    norms = jacobian_norms(model, PROMPT)
    assert len(norms) > 1
    assert (norms > 0).all()


def test_every_sum_of_its_trace_is_right(model: Model) -> None:
    trace = regard.trace(model, PROMPT)
    errors = check_sums(model, trace)
    assert {"blocks.1.attn.gate", "blocks.1.attn.gated", "blocks.1.attn.weights", "logits"} <= set(errors)
    left = {name.rpartition(".")[2] for name in set(trace) - set(errors)}
    assert left <= {"mask", "reason"}  # masks are no sums
    assert trace.difference < 1e-5
    steps = regard.trace(model, PROMPT, steps=True, max_new_tokens=3, temperature=0.0)
    assert [step["blocks.0.attn.gated"].shape[0] for step in steps][1:] == [1] * (len(steps) - 1)


def test_what_if(model: Model) -> None:
    trace = regard.trace(model, PROMPT)
    silent = {"blocks.0.attn": [0], "blocks.1.attn": [0, 1]}
    with regard.change(model, silence=silent):
        changed = regard.trace(model, PROMPT)
    assert not torch.allclose(changed["logits"], trace["logits"])
    with regard.change(model, {"blocks.0.attn.gated": torch.zeros_like}):
        closed = regard.trace(model, PROMPT)
    assert torch.equal(closed["blocks.0.attn.residual"], closed["input"])
    assert len(regard.effects(model, PROMPT)) == 4


def test_it_has_a_logit_lens(model: Model) -> None:
    session = Session(model, PROMPT)
    lens = session.lens(session.default_row)
    assert [layer["layer"] for layer in lens["layers"]] == ["embedding", "0", "1"]
    assert lens["layers"][-1]["words"][0] == lens["final"]


def test_it_is_shown_on_the_page(model: Model, browser: Any) -> None:
    session = Session(model, PROMPT)
    with serve_session(session) as server:
        tab = Tab(browser, server.url).open()
        cells = tab.page.evaluate(OPEN_CELLS)
        tab.page.close()
    assert tab.wrong == []
    assert {name for name, cell in cells.items() if cell["fits"] != "true"} == {
        f"blocks.{n}.attn.{name}" for n in (0, 1) for name in ("mask", "reason")
    }
    gated = cells["blocks.0.attn.gated"]
    assert (gated["title"], gated["formula"]) == ("Gated output", "σ(Wgx+bg)⊙y")


def test_it_is_served(model: Model) -> None:
    with serve_models({"gated": model}) as server:
        body = {"model": "gated", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
        status, _, data = server.ask("/v1/completions", body)
    assert status == 200
    assert json.loads(data)["choices"][0]["text"] == model.ask(PROMPT, temperature=0.0, max_new_tokens=4)


def test_it_is_exported_to_onnx(model: Model, tmp_path: Path) -> None:
    assert "onnxruntime" in export(model, tmp_path / "onnx", "onnx")  # which compares the outputs
    assert (tmp_path / "onnx" / "model.onnx").is_file()


def test_it_is_unknown_elsewhere() -> None:
    """No line of the package mentions this family."""
    package = Path(regard.__file__).parent
    names = (GatedLM.__name__, GatedConfig.__name__, '"gated"')
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    assert not any(name in text for name in names for text in texts)
