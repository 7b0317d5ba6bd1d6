"""The Transformer against Hugging Face's Marian and torch's own, its presets, and its sources.

Sizes: 61 words, 37 positions, 3 layers and 2, 4 heads, 40 wide, 53 in the feed-forward.
"""

import dataclasses
import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import MarianConfig, MarianMTModel

from regard.decode.beam import beam_search
from regard.describe.watch import watch
from regard.models.transformer import Transformer, TransformerConfig

VOCAB, PAD = 61, 60
POSITIONS = ["none", "sinusoidal", "learned", "rotary", "relative"]
SIZES = {"vocab": VOCAB, "context": 37, "dim": 40, "depth": 3, "decoder_depth": 2, "heads": 4, "hidden": 53}


@torch.no_grad()
def shake(model: nn.Module) -> None:
    """Randomize weights, norms and biases, so that attention is not uniform."""
    for name, p in model.named_parameters():
        if "embed_positions" not in name:  # Marian's waves are no weights
            p.add_(0.15 * torch.randn_like(p))


def build(**changes: object) -> Transformer:
    model = Transformer(TransformerConfig(**{**SIZES, **changes}))
    shake(model)
    return model.eval()


def sources(lengths: list[int]) -> tuple[Tensor, Tensor]:
    attention_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(1, PAD, attention_mask.shape).masked_fill(~attention_mask, PAD), attention_mask


# Hugging Face


NAMES = {
    "self_attn.": "attn.f.", "encoder_attn.": "cross.f.", "q_proj": "q", "k_proj": "k", "v_proj": "v",
    "out_proj": "out", "self_attn_layer_norm": "attn.norm", "encoder_attn_layer_norm": "cross.norm",
    "fc1": "ffn.f.up", "fc2": "ffn.f.down", "final_layer_norm": "ffn.norm", "layers.": "",
    "model.": "", "shared": "embed",
}  # fmt: skip


def marian(heads: int = 4, hidden: int = 53) -> tuple[MarianMTModel, Transformer]:
    """Two models with the same weights, theirs and ours; the decoder may have other sizes."""
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=VOCAB, max_position_embeddings=37, d_model=40, encoder_layers=3, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=heads,
            encoder_ffn_dim=53, decoder_ffn_dim=hidden,
            activation_function="relu", scale_embedding=True, dropout=0.0, attention_dropout=0.0,
            pad_token_id=PAD, eos_token_id=0, decoder_start_token_id=PAD, forced_eos_token_id=None,
        )
    ).eval()  # fmt: skip
    shake(theirs)
    with torch.no_grad():  # so that it does not say the same word again and again
        for name, p in theirs.named_parameters():
            p.mul_(0.3 if name.endswith("bias") else 4.0 if ".fc" in name else 1.0)
    unequal = {"decoder_heads": heads, "decoder_hidden": hidden} if (heads, hidden) != (4, 53) else {}
    ours = Transformer(TransformerConfig(**SIZES, **unequal)).eval()
    weights = {}
    for name, weight in theirs.state_dict().items():
        for a, b in NAMES.items():
            name = name.replace(a, b)
        weights[name] = weight
    tables = [weights.pop(f"{side}.embed_positions.weight") for side in ("encoder", "decoder")]
    for copy in "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight":
        assert torch.equal(weights.pop(copy), weights["embed.weight"])
    assert not weights.pop("final_logits_bias").any()
    ours.load_state_dict(weights)
    for positions, table in zip((ours.encoder_positions, ours.decoder_positions), tables, strict=True):
        interleaved = torch.stack(table.chunk(2, dim=-1), dim=-1).flatten(-2)  # first all sines, then cosines
        assert_close(positions.table, interleaved, atol=1e-5, rtol=1e-5)
        positions.table.copy_(table)
    return theirs, ours


