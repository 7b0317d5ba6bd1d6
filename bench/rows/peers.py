"""What other libraries are measured on: models of the same sizes, compiled, trained with AdamW.

Data are ready on the device, unless the peer's own loop reads them.
"""

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from bench.rows.harness import Job, Options
from torch import Tensor, nn


def adamw_step(
    model: nn.Module, loss: Callable[[], tuple[Tensor, float]], options: Options
) -> Callable[[], float]:
    """A step of mixed-precision training: gradient, clipping, AdamW."""
    cuda = options.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)

    def step() -> float:
        with torch.autocast(options.device.type, torch.bfloat16, enabled=cuda):
            value, count = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return count

    return step


def compiled(model: nn.Module, options: Options, dynamic: bool | None = None) -> Callable[..., Any]:
    return torch.compile(model, dynamic=dynamic) if options.device.type == "cuda" else model


def hf_gpt2(shape: dict[str, Any], vocab: int, options: Options) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": shape["context"], "n_embd": shape["dim"]}
    sizes |= {"n_layer": shape["depth"], "n_head": shape["heads"]}
    config = GPT2Config(vocab_size=vocab, bos_token_id=0, eos_token_id=None, pad_token_id=0, **sizes)
    dtype = torch.bfloat16 if options.device.type == "cuda" else torch.float32
    return nn.Module.to(GPT2LMHeadModel(config), options.device, dtype).eval()


def hf_write(shape: dict[str, Any], vocab: int, streams: int, new: int, options: Options) -> Job:
    """`generate` with a static cache, which compiles the step."""
    model = hf_gpt2(shape, vocab, options)
    ids = torch.randint(vocab, (streams, options.size(32, 5)), device=options.device)
    mask = torch.ones_like(ids)
    cache = "static" if options.device.type == "cuda" else None

    def write() -> dict[str, float]:
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                cache_implementation=cache,
            )
        return {"count": float(out[:, ids.shape[1] :].numel())}

    return write


def gptfast_write(shape: dict[str, Any], vocab: int, streams: int, new: int, options: Options) -> Job:
    """gpt-fast's `generate` on a Llama of GPT-2's sizes; it knows no other models.

    12 layers, width 768, 12 heads, a gated feed-forward of 2048, which has as many weights as GPT-2's of
    3072, and an output layer of its own.
    """
    sys.path.insert(0, str(options.gptfast))
    sys.modules["tokenizer"] = types.SimpleNamespace(get_tokenizer=None)  # type: ignore[assignment]  # needs more packages, for text
    import generate as theirs  # type: ignore[import-not-found]
    from model import ModelArgs, Transformer  # type: ignore[import-not-found]

    hidden = {"intermediate_size": 8 * shape["dim"] // 3}
    sizes = {"n_layer": shape["depth"], "n_head": shape["heads"], "dim": shape["dim"]} | hidden
    args = ModelArgs(block_size=shape["context"], vocab_size=vocab, **sizes)
    model = Transformer(args).to(options.device, torch.bfloat16).eval()
    if options.device.type == "cuda":
        torch._inductor.config.coordinate_descent_tuning = True  # as its script does
        torch._inductor.config.triton.unique_kernel_names = True
        theirs.decode_one_token = torch.compile(
            theirs.decode_one_token, mode="reduce-overhead", fullgraph=True
        )
    prompt = torch.randint(vocab, (options.size(32, 5),), device=options.device, dtype=torch.int)

    def write() -> dict[str, float]:
        theirs.generate(
            model, prompt, new, streams, interactive=False, draft_model=None, temperature=0.8, top_k=200
        )
        return {"count": float(streams * new)}

    return write


def hf_marian(sizes: dict[str, Any], vocab: int, options: Options) -> Any:
    from transformers import MarianConfig, MarianMTModel

    settings = {"encoder_layers": sizes["depth"], "decoder_layers": sizes["depth"], "d_model": sizes["dim"]}
    for side in ("encoder", "decoder"):
        settings |= {f"{side}_attention_heads": sizes["heads"], f"{side}_ffn_dim": 4 * sizes["dim"]}
    config = MarianConfig(
        vocab_size=vocab,
        max_position_embeddings=sizes["context"],
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        **settings,
    )
    return nn.Module.to(MarianMTModel(config), options.device)


def marian_training(
    batches: Sequence[tuple[Tensor, ...]], sizes: dict[str, Any], vocab: int, options: Options
) -> Callable[[], float]:
    """On ready batches (source, its mask, target, what follows); compiled for shapes that change."""
    model = hf_marian(sizes, vocab, options).train()
    forward, turn = compiled(model, options, dynamic=True), iter(range(10**9))
    counts = [float((batch[-1] >= 0).sum()) for batch in batches]

    def loss() -> tuple[Tensor, float]:
        i = next(turn) % len(batches)
        source, mask, target, following = batches[i]
        logits = forward(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        value = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), following.flatten(), label_smoothing=0.1
        )
        return value, counts[i]

    return adamw_step(model, loss, options)


def bert_training(rows: int, length: int, sizes: dict[str, Any], options: Options) -> Callable[[], float]:
    from transformers import BertConfig, BertForMaskedLM

    names = {"hidden_size": sizes["dim"], "num_hidden_layers": sizes["depth"]}
    names |= {"num_attention_heads": sizes["heads"], "intermediate_size": 4 * sizes["dim"]}
    model = nn.Module.to(BertForMaskedLM(BertConfig(vocab_size=sizes["vocab"], **names)), options.device)
    ids = torch.randint(5, sizes["vocab"], (rows, length), device=options.device)
    labels = torch.where(torch.rand(ids.shape, device=options.device) < 0.15, ids, -100)
    forward, mask = compiled(model.train(), options), torch.ones_like(ids)

    def loss() -> tuple[Tensor, float]:
        return forward(input_ids=ids, attention_mask=mask, labels=labels).loss, float(ids.numel())

    return adamw_step(model, loss, options)


def vit_training(
    rows: int, side: int, patch: int, sizes: dict[str, Any], options: Options
) -> Callable[[], float]:
    """On one batch of pixels that are ready, normalised and on the device."""
    from transformers import ViTConfig, ViTForImageClassification

    names = {"hidden_size": sizes["dim"], "num_hidden_layers": sizes["depth"]}
    names |= {"num_attention_heads": sizes["heads"], "intermediate_size": 4 * sizes["dim"]}
    config = ViTConfig(image_size=side, patch_size=patch, **names)
    config.num_labels = 10
    model = nn.Module.to(ViTForImageClassification(config), options.device)
    pixels = torch.randn(rows, 3, side, side, device=options.device)
    labels = torch.randint(10, (rows,), device=options.device)
    forward = compiled(model.train(), options)
    return adamw_step(model, lambda: (forward(pixel_values=pixels, labels=labels).loss, float(rows)), options)
