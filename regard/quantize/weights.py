"""Weights (N, K) in fewer bits than float32, which multiply inputs without becoming float32 again.

A `SmallWeight` takes the place of a layer's or an embedding's weight: `F.linear` and `F.embedding` use its
own methods, and all other code sees the float32 numbers that it represents. A row of a product depends on
that row of the input only, so that the answer to a text does not depend on the others in its batch.

Shapes: N outputs, K inputs, G groups of neighbouring inputs.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn import functional as F

GROUP = 32  # inputs whose four-bit weights share a scale, as in most GGUF files
ROWS = 16  # torch's kernel computes this many outputs at a time
AT_ONCE = 64  # outputs that are packed at once: whole blocks of torch's kernel, in little memory
CACHED = 2**23  # integers of a weight that is read from the processor's cache the second time
HALF = 8  # a four-bit weight counts from here
SHRINK = (1.0, 0.95, 0.9, 0.85)  # ranges of a group that are tried: a narrower one has finer steps
PLAIN = {"shape", "dtype", "device", "requires_grad", "is_leaf", "grad", "grad_fn", "ndim", "layout"}
PLAIN |= {"is_meta", "is_cuda", "is_sparse", "is_nested", "is_quantized", "itemsize", "_version", "names"}
METHODS = {"size", "dim", "numel", "__len__", "is_floating_point", "is_complex", "is_inference", "stride"}
METHODS |= {"element_size", "is_contiguous", "requires_grad_", "data_ptr", "__hash__", "storage_offset"}


class SmallWeight(Tensor):
    """A weight (N, K) in few bits. To torch it looks like one in float32."""

    name: ClassVar[str]  # of the precision
    parts: tuple[Tensor, ...]  # as they are stored

    @staticmethod
    def __new__(cls, *parts: Tensor) -> "SmallWeight":
        size = cls.full_shape(*parts)
        return Tensor._make_wrapper_subclass(cls, size, dtype=torch.float32, device=parts[0].device)

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts

    @classmethod
    def full_shape(cls, *parts: Tensor) -> tuple[int, int]:
        N, K = parts[0].shape
        return N, K

    @classmethod
    def from_float(cls, W: Tensor) -> Self:
        """The nearest weight of this kind."""
        raise NotImplementedError

    def prepare(self, x: Tensor) -> Any:
        """Convert inputs (M, K) for products with weights of this kind."""
        raise NotImplementedError

    def product(self, prepared: Any, bias: Tensor | None = None) -> Tensor:
        """x Wᵀ + b (M, N) of prepared inputs."""
        raise NotImplementedError

    def matmul(self, x: Tensor) -> Tensor:
        """x Wᵀ, from (M, K) to (M, N)."""
        return self.product(self.prepare(x))

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of an embedding, in float32."""
        raise NotImplementedError

    def pack(self) -> None:
        """Convert the parts to the layout for products, if it differs; `rows` need not work afterwards."""

    def dequantize(self) -> Tensor:
        """The numbers that this represents: the product with the identity."""
        K = self.shape[1]
        return self.matmul(torch.eye(K)).T.contiguous()

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = self.product(self.prepare(x.reshape(-1, x.shape[-1]).float()), bias)
        return y.view(*x.shape[:-1], y.shape[-1])

    def __deepcopy__(self, memo: dict[int, Any]) -> "SmallWeight":
        return self  # it never changes

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and isinstance(args[1], SmallWeight):
            return args[1].linear(args[0], *args[2:], **kwargs)
        if func is F.embedding:
            return args[1].rows(args[0])
        name = getattr(func, "__name__", "")
        if name == "detach" or (name == "to" and stays(args[0], *args[1:], **kwargs)):
            return args[0]  # without asking the dispatcher, for which torch imports much of itself
        if func is torch._has_compatible_shallow_copy_type:
            return False  # a module's parameter is replaced, not filled
        plain = func.__self__.__name__ in PLAIN if name == "__get__" else name in METHODS
        if plain:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return func(*map(dequantized, args), **{k: dequantized(v) for k, v in kwargs.items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return args[0]
        return func(*map(dequantized, args), **{k: dequantized(v) for k, v in (kwargs or {}).items()})


def stays(W: Tensor, *args: Any, **kwargs: Any) -> bool:
    """Whether `W.to(...)` is W: moving a module to where it is must not make its weights large."""
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    return device in (None, W.device) and dtype in (None, W.dtype)


def dequantized(value: Any) -> Any:
    """A value with the float32 numbers of every weight in it."""
    if isinstance(value, list | tuple):
        return type(value)(map(dequantized, value))
    return value.dequantize() if isinstance(value, SmallWeight) else value


class BFloat16Weight(SmallWeight):
    """Half of the bits; inputs are rounded to bfloat16, and sums are added up in float32."""

    name = "bfloat16"

    @classmethod
    def from_float(cls, W: Tensor) -> Self:
        return cls(W.to(torch.bfloat16))

    def prepare(self, x: Tensor) -> Tensor:
        return x.bfloat16()

    def product(self, prepared: Tensor, bias: Tensor | None = None) -> Tensor:
        return to_float(F.linear(prepared, self.parts[0]), bias)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.parts[0]).float()

    def dequantize(self) -> Tensor:
        return self.parts[0].float()


class Int8Weight(SmallWeight):
    """Eight bits and a scale for each output; inputs become integers, too.

    A row of an input becomes a row of eight bits; where that rounds too much, it has a second one, with the
    rounding errors of the first: a single large number in a row, as in language models, would otherwise take
    the bits of all others. The weights are read once for both. Sums of integers are exact.
    The parts are integers (N, K) and scales (N,): W = scale · integers. An embedding that is also the output
    layer keeps its parts, and is packed besides only where `pack_outputs` does so.
    """

    name = "int8"
    packed: Any = None

    @classmethod
    def from_float(cls, W: Tensor) -> Self:
        scale = W.abs().amax(1) / 127
        return cls((W / scale.clamp(min=1e-30)[:, None]).round_().to(torch.int8), scale)

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of integers, the first one of each row before all second ones; what a step of the integers of
        each row stands for; and which of them have a second one."""
        step = torch.maximum(x.abs().amax(-1, keepdim=True), TINY).div_(LEVEL)
        steps = x / step
        first = steps.round()
        errors = steps.sub_(first)
        limits = vector_norm(first, 2.0, -1).mul_(ROUGH)
        (rough,) = (vector_norm(errors, 2.0, -1) > limits).nonzero(as_tuple=True)
        if len(rough):  # the errors, with the same resolution
            first = torch.cat([first, (errors if len(rough) == len(x) else errors[rough]).mul_(FINER)])
        return first, step, rough

    def product(self, prepared: tuple[Tensor, Tensor, Tensor], bias: Tensor | None = None) -> Tensor:
        rows, step, rough = prepared
        if self.packed is None and not HAS_UNPACKED:
            self.packed = pack_int8(*self.parts)
        y = multiply_unpacked(rows, *self.parts) if self.packed is None else multiply_int8(rows, self.packed)
        if len(rough):
            y, second = y.tensor_split((len(step),))
            if len(rough) == len(step):
                y.addcmul_(second, COARSER)
            else:
                y.index_copy_(0, rough, y[rough].addcmul_(second, COARSER))
        return y.mul_(step) if bias is None else torch.addcmul(bias, y, step)

    def rows(self, ids: Tensor) -> Tensor:
        q, scale = self.parts
        return F.embedding(ids, q).float().mul_(scale[ids][..., None])

    def pack(self) -> None:
        if HAS_INT8:
            self.packed = pack_int8(*self.parts)
            self.parts = ()

    def dequantize(self) -> Tensor:
        return self.parts[0].float() * self.parts[1][:, None] if self.parts else unpack_int8(self.packed)


class Int4Weight(SmallWeight):
    """Four bits, and a scale and an offset for each GROUP of inputs; inputs are rounded to bfloat16.

    The parts are two integers a byte (N, K / 2), the even input in the lower half, and scales and offsets in
    bfloat16 (N, G, 2): W = scale · (integer - 8) + offset.
    """

    name = "int4"
    packed: tuple[Tensor, Tensor] | None = None

    def __init__(self, *parts: Tensor) -> None:
        super().__init__(*parts)
        self.missing = -len(parts[0]) % ROWS if HAS_INT4 else 0  # outputs that the kernel adds

    @classmethod
    def full_shape(cls, *parts: Tensor) -> tuple[int, int]:
        return parts[0].shape[0], 2 * parts[0].shape[1]

    @classmethod
    def from_float(cls, W: Tensor) -> Self:
        groups = W.unflatten(1, (-1, GROUP))  # (N, G, GROUP)
        low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
        middle, least = (low + high) / 2, torch.full_like(low, torch.inf)
        integers, scales = torch.empty_like(groups), torch.empty(*groups.shape[:2], 2)
        for share in SHRINK:
            scale = ((high - low) * (share / 15)).bfloat16().float().clamp(min=1e-30)
            offset = (middle + scale / 2).bfloat16().float()  # 0 to 15 are not symmetric around 8
            q = ((groups - offset) / scale).round_().add_(HALF).clamp_(0, 15)
            error = (offset + scale * (q - HALF) - groups).square_().sum(2, keepdim=True)
            better = error < least
            integers = q.where(better, integers)
            scales = torch.cat([scale, offset], 2).where(better, scales)
            least = torch.minimum(error, least)
        return cls(join_nibbles(integers.flatten(1).to(torch.uint8)), scales.bfloat16())

    def prepare(self, x: Tensor) -> Tensor:
        return x.bfloat16().contiguous()  # as the kernel requires; states of an LSTM are not

    def product(self, prepared: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.packed is None:
            self.packed = pack_int4(*self.parts)
        y = multiply_int4(prepared, *self.packed)
        return to_float(y if self.missing == 0 else y[:, : -self.missing], bias)

    def pack(self) -> None:
        self.packed, self.parts = pack_int4(*self.parts), ()

    def dequantize(self) -> Tensor:
        return self.rows(torch.arange(len(self))) if self.parts else super().dequantize()

    def rows(self, ids: Tensor) -> Tensor:
        q, scales = self.parts
        integers = split_nibbles(q[ids]).float().sub_(HALF).unflatten(-1, (-1, GROUP))
        scale, offset = scales[ids].float()[..., None].unbind(-2)
        return (scale * integers + offset).flatten(-2)


def join_nibbles(q: Tensor) -> Tensor:
    """Integers from 0 to 15, two a byte: (N, K) -> (N, K / 2)."""
    return q[:, ::2] | q[:, 1::2] << 4


def split_nibbles(q: Tensor) -> Tensor:
    """(..., K / 2) -> (..., K)"""
    return torch.stack([q & 15, q >> 4], -1).flatten(-2)


# The products. Each has a readable form, which is also used if torch has no fast one.


def has_op(path: str) -> bool:
    """Whether this torch has an operation."""
    package, _, name = path.partition(".")
    try:
        getattr(getattr(torch.ops, package), name)
    except AttributeError:
        return False
    return True


INT8 = "quantized.linear_with_input_q_dq_qweight_dq_output_fp32"
HAS_INT8 = has_op(INT8) and "fbgemm" in torch.backends.quantized.supported_engines
HAS_UNPACKED = HAS_INT8 and has_op("aten._int_mm")
HAS_INT4 = has_op("aten._weight_int4pack_mm_for_cpu")
# Without VNNI the kernel adds pairs of products in 16 bits, which have room for seven bits of the input only.
LEVELS = 127 if getattr(torch.cpu, "_is_vnni_supported", bool)() else 63
ROUGH = 0.015  # rounding errors, relative to the row: then it has a second one; about those of the weights
# As tensors: with a Python number, an operation on a short row takes twice as long.
LEVEL, FINER, COARSER, TINY = (torch.tensor(x) for x in (float(LEVELS), 2.0 * LEVELS, 0.5 / LEVELS, 1e-30))


@contextlib.contextmanager
def fbgemm() -> Iterator[None]:
    """Pack for fbgemm, which was fastest of torch's libraries; a later torch will remove it."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*quantize.*deprecated")
            yield
    finally:
        torch.backends.quantized.engine = before


def pack_int8(q: Tensor, scale: Tensor) -> Any:
    if not HAS_INT8:
        return q, scale
    with fbgemm(), torch.inference_mode(False):
        zeros = torch.zeros(len(q), dtype=torch.int)
        weight = torch._make_per_channel_quantized_tensor(q, scale, zeros, 0)
        return torch.ops.quantized.linear_prepack(weight, None)


def unpack_int8(packed: Any) -> Tensor:
    """The numbers that packed integers stand for."""
    W: Tensor = torch.ops.quantized.linear_unpack(packed)[0].dequantize()
    return W


def multiply_int8_plainly(x: Tensor, packed: tuple[Tensor, Tensor]) -> Tensor:
    """x Wᵀ of inputs that are rounded to whole numbers from -LEVELS to LEVELS."""
    q, scale = packed
    return F.linear(x.round(), q.float()).mul_(scale)


def multiply_int8_fast(x: Tensor, packed: Any) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():  # asking the packed weights for it takes two exceptions
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x, 1.0, LEVELS + 1, packed
        )
    return y