@pytest.mark.parametrize(("heads", "hidden"), [(4, 53), (5, 31), (2, 71)])
def test_transformer_is_hugging_faces_marian(heads: int, hidden: int) -> None:
    theirs, ours = marian(heads, hidden)
    source, attention_mask = sources([13, 7, 1, 11])
    target = torch.randint(VOCAB, (4, 17))
    y = theirs(source, attention_mask.long(), target, output_hidden_states=True)
    z = ours(source, target, attention_mask)
    assert z.std() > 0.1
    assert_close(
        ours.encode(source, attention_mask)[attention_mask],
        y.encoder_last_hidden_state[attention_mask],
        atol=1e-5,
        rtol=1e-5,
    )
    hidden = ours.hidden(source, target, attention_mask)
    assert_close(hidden, y.decoder_hidden_states[-1], atol=1e-5, rtol=1e-5)
    assert_close(z, y.logits, atol=1e-5, rtol=1e-5)
    gradient = torch.randn_like(z)
    for logits in y.logits, z:
        logits.backward(gradient)
    mine, his = ours.embed.weight.grad, theirs.get_input_embeddings().weight.grad
    mine, his = (grad[:PAD] / his[:PAD].abs().max() for grad in (mine, his))  # padding does not learn there
    assert_close(mine, his, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_attention_is_hugging_faces_marian() -> None:
    theirs, ours = marian()
    theirs.set_attn_implementation("eager")
    source, attention_mask = sources([13, 7, 1])
    target = torch.randint(VOCAB, (3, 5))
    y = theirs(source, attention_mask.long(), target, output_attentions=True)
    with watch(ours) as records:
        ours(source, target, attention_mask)
    for path, weights in {
        "encoder.2.attn.f": y.encoder_attentions[2],
        "decoder.0.attn.f": y.decoder_attentions[0],
        "decoder.1.cross.f": y.cross_attentions[1],
    }.items():
        assert_close(records[path][0]["weights"], weights, atol=1e-5, rtol=1e-5)


def write(
    model: Transformer, source: Tensor, attention_mask: Tensor, length: int, end: int | None = None
) -> Tensor:
    """Generate greedily, token by token, with padding after the end."""
    ids = torch.full((len(source), 1), PAD)
    logits, state = model.start(source, ids, attention_mask)
    while ids.shape[1] <= length:
        over = (ids == end).any(1, keepdim=True) if end is not None else torch.tensor(False)
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True).masked_fill(over, PAD)], dim=1)
        logits, state = model.step(ids[:, -1:], state)
    return ids


@torch.no_grad()
def test_writes_what_hugging_faces_marian_writes() -> None:
    """Two hundred sources of unequal length in one batch, in double precision; some answers end early."""
    theirs, ours = (model.double() for model in marian())
    source, attention_mask = sources([1 + 7 * i % 23 for i in range(200)])
    ids = write(ours, source, attention_mask, length=30)
    said = [(ids == word).any(1).sum().item() for word in range(PAD)]
    end = min(range(PAD), key=lambda word: abs(said[word] - 100))  # what about half of them say
    assert 20 < said[end] < 180
    y = theirs.generate(
        source, attention_mask=attention_mask.long(), num_beams=1, do_sample=False, max_new_tokens=30,
        eos_token_id=end, bad_words_ids=None,
    )  # fmt: skip
    z = write(ours, source, attention_mask, length=30, end=end)
    assert len(set(map(tuple, z.tolist()))) > 100
    assert torch.equal(z[:, : y.shape[1]], y)


