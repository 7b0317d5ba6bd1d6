"""Traces of every kind of model, and Hugging Face's attention weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import regard
from helpers.looking import noise, reader, seer, shaken, words
from helpers.traced import KINDS, PAIR, TEXT, close, every_kind, model_and_input, named_words
from models.test_bert import both as both_berts
from models.test_gpt import GPT2_STYLE, from_gpt2
from models.test_gpt import SIZES as GPT_SIZES
from models.test_t5 import SIZES as T5_SIZES
from models.test_t5 import translated
from models.test_transformer import marian
from models.test_vit import both as both_vits
from regard import Trace, UserError, trace
from regard.decode.ensemble import Ensemble
from regard.describe.watch import evaluating
from regard.models import GPT, MODELS, GPTConfig, Transformer
from regard.models.t5 import T5Config as OurT5Config
from regard.runs.model import Model
from regard.tasks import TASKS, Fill, See, SeeConfig, Translate, Write
from regard.tracing import REASONS
from regard.tracing.intervene import change
from regard.tracing.reading import read_input


def test_every_kind_of_model_is_there() -> None:
    assert {kind.split("-")[0] for kind in KINDS} == set(MODELS)


# Every kind


@every_kind
def test_the_fast_path_says_the_same(kind: str) -> None:
    model, input = model_and_input(kind)
    model.model.train()
    t = trace(model, input)
    assert 0 <= t.difference < 1e-5
    with evaluating(model.model), torch.no_grad():
        plain = read_input(model, input).run()  # type: ignore[misc]
    close(t["vector" if "vector" in t else "logits"], plain[0])
    assert all(m.training for m in model.model.modules())
    assert len(t.names) == len(set(t.names)) == len(t) == len(list(t))
    assert all(t[name].device.type == "cpu" and not t[name].requires_grad for name in t)


def test_an_open_path_that_is_not_the_fast_one_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    model, input = model_and_input("gpt-grouped")
    monkeypatch.setattr("regard.core.attention.masked_softmax", lambda scores: 0.9 * scores.softmax(-1))
    wrong = trace(model, input)
    largest = max(float(wrong[f"blocks.{n}.attn.heads"].abs().max()) for n in range(2)) / 0.9
    assert_close(wrong.difference, 0.1 * largest)


def test_what_is_changed_is_no_difference() -> None:
    model, input = model_and_input("gpt")
    with change(model, silence={"blocks.0.attn": [0]}):
        assert trace(model, input).difference < 1e-5


@every_kind
def test_names_and_shapes_of_attention(kind: str) -> None:
    model, input = model_and_input(kind)
    t = trace(model, input)
    many = sum(hasattr(m, "records") for m in model.model.modules())
    if kind == "bert-electra":
        many -= 2  # the other one of both has not been asked
    elif kind == "bert-electra-told":
        many -= 1
    assert len(t.attentions) == many
    for part in t.attentions:
        (rows, columns), weights = t.sides(part), t[f"{part}.weights"]
        assert weights.shape[1:] == (len(rows), len(columns))
        assert t[f"{part}.mask"].shape == t[f"{part}.reason"].shape == weights.shape[1:]
        assert t[f"{part}.mask"].dtype == torch.bool
        assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_an_encoder_decoders_names() -> None:
    t = trace(*model_and_input("transformer"))
    assert t.tokens["source"] == ["the", "quick", "brown", "fox", "</s>"]
    assert t.tokens["target"] == ["<s>", "der", "Fuchs", "springt"]
    assert t.tokens["written"] == ["der", "Fuchs", "springt", "</s>"]
    assert t["decoder.0.cross.weights"].shape == (3, 4, 5)
    assert t["encoder.1.attn.q"].shape == (3, 5, 4)
    assert t["decoder.1.ffn.up"].shape == (4, 48)
    assert t["logits"].shape == t["probabilities"].shape
    assert t.names.index("encoder.1.output") < t.names.index("decoder.embed") < t.names.index("logits")
    with pytest.raises(KeyError, match=r"did you mean decoder\.0\.cross\.weights"):
        t["decoder.0.cros.weights"]
    assert "decoder.0.cros.weights" not in t
    assert "4 target" in repr(t)


def test_a_picture_of_a_file(tmp_path: Path) -> None:
    model, pixels = model_and_input("vit")
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path := tmp_path / "a.png")
    assert torch.equal(trace(model, path)["pixels"], pixels)
    assert torch.equal(trace(model, str(path))["logits"], trace(model, pixels)["logits"])


@pytest.mark.parametrize("kind", ["gpt", "transformer", "gru"])
def test_half_precision(kind: str, tmp_path: Path) -> None:
    model, input = model_and_input(kind)
    model.model.bfloat16()
    t = trace(model, input)
    assert t["logits"].dtype == torch.bfloat16
    assert t["probabilities"].dtype == torch.float32
    t.save(tmp_path / "a.safetensors")
    assert torch.equal(Trace.load(tmp_path / "a.safetensors")["logits"], t["logits"])


def test_reasons_of_windows() -> None:
    reasons = trace(*model_and_input("gpt-window"))["blocks.0.attn.reason"].tolist()
    records, future, window = (REASONS.index(name) for name in ("may look", "future", "window"))
    assert reasons[2] == [window, records, records, future, future]
    both_ways = trace(*model_and_input("bert-window"))["blocks.0.attn.reason"]
    assert both_ways[3].tolist() == [records, window, records, records, records, window, window]


def test_only_chosen_layers() -> None:
    model, input = model_and_input("transformer")
    full, last = trace(model, input), trace(model, input, layers=[-1])
    assert {name for name in full if ".0." not in name} == set(last)
    for name in last:
        assert_close(last[name], full[name], atol=1e-5, rtol=1e-5)
    assert trace(model, input, layers=[1]).names == last.names
    with pytest.raises(UserError, match=r"layers=\[2\]: there are layers 0 to 1"):
        trace(model, input, layers=[2])
    with pytest.raises(UserError, match="this model has none"):
        trace(named_words(), "fox", layers=[0])


def test_what_stands_before_every_text_is_read() -> None:
    model, input = model_and_input("gpt")
    model.task.first = [5]
    assert trace(model, input).ids["text"][0] == 5
    first, *_ = trace(model, input, steps=True, max_new_tokens=2, temperature=0)
    assert first.ids["text"] == trace(model, input).ids["text"]


def test_a_tab_parts_source_and_target() -> None:
    model, input = model_and_input("gru")
    one, other = trace(model, input), trace(model, "\t".join(input))
    assert torch.equal(one["logits"], other["logits"])


@pytest.mark.parametrize("kind", ["transformer", "t5", "gru", "captioner-vit"])
def test_without_a_target_the_answer_is_the_models_own(kind: str) -> None:
    model, (source, _) = model_and_input(kind)
    t = trace(model, source)
    best = t["logits"].argmax(-1).tolist()
    assert best[:-1] == t.ids["written"][:-1]
    assert t.ids["target"][1:] == t.ids["written"][:-1]
    assert len(best) <= 8  # max_new_tokens, and the end


def test_a_class_that_is_written() -> None:
    model, input = model_and_input("t5-classify")
    best = model.ask(input)
    assert trace(model, input).tokens["written"] == [*best.split(), "[SEP]"]
    assert trace(model, (input, "fox")).tokens["written"] == ["fox", "[SEP]"]


def test_mistakes() -> None:
    model = reader("write", "gpt")
    with pytest.raises(UserError, match="nothing to trace"):
        trace(model, " ")
    with pytest.raises(UserError, match="temperature is an option of writing step by step"):
        trace(model, TEXT, temperature=1.0)
    with pytest.raises(UserError, match="several models"):
        trace(Model(Ensemble([model.model]), model.task, {}), TEXT)
    with pytest.raises(UserError, match="does not write step by step"):
        trace(seer(), noise(6), steps=True)
    with pytest.raises(UserError, match="read in 2 parts"):
        trace(reader("tag", "bert", task_labels=("a",)), " ".join(["fox"] * 30))
    with pytest.raises(UserError, match="2 blanks"):
        trace(reader("restore", "t5"), ("the ___ brown ___", "fox"))


# Hugging Face's


def greedy(model: nn.Module, task: Any) -> Model:
    return Model(model, task, {"max_new_tokens": 7, "temperature": 0.0})


@torch.no_grad()
def test_weights_are_hugging_faces_gpt2() -> None:
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=61, n_positions=37, n_embd=40, n_layer=3, n_head=4, n_inner=53,
            bos_token_id=None, eos_token_id=None, attn_implementation="eager",
        )
    )  # fmt: skip
    shaken(theirs)
    ours = GPT(GPTConfig(**GPT_SIZES, **GPT2_STYLE)).eval()
    from_gpt2(theirs, ours)
    t = trace(greedy(ours, Write(TASKS["write"][1](name="write"), words(Write), 37)), TEXT)
    y = theirs(torch.tensor([t.ids["text"]]), output_attentions=True, output_hidden_states=True)
    for i in range(3):
        assert_close(t[f"blocks.{i}.attn.weights"], y.attentions[i][0], atol=1e-5, rtol=1e-5)
        assert_close(
            t[f"blocks.{i}.output" if i < 2 else "norm"], y.hidden_states[i + 1][0], atol=1e-4, rtol=1e-5
        )
    assert_close(t["logits"], y.logits[0], atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_weights_are_hugging_faces_bert() -> None:
    theirs, ours = both_berts()
    theirs.set_attn_implementation("eager")
    t = trace(Model(ours, Fill(TASKS["fill"][1](name="fill"), words(Fill), 37), {}), "the [MASK] brown fox")
    y = theirs(torch.tensor([t.ids["text"]]), output_attentions=True)
    for i in range(3):
        assert_close(t[f"blocks.{i}.attn.weights"], y.attentions[i][0], atol=1e-5, rtol=1e-5)


def check_pair(theirs: Any, ours: Transformer) -> None:
    task = Translate(TASKS["translate"][1](name="translate"), words(Translate), 37)
    t = trace(greedy(ours, task), PAIR)
    source, target = (torch.tensor([t.ids[side]]) for side in ("source", "target"))
    y = theirs(
        input_ids=source,
        decoder_input_ids=target,
        output_attentions=True,
        attention_mask=torch.ones_like(source),
    )
    attentions = {"encoder.{}.attn": y.encoder_attentions, "decoder.{}.attn": y.decoder_attentions}
    for name, layers in (attentions | {"decoder.{}.cross": y.cross_attentions}).items():
        for i, weights in enumerate(layers):
            assert_close(t[f"{name.format(i)}.weights"], weights[0], atol=1e-5, rtol=1e-5)
    assert len(t.attentions) == 3 + 2 * 2


@torch.no_grad()
def test_weights_are_hugging_faces_t5() -> None:
    theirs = T5ForConditionalGeneration(
        T5Config(
            vocab_size=61, d_model=40, d_kv=10, d_ff=53, num_layers=3, num_decoder_layers=2, num_heads=4,
            decoder_start_token_id=0, attn_implementation="eager",
        )
    )  # fmt: skip
    torch.manual_seed(3)
    for p in theirs.parameters():
        p.add_(0.15 * torch.randn_like(p))
    ours = Transformer(OurT5Config(**T5_SIZES, dropout=0.0)).eval()
    ours.load_state_dict(translated(dict(theirs.state_dict())))
    check_pair(theirs.eval(), ours)


@torch.no_grad()
def test_weights_are_hugging_faces_marian() -> None:
    theirs, ours = marian()
    theirs.set_attn_implementation("eager")
    check_pair(theirs, ours)


@torch.no_grad()
def test_weights_are_hugging_faces_vit() -> None:
    theirs, ours = both_vits()
    theirs.set_attn_implementation("eager")
    config = SeeConfig(
        name="see", size=15, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3, labels=tuple("abcdefg")
    )
    t = trace(Model(ours, See(config, None, 10), {}), noise(15))
    y = theirs((noise(15) / 255)[None], output_attentions=True)
    for i in range(2):
        assert_close(t[f"blocks.{i}.attn.weights"], y.attentions[i][0], atol=1e-5, rtol=1e-5)
    assert_close(t["logits"], y.logits[0], atol=1e-5, rtol=1e-5)
    assert t.tokens["text"][:3] == ["class", "0,0", "0,1"]
    assert t.about["grid"] == [3, 3]


def test_the_package_gives_it() -> None:
    assert regard.trace is trace
    assert regard.Trace is Trace
