"""The captioner's parts, against other implementations and the paper's equations."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from regard.describe.watch import watch
from regard.models import Captioner, CaptionerConfig

SIZES = {"vocab": 43, "context": 19, "dim": 24, "heads": 3, "size": 20, "dropout": 0.0}
T = 7


def captioner(**more: object) -> Captioner:
    torch.manual_seed(0)
    return Captioner(CaptionerConfig(**(SIZES | more))).eval()  # type: ignore[arg-type]


def inputs(rows: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randint(256, (rows, 3, 20, 20), dtype=torch.uint8), torch.randint(43, (rows, T))


@torch.no_grad()
def test_the_lstm_is_the_papers_equations() -> None:
    """Xu et al. 2015, eq. 1-7, 13-15, step by step with torch's own LSTM cell."""
    model = captioner()
    pixels, target = inputs()
    a = model.encoder(pixels)
    soft = model.decoder
    cell = nn.LSTMCell(48, 24)
    rnn = soft.rnn.state_dict()
    cell.load_state_dict({name.removesuffix("_l0"): w for name, w in rnn.items()})
    h, c = torch.tanh(soft.first(a.mean(1))).chunk(2, dim=-1)
    score, logits = soft.look.score, []
    for t in range(T):
        y = model.embed(target[:, t])
        e = score.w(torch.tanh(score.U(a) + score.W(h)[:, None]))[..., 0]
        alpha = e.softmax(-1)
        beta = torch.sigmoid(soft.look.gate(h))
        z = beta * (alpha[..., None] * a).sum(1)
        h, c = cell(torch.cat([y, z], dim=-1), (h, c))
        out = soft.readout(torch.cat([h, y, z], dim=-1))
        logits.append(F.linear(F.max_pool1d(out, 2), model.embed.weight))
    assert_close(model(pixels, target), torch.stack(logits, dim=1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
@torch.no_grad()
def test_every_region_has_its_place(decoder: str) -> None:
    """The same colours in other regions give other outputs."""
    model = captioner(decoder=decoder)
    pixels, target = inputs(2)
    assert not torch.allclose(model(pixels, target), model(pixels.flip(-1), target), atol=1e-4)


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
@pytest.mark.parametrize(
    ("more", "side"),
    [
        ({}, 5),
        ({"patch": 2}, 10),
        ({"size": 18}, 5),
        ({"zoom": 3, "patch": 16}, 4),
        ({"encoder": "vit"}, 5),
        ({"encoder": "vit", "zoom": 2, "patch": 10}, 4),
        ({"encoder": "efficientnet", "zoom": 2}, 2),
    ],
)
@torch.no_grad()
def test_weights_are_over_the_grid_of_regions(decoder: str, more: dict[str, int], side: int) -> None:
    model = captioner(decoder=decoder, **more)
    size = model.config.size
    assert model.config.side == side
    with watch(model) as records:
        model(torch.randint(256, (2, 3, size, size), dtype=torch.uint8), inputs(2)[1])
    (looks,) = (records for name, records in records.items() if name.endswith(("look", "cross.f")))
    weights = torch.cat([record["weights"] for record in looks], dim=2)
    assert weights.shape[0] == 2
    assert weights.shape[2:] == (T, side**2)
    assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@torch.no_grad()
def test_bytes_and_shares_of_white_are_the_same_picture() -> None:
    model = captioner()
    pixels, target = inputs()
    assert_close(model(pixels, target), model(pixels / 255, target))


@torch.no_grad()
def test_a_caption_that_is_too_long_is_refused() -> None:
    model = captioner()
    pixels, _ = inputs(1)
    with pytest.raises(ValueError, match="20 tokens do not fit context=19"):
        model(pixels, torch.zeros(1, 20, dtype=torch.long))
    _, state = model.start(pixels, torch.zeros(1, 19, dtype=torch.long))
    with pytest.raises(ValueError, match="do not fit"):
        model.step(torch.zeros(1, 1, dtype=torch.long), state)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"patch": 3}, "2, 4, 8"),
        ({"patch": 1}, "2, 4, 8"),
        ({"heads": 5}, "divide"),
        ({"zoom": 0}, "zoom"),
        ({"encoder": "efficientnet", "channels": 1}, "colour"),
        ({"encoder": "vit", "patch": 3}, "patch"),
    ],
)
def test_what_cannot_be_built_is_named(wrong: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        captioner(**wrong)


def test_grey_pictures() -> None:
    model = captioner(channels=1)
    assert model(torch.randint(256, (2, 1, 20, 20), dtype=torch.uint8), inputs(2)[1]).shape == (2, T, 43)
