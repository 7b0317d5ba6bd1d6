"""Traces: every number by hand, Hugging Face's attention, every kind of model, steps, files."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import regard
from helpers.looking import CONTEXT, captioner, noise, reader, seer, shaken, words
from models.test_bert import both as both_berts
from models.test_gpt import GPT2_STYLE, from_gpt2
from models.test_gpt import SIZES as GPT_SIZES
from models.test_t5 import SIZES as T5_SIZES
from models.test_t5 import translated
from models.test_transformer import marian
from models.test_vit import both as both_vits
from regard import Trace, UserError, trace
from regard.cli import main
from regard.core.modes import evaluating
from regard.core.positions import rotate
from regard.decode.ensemble import Ensemble
from regard.models import GPT, MODELS, GPTConfig, Transformer, Word2Vec, WordsConfig
from regard.models.t5 import T5Config as OurT5Config
from regard.runs.model import Model
from regard.tasks import TASKS, Fill, See, SeeConfig, Translate, WordsTask, Write
from regard.tracing import REASONS
from regard.tracing.intervene import change
from regard.tracing.reading import read_input

TEXT = "the quick brown fox jumps"
PAIR = "the quick brown fox", "der Fuchs springt"


def named_words() -> Model:
    config, task = TASKS["words"][1](name="words"), words(WordsTask)
    model = Word2Vec(WordsConfig(vocab=task.vocab, dim=7))
    return Model(shaken(model), WordsTask(config, task, 1), {}, kind="words")


# Of every kind of model: how it is made, what it reads
KINDS: dict[str, tuple[Callable[[], Model], Any]] = {
    "gpt": (lambda: reader("write", "gpt"), TEXT),
    "gpt-grouped": (lambda: reader("write", "gpt", dim=16, heads=4, kv_heads=2, qk_norm=True), TEXT),
    "gpt-2": (lambda: reader("write", "gpt", **GPT2_STYLE), TEXT),
    "gpt-alibi": (lambda: reader("write", "gpt", positions="alibi", ffn="geglu"), TEXT),
    "gpt-window": (lambda: reader("write", "gpt", positions="relative", sliding_window=2, tied=False), TEXT),
    "gpt-classify": (lambda: reader("classify", "gpt", task_labels=("a", "b")), TEXT),
    "bert": (lambda: reader("fill", "bert"), "the [MASK] brown fox"),
    "bert-plain": (lambda: reader("fill", "bert", segments=0, positions="rotary", pre=True), TEXT),
    "bert-relative": (lambda: reader("fill", "bert", positions="relative"), TEXT),
    "bert-window": (lambda: reader("fill", "bert", window=1, positions="sinusoidal"), TEXT),
    "bert-electra": (lambda: reader("fill", "bert", task_replaced=True), "the [MASK] brown fox"),
    "bert-electra-told": (lambda: reader("fill", "bert", task_replaced=True), TEXT),
    "bert-classify": (lambda: reader("classify", "bert", task_labels=("a", "b")), f"{TEXT}\tthe lazy dog"),
    "bert-score": (lambda: reader("classify", "bert", task_low=0.0, task_high=5.0), TEXT),
    "bert-tag": (lambda: reader("tag", "bert", task_labels=("a", "b", "c")), TEXT),
    "bert-span": (lambda: reader("span", "bert"), f"the fox\t{TEXT}"),
    "bert-embed": (lambda: reader("embed", "bert"), TEXT),
    "transformer": (lambda: reader("translate", "transformer"), PAIR),
    "transformer-pre": (lambda: reader("chat", "transformer", pre=True, positions="rotary"), PAIR),
    "t5": (lambda: reader("restore", "t5"), ("the ___ brown ___ jumps", "lazy ___ dog")),
    "t5-classify": (lambda: reader("classify", "t5", task_labels=("fox", "lazy dog")), TEXT),
    "rnn": (lambda: reader("translate", "rnn", attention="none", bidirectional=False), PAIR),
    "gru": (lambda: reader("translate", "gru", attention="additive", depth=2), PAIR),
    "lstm": (lambda: reader("translate", "lstm", attention="general"), PAIR),
    "lstm-dot": (lambda: reader("chat", "lstm", attention="dot", tied=False), PAIR),
    "vit": (lambda: seer(), noise(6)),
    "vit-mean": (lambda: seer("mean"), noise(6)),
    "captioner": (lambda: captioner(), (noise(12), "the lazy fox")),
    "captioner-vit": (lambda: captioner(encoder="vit", decoder="transformer"), (noise(12), "the fox")),
    "words": (named_words, "fox dog"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def model_and_input(kind: str) -> tuple[Model, Any]:
    build, input = KINDS[kind]
    return build(), input


def test_every_kind_of_model_is_there() -> None:
    assert {kind.split("-")[0] for kind in KINDS} == set(MODELS)


# By hand


def close(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=2e-6, rtol=2e-5)


def inner(model: Model) -> Any:
    return getattr(model.model, "model", model.model)


def module(model: Model, part: str) -> Any:
    """The module with this name; blocks are wrapped by residuals."""
    result = model.model if part.startswith("generator") else inner(model)
    for name in part.split("."):
        result = result[int(name)] if name.isdecimal() else getattr(result, name)
    return result


def check_attention(t: Trace, part: str, m: Any, x: Tensor, source: Tensor, bias: Tensor | None) -> None:
    """Check the attention from its input x to its output."""
    q, k, v, W = (t[f"{part}.{name}"] for name in ("q", "k", "v", "weights"))
    H, T, d = q.shape
    rotary = None
    if f"{part}.Wq" in t:
        stack = part.split("blocks")[0] if "blocks" in part else part.split(".")[0] + "."
        if f"{stack}cos" in t:
            rotary = t[f"{stack}cos"], t[f"{stack}sin"]
        close(t[f"{part}.Wq"], m.q(x))
        close(t[f"{part}.Wk"], m.k(source))

    def heads(y: Tensor, norm: nn.Module, rotary: Any) -> Tensor:
        y = rotate(norm(y.unflatten(-1, (-1, d)).transpose(0, 1))[None], rotary)[0]
        return y.repeat_interleave(H // len(y), dim=0)

    close(q, heads(m.q(x), m.q_norm, rotary))
    close(k, heads(m.k(source), m.k_norm, rotary))
    close(v, heads(m.v(source), nn.Identity(), None))
    close(t[f"{part}.scores"], torch.einsum("htd,hsd->hts", q, k))
    close(t[f"{part}.scaled"], t[f"{part}.scores"] / math.sqrt(d))
    scores = t[f"{part}.scaled"] if bias is None else t[f"{part}.scaled"] + bias
    may, reason = t[f"{part}.mask"], t[f"{part}.reason"]
    assert torch.equal(may, reason == REASONS.index("may look"))
    if m.causal:
        ahead = torch.arange(T)[:, None] < torch.arange(T)
        assert torch.equal(reason == REASONS.index("future"), ahead)
    exps = torch.where(may, scores.exp(), 0.0)
    close(W, exps / exps.sum(-1, keepdim=True))
    close(t[f"{part}.heads"], torch.einsum("hts,hsd->htd", W, v))
    close(t[f"{part}.joined"], torch.cat(list(t[f"{part}.heads"]), dim=-1))
    close(t[f"{part}.out"], F.linear(t[f"{part}.joined"], m.out.weight, m.out.bias))


def check_feed_forward(t: Trace, part: str, m: Any, x: Tensor) -> None:
    close(t[f"{part}.up"], F.linear(x, m.up.weight, m.up.bias))
    if hasattr(m, "gate"):
        close(t[f"{part}.gate"], F.linear(x, m.gate.weight, m.gate.bias))
        close(t[f"{part}.hidden"], m.f(t[f"{part}.gate"]) * t[f"{part}.up"])
    else:
        close(t[f"{part}.hidden"], m.f(t[f"{part}.up"]))
    close(t[f"{part}.down"], F.linear(t[f"{part}.hidden"], m.down.weight, m.down.bias))


def check_blocks(t: Trace, model: Model, stack: str, source: Tensor | None = None) -> Tensor:
    """Check every layer of a stack (`blocks`, `encoder`); return the output of the last one."""
    prefix = stack.removesuffix("blocks")
    prefix = prefix if stack.endswith("blocks") else f"{stack}."
    prefix = "" if stack == "generator" else prefix
    x = t[f"{prefix}input"] if stack != "generator" else t["generator.input"]
    bias = t.tensors.get(f"{prefix}bias")
    for i, block in enumerate(module(model, stack)):
        for kind in ("attn", "cross", "ffn"):
            wired, part = getattr(block, kind), f"{stack}.{i}.{kind}"
            if wired is None:
                continue
            y = wired.norm(x) if wired.pre else x
            if kind == "ffn":
                check_feed_forward(t, part, wired.f, y)
            else:
                over = source if kind == "cross" else y
                assert over is not None
                check_attention(t, part, wired.f, y, over, bias if kind == "attn" else None)
            close(t[f"{part}.residual"], x + t[f"{part}.{'down' if kind == 'ffn' else 'out'}"])
            close(t[f"{part}.norm"], wired.norm(x if wired.pre else t[f"{part}.residual"]))
            x = t[f"{part}.residual" if wired.pre else f"{part}.norm"]
        assert torch.equal(t[f"{stack}.{i}.output"], x)
    return x


def check_embedding(t: Trace, model: Model, side: str, prefix: str, embed: Any, scale: float = 1.0) -> Tensor:
    """Check the embeddings; return the input of the first block."""
    x = embed.weight[torch.tensor(t.ids[side])]
    assert torch.equal(t[f"{prefix}embed"], x)
    total = scale * x
    for added in ("segments", "positions"):
        if f"{prefix}{added}" in t:
            total = total + t[f"{prefix}{added}"]
    close(t[f"{prefix}sum"], total)
    return total


def check_look(t: Trace, m: Any, states: Tensor) -> None:
    """Check a recurrent decoder's attention over `states`."""
    q, k = (t[f"decoder.look.{name}"][0] for name in "qk")
    if hasattr(m.score, "w"):
        close(t["decoder.look.Wq"], m.score.W(q))
        close(k, m.score.U(states))
        scores = torch.tanh(m.score.W(q)[:, None] + k[None]) @ m.score.w.weight[0]
    else:
        close(k, states if m.score is None else m.score.W(states))
        scores = q @ k.T
    close(t["decoder.look.scores"][0], scores)
    close(t["decoder.look.weights"][0], scores.softmax(-1))
    close(t["decoder.look.heads"][0], t["decoder.look.weights"][0] @ states)
    gate = t["decoder.look.gate"].sigmoid() if "decoder.look.gate" in t else 1.0
    close(t["decoder.look.output"], gate * t["decoder.look.heads"][0])


