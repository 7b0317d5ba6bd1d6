"""Adapters: low-rank updates in files of their own, which PEFT reads and writes, too."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.commands import call
from helpers.errors import user_error
from helpers.gated import GatedConfig, GatedLM
from helpers.runs import tiny, write_text
from regard.convert.huggingface.peft import adapter_config, adapter_tensors, read_adapter
from regard.models import GPT, Bert, BertConfig, GPTConfig
from regard.quantize.model import dequantize_model, quantize_model
from regard.runs import lora
from regard.runs.adapter import merge_adapter
from regard.runs.export import export
from regard.runs.info import info
from regard.runs.load import at_step, load
from regard.runs.model import Model
from regard.serve import server
from regard.tasks import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

V, T = 29, 11
SIZES = {"vocab": V, "context": T, "dim": 12, "depth": 2, "heads": 6, "dropout": 0.0}
LLAMA = {"kv_heads": 3}
GPT2 = {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True}
FAMILIES: dict[str, dict[str, Any]] = {"llama": LLAMA, "gpt2": GPT2}
IDS = torch.arange(2 * T).reshape(2, T) * 7 % V


def make_gpt(family: str) -> GPT:
    torch.manual_seed(5)
    return GPT(GPTConfig(**SIZES | FAMILIES[family])).eval()


def write_trained_adapter(model: nn.Module, folder: Path) -> Tensor:
    """Write an adapter with random matrices, and return the logits of the model with it."""
    lora.add(model, 3, 8.0, only=True)
    assert {name.rpartition(".")[2] for name, p in model.named_parameters() if p.requires_grad} == {
        "lora_A",
        "lora_B",
    }
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(std=0.5)
    folder.mkdir()
    weights = dict(model.state_dict())
    save_file(adapter_tensors(model, lora.matrices(model, weights)), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(adapter_config(model, "base", 3, 8.0)))
    with torch.no_grad():
        return model(IDS)


def as_folder(model: nn.Module, folder: Path) -> Path:
    """The model in Hugging Face's layout."""
    tokenizer = train_tokenizer("char", ["abcdefghijklmnopqrstuvw"], V, ["<|endoftext|>"])
    task = Write(WriteConfig(name="write"), tokenizer, T)
    export(Model(model, task, dict(task.generation)), folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_read_as_it_was_written(family: str, tmp_path: Path) -> None:
    expected = write_trained_adapter(make_gpt(family), tmp_path / "adapter")
    model = make_gpt(family)
    with torch.no_grad():
        assert (model(IDS) - expected).abs().max() > 0.01
        merge_adapter(model, tmp_path / "adapter")
        torch.testing.assert_close(model(IDS), expected, rtol=0, atol=1e-5)


def test_quantized_weights_are_float32_again(tmp_path: Path) -> None:
    write_trained_adapter(make_gpt("llama"), tmp_path / "adapter")
    models = [make_gpt("llama") for _ in range(2)]
    for model in models:
        quantize_model(model, "bfloat16")
    dequantize_model(models[0])
    for model in models:
        merge_adapter(model, tmp_path / "adapter")
    with torch.no_grad():
        assert models[0](IDS).equal(models[1](IDS))


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_reads_ours(family: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    expected = write_trained_adapter(make_gpt(family), tmp_path / "adapter")
    folder = as_folder(make_gpt(family), tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, expected, rtol=0, atol=1e-5)


def test_peft_reads_that_of_a_family_that_it_does_not_know(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = GatedLM(GatedConfig(vocab=V)).eval()
    expected = write_trained_adapter(copy.deepcopy(base), tmp_path / "adapter")
    with torch.no_grad():
        assert not base(IDS).allclose(expected, atol=1e-3)
        model = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
        torch.testing.assert_close(model(IDS), expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # which PEFT says, and then does
@pytest.mark.parametrize(
    ("family", "targets"),
    [("llama", ["q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"]), ("gpt2", ["c_attn", "c_proj"])],
)
def test_we_read_pefts(family: str, targets: list[str], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    folder = as_folder(make_gpt(family), tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    more = {"use_rslora": True, "alpha_pattern": {targets[0]: 7}, "init_lora_weights": False}
    theirs = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, **more))
    theirs.eval().save_pretrained(tmp_path / "theirs")
    ours = load(folder, "cpu", adapter=tmp_path / "theirs")
    with torch.no_grad():
        torch.testing.assert_close(ours.model(IDS), theirs(IDS).logits, rtol=0, atol=1e-5)


def test_what_is_no_adapter_of_this_model(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    write_trained_adapter(make_gpt("llama"), folder)
    user_error(lambda: read_adapter(tmp_path, make_gpt("llama")), tmp_path, "no adapter")
    user_error(lambda: read_adapter(folder, make_gpt("gpt2")), "does not fit")
    bert = Bert(BertConfig(vocab=V, context=T, dim=12, depth=1, heads=3))
    user_error(lambda: read_adapter(folder, bert), "language model")
    settings = json.loads((folder / "adapter_config.json").read_text())
    for change, fact in (
        ({"peft_type": "IA3"}, "peft_type=IA3"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_alpha": "x"}, "lora_alpha=x"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern"),
        ({"alpha_pattern": 3}, "alpha_pattern"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps(settings | change))
        user_error(lambda: read_adapter(folder, make_gpt("llama")), "adapter_config.json", fact)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    huge = {name.format("A"): torch.ones(1, 10**6), name.format("B"): torch.ones(10**6, 1)}
    for tensors, fact in (
        (huge, "does not fit"),  # whose product has 10^12 numbers
        ({name.format("A"): torch.ones(3, 12)}, "A and B"),
        ({"base_model.model.lm_head.weight": torch.ones(V, 12)}, "lm_head.weight"),
    ):
        save_file(tensors, folder / "adapter_model.safetensors")
        user_error(lambda: read_adapter(folder, make_gpt("llama")), "adapter_model.safetensors", fact)


def test_matrices_of_no_layer_take_no_memory(tmp_path: Path) -> None:
    """Each product alone would be no larger than the model's weights; there are as many as the file names."""
    write_trained_adapter(make_gpt("llama"), folder := tmp_path / "adapter")
    model = make_gpt("llama")
    side, weights = 12, sum(p.numel() for p in model.parameters())
    count = 2 + weights // side**2
    tensors = {f"layers.{n}.lora_A.weight": torch.ones(1, side) for n in range(count)}
    tensors |= {f"layers.{n}.lora_B.weight": torch.ones(side, 1) for n in range(count)}
    save_file(tensors, folder / "adapter_model.safetensors")
    with FlopCounterMode(display=False) as counter:
        user_error(lambda: read_adapter(folder, model), "adapter_model.safetensors", "does not fit")
    assert counter.get_total_flops() <= 2 * weights


# Whole runs


@pytest.fixture(scope="module")
def files(tmp_path_factory, quick) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapter")
    text = write_text(folder / "text.txt")
    tiny(text, folder / "base", steps=2, model__context=43)
    pairs = "".join(f"dogs {n}?\tlazy {n}\n" for n in range(20))
    (folder / "chat.tsv").write_text(pairs)
    command = ["train", "chat", folder / "chat.tsv", "--from", folder / "base", "--adapter"]
    command += ["--out", folder / "run", "--steps", "4", "--lr", "0.05", "--batch", "5", "--device", "cpu"]
    assert call(*command, "--set", "lora=2", "--set", "save=2") == 0
    return {name: folder / name for name in ("base", "chat.tsv", "run")}


def logits(model: Model) -> Tensor:
    with torch.no_grad():
        result: Tensor = model.model(IDS)
        return result


def test_a_run_keeps_only_what_changed(files) -> None:
    run = files["run"]
    assert not (run / "model.safetensors").exists()
    trained = load_file(run / "adapter_model.safetensors")
    assert len(trained) == 8
    saved = load_file(run / "checkpoints" / "step-4" / "model.safetensors")
    assert {name.rpartition(".")[2] for name in saved} == {"lora_A", "lora_B"}
    facts = info(run)
    assert facts["format"] == "adapter"
    assert facts["from"] == str(files["base"])


def test_it_is_the_base_with_its_adapter(files, tmp_path, capsys) -> None:
    model, base = load(files["run"], "cpu"), load(files["base"], "cpu")
    assert (logits(model) - logits(base)).abs().max() > 1e-4
    assert logits(load(files["base"], "cpu", adapter=files["run"])).equal(logits(model))
    assert logits(at_step(model, 4)).equal(logits(model))
    assert not logits(at_step(model, 2)).equal(logits(model))
    export(model, tmp_path / "merged")
    torch.testing.assert_close(logits(load(tmp_path / "merged", "cpu")), logits(model))
    export(model, tmp_path / "peft", "peft")
    card = (tmp_path / "peft" / "README.md").read_text()
    assert "library_name: peft" in card
    assert f'from_pretrained("{files["base"]}")' in card
    exported = load(files["base"], "cpu", adapter=tmp_path / "peft")
    assert logits(exported).equal(logits(model))
    user_error(lambda: export(base, tmp_path / "none", "peft"), "--adapter")
    user_error(lambda: load(tmp_path / "peft"), "--adapter")
    answers = []
    for command in ([files["run"]], [tmp_path / "merged"]):
        assert call("ask", *command, "dogs 3?", "--max-new-tokens", 5) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    scores = model.score(str(files["chat.tsv"]))
    assert scores["loss"] < load(tmp_path / "merged", "cpu").model.config.vocab


@pytest.mark.parametrize("change", ["empty", "wide", "no-B", "flat"])
def test_a_checkpoint_with_other_matrices(files, change: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(files["run"], tmp_path / "run"))
    file = run / "checkpoints" / "step-4" / "model.safetensors"
    tensors = load_file(file)
    A = next(name for name in tensors if name.endswith("lora_A"))
    if change == "empty":  # of all layers
        for name in tensors:
            rows, columns = tensors[name].shape
            tensors[name] = torch.ones(rows, 0) if name.endswith("B") else torch.ones(0, columns)
    elif change == "no-B":
        tensors.pop(A[:-1] + "B")
    else:
        tensors[A] = torch.ones(2, 3) if change == "wide" else torch.ones(2)
    save_file(tensors, file)
    model = load(run, "cpu")
    user_error(lambda: at_step(model, 4), file)


def test_the_merged_folder_in_transformers(files, tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    model = load(files["run"], "cpu")
    export(model, tmp_path / "merged")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS).logits, logits(model), rtol=0, atol=1e-5)


def test_it_resumes_bit_for_bit(files, tmp_path) -> None:
    shutil.copytree(files["run"], tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-4")
    train("chat", out=tmp_path / "again", resume=True)
    runs = files["run"], tmp_path / "again"
    first, second = (load_file(run / "adapter_model.safetensors") for run in runs)
    assert first.keys() == second.keys()
    assert all(t.equal(second[name]) for name, t in first.items())


def test_its_base_must_be_there_and_the_same(files, tmp_path) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(files["base"], base)
    shutil.copytree(files["run"], run)
    pointer = json.loads((run / "base.json").read_text())
    (run / "base.json").write_text(json.dumps(pointer | {"path": str(base)}))
    expected = logits(load(run, "cpu"))
    weights = load_file(base / "model.safetensors")
    save_file({name: t + 1 for name, t in weights.items()}, base / "model.safetensors")
    user_error(lambda: load(run, "cpu"), "base.json", "model.safetensors", base)
    user_error(lambda: train("chat", out=run, steps=6, resume=True), "base.json", base)
    (run / "base.json").write_text(json.dumps(pointer | {"path": str(run)}))
    user_error(lambda: load(run, "cpu"), run, "regard export")
    (run / "base.json").write_text(json.dumps(pointer | {"path": str(base)}))
    shutil.rmtree(base)
    user_error(lambda: load(run, "cpu"), "base.json", base, "--adapter")
    assert logits(load(files["base"], "cpu", adapter=run)).equal(expected)


def test_a_model_is_served_with_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_folder(make_gpt("llama"), tmp_path / "model")
    expected = write_trained_adapter(make_gpt("llama"), tmp_path / "adapter")
    served: list[dict[str, Model]] = []
    monkeypatch.setattr(server, "serve_models", lambda models, *_: served.append(models))
    words = ["serve", folder, "--dtype", "float32", "--adapter", tmp_path / "adapter"]
    assert call(*words) == 0
    with torch.no_grad():
        torch.testing.assert_close(served[0]["model"].model.cpu()(IDS), expected)
    assert call(*words, folder) == 2
