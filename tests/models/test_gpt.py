"""GPT against Hugging Face's GPT-2 and Llama, its presets, and prompts of unequal length.

Sizes: 61 words, 37 positions, 3 layers, 4 heads sharing 2, 40 wide, 53 in the feed-forward.
"""

import dataclasses
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from regard.core.positions import POSITIONS
from regard.models.gpt import GPT, GPTConfig

SIZES = {"vocab": 61, "context": 37, "dim": 40, "depth": 3, "heads": 4, "hidden": 53}
GPT2_STYLE = {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True}


@torch.no_grad()
def shake(model: nn.Module) -> None:
    """Randomize weights, norms and biases, so that attention is not uniform."""
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))


def build(**changes: object) -> GPT:
    model = GPT(GPTConfig(**{**SIZES, **changes}))
    shake(model)
    return model.eval()


# Hugging Face


def from_gpt2(theirs: GPT2LMHeadModel, ours: GPT) -> None:
    """Their Conv1D has transposed weights, and q, k and v in one matrix."""
    source = theirs.state_dict()
    weights = {
        "embed.weight": source["transformer.wte.weight"],
        "positions.table.weight": source["transformer.wpe.weight"],
    }
    for kind in "weight", "bias":
        weights[f"norm.{kind}"] = source[f"transformer.ln_f.{kind}"]
        for i in range(SIZES["depth"]):
            a, b = f"transformer.h.{i}.", f"blocks.{i}."
            parts = zip("qkv", source[f"{a}attn.c_attn.{kind}"].chunk(3, dim=-1), strict=True)
            state = {f"attn.f.{name}": part for name, part in parts}
            state["attn.f.out"] = source[f"{a}attn.c_proj.{kind}"]
            state["ffn.f.up"] = source[f"{a}mlp.c_fc.{kind}"]
            state["ffn.f.down"] = source[f"{a}mlp.c_proj.{kind}"]
            weights |= {
                f"{b}{name}.{kind}": part.T if part.ndim == 2 else part for name, part in state.items()
            }
            weights[f"{b}attn.norm.{kind}"] = source[f"{a}ln_1.{kind}"]
            weights[f"{b}ffn.norm.{kind}"] = source[f"{a}ln_2.{kind}"]
    ours.load_state_dict(weights)


def from_llama(theirs: LlamaForCausalLM, ours: GPT) -> None:
    names = {
        "model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head", "model.layers": "blocks",
        "self_attn.q_proj": "attn.f.q", "self_attn.k_proj": "attn.f.k", "self_attn.v_proj": "attn.f.v",
        "self_attn.o_proj": "attn.f.out", "input_layernorm": "attn.norm",
        "post_attention_layernorm": "ffn.norm", "mlp.gate_proj": "ffn.f.gate", "mlp.up_proj": "ffn.f.up",
        "mlp.down_proj": "ffn.f.down",
    }  # fmt: skip
    weights = {}
    for name, weight in theirs.state_dict().items():
        for a, b in names.items():
            name = name.replace(a, b)
        weights[name] = weight
    ours.load_state_dict(weights)


def same_logits_and_gradients(theirs: nn.Module, ours: GPT) -> None:
    ids = torch.randint(SIZES["vocab"], (3, SIZES["context"]))
    y, z = theirs(ids).logits, ours(ids)
    assert z.std() > 0.1
    assert_close(z, y, atol=1e-5, rtol=1e-5)
    gradient = torch.randn_like(y)
    for logits in y, z:
        logits.backward(gradient)
    mine = ours.embed.weight.grad
    his = theirs.get_input_embeddings().weight.grad
    assert_close(mine / his.abs().max(), his / his.abs().max(), atol=1e-5, rtol=1e-5)


def test_gpt2_is_hugging_faces() -> None:
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=61, n_positions=37, n_embd=40, n_layer=3, n_head=4, n_inner=53,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    shake(theirs)
    ours = GPT(GPTConfig(**SIZES, **GPT2_STYLE)).eval()
    from_gpt2(theirs, ours)
    same_logits_and_gradients(theirs, ours)


def test_llama_is_hugging_faces() -> None:
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=61, max_position_embeddings=37, hidden_size=40, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, intermediate_size=53, rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            bos_token_id=None, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    shake(theirs)
    ours = GPT(GPTConfig(**SIZES, kv_heads=2, tied=False)).eval()
    from_llama(theirs, ours)
    same_logits_and_gradients(theirs, ours)


# Sizes


def count(**changes: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in GPT(GPTConfig(**changes)).parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_gpt2_presets_have_the_published_sizes(name: str, published: int) -> None:
    assert count(vocab=50257, **GPTConfig.PRESETS[name]) == published


def test_presets_reach_from_thousands_to_billions() -> None:
    sizes = [count(vocab=97, **GPTConfig.PRESETS["pico"])]
    sizes += [
        count(vocab=32_000, **GPTConfig.PRESETS[name])
        for name in ("tiny", "mini", "small", "medium", "large")
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < 20_000
    assert 1.3e9 < sizes[-1] < 1.6e9
    assert all(config["dim"] % config["heads"] == 0 for config in GPTConfig.PRESETS.values())


def test_presets_name_only_settings() -> None:
    settings = {field.name for field in dataclasses.fields(GPTConfig)}
    for name, preset in GPTConfig.PRESETS.items():
        assert set(preset) <= settings, name
        assert "vocab" not in preset, name  # the tokenizer's to say


def test_tied_output_is_the_embedding() -> None:
    tied, untied = build(tied=True), build(tied=False)
    assert tied.output is tied.embed.weight
    assert untied.output is not untied.embed.weight
    assert count(**SIZES, tied=False) - count(**SIZES, tied=True) == SIZES["vocab"] * SIZES["dim"]
    ids = torch.randint(61, (2, 5))
    assert_close(tied(ids), tied.hidden(ids) @ tied.embed.weight.T)


def test_configuration_is_frozen_and_by_keyword() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPTConfig(vocab=5).vocab = 6  # type: ignore[misc]
    with pytest.raises(TypeError):
        GPTConfig(5)  # type: ignore[misc]


def test_starts_near_uniform() -> None:
    """The loss of a new model is about log(vocab)."""
    model, ids = GPT(GPTConfig(**SIZES)), torch.randint(61, (7, 37))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), torch.randint(61, (7 * 37,)))
    assert loss.item() == pytest.approx(torch.tensor(61.0).log().item(), rel=0.02)


