"""Draw an attention of a trace.

Shapes: H heads, T queries, S keys; R rows and C columns of patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from regard.draw.heat import Matrix
from regard.draw.maps import Maps, to_image
from regard.draw.picture import Picture, draw
from regard.errors import UserError


@dataclass(frozen=True)
class Patches:
    """The image whose patches are keys."""

    pixels: Tensor
    grid: tuple[int, int]  # R, C


def draw_attention(
    name: str,
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str],
    head: int | None = None,
    patches: Patches | None = None,
) -> Picture:
    """Draw weights (H, T, S) of one head, or the mean of all; over the image, if keys are its patches."""
    H = len(weights)
    if head is not None and not 0 <= head < H:
        raise UserError(f"head={head}: there are heads 0 to {H - 1}")
    heads = weights.float().cpu().numpy()
    chosen = heads.mean(0) if head is None else heads[head]  # (T, S)
    title = f"{name}, head {head}" if head is not None else f"{name}, mean of {H} heads" if H > 1 else name
    if patches is None:
        return draw(Matrix(title, chosen, queries, keys))
    R, C = patches.grid
    if len(queries) == len(keys):  # self-attention: of the class token, or the mean of all patches
        has_class = len(queries) > R * C
        queries = queries[:1] if has_class else ["mean of all patches"]
        chosen = chosen[:1] if has_class else chosen.mean(0, keepdims=True)
    maps = chosen[:, chosen.shape[1] - R * C :].reshape(-1, R, C)
    return draw(Maps(title, to_image(patches.pixels), maps, queries))
