"""Tiny folders of transformers models with random settings, each with a tokenizer."""

import random
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from regard.text.tokenizer_kinds import train_tokenizer

TEXT = ["The cat sleeps on the sofa", "A dog barks", "the end of it, at last"] * 3
VOCAB, CONTEXT = 293, 37
PAD, END = 1, 2
WRITES = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


@torch.no_grad()
def randomize(model: Any) -> Any:
    """Add noise, so that attention is not uniform and norms and biases are not ones and zeros."""
    for name, p in model.named_parameters():
        if "embed_positions" not in name:  # sinusoidal, not learned
            p.add_((0.05 if isinstance(model, hf.T5PreTrainedModel) else 0.15) * torch.randn_like(p))
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model.eval()


def gpt2(rng: random.Random) -> Any:
    heads = rng.choice([1, 2, 5])
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCAB, n_positions=CONTEXT, n_embd=30, n_layer=rng.choice([1, 3]), n_head=heads,
            n_inner=rng.choice([None, 53]), activation_function=rng.choice(["gelu_new", "relu", "gelu"]),
            layer_norm_epsilon=rng.choice([1e-5, 1e-3]), tie_word_embeddings=rng.choice([True, False]),
            **WRITES,
        )
    )  # fmt: skip


def rope(rng: random.Random) -> dict[str, Any]:
    plain = {"rope_type": "default", "rope_theta": rng.choice([1e4, 5e5])}
    more = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    learnt = {"original_max_position_embeddings": 19}
    return rng.choice([plain, plain | {"rope_type": "llama3"} | more | learnt])


def decoder(rng: random.Random, kind: str, **more: Any) -> Any:
    heads = rng.choice([2, 4])
    config = getattr(hf, f"{kind}Config")(
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=40,
        num_hidden_layers=rng.choice([1, 3]), num_attention_heads=heads, num_key_value_heads=rng.choice([1,
        2]), intermediate_size=53,
        rms_norm_eps=rng.choice([1e-6, 1e-3]), tie_word_embeddings=rng.choice([True, False]),
        rope_parameters=rope(rng), **WRITES, **more,
    )  # fmt: skip
    return getattr(hf, f"{kind}ForCausalLM")(config)


def llama(rng: random.Random) -> Any:
    return decoder(rng, "Llama", head_dim=rng.choice([None, 14]))


def mistral(rng: random.Random) -> Any:
    return decoder(rng, "Mistral", sliding_window=rng.choice([None, 7]))


def qwen2(rng: random.Random) -> Any:
    return decoder(rng, "Qwen2")


def qwen3(rng: random.Random) -> Any:
    return decoder(rng, "Qwen3", head_dim=rng.choice([14, 20]))


def t5(rng: random.Random) -> Any:
    gated = rng.choice([True, False])
    model = hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=VOCAB, n_positions=CONTEXT, d_model=40, d_kv=rng.choice([10, 7]), d_ff=53,
            num_layers=rng.choice([1, 2]), num_decoder_layers=rng.choice([1, 3]), num_heads=4,
            feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated,
            decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=END,
        )
    )  # fmt: skip
    if gated:  # as in T5 1.1, whose output layer is not tied
        model.lm_head.weight = torch.nn.Parameter(0.2 * torch.randn(VOCAB, 40))
    return model


def sides(rng: random.Random) -> dict[str, Any]:
    """Sizes of an encoder and a decoder, which may differ."""
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "d_model": 40}
    for side, layers in (("encoder", [1, 2]), ("decoder", [1, 3])):
        sizes[f"{side}_layers"] = rng.choice(layers)
        sizes[f"{side}_attention_heads"] = rng.choice([1, 4])
        sizes[f"{side}_ffn_dim"] = rng.choice([53, 31])
    tokens = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}
    return sizes | tokens | {"forced_eos_token_id": None, "scale_embedding": True}


def marian(rng: random.Random, **more: Any) -> Any:
    activation = rng.choice(["swish", "relu", "gelu"])
    model = hf.MarianMTModel(hf.MarianConfig(**sides(rng) | {"activation_function": activation} | more))
    model.generation_config.update(num_beams=3, max_length=23, bad_words_ids=[[PAD]])
    return model


BERT = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT}


def bert(
    rng: random.Random, architecture: str = "BertForMaskedLM", config: type = hf.BertConfig, **more: Any
) -> Any:
    return getattr(hf, architecture)(
        config(
            **BERT, hidden_size=40, num_hidden_layers=rng.choice([1, 3]),
            num_attention_heads=rng.choice([2, 5]), intermediate_size=53, layer_norm_eps=1e-3,
            hidden_act=rng.choice(["gelu", "gelu_new", "relu"]),
            type_vocab_size=rng.choice([2, 3]), **more,
        )
    )  # fmt: skip