# Mistakes


@pytest.mark.parametrize("positions", POSITIONS)
def test_width_that_heads_do_not_divide(positions: str) -> None:
    with pytest.raises(ValueError, match=r"dim=10.*heads=3"):
        GPT(GPTConfig(vocab=5, dim=10, heads=3, positions=positions))


def test_odd_head_width_with_rotary() -> None:
    with pytest.raises(ValueError, match=r"dim=15.*heads=3.*even"):
        GPT(GPTConfig(vocab=5, dim=15, heads=3, positions="rotary"))


def test_kv_heads_that_do_not_divide_heads() -> None:
    with pytest.raises(ValueError, match=r"heads=4.*kv_heads=3"):
        build(kv_heads=3)


def test_too_many_tokens_are_counted() -> None:
    model = build()
    with pytest.raises(ValueError, match=r"38 tokens .*context=37"):
        model(torch.zeros(1, 38, dtype=torch.long))
    _, state = model.start(torch.zeros(1, 37, dtype=torch.long))
    with pytest.raises(ValueError, match=r"38 tokens .*context=37"):
        model.step(torch.zeros(1, 1, dtype=torch.long), state)


# Prompts of unequal length


def left_padded(prompts: list[Tensor], filler: int) -> tuple[Tensor, Tensor]:
    longest = max(len(p) for p in prompts)
    ids, attention_mask = (
        torch.full((len(prompts), longest), filler),
        torch.zeros(len(prompts), longest, dtype=torch.bool),
    )
    for row, p in enumerate(prompts):
        ids[row, longest - len(p) :], attention_mask[row, longest - len(p) :] = p, True
    return ids, attention_mask


@pytest.mark.parametrize("positions", POSITIONS)
def test_prompts_of_unequal_length_are_as_if_alone(positions: str) -> None:
    model = build(positions=positions, kv_heads=2).double()
    prompts, more = [torch.randint(61, (n,)) for n in (5, 11, 1)], torch.randint(61, (3, 7))
    ids, attention_mask = left_padded(prompts, filler=59)
    tight = partial(
        assert_close, atol=1e-6, rtol=1e-5
    )  # sinusoids and rotary tables are made in single precision
    with torch.no_grad():
        logits, state = model.start(ids, attention_mask)
        for row, p in enumerate(prompts):
            tight(logits[row], model(p[None])[0, -1])
        for t in range(more.shape[1]):
            logits, state = model.step(more[:, t : t + 1], state)
            for row, p in enumerate(prompts):
                alone = model(torch.cat([p, more[row, : t + 1]])[None])
                tight(logits[row], alone[0, -1])


def test_what_stands_in_the_padding_does_not_matter() -> None:
    model, prompts = build(), [torch.randint(61, (n,)) for n in (5, 11, 1)]
    answers = []
    for filler in 0, 60:
        ids, attention_mask = left_padded(prompts, filler)
        first, state = model.start(ids, attention_mask)
        second, _ = model.step(torch.tensor([[3], [1], [4]]), state)
        answers.append((first, second))
    assert_close(answers[0], answers[1], atol=0, rtol=0)


def test_gradients_through_padding_are_finite() -> None:
    for positions in POSITIONS:
        model = build(positions=positions)
        ids, attention_mask = left_padded([torch.randint(61, (n,)) for n in (5, 11, 1)], filler=0)
        logits, _ = model.start(ids, attention_mask)
        (1e3 * logits).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters()), positions


@torch.no_grad()
def test_reading_goes_on_from_a_state() -> None:
    model, ids = build(kv_heads=2), torch.randint(61, (3, 17))
    _, state = model.start(ids[:, :5])
    rest = [model(chunk, state) for chunk in ids[:, 5:].split([7, 1, 4], dim=1)]
    assert_close(torch.cat(rest, dim=1), model(ids)[:, 5:], atol=1e-5, rtol=1e-4)


def test_reordered_state_goes_on_as_another_row() -> None:
    model, prompts = build(kv_heads=2), [torch.randint(61, (n,)) for n in (5, 11, 1)]
    with torch.no_grad():
        _, state = model.start(*left_padded(prompts, filler=0))
        state.reorder(torch.tensor([2, 0, 0, 1]))
        token = torch.tensor([[7], [7], [9], [7]])
        logits, _ = model.step(token, state)
        for row, source in enumerate([2, 0, 0, 1]):
            alone = model(torch.cat([prompts[source], token[row]])[None])[0, -1]
            assert_close(logits[row], alone, atol=1e-5, rtol=1e-4)
