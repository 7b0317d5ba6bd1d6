"""ViT against Hugging Face's, its positions at other sizes, its settings.

Sizes: pictures of 3 channels, 15 x 15 or 10 x 20 pixels, patches of 5; 2 layers, 3 heads, 24 wide, 29 in the
feed-forward, 7 classes.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import ViTConfig as TheirConfig
from transformers import ViTForImageClassification

from helpers.shapes import checked, promises
from regard.core.layers import StochasticDepth
from regard.describe.watch import watch
from regard.models import ModelWithHead, vit
from regard.models.vit import ViT, ViTConfig

SIZES = {"size": 15, "channels": 3, "patch": 5, "dim": 24, "depth": 2, "heads": 3, "hidden": 29}
NAMES = {  # ours by theirs
    "vit.embeddings.cls_token": "model.first.weight",
    "vit.embeddings.position_embeddings": "model.positions.weight",
    "vit.embeddings.patch_embeddings.projection": "model.embed",
    "vit.layernorm": "model.norm",
    "vit.layers": "model.blocks",
    "classifier": "head",
    "attention.q_proj": "attn.f.q",
    "attention.k_proj": "attn.f.k",
    "attention.v_proj": "attn.f.v",
    "attention.o_proj": "attn.f.out",
    "layernorm_before": "attn.norm",
    "layernorm_after": "ffn.norm",
    "mlp.fc1": "ffn.f.up",
    "mlp.fc2": "ffn.f.down",
}


def build(**changes: object) -> ViT:
    model = ViT(ViTConfig(**{**SIZES, **changes}))
    shake(model)
    return model.eval()


@torch.no_grad()
def shake(model: nn.Module) -> None:
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))


def both() -> tuple[ViTForImageClassification, ModelWithHead]:
    """Two models with the same weights."""
    theirs = ViTForImageClassification(
        TheirConfig(
            image_size=15, patch_size=5, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
            intermediate_size=29, num_labels=7, layer_norm_eps=1e-6,
        )
    )  # fmt: skip
    shake(theirs)
    ours = ModelWithHead(ViT(ViTConfig(**SIZES)), 7, dropout=0.0)
    ours.load_state_dict(renamed(dict(theirs.named_parameters())))
    return theirs.eval(), ours.eval()


def renamed(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert their weights or gradients to our names and shapes."""
    weights = {}
    for name, t in theirs.items():
        for their, our in NAMES.items():
            name = name.replace(their, our)
        weights[name] = t.flatten(1) if t.ndim == 4 else t.flatten(0, 1) if t.ndim == 3 else t
    return weights


@pytest.mark.parametrize("shape", [(15, 15), (20, 20), (10, 20)], ids=str)
def test_vit_is_hugging_faces(shape: tuple[int, int]) -> None:
    """Logits and gradients, also at other sizes, for which positions are interpolated."""
    theirs, ours = both()
    pixels = torch.randn(5, 3, *shape)
    y, z = theirs(pixels, interpolate_pos_encoding=True).logits, ours(pixels)
    assert z.std() > 0.1
    assert_close(z, y, atol=1e-5, rtol=1e-5)
    weights = torch.randn_like(z)
    for logits in y, z:
        (logits * weights).sum().backward()
    his = renamed({name: p.grad for name, p in theirs.named_parameters()})
    mine = {name: p.grad for name, p in ours.named_parameters()}
    assert len(his) == 2 * 16 + 4 + 2 + 2
    assert_close(mine, his, atol=1e-4, rtol=1e-4)


def test_patches_are_read_row_by_row() -> None:
    pixels = torch.arange(2 * 3 * 10 * 15).view(2, 3, 10, 15).float()
    patches = build().patches(pixels)
    assert patches.shape == (2, 6, 75)
    assert torch.equal(patches[1, 4].view(3, 5, 5), pixels[1, :, 5:10, 5:10])


@pytest.mark.parametrize("pool", ["first", "mean"])
@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
def test_without_positions_patches_are_a_set(pool: str, positions: str) -> None:
    model = build(positions=positions, pool=pool)
    pixels = torch.randn(2, 3, 15, 15)
    mirrored = torch.cat([pixels[:, :, 10:], pixels[:, :, 5:10], pixels[:, :, :5]], dim=2)  # rows of patches
    a, b = (model.pooled(model(x)) for x in (pixels, mirrored))
    assert a.shape == (2, 24)
    assert torch.allclose(a, b, atol=1e-5) == (positions == "none")


def test_waves_tell_rows_from_columns_and_keep_their_places_at_other_sizes() -> None:
    model = build(positions="sinusoidal", pool="mean")
    own, other = model.grid_positions(3, 3), model.grid_positions(3, 9)
    assert own is not None
    assert other is not None
    assert len({tuple(row) for row in own.tolist()}) == 9
    assert_close(own[0, :12], own[2, :12])  # of one row
    assert_close(own[0, 12:], own[6, 12:])  # of one column
    assert_close(other[1], own[0])  # the middle of three lies where the one was
    first = build(positions="sinusoidal").grid_positions(3, 3)
    assert first is not None
    assert_close(first, torch.cat([torch.zeros(1, 24), own]))


