"""Pictures of a trace."""

import pytest

from helpers.traced import model_and_input
from regard import UserError, trace


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
