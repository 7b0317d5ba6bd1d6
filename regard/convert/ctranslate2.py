"""CTranslate2's folders: translators, text generators and encoders for its engine, which is fast on a CPU.

The engine builds the model from the settings and weights of a specification (Klein et al. 2020). A model
declares its stacks of blocks; the standard parts that these consist of are copied into a specification. The
folder is kept only if the engine gives the model's own results on some texts.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.convert.export import ExportRequest, import_extra, load_by, write_tokenizers
from regard.convert.huggingface.family import require_settings
from regard.convert.model_card import ctranslate2_card
from regard.core.attention import Attention
from regard.core.layers import GELU_TANH, Block, FeedForward, SwiGLU
from regard.core.positions import POSITIONS, Learned, Relative, Sinusoidal
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.describe.export import ExportedModel, StackParts, layout, stacks_of, without_head
from regard.describe.settings import output_vocab
from regard.errors import UserError
from regard.files.atomic import atomic_folder
from regard.files.tensors import write_tensors

HEAD = "head.safetensors"  # of an encoder; the engine has no heads
ACTIVATIONS: dict[Callable[..., Tensor], str] = {
    F.relu: "RELU",
    F.gelu: "GELU",
    GELU_TANH: "GELUTanh",
    F.silu: "SWISH",
}
POOLER_ACTIVATIONS = {"tanh": "Tanh", "relu": "RELU", "gelu": "GELU"}
DECODER_POSITIONS = ("rotary", "learned", "sinusoidal", "alibi", "none")  # of a decoder without an encoder
UNSUPPORTED = ("rope_scaling", "window", "sliding_window", "embed_dim")  # settings that must be absent
ENCODER_TASKS = ("classify", "tag", "span", "embed")
NEW_TOKENS = 64  # generated for each text of the check
TOLERANCE = 1e-3  # of hidden states; and logits that are closer may change places
CHECK_COST, MIN_TEXTS = 2**32, 8  # weights x texts, at most: large models are checked with fewer texts


def export_ctranslate2(folder: str | Path, request: ExportRequest) -> str:
    """Write a folder for CTranslate2, or nothing; return the result of the check, as one line."""
    engine = import_extra("ctranslate2")
    model, task = request.model, str(request.task["name"])
    stacks, roles = stacks_of(model), layout(model)
    if roles not in BUILDERS or (roles == "encoder") != (task in ENCODER_TASKS):
        name = type(without_head(model)).__name__
        raise UserError(
            f"a model of kind {name} for the task {task} is not supported by CTranslate2; use --to onnx"
        )
    for setting in UNSUPPORTED:
        if hasattr(model.config, setting):
            require_settings(model.config, "CTranslate2", **{setting: None})
    spec = BUILDERS[roles](engine, stacks, request)
    spec.validate()
    spec.optimize()
    with atomic_folder(Path(folder)) as temporary:
        spec.save(str(temporary))
        write_tokenizers(temporary, request)
        if (head := stacks[0].head) is not None:
            write_tensors(temporary / HEAD, {name: t.float() for name, t in head.state_dict().items()})
        two_tokenizers = request.target_tokenizer is not None
        card = ctranslate2_card(task, roles, two_tokenizers, model.config.context, request.card)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        if roles == "encoder":
            return check_vectors(engine, temporary, stacks[0], request)
        return check_texts(engine, temporary, model, request)


# The specification


def translator_spec(engine: Any, stacks: Sequence[StackParts], request: ExportRequest) -> Any:
    config = request.model.config
    encoder, decoder = (
        make(**stack_options(engine, stack, config))
        for make, stack in zip(
            (engine.specs.TransformerEncoderSpec, engine.specs.TransformerDecoderSpec), stacks, strict=True
        )
    )
    spec = engine.specs.TransformerSpec(encoder, decoder)
    fill_stack(encoder, encoder.embeddings[0], stacks[0], config.context)
    fill_stack(decoder, decoder.embeddings, stacks[1], config.context)
    spec.register_source_vocabulary(token_names(request.tokenizer, stacks[0].embed.num_embeddings))
    targets = token_names(request.target_tokenizer or request.tokenizer, stacks[1].embed.num_embeddings)
    spec.register_target_vocabulary(targets)
    set_special_tokens(spec.config, targets, request)
    spec.config.decoder_start_token = targets[request.begin or 0]
    spec.config.layer_norm_epsilon = first_norm(stacks[1]).eps
    return spec


def generator_spec(engine: Any, stacks: Sequence[StackParts], request: ExportRequest) -> Any:
    (stack,), config = stacks, request.model.config
    require_settings(config, "CTranslate2", positions=DECODER_POSITIONS)
    options = stack_options(engine, stack, config)
    if config.positions == "alibi":
        options |= {"alibi": True, "alibi_use_positive_positions": False}
    decoder = engine.specs.TransformerDecoderSpec(with_encoder_attention=False, **options)
    spec = engine.specs.TransformerDecoderModelSpec(decoder)
    fill_stack(decoder, decoder.embeddings, stack, config.context)
    names = token_names(request.tokenizer, stack.embed.num_embeddings)
    spec.register_vocabulary(names)
    set_special_tokens(spec.config, names, request)
    spec.config.layer_norm_epsilon = first_norm(stack).eps
    return spec


def encoder_spec(engine: Any, stacks: Sequence[StackParts], request: ExportRequest) -> Any:
    (stack,), specs = stacks, engine.specs
    options = stack_options(engine, stack, request.model.config)
    options |= {"num_source_embeddings": 1 if stack.segments is None else 2}
    options |= {"layernorm_embedding": not options["pre_norm"], "embeddings_merge": specs.EmbeddingsMerge.ADD}
    encoder = specs.TransformerEncoderSpec(**options)
    pooler = specs.Activation[POOLER_ACTIVATIONS[stack.pooler_activation]]
    spec = specs.TransformerEncoderModelSpec(
        encoder, pooling_layer=stack.pooler is not None, pooling_activation=pooler
    )
    fill_stack(encoder, encoder.embeddings[0], stack, request.model.config.context)
    if stack.segments is not None:
        encoder.embeddings[1].weight = stack.segments.weight.detach().float()
    if not options["pre_norm"]:
        fill(encoder.layernorm_embedding, stack.embed_norm)
    if stack.pooler is not None:
        fill(spec.pooler_dense, stack.pooler)
    names = token_names(request.tokenizer, stack.embed.num_embeddings)
    spec.register_vocabulary(names)
    spec.config.unk_token, spec.config.layer_norm_epsilon = unknown_token(names), first_norm(stack).eps
    return spec


BUILDERS: dict[str, Callable[[Any, Sequence[StackParts], ExportRequest], Any]] = {
    "encoder-decoder": translator_spec,
    "decoder": generator_spec,
    "encoder": encoder_spec,
}


def stack_options(engine: Any, stack: StackParts, config: Any) -> dict[str, Any]:
    """The settings of an encoder or decoder, from the parts that it consists of."""
    check_parts(stack)
    block: Any = stack.blocks[0]
    attention, ffn, norm = block.attn.f, block.ffn.f, block.attn.norm
    head_dim, qk_norm = (
        attention.q.out_features // attention.heads,
        not isinstance(attention.q_norm, nn.Identity),
    )
    if qk_norm and isinstance(norm, nn.LayerNorm):
        require_settings(config, "CTranslate2 beside norm=layer", qk_norm=False)
    options = {
        "num_layers": len(stack.blocks),
        "num_heads": attention.heads,
        "num_heads_kv": None if attention.kv_heads == attention.heads else attention.kv_heads,
        "head_dim": None if head_dim * attention.heads == stack.embed.embedding_dim else head_dim,
        "pre_norm": block.attn.pre,
        "rms_norm": isinstance(norm, nn.RMSNorm),
        "qk_norm": qk_norm,
        "activation": engine.specs.Activation[ACTIVATIONS[ffn.f]],
        "ffn_glu": isinstance(ffn, SwiGLU),
        "relative_attention_bias": isinstance(stack.positions, Relative),
    }
    if isinstance(stack.positions, POSITIONS["rotary"]):
        base = getattr(config, "base", 10_000.0)
        options |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": base}
    return options


def check_parts(stack: StackParts) -> None:
    """Raise UserError for a part that the engine does not have."""
    parts: list[tuple[object, tuple[object, ...]]] = [(stack.positions, tuple(POSITIONS.values()))]
    for block in stack.blocks:
        parts.append((block, (Block,)))
        if isinstance(block, Block):
            residuals: list[Any] = [block.attn, block.ffn, *([] if block.cross is None else [block.cross])]
            parts += [(residual.norm, (nn.LayerNorm, nn.RMSNorm)) for residual in residuals]
            parts += [(residual.f, (Attention,)) for residual in residuals if residual is not block.ffn]
            parts.append((block.ffn.f, (FeedForward, SwiGLU)))
    for part, supported in parts:
        if type(part) not in supported:
            raise UserError(f"{type(part).__name__} is not supported by CTranslate2; use --to onnx")
    sizes = {block_sizes(block) for block in stack.blocks}
    if len(sizes) > 1 or next(iter(sizes))[-1] not in ACTIVATIONS:
        raise UserError("CTranslate2 needs blocks that are alike, with one of its activations; use --to onnx")
    if not any(math.isclose(stack.embed_scale, scale) for scale in (1, math.sqrt(stack.embed.embedding_dim))):
        raise UserError(f"CTranslate2 can't multiply embeddings by {stack.embed_scale}; use --to onnx")


def block_sizes(block: Any) -> tuple[Any, ...]:
    """The sizes that the engine requires to be equal in all blocks of a stack."""
    f, norm, ffn = block.attn.f, block.attn.norm, block.ffn.f
    return f.heads, f.kv_heads, block.attn.pre, type(norm), norm.eps, type(ffn), ffn.f


def first_norm(stack: StackParts) -> Any:
    block: Any = stack.blocks[0]
    return block.attn.norm


def fill_stack(spec: Any, embedding: Any, stack: StackParts, context: int) -> None:
    """Copy the weights of a stack into its specification."""
    embedding.weight = stack.embed.weight.detach().float()
    spec.scale_embeddings = stack.embed_scale != 1
    positions = stack.positions
    if isinstance(positions, Sinusoidal):
        spec.position_encodings.encodings = positions.table.float()
    elif isinstance(positions, Learned):
        spec.position_encodings.encodings = positions.table.weight.detach().float()
    elif hasattr(spec, "position_encodings"):  # nothing is added to embeddings
        spec.position_encodings.encodings = torch.zeros(context, stack.embed.embedding_dim)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        fill_block(layer, block, positions)
    if hasattr(spec, "layer_norm"):
        fill(spec.layer_norm, stack.norm)
    if stack.output is not None:
        spec.projection.weight = stack.output.detach().float()
    if stack.output_bias is not None:
        spec.projection.bias = stack.output_bias.detach().float()


def fill_block(layer: Any, block: Any, positions: nn.Module) -> None:
    fill_attention(layer.self_attention, block.attn, cross=False)
    if isinstance(positions, Relative):
        layer.self_attention.relative_attention_bias = positions.table.weight.detach().float()
        layer.self_attention.relative_attention_max_distance = np.int32(positions.far)
    if block.cross is not None:
        fill_attention(layer.attention, block.cross, cross=True)
    fill(layer.ffn.layer_norm, block.ffn.norm)
    ffn = block.ffn.f
    fill(layer.ffn.linear_1, ffn.down)
    if isinstance(ffn, SwiGLU):
        fill(layer.ffn.linear_0, ffn.gate)
        fill(layer.ffn.linear_0_noact, ffn.up)
    else:
        fill(layer.ffn.linear_0, ffn.up)


def fill_attention(spec: Any, residual: Any, cross: bool) -> None:
    f: Attention = residual.f
    fill(spec.layer_norm, residual.norm)
    projections = [[f.q], [f.k, f.v]] if cross else [[f.q, f.k, f.v]]
    for linear, modules in zip(spec.linear[:-1], projections, strict=True):
        fill(linear, *modules)
    fill(spec.linear[-1], f.out)
    if hasattr(spec, "q_norm"):
        fill(spec.q_norm, f.q_norm)
        fill(spec.k_norm, f.k_norm)


def fill(spec: Any, *modules: Any) -> None:
    """Copy the weights of a norm, or of linear layers whose outputs are concatenated."""
    weight, *bias = (
        torch.cat([getattr(m, name).detach() for m in modules]).float()
        for name in ("weight", "bias")
        if getattr(modules[0], name, None) is not None
    )
    setattr(spec, "gamma" if hasattr(spec, "gamma") else "weight", weight)
    if bias:
        setattr(spec, "beta" if hasattr(spec, "gamma") else "bias", bias[0])


# Tokens


def token_names(tokenizer: str | None, size: int) -> list[str]:
    """The name of every token; rows of the embedding without a token get one."""
    names = tokenizers.Tokenizer.from_str(tokenizer or "")
    return [names.id_to_token(id) or f"<unused_{id}>" for id in range(size)]


def unknown_token(names: Sequence[str]) -> str:
    return "[UNK]" if "[UNK]" in names else "<unk>"  # the engine adds <unk> if there is none


def set_special_tokens(config: Any, names: list[str], request: ExportRequest) -> None:
    config.unk_token = unknown_token(names)
    config.eos_token = names[request.end] if request.end is not None else ""
    config.bos_token = names[request.begin] if request.begin is not None else config.eos_token


# The check


@torch.inference_mode()
def check_texts(engine: Any, folder: Path, model: ExportedModel, request: ExportRequest) -> str:
    """Raise UserError if the engine's greedy texts differ from the model's, other than by a tie."""
    context, translates = model.config.context, request.begin is not None
    new_tokens = min(NEW_TOKENS, context - 1 if translates else context // 2)
    last = [request.source_end] if translates and request.source_end is not None else []
    count = max(MIN_TEXTS, CHECK_COST // sum(p.numel() for p in model.parameters()))
    texts = [[*text[: context - new_tokens], *last] for text in request.samples[:count]]
    prompts = [[request.begin or 0]] * len(texts) if translates else texts
    own: list[list[int]] = [[] for _ in texts]
    sampling = Sampling(temperature=0.0, max_new_tokens=new_tokens)
    ends = list(request.ends) or request.end
    for tokens in generate(model, prompts, sampling, sources=texts if translates else None, end=ends):
        for ids, token in zip(own, tokens, strict=True):
            ids += [] if token is None else [token]
    run = translate if translates else write
    same = 0
    for text, prompt, a, b in zip(
        texts, prompts, own, run(engine, folder, texts, new_tokens, request), strict=True
    ):
        if a == b:
            same += 1
        elif not is_tie(model, [text] if translates else [], [*prompt, *a], [*prompt, *b], request.end):
            raise UserError("CTranslate2's output differs from the model's own; nothing was kept")
    return f"CTranslate2 wrote the same as the model itself for {same} of {len(texts)} texts"


ON_CPU: dict[str, Any] = {"device": "cpu", "compute_type": "float32"}


def translate(
    engine: Any, folder: Path, texts: list[list[int]], new_tokens: int, request: ExportRequest
) -> list[list[int]]:
    """The engine's greedy translations of encoded texts."""
    config = request.model.config
    names = token_names(request.tokenizer, config.vocab)
    targets = token_names(request.target_tokenizer or request.tokenizer, output_vocab(config))
    ids = {name: id for id, name in enumerate(targets)}
    results = load_by(engine.Translator, folder, **ON_CPU).translate_batch(
        [[names[id] for id in text] for text in texts],
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=new_tokens,
    )
    return [[ids[name] for name in result.hypotheses[0]] for result in results]