def check_recurrent(t: Trace, model: Model, states: Tensor) -> Tensor:
    m = inner(model).decoder
    y, s = t["decoder.embed"], t["decoder.states"]
    c = t["encoder.hidden"][m.rnn.num_layers - 1].expand_as(s) if m.look is None else t["decoder.look.output"]
    if m.look is not None:
        check_look(t, m.look, states)
        first = s if m.attends_after_cell else torch.cat([t["decoder.look.q"][0][:1], s[:-1]])
        close(t["decoder.look.q"][0], first)  # additive: what looks is the state before
    parts = [c, s] if m.attends_after_cell else [s, y, c]
    close(t["decoder.readout"], m.readout(torch.cat(parts, dim=-1)))
    readout = t["decoder.readout"]
    y = torch.tanh(readout) if m.attends_after_cell else readout.unflatten(-1, (-1, 2)).amax(-1)
    close(t["decoder.output"], y)
    return y


def check_end(t: Trace, y: Tensor, W: Tensor, b: Tensor | None = None) -> None:
    close(t["logits"], F.linear(y, W, b))
    if "probabilities" in t and t["probabilities"].shape == t["logits"].shape and t["logits"].ndim:
        close(t["probabilities"].sum(-1), torch.ones(t["logits"].shape[:-1]))
        close(t["probabilities"], t["logits"].exp() / t["logits"].exp().sum(-1, keepdim=True))


