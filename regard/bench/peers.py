"""The models of other libraries: of the same sizes, compiled, trained with AdamW.

Data are ready on the device, unless the peer's own loop reads them.
"""

import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.bench.measure import Options
from regard.models import GPTConfig, ViTConfig
from regard.training.trainer import Trainer


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


def nanogpt_training(
    size: str, tokens: np.ndarray, rows: int, options: Options, units: float | None = None
) -> Callable[[], float]:
    """A step of the loop of its train.py, with the settings of its README for this size."""
    if options.nanogpt is None:
        raise FileNotFoundError("give --nanogpt FOLDER")
    sys.path.insert(0, str(options.nanogpt))
    from model import GPT as Theirs  # type: ignore[import-not-found]
    from model import GPTConfig as TheirConfig

    s, device, cuda = GPTConfig.PRESETS[size], options.device, options.device.type == "cuda"
    T, vocab = s["context"], 50304 if size == "gpt2" else int(tokens.max()) + 1
    sizes = {"n_layer": s["depth"], "n_head": s["heads"], "n_embd": s["dim"], "block_size": T}
    dropout = 0.2 if size == "mini" else 0.0  # as its configurations for characters and for GPT-2 have it
    model = Theirs(TheirConfig(vocab_size=vocab, dropout=dropout, bias=False, **sizes)).to(device)
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
    run = compiled(model, options)

    def get_batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(tokens) - T, (rows,))
        x = torch.stack([torch.from_numpy(tokens[i : i + T].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
        if cuda:
            x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        return x, y

    def step() -> float:
        x, y = get_batch()
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            _, loss = run(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(rows * T) if units is None else units

    return step


def hf_gpt2(shape: dict[str, Any], vocab: int, options: Options) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": shape["context"], "n_embd": shape["dim"]}
    sizes |= {"n_layer": shape["depth"], "n_head": shape["heads"]}
    sizes |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(vocab_size=vocab, bos_token_id=0, eos_token_id=None, pad_token_id=0, **sizes)
    return nn.Module.to(GPT2LMHeadModel(config), options.device)


def hf_write(
    shape: dict[str, Any], vocab: int, ids: Tensor, new: int, options: Options
) -> Callable[[], float]:
    """`generate`; on a GPU with a static cache, which compiles the step."""
    model, cuda = hf_gpt2(shape, vocab, options).eval(), options.device.type == "cuda"
    model = model.bfloat16() if cuda else model
    more = {"cache_implementation": "static"} if cuda else {}
    mask = torch.ones_like(ids)

    def write() -> float:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, **more)
        return float(out[:, ids.shape[1] :].numel())

    return write


def gptfast_write(
    shape: dict[str, Any], vocab: int, streams: int, length: int, new: int, options: Options
) -> Callable[[], float]:
    """gpt-fast's `generate` on a Llama of GPT-2's sizes, since it has no other models.

    Its gated feed-forward of width 8/3 has as many weights as GPT-2's of width 4; its output layer is not
    tied to the embedding.
    """
    sys.path.insert(0, str(options.gptfast))
    # Its own needs packages for text, which is not measured.
    sys.modules["tokenizer"] = tokenizer = types.ModuleType("tokenizer")
    tokenizer.get_tokenizer = None  # type: ignore[attr-defined]
    import generate as theirs  # type: ignore[import-not-found]
    from model import ModelArgs, Transformer

    sizes = {"n_layer": shape["depth"], "n_head": shape["heads"], "dim": shape["dim"]}
    sizes |= {"intermediate_size": 8 * shape["dim"] // 3, "block_size": shape["context"]}
    model = Transformer(ModelArgs(vocab_size=vocab, **sizes)).to(options.device, torch.bfloat16).eval()
    if options.device.type == "cuda":
        theirs.decode_one_token = torch.compile(
            theirs.decode_one_token, mode="reduce-overhead", fullgraph=True
        )
    prompt = torch.randint(vocab, (length,), device=options.device, dtype=torch.int)

    def write() -> float:
        how = {"interactive": False, "draft_model": None, "temperature": 0.8, "top_k": min(200, vocab)}
        theirs.generate(model, prompt, new, streams, **how)
        return float(streams * new)

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


def marian_beams(
    sizes: dict[str, Any], vocab: int, shape: tuple[int, int], new: int, options: Options
) -> Callable[[], float]:
    """Four beams for random sources of this shape."""
    model = hf_marian(sizes, vocab, options).eval()
    model = model.bfloat16() if options.device.type == "cuda" else model
    source = torch.randint(2, vocab, shape, device=options.device)
    mask = torch.ones_like(source)

    def translate() -> float:
        with torch.inference_mode():
            model.generate(source, attention_mask=mask, num_beams=4, max_new_tokens=new, min_new_tokens=new)
        return float(len(source))

    return translate


def hf_t5(sizes: dict[str, Any], vocab: int, options: Options) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    heads = {"num_heads": sizes["heads"], "d_kv": sizes["dim"] // sizes["heads"]}
    config = T5Config(
        vocab_size=vocab,
        d_model=sizes["dim"],
        d_ff=4 * sizes["dim"],
        num_layers=sizes["depth"],
        pad_token_id=0,
        eos_token_id=1,
        **heads,
    )
    return nn.Module.to(T5ForConditionalGeneration(config), options.device)


def pair_training(model: Any, batches: Sequence[tuple[Tensor, ...]], options: Options) -> Callable[[], float]:
    """On ready batches (source, its mask, target, what follows); compiled for shapes that change."""
    forward, turn = compiled(model.train(), options, dynamic=True), iter(range(10**9))
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


def gpt2_training(model: Any, ids: Tensor, options: Options) -> Callable[[], float]:
    forward = compiled(model.train(), options)
    return adamw_step(model, lambda: (forward(input_ids=ids, labels=ids).loss, float(ids.numel())), options)


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


# By what our own trainer trains


def model_sizes(trainer: Trainer) -> dict[str, Any]:
    config = getattr(trainer.model, "model", trainer.model).config
    return {name: getattr(config, name) for name in ("dim", "depth", "heads", "context")}


def train_pairs(make: Callable[..., Any], trainer: Trainer, options: Options) -> Callable[[], float]:
    batches = [trainer.batches(step)[0] for step in range(options.size(50, 2))]
    ready = [tuple(t.to(options.device) for t in batch) for batch in batches]
    model = make(model_sizes(trainer), trainer.task.tokenizer.vocab, options)
    return pair_training(model, ready, options)


def train_bert(trainer: Trainer, options: Options) -> Callable[[], float]:
    rows, length = trainer.batches(0)[0][0].shape
    sizes = model_sizes(trainer) | {"vocab": trainer.task.tokenizer.vocab}
    return bert_training(rows, length, sizes, options)


def train_vit(trainer: Trainer, options: Options) -> Callable[[], float]:
    config: ViTConfig = trainer.model.model.config  # type: ignore[union-attr, assignment]
    return vit_training(trainer.config.batch, config.size, config.patch, model_sizes(trainer), options)


TRAINED: dict[str, Callable[[Trainer, Options], Callable[[], float]]] = {
    "translate": partial(train_pairs, hf_marian),
    "restore": partial(train_pairs, hf_t5),
    "fill": train_bert,
    "see": train_vit,
}