def write(
    engine: Any, folder: Path, texts: list[list[int]], new_tokens: int, request: ExportRequest
) -> list[list[int]]:
    """The engine's greedy continuations of encoded texts."""
    names = token_names(request.tokenizer, request.model.config.vocab)
    end = [names[id] for id in request.ends] or (names[request.end] if request.end is not None else "")
    results = load_by(engine.Generator, folder, **ON_CPU).generate_batch(
        [[names[id] for id in text] for text in texts],
        sampling_topk=1,
        max_length=new_tokens,
        include_prompt_in_result=False,
        end_token=end,
    )
    return [result.sequences_ids[0] for result in results]


def is_tie(
    model: ExportedModel, source: list[list[int]], a: list[int], b: list[int], end: int | None
) -> bool:
    """Return whether two texts first differ at tokens with equal logits, up to rounding."""
    at = next(i for i in range(len(a) + len(b)) if a[i : i + 1] != b[i : i + 1])
    logits = model(*(torch.tensor([ids]) for ids in (*source, a[:at])))[0, -1]
    first, second = (text[at] if at < len(text) else end for text in (a, b))
    return (
        first is not None and second is not None and bool((logits[first] - logits[second]).abs() < TOLERANCE)
    )


@torch.inference_mode()
def check_vectors(engine: Any, folder: Path, stack: StackParts, request: ExportRequest) -> str:
    """Raise UserError if the engine's hidden states differ from the model's."""
    assert stack.encode is not None
    encoder, largest = load_by(engine.Encoder, folder, **ON_CPU), 0.0
    for text in request.samples:
        ids = list(text[: request.model.config.context])
        y = np.array(encoder.forward_batch([ids]).last_hidden_state)
        difference = (torch.from_numpy(y) - stack.encode(torch.tensor([ids]))).abs().max()
        largest = max(largest, float(difference))
    if not largest <= TOLERANCE:
        raise UserError(f"CTranslate2's vectors are {largest:.1e} from the model's own; nothing was kept")
    return (
        f"CTranslate2's vectors are the model's own, but for {largest:.0e}, for {len(request.samples)} texts"
    )