@every_kind
@torch.no_grad()
def test_every_number_by_hand(kind: str) -> None:
    model, input = model_and_input(kind)
    t, m = trace(model, input), inner(model)
    assert all(t[name].isfinite().all() for name in t if t[name].is_floating_point())
    match kind.split("-"):
        case ["words"]:
            assert torch.equal(t["embed"], m.embed.weight[torch.tensor(t.ids["text"])])
            check_end(t, t["embed"], m.near.weight)
        case ["vit", *_]:
            pixels = (t["pixels"] / 255 - 0.4) / 0.3
            corner = pixels[:, 2:4, 4:6]  # the patch in row 1, column 2
            close(t["patches"][1 * 3 + 2], corner.flatten())
            close(t["embed"], m.embed(t["patches"]))
            first = m.first.weight if m.first is not None else torch.empty(0, 12)
            close(t["input"], torch.cat([first, t["embed"]]) + t["positions"])
            assert torch.equal(t["positions"], m.positions.weight)
            x = m.norm(check_blocks(t, model, "blocks"))
            close(t["norm"], x)
            close(t["pooled"], x.mean(0) if m.first is None else x[0])
            check_end(t, t["pooled"], model.model.head.weight, model.model.head.bias)
        case ["captioner", *_]:
            regions = t["encoder.norm"]
            close(regions, m.encoder.norm(t["encoder.project"] + t["encoder.positions"]))
            assert torch.equal(t["encoder.output"], regions)
            if kind == "captioner":
                assert torch.equal(t["decoder.embed"], m.embed.weight[torch.tensor(t.ids["target"])])
                y = check_recurrent(t, model, regions)
            else:
                check_blocks(t, model, "encoder.net.blocks")
                x = check_embedding(t, model, "target", "decoder.", m.embed, math.sqrt(16))
                close(t["decoder.input"], x)
                y = m.decoder.norm(check_blocks(t, model, "decoder.blocks", regions))
            check_end(t, y, m.embed.weight)
        case ["rnn" | "gru" | "lstm", *_]:
            for side, prefix in (("source", "encoder"), ("target", "decoder")):
                assert torch.equal(t[f"{prefix}.embed"], m.embed.weight[torch.tensor(t.ids[side])])
            states, last = m.encoder.rnn(t["encoder.embed"][None])
            close(t["encoder.states"], states[0])
            if m.encoder.bridge is None:
                close(t["encoder.hidden"], last[:, 0])
            check_end(t, check_recurrent(t, model, t["encoder.states"]), m.output)
        case ["transformer" | "t5", *_]:
            scale = math.sqrt(12)
            close(t["encoder.input"], check_embedding(t, model, "source", "encoder.", m.embed, scale))
            x = m.encoder_norm(check_blocks(t, model, "encoder"))
            close(t["decoder.input"], check_embedding(t, model, "target", "decoder.", m.embed, scale))
            check_end(t, m.decoder_norm(check_blocks(t, model, "decoder", x)), m.embed.weight)
        case _:
            total = check_embedding(t, model, "text", "", m.embed)
            generator = kind == "bert-electra"
            entered = t["generator.input" if generator else "input"]
            close(entered, m.embed_norm(total) if hasattr(m, "embed_norm") else total)
            x = m.norm(check_blocks(t, model, "generator" if generator else "blocks"))
            check_head(t, model, kind, x)