def megatron_bert(rng: random.Random, architecture: str = "MegatronBertForMaskedLM", **more: Any) -> Any:
    return bert(rng, architecture, hf.MegatronBertConfig, **more)


def roberta(rng: random.Random, architecture: str = "RobertaForMaskedLM", **more: Any) -> Any:
    return getattr(hf, architecture)(
        hf.RobertaConfig(
            **BERT, hidden_size=40, num_hidden_layers=rng.choice([1, 3]),
            num_attention_heads=rng.choice([2, 5]), intermediate_size=53, type_vocab_size=1,
            pad_token_id=PAD, **more,
        )
    )  # fmt: skip


def longformer(rng: random.Random, architecture: str = "LongformerForMaskedLM", **more: Any) -> Any:
    depth = rng.choice([1, 3])
    windows = [rng.choice([4, 8]) for _ in range(depth)]  # they want multiples of one another
    return getattr(hf, architecture)(
        hf.LongformerConfig(
            **BERT, hidden_size=40, num_hidden_layers=depth, num_attention_heads=rng.choice([2, 5]),
            intermediate_size=53, type_vocab_size=1, pad_token_id=PAD, sep_token_id=END,
            attention_window=windows, hidden_act="gelu", **more,
        )
    )  # fmt: skip


def electra(rng: random.Random, architecture: str = "ElectraForMaskedLM", **more: Any) -> Any:
    return getattr(hf, architecture)(
        hf.ElectraConfig(
            **BERT, hidden_size=40, embedding_size=rng.choice([40, 24]), num_hidden_layers=rng.choice([1, 3]),
            num_attention_heads=rng.choice([2, 5]), intermediate_size=53, layer_norm_eps=1e-3, **more,
        )
    )  # fmt: skip


def distilbert(rng: random.Random, architecture: str = "DistilBertForMaskedLM", **more: Any) -> Any:
    return getattr(hf, architecture)(
        hf.DistilBertConfig(
            **BERT, dim=40, n_layers=rng.choice([1, 3]), n_heads=rng.choice([2, 5]), hidden_dim=53,
            activation=rng.choice(["gelu", "relu"]), **more,
        )
    )  # fmt: skip


def vit(rng: random.Random) -> Any:
    return hf.ViTForImageClassification(
        hf.ViTConfig(
            image_size=15, patch_size=rng.choice([3, 5]), num_channels=rng.choice([1, 3]), hidden_size=24,
            num_hidden_layers=rng.choice([1, 3]), num_attention_heads=rng.choice([1, 3]),
            intermediate_size=29, num_labels=7, layer_norm_eps=rng.choice([1e-6, 1e-3]),
            hidden_act=rng.choice(["gelu", "relu"]),
        )
    )  # fmt: skip


def pegasus(rng: random.Random, **more: Any) -> Any:
    config = sides(rng) | {"activation_function": rng.choice(["relu", "gelu"])} | more
    return hf.PegasusForConditionalGeneration(hf.PegasusConfig(**config))


def siglip(rng: random.Random) -> Any:
    vision = {
        "image_size": 15, "patch_size": rng.choice([3, 5]), "num_channels": rng.choice([1, 3]),
        "hidden_size": 24, "num_hidden_layers": rng.choice([1, 3]), "num_attention_heads": 3,
        "intermediate_size": 29, "layer_norm_eps": rng.choice([1e-6, 1e-3]), "vision_use_head": False,
        "hidden_act": rng.choice(["gelu", "gelu_pytorch_tanh"]),
    }  # fmt: skip
    return hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=vision, num_labels=7))


MAKERS = {
    f.__name__: f
    for f in (
        *(gpt2, llama, mistral, qwen2, qwen3, t5, marian, pegasus, bert, roberta, longformer, electra),
        *(distilbert, megatron_bert, vit, siglip),
    )
}
SPECIALS = {
    "t5": ("<unk>", "<pad>", "</s>", "<extra_id_0>", "<extra_id_1>"),
    "marian": ("<unk>", "<pad>", "</s>"),
    "pegasus": ("<unk>", "<pad>", "</s>"),
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "megatron_bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "electra": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "distilbert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "longformer": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}


def save_folder(folder: Path, kind: str, seed: int = 0, **more: Any) -> Any:
    """Save a random model as transformers does, with a tokenizer; return the model."""
    torch.manual_seed(seed)
    model = randomize(MAKERS[kind](random.Random(seed), **more))
    model.save_pretrained(folder)
    if kind not in ("vit", "siglip"):
        specials = SPECIALS.get(kind, ("<|endoftext|>",))
        train_tokenizer("bpe", TEXT, VOCAB, specials).save(folder / "tokenizer.json")
    return model
