"""CTranslate2's folders: translators, writers and encoders for its engine, which is quick on a CPU.

It builds what a folder tells of (Klein et al. 2020), so most of ours have a place in it. A folder is tried
before it is handed over: it must write what our own model writes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import tokenizers
import torch
from torch import nn

from ..attention import Attention
from ..checkpoint import write_tensors
from ..errors import Mistake
from ..generate import Sampling, generate
from ..models import GPT, Bert, Labelled, Transformer
from ..positions import Learned, Relative, Sinusoidal
from .card import ctranslate2_card
from .family import need
from .files import whole_folder
from .made import Made, extra, write_tokenizers

HEAD = "head.safetensors"  # of an encoder, which the engine does not know of
FFNS = {  # ours: its name of the function, and whether a gate is beside it
    "relu": ("RELU", False),
    "gelu": ("GELU", False),
    "gelu_tanh": ("GELUTanh", False),
    "silu": ("SWISH", False),
    "swiglu": ("SWISH", True),
    "geglu": ("GELUTanh", True),
}
NEW = 64  # tokens that are written to try a folder
TIE = 1e-3  # logits that are no farther apart may change places
WORK, FEWEST = 2**32, 8  # of a large model, so many weights are multiplied for a token of each text; texts
READS = ("classify", "tag", "span", "embed")


def export_ctranslate2(folder: str | Path, made: Made) -> str:
    """A folder for CTranslate2, at once or not at all; in a line, what trying it showed."""
    engine = extra("ctranslate2")
    folder, inner, task = Path(folder), cast("Any", made.module), str(made.task["name"])
    head = inner.head if isinstance(inner, Labelled) else None
    if isinstance(inner, Labelled):
        inner = inner.model
    if isinstance(inner, Transformer):
        spec = translator(engine, inner, made)
    elif isinstance(inner, GPT) and head is None:
        spec = writer(engine, inner, made)
    elif isinstance(inner, Bert) and task in READS:
        spec = reader(engine, inner, made)
    else:
        name = type(inner).__name__
        raise Mistake(
            f"a model of kind {name} for the task {task} has no place in CTranslate2; use --to onnx"
        )
    spec.validate()
    spec.optimize()
    with whole_folder(folder) as beside:
        spec.save(str(beside))
        write_tokenizers(beside, made, isinstance(inner, Bert))
        if head is not None:
            write_tensors(beside / HEAD, {name: t.float() for name, t in head.state_dict().items()})
        both, two = isinstance(inner, Transformer), made.target_tokenizer is not None
        text = ctranslate2_card(task, both, two, inner.config.context)
        (beside / "README.md").write_text(text, encoding="utf-8")
        tried = try_reader if isinstance(inner, Bert) else try_writer
        return tried(engine, beside, inner, made)


def translator(engine: Any, model: Transformer, made: Made) -> Any:
    """The specification of an encoder-decoder."""
    c, specs = model.config, engine.specs
    shape = shaped(engine, model)
    encoder = specs.TransformerEncoderSpec(c.depth, c.heads, pre_norm=c.pre, **shape)
    decoder = specs.TransformerDecoderSpec(c.decoder_depth or c.depth, c.heads, pre_norm=c.pre, **shape)
    spec = specs.TransformerSpec(encoder, decoder)
    place_stack(
        encoder, encoder.embeddings[0], model.embed, model.encoder_positions, model.encoder, c.context
    )
    words = model.target_embed or model.embed
    place_stack(decoder, decoder.embeddings, words, model.decoder_positions, model.decoder, c.context)
    if c.pre:
        place(encoder.layer_norm, model.encoder_norm)
        place(decoder.layer_norm, model.decoder_norm)
    decoder.projection.weight = model._output.detach().float()
    if model.output_bias is not None:
        decoder.projection.bias = model.output_bias.detach().float()
    spec.register_source_vocabulary(vocabulary(made.tokenizer, c.vocab))
    target = vocabulary(made.target_tokenizer or made.tokenizer, c.target_vocab or c.vocab)
    spec.register_target_vocabulary(target)
    tell(spec.config, target, made)
    spec.config.decoder_start_token = target[made.begin or 0]
    spec.config.layer_norm_epsilon = 1e-5 if c.norm == "layer" else 1e-6
    return spec


def writer(engine: Any, model: GPT, made: Made) -> Any:
    """The specification of a decoder alone."""
    c, specs = model.config, engine.specs
    known = ("rotary", "learned", "sinusoidal", "alibi", "none")
    need(c, "CTranslate2", stretch=None, window=None, positions=known)
    if c.norm == "layer" and c.qk_norm:
        need(c, "CTranslate2 beside norm=layer", qk_norm=False)
    shape = shaped(engine, model) | {"qk_norm": c.qk_norm}
    shape |= {"alibi": True, "alibi_use_positive_positions": False} if c.positions == "alibi" else {}
    decoder = specs.TransformerDecoderSpec(c.depth, c.heads, with_encoder_attention=False, **shape)
    spec = specs.TransformerDecoderModelSpec(decoder)
    place_stack(decoder, decoder.embeddings, model.embed, model.positions, model.blocks, c.context)
    decoder.scale_embeddings = False
    place(decoder.layer_norm, model.norm)
    decoder.projection.weight = model.output.detach().float()
    names = vocabulary(made.tokenizer, c.vocab)
    spec.register_vocabulary(names)
    tell(spec.config, names, made)
    spec.config.layer_norm_epsilon = c.eps or (1e-5 if c.norm == "layer" else 1e-6)
    return spec


def reader(engine: Any, model: Bert, made: Made) -> Any:
    """The specification of an encoder alone."""
    c, specs = model.config, engine.specs
    need(c, "CTranslate2", window=None)
    shape = shaped(engine, model) | {"num_source_embeddings": 2 if c.segments else 1}
    merge = specs.EmbeddingsMerge.ADD
    shape |= {"pre_norm": c.pre, "layernorm_embedding": not c.pre, "embeddings_merge": merge}
    encoder = specs.TransformerEncoderSpec(c.depth, c.heads, **shape)
    pooler = specs.Activation.Tanh if c.pooler == "tanh" else specs.Activation.RELU
    spec = specs.TransformerEncoderModelSpec(encoder, pooling_layer=True, pooling_activation=pooler)
    place_stack(encoder, encoder.embeddings[0], model.embed, model.positions, model.blocks, c.context)
    if model.segments is not None:
        encoder.embeddings[1].weight = model.segments.weight.detach().float()
    encoder.scale_embeddings = False
    place(
        encoder.layer_norm if c.pre else encoder.layernorm_embedding,
        model.norm if c.pre else model.embed_norm,
    )
    place(spec.pooler_dense, model.pooler)
    names = vocabulary(made.tokenizer, c.vocab)
    spec.register_vocabulary(names)
    spec.config.unk_token, spec.config.layer_norm_epsilon = unknown(names), c.eps
    return spec


def shaped(engine: Any, model: Any) -> dict[str, Any]:
    """The settings that encoders and decoders share."""
    c = model.config
    f, gated = FFNS[c.ffn]
    kv, wide = getattr(c, "kv_heads", None), getattr(c, "head_dim", None)
    shape: dict[str, Any] = {
        "activation": engine.specs.Activation[f],
        "ffn_glu": gated,
        "rms_norm": c.norm == "rms",
        "relative_attention_bias": c.positions == "relative",
        "num_heads_kv": None if kv == c.heads else kv,
        "head_dim": wide,
    }
    rotary = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": getattr(c, "base", 10_000.0)}
    return shape | (rotary if c.positions == "rotary" else {})


def place_stack(
    spec: Any, words: Any, embed: nn.Embedding, positions: nn.Module, blocks: Any, context: int
) -> None:
    """A row of layers, and what they begin with."""
    words.weight = embed.weight.detach().float()
    if isinstance(positions, Sinusoidal):
        spec.position_encodings.encodings = positions.table.float()
    elif isinstance(positions, Learned):
        spec.position_encodings.encodings = positions.table.weight.detach().float()
    elif hasattr(spec, "position_encodings"):  # none, or such as are told otherwise
        spec.position_encodings.encodings = torch.zeros(context, embed.embedding_dim)
    for layer, block in zip(spec.layer, blocks, strict=True):
        place_attention(layer.self_attention, block.attn, cross=False)
        if isinstance(positions, Relative):
            layer.self_attention.relative_attention_bias = positions.table.weight.detach().float()
            layer.self_attention.relative_attention_max_distance = np.int32(positions.far)
        if block.cross is not None:
            place_attention(layer.attention, block.cross, cross=True)
        place(layer.ffn.layer_norm, block.ffn.norm)
        ffn = block.ffn.f
        place(layer.ffn.linear_0, getattr(ffn, "gate", ffn.up))
        place(layer.ffn.linear_1, ffn.down)
        if hasattr(ffn, "gate"):
            place(layer.ffn.linear_0_noact, ffn.up)


def place_attention(spec: Any, residual: Any, cross: bool) -> None:
    f: Attention = residual.f
    place(spec.layer_norm, residual.norm)
    parts = [[f.q], [f.k, f.v]] if cross else [[f.q, f.k, f.v]]
    for linear, some in zip(spec.linear[:-1], parts, strict=True):
        place(linear, *some)
    place(spec.linear[-1], f.out)
    if hasattr(spec, "q_norm"):
        place(spec.q_norm, f.q_norm)
        place(spec.k_norm, f.k_norm)


def place(spec: Any, *modules: Any) -> None:
    """The weights of a norm, or of linear layers one below the other."""
    weight, *bias = (
        torch.cat([getattr(m, name).detach() for m in modules]).float()
        for name in ("weight", "bias")
        if getattr(modules[0], name, None) is not None
    )
    setattr(spec, "gamma" if hasattr(spec, "gamma") else "weight", weight)
    if bias:
        setattr(spec, "beta" if hasattr(spec, "gamma") else "bias", bias[0])


# Words


def vocabulary(tokenizer: str | None, size: int) -> list[str]:
    """The name of every token; rows of the embedding that have none get one."""
    names = tokenizers.Tokenizer.from_str(tokenizer or "")
    return [names.id_to_token(id) or f"<unused_{id}>" for id in range(size)]


def unknown(names: Sequence[str]) -> str:
    return "[UNK]" if "[UNK]" in names else "<unk>"  # which is added, where there is none


def tell(config: Any, names: list[str], made: Made) -> None:
    config.unk_token = unknown(names)
    config.eos_token = names[made.end] if made.end is not None else ""
    config.bos_token = names[made.begin] if made.begin is not None else config.eos_token


# Trying


@torch.inference_mode()
def try_writer(engine: Any, folder: Path, model: Any, made: Made) -> str:
    """Greedy answers, theirs and ours, must be the same, but where two tokens are as good."""
    context, both = model.config.context, isinstance(model, Transformer)
    most = min(NEW, context - 1) if both else min(NEW, context // 2)
    last = [] if made.source_end is None or not both else [made.source_end]
    many = max(FEWEST, WORK // sum(p.numel() for p in model.parameters()))
    texts = [[*text[: context - most], *last] for text in made.texts[:many]]
    own: list[list[int]] = [[] for _ in texts]
    prompts = [[made.begin or 0]] * len(texts) if both else texts
    ends = list(made.ends) or made.end
    sampling = Sampling(temperature=0.0, max_new_tokens=most)
    for tokens in generate(model, prompts, sampling, sources=texts if both else None, end=ends):
        for text, token in zip(own, tokens, strict=True):
            text += [] if token is None else [token]
    names = vocabulary(made.tokenizer, model.config.vocab)
    given = [[names[id] for id in text] for text in texts]
    device: dict[str, Any] = {"device": "cpu", "compute_type": "float32"}
    if both:
        theirs = engine.Translator(str(folder), **device)
        out = [
            r.hypotheses[0]
            for r in theirs.translate_batch(
                given, beam_size=1, min_decoding_length=0, max_decoding_length=most
            )
        ]
        names = vocabulary(
            made.target_tokenizer or made.tokenizer, model.config.target_vocab or model.config.vocab
        )
        numbers = {name: id for id, name in enumerate(names)}
        found = [[numbers[name] for name in text] for text in out]
    else:
        theirs = engine.Generator(str(folder), **device)
        stop = [names[id] for id in made.ends] or (names[made.end] if made.end is not None else "")
        options = {"max_length": most, "include_prompt_in_result": False, "end_token": stop}
        found = [r.sequences_ids[0] for r in theirs.generate_batch(given, sampling_topk=1, **options)]
    same = 0
    for text, prompt, a, b in zip(texts, prompts, own, found, strict=True):
        if a == b:
            same += 1
        elif not tied(model, [text] if both else [], [*prompt, *a], [*prompt, *b], made.end):
            raise Mistake("CTranslate2 writes something else than the model itself; nothing was kept")
    return f"CTranslate2 wrote the same as the model itself for {same} of {len(texts)} texts"


def tied(model: Any, source: list[list[int]], a: list[int], b: list[int], end: int | None) -> bool:
    """Whether two texts part where either token would do."""
    at = next(i for i in range(len(a) + len(b)) if a[i : i + 1] != b[i : i + 1])
    logits = model(*(torch.tensor([ids]) for ids in (*source, a[:at])))[0, -1]
    one, other = (text[at] if at < len(text) else end for text in (a, b))
    return one is not None and other is not None and bool((logits[one] - logits[other]).abs() < TIE)


@torch.inference_mode()
def try_reader(engine: Any, folder: Path, model: Bert, made: Made) -> str:
    """Vectors, theirs and ours, must be the same."""
    theirs, farthest = engine.Encoder(str(folder), device="cpu", compute_type="float32"), 0.0
    for text in made.texts:
        ids = list(text[: model.config.context])
        y = np.array(theirs.forward_batch([ids]).last_hidden_state)
        difference = (torch.from_numpy(y) - model.encode(torch.tensor([ids]))).abs().max()
        farthest = max(farthest, float(difference))
    if not farthest <= TIE:
        raise Mistake(f"CTranslate2's vectors are {farthest:.1e} from the model's own; nothing was kept")
    many = f"for {len(made.texts)} texts"
    return f"CTranslate2's vectors are the model's own, but for {farthest:.0e}, {many}"


__all__ = ["export_ctranslate2"]