def check_head(t: Trace, model: Model, kind: str, x: Tensor) -> None:
    m, top = inner(model), model.model
    if kind == "bert-embed":
        close(t["vector"], x.mean(0))
    elif kind == "bert-electra-told":
        y = top.found(m.activation(top.transform(x)))[:, 0]
        close(t["logits"], y)
        close(t["probabilities"], 1 / (1 + (-y).exp()))
    elif kind == "bert-span":
        close(t["logits"], F.linear(x, top.head.weight, top.head.bias))
        close(t["probabilities"].sum(0), torch.ones(2))
        assert (t["probabilities"][1:4] == 0).all()  # the question's words
    elif kind == "bert-tag":
        assert torch.equal(t["output"], x)
        check_end(t, x, top.head.weight, top.head.bias)
    elif top is not m and hasattr(top, "head"):
        pooled = torch.tanh(m.pooler(x[0])) if hasattr(m, "pooler") else x[-1]
        close(t["pooled"], pooled)
        check_end(t, pooled, top.head.weight, top.head.bias)
        assert ("probabilities" in t) == (kind != "bert-score")
    elif hasattr(m, "transform"):
        close(t["transform"], m.transform(x))
        close(t["transform_norm"], m.transform_norm(m.activation(t["transform"])))
        check_end(t, t["transform_norm"], m.embed.weight, m.bias)
    else:
        close(t["norm"], x)
        check_end(t, x, m.output)


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


def test_an_open_path_that_is_not_the_fast_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
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


# Step by step