def multiply_unpacked(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    """x Wᵀ of such inputs, slower than packed ones, but without a second copy of the integers."""
    x, W = x.round().to(torch.int8), q.t()
    few = len(x) <= 2 and W.numel() <= CACHED  # a row at a time is faster then
    integers = torch.cat([torch._int_mm(row, W) for row in x.split(1)]) if few else torch._int_mm(x, W)
    y = integers.view(torch.float32)  # in the same memory: fresh memory takes longer than the product
    return y.copy_(integers).mul_(scale)


def pack_int4(q: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    scales = scales.transpose(0, 1).contiguous()  # (G, N, 2)
    if not HAS_INT4:
        return split_nibbles(q), scales
    if missing := -len(q) % ROWS:
        q, scales = F.pad(q, (0, 0, 0, missing)), F.pad(scales, (0, 0, 0, missing)).contiguous()
    packed = torch.empty_like(q)
    for i in range(0, len(q), AT_ONCE):  # the kernel packs integers of 32 bits
        integers = split_nibbles(q[i : i + AT_ONCE]).int()
        packed[i : i + AT_ONCE] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
    return packed, scales


def to_float(y: Tensor, bias: Tensor | None) -> Tensor:
    """y + b in float32."""
    return y.float() if bias is None else y + bias


def multiply_int4_plainly(x: Tensor, q: Tensor, scales: Tensor) -> Tensor:
    """x Wᵀ of inputs in bfloat16, and of integers (N, K)."""
    scale, offset = scales.float().transpose(0, 1)[..., None].unbind(2)  # (N, G, 1)
    W = scale * (q.float() - HALF).unflatten(1, (-1, GROUP)) + offset
    return F.linear(x.float(), W.flatten(1).bfloat16().float())


def multiply_int4_fast(x: Tensor, q: Tensor, scales: Tensor) -> Tensor:
    return torch._weight_int4pack_mm_for_cpu(x, q, GROUP, scales)


multiply_int8: Callable[..., Tensor] = multiply_int8_fast if HAS_INT8 else multiply_int8_plainly
multiply_int4: Callable[..., Tensor] = multiply_int4_fast if HAS_INT4 else multiply_int4_plainly
WEIGHTS: dict[str, type[SmallWeight]] = {kind.name: kind for kind in (BFloat16Weight, Int8Weight, Int4Weight)}
