"""Training on a CPU in fewer operations: joint products, norms and rotations of a few passes each.

Beside the products of a small model, most of a step's time are operations that read and write all numbers of
a layer once. The modules' own methods are the readable reference of this code.

Shapes: B batch, T tokens, H heads, G key/value heads, D width, d width of a head, P = (H + G) d.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from regard.core.attention import Globals
from regard.core.cache import KVCache, Mask
from regard.core.layers import Residual
from regard.core.positions import Rotation
from regard.training.joint import JointAttention, join_products, joint_product


def use_fewer_operations(model: nn.Module) -> None:
    """Train a model on a CPU, without compiling it, in fewer operations; the results are the same up to
    rounding. Weights keep their names."""
    join_products(model)
    for m in model.modules():
        if type(m) is JointAttention and type(m.q_norm) is nn.Identity:
            m.__class__ = LeanAttention
        elif type(m) is Residual and type(m.norm) is nn.RMSNorm and m.pre:
            m.norm.__class__ = LeanNorm


class LeanNorm(nn.RMSNorm):
    """A norm before products, in their precision."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.eps is None or x.device.type != "cpu":
            return super().forward(x)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        y: Tensor = Normalize.apply(x, self.weight, self.eps, dtype)
        return y


class Normalize(torch.autograd.Function):
    """w ⊙ x / √(mean(x²) + ε), Zhang & Sennrich 2019, eq. 4."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        D = x.shape[-1]
        scale = vector_norm(x, 2.0, -1, keepdim=True).square_().div_(D).add_(eps).rsqrt_()  # (..., 1)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """With n = x · scale: dw = Σ dy n, and dx = scale (w dy - n mean(w dy n))."""
        x, weight, scale = ctx.saved_tensors
        D = x.shape[-1]
        n, dy = x * scale, dy.to(x.dtype)
        products = (dy * n).view(-1, D)
        mean = (products @ weight).div_(D).view_as(scale)
        dx = (dy * weight).addcmul_(n, mean, value=-1).mul_(scale)
        return dx, products.sum(0), None, None


class LeanAttention(JointAttention):
    """Attention that rotates queries and keys together, in the layout of their product."""

    def forward(
        self, x: Tensor, source: Tensor | None = None, *, mask: Mask = None, bias: Tensor | None = None,
        rotary: Rotation | None = None, cache: KVCache | None = None, globals: Globals | None = None
    ) -> Tensor:  # fmt: skip
        if (
            not self.training
            or self.records is not None
            or source is not None
            or cache is not None
            or rotary is None
            or rotary[0].numel() != x.shape[1] * rotary[0].shape[-1]  # rows have other positions
        ):
            how: dict[str, Any] = {"mask": mask, "bias": bias, "rotary": rotary, "cache": cache}
            return super().forward(x, source, **how, globals=globals)
        qkv = joint_product(x, self.q, self.k, self.v)
        C, S = widen(rotary, self.heads + self.kv_heads, qkv.dtype)
        q, k, v = RotateHeads.apply(qkv, C, S, self.heads, self.kv_heads)
        globals = self.globals if globals is None else globals
        y = self.attend(q, k, v, mask, bias, globals, None)  # (B, H, T, d)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)


def widen(rotary: Rotation, heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What the numbers of all heads are multiplied by (T, heads d), and what their partners are."""
    cos, sin = (t.flatten(0, -2).to(dtype) for t in rotary)  # (T, d / 2)
    return torch.cat([cos, cos], 1).repeat(1, heads), torch.cat([-sin, sin], 1).repeat(1, heads)


def exchange(x: Tensor, half: int) -> Tensor:
    """The partner of each number, in the other half of its head."""
    a, b = x.unflatten(-1, (-1, 2, half)).unbind(-2)
    return torch.stack([b, a], -2).flatten(-3)


class RotateHeads(torch.autograd.Function):
    """Queries (B, H, T, d), rotated keys and values (B, G, T, d) of a joint product (B, T, (H + 2 G) d)."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, C: Tensor, S: Tensor, heads: int, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(C, S)
        P, n = C.shape[1], heads + kv_heads
        d = P // n
        x = qkv[..., :P]
        turned = (x * C).addcmul_(exchange(x, d // 2), S).unflatten(-1, (n, d)).transpose(1, 2)
        v = qkv[..., P:].unflatten(-1, (kv_heads, d)).transpose(1, 2).contiguous()
        return turned[:, :heads], turned[:, heads:], v

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        """A rotation by the opposite angle, written where the product's gradient reads it."""
        C, S = ctx.saved_tensors
        (B, H, T, d), G, P = dq.shape, dk.shape[1], C.shape[1]
        dx = dq.new_empty(B, T, H + 2 * G, d)
        for part, of_heads in zip((dq, dk, dv), dx.split([H, G, G], 2), strict=True):
            of_heads.copy_(part.transpose(1, 2))
        dx = dx.flatten(2)
        turned = dx[..., :P]
        partners = exchange(turned, d // 2)
        turned.mul_(C).addcmul_(partners, S, value=-1)
        return dx, None, None, None, None