@pytest.mark.parametrize(
    "kind", ["gpt", "transformer-pre", "t5", "gru", "lstm", "captioner", "captioner-vit"]
)
def test_steps_are_rows_of_the_whole(kind: str) -> None:
    model, input = model_and_input(kind)
    source = input[0] if isinstance(input, tuple) else input
    steps = trace(model, source, steps=True, temperature=0.0)
    written = [id for step in steps for id in step.ids["written"]]
    if kind == "gpt":
        text = " ".join(steps[-1].tokens["text"])
        full, first = trace(model, text), len(steps[0].ids["text"]) - 1
    else:
        full, first = trace(model, source), 0
        assert full.ids["written"][: len(written)] == written
    for n, step in enumerate(steps):
        assert step.about["step"] == n
        assert step.difference < 1e-5
        close(step["logits"], full["logits"][first + n])
        assert step["logits"].argmax() == written[n]
        for part in step.attentions:
            if not part.startswith("encoder"):
                row = step[f"{part}.weights"][:, -1]
                close(row, full[f"{part}.weights"][:, first + n, : row.shape[-1]])
                rows, columns = step.sides(part)
                assert (len(rows), len(columns)) == step[f"{part}.weights"].shape[1:]
    assert any(name.startswith("encoder") for name in steps[0]) == (kind != "gpt")
    assert not any(name.startswith("encoder") for step in steps[1:] for name in step)


@pytest.mark.parametrize("kind", ["gpt", "transformer", "gru", "captioner"])
def test_beams(kind: str) -> None:
    """Every candidate's score is the sum of its words' log-probabilities in a full forward pass."""
    model, input = model_and_input(kind)
    source = input[0] if isinstance(input, tuple) else input
    steps = trace(model, source, steps=True, num_beams=3, max_new_tokens=4, length_penalty=0.0)
    beams = [()]
    for step in steps:
        beam = step.about["beam"]
        assert [one["score"] for one in beam] == sorted((one["score"] for one in beam), reverse=True)
        for one in beam:
            assert tuple(one["text"][:-1]) == beams[one["parent"]]
            close(torch.tensor(one["score"]), torch.tensor(likelihood(model, source, one["text"])))
        texts = [tuple(one["text"]) for one in beam if one["kept"]]
        assert len(texts) == (3 if step is not steps[-1] else 0)
        beams = texts
    (answers,) = model.answers([source], num_beams=3, max_new_tokens=4, length_penalty=0.0)
    scores = [one["score"] for step in steps for one in step.about["beam"]]
    assert any(math.isclose(answers[0].score or 0.0, score, abs_tol=1e-5) for score in scores)


@torch.no_grad()
def likelihood(model: Model, source: Any, text: list[int]) -> float:
    if isinstance(source, str) and model.task.config.name == "write":
        prompt = model.task.tokenizer.encode(source)
        logits = model.model(torch.tensor([prompt + text[:-1]]))[0, len(prompt) - 1 :]
    else:
        read = (
            source[None] if isinstance(source, Tensor) else torch.tensor([[*model.task.parts(source)[0], 2]])
        )
        if not isinstance(source, Tensor):
            read[0, -1] = model.task.source_end
        logits = model.model(read, torch.tensor([[model.task.begin, *text[:-1]]]))[0]
    return float(logits.log_softmax(-1).gather(1, torch.tensor(text)[:, None]).sum())


# Nothing is left


def hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


@every_kind
def test_nothing_is_left_behind(kind: str) -> None:
    model, input = model_and_input(kind)
    before = [dict(m.__dict__) for m in model.model.modules()]
    trace(model, input)
    assert hooks(model.model) == 0
    assert [set(m.__dict__) for m in model.model.modules()] == [set(one) for one in before]
    assert all(m.records is None for m in model.model.modules() if hasattr(m, "records"))


def test_nothing_is_left_behind_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = reader("write", "gpt", **GPT2_STYLE).model

    def fails(*_: object) -> None:
        raise RuntimeError("on the way")

    monkeypatch.setattr(model.blocks[1].ffn.f, "f", fails)
    task = Write(TASKS["write"][1](name="write"), words(Write), CONTEXT)
    with pytest.raises(RuntimeError, match="on the way"):
        trace(Model(model.train(), task, {}), TEXT)
    assert hooks(model) == 0
    assert "add" not in model.positions.__dict__
    assert all(m.training for m in model.modules())
    assert model.blocks[0].attn.f.records is None