@torch.no_grad()
def test_finds_what_hugging_faces_marian_finds() -> None:
    """Beam search over two hundred sources of unequal length in one batch, in double precision."""
    theirs, ours = (model.double() for model in marian())
    source, attention_mask = sources([1 + 7 * i % 23 for i in range(200)])
    y = theirs.generate(
        source, attention_mask=attention_mask.long(), num_beams=4, do_sample=False, max_new_tokens=15,
        length_penalty=0.6,
        early_stopping="never", eos_token_id=3, bad_words_ids=None, output_scores=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    logits, state = ours.start(source, torch.full((200, 1), PAD), attention_mask)
    z = beam_search(ours.step, logits, state, beams=4, end=3, max_new_tokens=15, length_penalty=0.6)
    answers = [[i for i in row if i not in (3, PAD)] for row in y.sequences[:, 1:].tolist()]
    assert [hypotheses[0].tokens for hypotheses in z] == answers
    assert [hypotheses[0].score for hypotheses in z] == pytest.approx(y.sequences_scores.tolist(), abs=1e-5)
    assert 20 < sum(len(answer) < 15 for answer in answers) < 180


# torch's own


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("ffn", ["relu", "gelu"])
def test_transformer_is_torchs(pre: bool, ffn: str) -> None:
    """Outputs and all gradients of both stacks; theirs has neither embeddings nor positions."""
    ours = build(pre=pre, ffn=ffn, positions="none", dropout=0.0)
    settings = {"dropout": 0.0, "activation": ffn, "batch_first": True, "norm_first": pre}
    with warnings.catch_warnings():  # of a path that they cannot take here
        warnings.filterwarnings("ignore", "enable_nested_tensor is True", UserWarning)
        theirs = nn.Transformer(40, 4, 3, 2, 53, **settings)
    if not pre:  # they norm once more
        theirs.encoder.norm = theirs.decoder.norm = None
    parts = {"attn.f": "self_attn", "cross.f": "multihead_attn", "attn.norm": "norm1"}
    parts |= {"ffn.f.up": "linear1", "ffn.f.down": "linear2", ".out.": ".out_proj."}

    def their_name(name: str) -> str:
        stack, _, rest = name.partition(".")
        if stack.endswith("_norm"):
            return f"{stack.removesuffix('_norm')}.norm.{rest}"
        layer, _, rest = rest.partition(".")
        norms = {"cross.norm": "norm2", "ffn.norm": "norm2" if stack == "encoder" else "norm3"}
        for a, b in (parts | norms).items():
            rest = rest.replace(a, b)
        return f"{stack}.layers.{layer}.{rest}"

    def as_theirs(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        renamed = {their_name(name): t for name, t in tensors.items() if not name.startswith("embed")}
        for name in [name for name in renamed if ".q." in name]:
            qkv = [renamed.pop(name.replace(".q.", f".{letter}.")) for letter in "qkv"]
            renamed[name.replace(".q.", ".in_proj_")] = torch.cat(qkv)
        return renamed

    theirs.load_state_dict(as_theirs(ours.state_dict()))
    source, attention_mask = sources([13, 7, 1])
    target = torch.randint(VOCAB, (3, 5))
    x, start = (math.sqrt(40) * ours.embed(ids).detach() for ids in (source, target))
    later, padded = torch.ones(5, 5, dtype=torch.bool).triu(1), ~attention_mask
    y = theirs(x, start, tgt_mask=later, src_key_padding_mask=padded, memory_key_padding_mask=padded)
    z = ours.hidden(source, target, attention_mask)
    assert_close(z, y, atol=1e-5, rtol=1e-5)
    gradient = torch.randn_like(z)
    for vectors in y, z:
        vectors.backward(gradient)
    mine = as_theirs({name: p.grad for name, p in ours.named_parameters()})
    his = {name: p.grad for name, p in theirs.named_parameters()}
    assert mine.keys() == his.keys()
    scale = max(grad.abs().max() for grad in his.values())
    for name in his:
        assert_close(mine[name] / scale, his[name] / scale, atol=1e-6, rtol=1e-5, msg=name)


# Sizes


def count(**changes: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(TransformerConfig(**changes)).parameters())


@pytest.mark.parametrize(("name", "published"), [("base", 65e6), ("big", 213e6)])
def test_presets_have_the_published_sizes(name: str, published: float) -> None:
    """Table 3 of the paper, with its joint vocabulary of 37,000 tokens, to the digits given there."""
    assert count(vocab=37_000, **TransformerConfig.PRESETS[name]) == pytest.approx(published, rel=0.04)


def test_presets_grow() -> None:
    sizes = [count(vocab=8_000, **preset) for preset in TransformerConfig.PRESETS.values()]
    assert sizes == sorted(sizes)
    assert sizes[0] < 3e6


def test_presets_name_only_settings() -> None:
    settings = {field.name for field in dataclasses.fields(TransformerConfig)}
    for name, preset in TransformerConfig.PRESETS.items():
        assert set(preset) <= settings - {"vocab", "target_vocab"}, name


def test_what_is_shared() -> None:
    joint, apart, untied = build(), build(target_vocab=59), build(tied=False)
    assert joint.output is joint.embed.weight
    assert apart.output.shape == (59, 40)
    assert apart.output is apart.target_embed.weight
    assert untied.output is untied.head.weight
    assert build(target_vocab=59, tied=False).output.shape == (59, 40)
    assert build(target_vocab=VOCAB).output.shape == joint.output.shape  # as many words, but not the same
    assert count(**SIZES, tied=False) - count(**SIZES) == VOCAB * 40
    assert count(**SIZES, target_vocab=59) - count(**SIZES) == 59 * 40
    source, target = torch.randint(VOCAB, (2, 5)), torch.randint(59, (2, 7))
    assert_close(apart(source, target), apart.hidden(source, target) @ apart.target_embed.weight.T)


def test_stacks_have_their_depths() -> None:
    model = build()
    assert [len(model.encoder), len(model.decoder), len(model.blocks)] == [3, 2, 5]
    assert [len(build(decoder_depth=None).decoder)] == [3]
    with watch(model) as records:
        pass
    encoder, decoder = ([f"{side}.{i}" for i in range(n)] for side, n in (("encoder", 3), ("decoder", 2)))
    assert set(records) == {f"{b}.attn.f" for b in encoder + decoder} | {f"{b}.cross.f" for b in decoder}


def test_starts_near_uniform() -> None:
    """Embeddings have length one and are scaled for the layers: the loss starts near log(vocab)."""
    for pre in False, True:
        model = Transformer(TransformerConfig(**SIZES, pre=pre)).eval()
        logits = model(torch.randint(VOCAB, (7, 31)), torch.randint(VOCAB, (7, 37)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(VOCAB, (7 * 37,)))
        assert loss.item() == pytest.approx(math.log(VOCAB) + 0.5, rel=0.05)  # logits of deviation one
        assert_close(math.sqrt(40) * model.embed.weight.std(), torch.tensor(1.0), atol=0.05, rtol=0)


# Sources


@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_positions_tell_order(positions: str) -> None:
    """Without positions a source is a set; with positions its order matters."""
    model = build(positions=positions)
    source, target = torch.randint(VOCAB, (1, 13)), torch.randint(VOCAB, (1, 5))
    same = torch.allclose(model(source, target), model(source.flip(1), target), atol=1e-4)
    assert same == (positions == "none")


@torch.no_grad()
def test_source_is_read_once() -> None:
    model, calls = build(), []
    for module in (*model.encoder, *(block.cross.f.k for block in model.decoder)):
        module.register_forward_hook(lambda *_: calls.append(1))
    source, attention_mask = sources([13, 7, 1])
    _, state = model.start(source, torch.zeros(3, 1, dtype=torch.long), attention_mask)
    assert len(calls) == 5
    for _ in range(4):
        _, state = model.step(torch.zeros(3, 1, dtype=torch.long), state)
    assert len(calls) == 5
    assert [state.length, *(cache.length for cache in state.source)] == [5, 13, 13]


@torch.no_grad()
def test_decoding_goes_on_from_a_state() -> None:
    model, (source, attention_mask), target = (
        build(kv_heads=2),
        sources([13, 7, 1]),
        torch.randint(VOCAB, (3, 17)),
    )
    _, state = model.start(source, target[:, :5], attention_mask)
    rest = [model.decode(chunk, state) for chunk in target[:, 5:].split([7, 1, 4], dim=1)]
    hidden = model.hidden(source, target, attention_mask)
    assert_close(torch.cat(rest, dim=1), hidden[:, 5:], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_source_of_nothing_gives_no_nan() -> None:
    model, (source, attention_mask) = build(), sources([13, 7])
    attention_mask[1] = False
    assert model(source, torch.randint(VOCAB, (2, 5)), attention_mask).isfinite().all()


def test_gradients_through_padding_are_finite() -> None:
    for positions in POSITIONS:
        model, (source, attention_mask) = build(positions=positions), sources([13, 7, 1])
        (1e3 * model(source, torch.randint(VOCAB, (3, 5)), attention_mask)).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters()), positions


# Mistakes


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"target_vocab": 0}, "target_vocab=0 must be more than 0"),
        ({"decoder_depth": 0}, "decoder_depth=0 must be more than 0"),
        ({"context": -1}, "context=-1 must be more than 0"),
        ({"context": 2**31}, f"context={2**31} must be at most {2**31 - 1}"),
        ({"dim": 10, "heads": 3}, r"dim=10.*heads=3"),
        ({"kv_heads": 3}, r"heads=4.*kv_heads=3"),
        ({"dim": 36, "heads": 12, "positions": "rotary"}, r"dim=36.*heads=12.*even"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"positions": "alibi"}, "alibi.*mirror"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        build(**settings)


def test_too_many_tokens_are_counted() -> None:
    model, full, long = build(), *(torch.zeros(1, n, dtype=torch.long) for n in (37, 38))
    for ids in (long, full), (full, long):
        with pytest.raises(ValueError, match=r"38 tokens .*context=37"):
            model(*ids)
    _, state = model.start(full, full)
    with pytest.raises(ValueError, match=r"38 tokens .*context=37"):
        model.step(full[:, :1], state)


def test_a_source_padded_on_the_left_is_refused() -> None:
    source, attention_mask = sources([13, 7])
    with pytest.raises(ValueError, match="on the right"):
        build().start(source.flip(1), torch.zeros(2, 1, dtype=torch.long), attention_mask.flip(1))


def test_configuration_is_frozen_and_by_keyword() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig(vocab=5).vocab = 6  # type: ignore[misc]
    with pytest.raises(TypeError):
        TransformerConfig(5)  # type: ignore[misc]


# Sides of unequal size


@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_sides_may_differ(positions: str) -> None:
    unequal = {"decoder_depth": 1, "decoder_heads": 2, "decoder_hidden": 31}
    model = build(positions=positions, **unequal)
    assert [len(side) for side in (model.encoder, model.decoder)] == [3, 1]
    assert [side[0].attn.f.heads for side in (model.encoder, model.decoder)] == [4, 2]
    assert model.decoder[0].cross.f.heads == 2
    assert [side[0].ffn.f.up.out_features for side in (model.encoder, model.decoder)] == [53, 31]
    (source, attention_mask), target = sources([13, 7, 1]), torch.randint(VOCAB, (3, 11))
    full = model(source, target, attention_mask)
    logits, state = model.start(source, target[:, :4], attention_mask)
    assert_close(logits, full[:, 3], atol=1e-5, rtol=1e-4)
    for t in range(4, 11):
        logits, state = model.step(target[:, t : t + 1], state)
        assert_close(logits, full[:, t], atol=1e-5, rtol=1e-4)


def test_sides_are_alike_unless_told_otherwise() -> None:
    own = dict(build().named_parameters())
    same = dict(build(decoder_heads=4, decoder_hidden=53).named_parameters())
    assert {name: p.shape for name, p in own.items()} == {name: p.shape for name, p in same.items()}
    with pytest.raises(ValueError, match=r"dim=40 .*decoder_heads=3"):
        build(decoder_heads=3)


def test_the_deep_preset_has_one_decoder_layer() -> None:
    with torch.device("meta"):
        model = Transformer(TransformerConfig(vocab=VOCAB, **TransformerConfig.PRESETS["deep"]))
    assert (len(model.encoder), len(model.decoder), model.config.dim) == (12, 1, 512)