def test_watched_is_unwatched_and_every_weight_learns() -> None:
    model, pixels = build(), torch.randn(2, 3, 15, 15)
    x = model(pixels)
    with watch(model) as records:
        assert_close(model(pixels), x, atol=1e-5, rtol=1e-5)
    assert records["blocks.1.attn.f"][0]["weights"].shape == (2, 3, 10, 10)
    x.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_skip_leaves_out_whole_rows_and_keeps_the_mean() -> None:
    skip, x = StochasticDepth(0.3), torch.ones(5000, 2, 3)
    y = skip(x)
    assert y.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    assert torch.equal(y.amin((1, 2)), y.amax((1, 2)))
    assert y.mean() == pytest.approx(1, abs=0.03)
    assert skip.eval()(x) is x


def test_later_blocks_are_skipped_more_often() -> None:
    model = ViT(ViTConfig(**SIZES, skip=0.2))
    assert [m.share for m in model.modules() if isinstance(m, StochasticDepth)] == [0.1, 0.1, 0.2, 0.2]
    pixels = torch.randn(2, 3, 15, 15)
    assert not torch.equal(model(pixels), model(pixels))
    model.eval()
    assert torch.equal(model(pixels), model(pixels))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 16}, "size=16 must divide by patch=5"),
        ({"dim": 25}, "dim=25 must divide by heads=3"),
        ({"dim": 30, "positions": "sinusoidal"}, "dim=30 must divide by 4"),
        ({"skip": 1.0}, "skip=1.0"),
        ({"patch": 0}, "patch=0"),
    ],
)
def test_settings_that_do_not_do_are_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ViT(ViTConfig(**{**SIZES, **changes}))


@pytest.mark.parametrize("shape", [(2, 1, 15, 15), (2, 3, 16, 15)])
def test_pixels_that_do_not_fit_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="channels=3, and sides that divide by 5 and 5"):
        build()(torch.zeros(shape))


def test_shape_comments_are_true() -> None:
    path = Path(vit.__file__)
    pixels = torch.randn(2, 3, 10, 20)
    with checked(path) as checks:
        for positions in ("learned", "sinusoidal"):
            build(positions=positions)(pixels)
    assert {line for _, line in checks} == {promise.last for promise in promises(path)}


def test_compiles_without_graph_breaks() -> None:
    torch._dynamo.reset()
    model, pixels = build(), torch.randn(2, 3, 15, 15)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(pixels), model(pixels), atol=1e-5, rtol=1e-5)


def test_under_autocast_what_blocks_add_up_stays_exact() -> None:
    model, pixels, records = build(), torch.randn(2, 3, 15, 15), []
    model.blocks[1].register_forward_pre_hook(lambda _, inputs: records.append(inputs[0].dtype))
    exact = model(pixels)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(pixels)
    assert records == [torch.float32] * 2
    assert torch.nn.functional.cosine_similarity(half, exact, dim=-1).min() > 0.99
    assert build(positions="sinusoidal").bfloat16()(pixels.bfloat16()).dtype == torch.bfloat16


# Spectrograms

SPECTROGRAM = {"size": 24, "channels": 1, "mels": 7, "patch": 4}


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("pool", ["first", "mean"])
@torch.no_grad()
def test_padded_spectrograms_are_as_if_alone(pool: str, positions: str) -> None:
    """Nothing attends to padding, and the positions of a shorter one are the first."""
    model = build(**SPECTROGRAM, pool=pool, positions=positions)
    pixels, first = torch.randn(2, 1, 7, 24), int(pool == "first")
    mask = torch.arange(6 + first) < torch.tensor([[6], [4]]) + first
    y = model(pixels, mask)
    alone = model(pixels[1:, ..., :16])
    assert_close(y[1:, : 4 + first], alone, atol=1e-5, rtol=1e-4)
    assert_close(y[:1], model(pixels[:1]), atol=1e-5, rtol=1e-4)
    pooled = model.pooled(y, mask)
    assert_close(pooled[1:], model.pooled(alone), atol=1e-5, rtol=1e-4)
    other = pixels.clone()
    other[1, ..., 16:] = 9
    assert torch.equal(model(other, mask)[1, : 4 + first], y[1, : 4 + first])
    other[1, ..., 15] = 9
    assert not torch.equal(model(other, mask)[1], y[1])


def test_patches_of_spectrograms_are_columns() -> None:
    model = build(**SPECTROGRAM)
    pixels = torch.randn(2, 1, 7, 12)
    assert model.grid(pixels) == (1, 3)
    for n in range(3):
        assert torch.equal(model.patches(pixels)[:, n], pixels[..., 4 * n : 4 * n + 4].flatten(1))
    assert model.config.context == 7
    with pytest.raises(ValueError, match="divide"):
        model(torch.zeros(1, 1, 6, 12))


def test_patches_of_images_are_squares() -> None:
    model, pixels = build(), torch.randn(2, 3, 10, 20)
    assert torch.equal(model.patches(pixels), nn.functional.pixel_unshuffle(pixels, 5).flatten(2).mT)