# Files


@every_kind
def test_a_saved_trace_is_the_same(kind: str, tmp_path: Path) -> None:
    original = trace(*model_and_input(kind))
    original.save(tmp_path / "a.safetensors")
    again = Trace.load(str(tmp_path / "a.safetensors"))
    assert again.names == original.names
    assert all(
        torch.equal(again[name], original[name]) and again[name].dtype == original[name].dtype
        for name in original
    )
    assert (again.tokens, again.ids, again.about) == (original.tokens, original.ids, original.about)
    assert again.difference == original.difference
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(UserError, match=r"a\.safetensors: no such file"):
        Trace.load(path)
    save_file({"x": torch.ones(3)}, path)
    with pytest.raises(UserError, match=r"a\.safetensors: no trace; regard look MODEL INPUT --save"):
        Trace.load(path)
    path.write_bytes(b"no such thing")
    with pytest.raises(UserError, match=r"a\.safetensors: damaged or not safetensors"):
        Trace.load(path)


def test_nothing_else_can_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    original = trace(*model_and_input("gpt"))
    original.save(path)
    with safe_open(path, framework="pt") as file:
        metadata = {name: text for name, text in file.metadata().items() if name.startswith("regard")}
    save_file({name: original[name].clone() for name in original if name != "sum"}, path, metadata)
    with pytest.raises(UserError, match=r"a\.safetensors: its tensors .*make it again"):
        Trace.load(path)


@pytest.mark.parametrize("where", ["tensor", "words", "end"])
def test_damage_is_noticed(where: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    trace(*model_and_input("gpt")).save(path)
    data = path.read_bytes()
    if where == "end":
        path.write_bytes(data[:-1])
    elif where == "words":
        path.write_bytes(data.replace(b"quick", b"quack", 1))
    else:
        path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    with pytest.raises(UserError, match=r"a\.safetensors: damaged") as error:
        Trace.load(path)
    assert "\n" not in str(error.value)


def test_a_file_for_others(tmp_path: Path) -> None:
    """Other readers of safetensors find the tensors by their names."""
    original = trace(*model_and_input("vit"))
    original.save(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(original)
        assert torch.equal(file.get_tensor("blocks.0.attn.weights"), original["blocks.0.attn.weights"])
        assert json.loads(file.metadata()["regard-trace"])["tokens"]["label"] == ["cat", "dog", "fox"]


def test_look_saves_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, (source, target) = model_and_input("transformer")
    monkeypatch.setattr("regard.runs.load.load", lambda path: model)
    path = str(tmp_path / "a.safetensors")
    with pytest.raises(SystemExit) as error:
        main(["look", "runs/de", source, "--answer", target, "--layer", "1", "--save", path])
    assert error.value.code == 0
    assert capsys.readouterr().out.strip() == path
    saved = Trace.load(path)
    assert saved.tokens["written"] == ["der", "Fuchs", "springt", "</s>"]
    assert "decoder.1.cross.weights" in saved
    assert "decoder.0.cross.weights" not in saved
    for wrong in (["--head", "1"], ["another"]):
        with pytest.raises(SystemExit) as error:
            main(["look", "runs/de", source, *wrong, "--save", path])
        assert error.value.code == 2


# Pictures


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("transformer", "decoder.0.cross"),
        ("gru", "decoder.look"),
        ("gpt", "blocks.1.attn"),
        ("vit", "blocks.1.attn"),
        ("vit-mean", "blocks.0.attn"),
        ("captioner", "decoder.look"),
        ("captioner-vit", "decoder.blocks.0.attn"),
        ("captioner-vit", "encoder.net.blocks.0.attn"),
    ],
)
def test_pictures(kind: str, part: str) -> None:
    t = trace(*model_and_input(kind))
    assert part in t.picture(part).svg()
    assert t.picture(f"{part}.weights", head=0).svg() != t.picture(part).svg() or kind in ("gru", "captioner")
    with pytest.raises(UserError, match="heads 0 to"):
        t.picture(part, head=9)
    with pytest.raises(UserError, match="did you mean"):
        t.picture(part[:-1])


def test_the_package_gives_it() -> None:
    assert regard.trace is trace
    assert regard.Trace is Trace
