"""config.json of well-known models, as published: every key is known, and the sizes are right."""

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.convert.huggingface.config import Config
from regard.convert.huggingface.load import FAMILIES
from regard.models import MODELS

USUAL = {
    "architectures": ["Any"],
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0",
    "use_cache": True,
}
LLAMA = {
    "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "mlp_bias": False, "pretraining_tp": 1, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
QWEN = {
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
    "initializer_range": 0.02, "rms_norm_eps": 1e-06, "use_sliding_window": False,
    "tie_word_embeddings": True,
    "sliding_window": 32768, "vocab_size": 151936, "rope_theta": 1000000.0,
}  # fmt: skip
BERT = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
}  # fmt: skip
T5 = {
    "d_ff": 2048, "d_kv": 64, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "pad_token_id": 0,
    "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "n_positions": 512,
    "output_past": True, "relative_attention_num_buckets": 32, "vocab_size": 32128, "d_model": 512,
}  # fmt: skip
KNOWN: dict[str, tuple[dict[str, Any], int]] = {  # and how many weights they have, copies counted once
    "gpt2": (
        {
            "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.1, "bos_token_id": 50256,
            "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
            "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
            "resid_pdrop": 0.1,
            "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
            "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
        124_439_808,
    ),
    "SmolLM2-135M": (
        LLAMA
        | {
            "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True,
            "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
            "vocab_size": 49152,
            "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None,
            "rope_theta": 100000, "tie_word_embeddings": True,
        },
        134_515_008,
    ),
    "Llama-3.2-1B": (
        LLAMA
        | {
            "model_type": "llama", "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
            "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 16,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "rope_scaling": {
                "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "vocab_size": 128256,
        },
        1_235_814_400,
    ),
    "Mistral-7B-v0.1": (
        {
            "model_type": "mistral", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
            "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
            "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
            "tie_word_embeddings": False, "vocab_size": 32000,
        },
        7_241_732_096,
    ),
    "Qwen2.5-0.5B": (
        QWEN
        | {
            "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 24,
            "max_position_embeddings": 32768, "num_attention_heads": 14, "num_hidden_layers": 24,
            "num_key_value_heads": 2, "use_mrope": False,
        },
        494_032_768,
    ),
    "Qwen3-0.6B": (
        QWEN
        | {
            "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 1024,
            "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
            "rope_scaling": None,
            "sliding_window": None,
        },
        596_049_920,
    ),
    "bert-base-uncased": (
        BERT
        | {
            "model_type": "bert", "gradient_checkpointing": False, "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512, "pad_token_id": 0, "position_embedding_type": "absolute",
            "type_vocab_size": 2, "vocab_size": 30522,
        },
        110_106_428,  # with the heads for hidden words and for the next sentence
    ),
    "roberta-base": (
        BERT
        | {
            "model_type": "roberta", "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 514, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 50265,
        },
        124_697_433 - 3 * 768 + 768 * 769 + 2 * 769,  # as published, three rows fewer, two heads more
    ),
    "longformer-base-4096": (
        BERT
        | {
            "model_type": "longformer", "attention_mode": "longformer", "attention_window": [512] * 12,
            "bos_token_id": 0, "eos_token_id": 2, "gradient_checkpointing": False,
            "ignore_attention_mask": False, "layer_norm_eps": 1e-05, "max_position_embeddings": 4098,
            "pad_token_id": 1, "sep_token_id": 2, "type_vocab_size": 1, "vocab_size": 50265,
        },
        124_697_433 - 3 * 768 + 768 * 769 + 2 * 769 + 3584 * 768 + 12 * 3 * 768 * 769,  # as RoBERTa, and more
    ),
    "electra-small-discriminator": (
        BERT
        | {
            "model_type": "electra", "embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024,
            "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "num_attention_heads": 4,
            "position_embedding_type": "absolute", "summary_activation": "gelu", "summary_last_dropout": 0.1,
            "summary_type": "first", "summary_use_proj": True, "type_vocab_size": 2, "vocab_size": 30522,
        },
        31_038 * 128 + 129 * 256 + 12 * 789_760 + 257 * 128 + 256 + 30_522 + 258 * 257,
    ),
    "distilbert-base-uncased": (
        {
            "model_type": "distilbert", "activation": "gelu", "attention_dropout": 0.1, "dim": 768,
            "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
            "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
            "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": 30522,
        },
        67_577_660,
    ),
    "t5-small": (T5 | {"model_type": "t5", "num_heads": 8, "num_layers": 6}, 60_506_624),
    "flan-t5-small": (
        T5
        | {
            "model_type": "t5", "d_ff": 1024, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 8,
            "num_heads": 6, "num_layers": 8, "relative_attention_max_distance": 128,
            "tie_word_embeddings": False,
        },
        76_961_152,
    ),
    "opus-mt-en-de": (
        {
            "model_type": "marian", "activation_dropout": 0.0, "activation_function": "swish",
            "add_bias_logits": False, "add_final_layer_norm": False, "attention_dropout": 0.0,
            "bad_words_ids": [[58100]], "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0,
            "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0,
            "decoder_layers": 6, "decoder_start_token_id": 58100, "decoder_vocab_size": 58101, "dropout": 0.1,
            "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layerdrop": 0.0,
            "encoder_layers": 6,
            "eos_token_id": 0, "forced_eos_token_id": 0, "gradient_checkpointing": False,
            "id2label": {"0": "LABEL_0"}, "init_std": 0.02, "is_encoder_decoder": True, "max_length": 512,
            "max_position_embeddings": 512, "normalize_before": False, "normalize_embedding": False,
            "num_beams": 6, "num_hidden_layers": 6, "pad_token_id": 58100, "scale_embedding": True,
            "share_encoder_decoder_embeddings": True, "static_position_embeddings": True, "vocab_size": 58101,
        },
        73_886_208 + 58101,  # with the bias, that transformers does not count as a weight
    ),
    "vit-base-patch16-224": (
        BERT
        | {
            "model_type": "vit", "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0,
            "encoder_stride": 16, "image_size": 224, "layer_norm_eps": 1e-12, "num_channels": 3,
            "patch_size": 16, "qkv_bias": True, "id2label": {"0": "tench"},
        },
        85_798_656,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known_folders(name: str) -> None:
    values, weights = KNOWN[name]
    c = Config(USUAL | values, Path("config.json"))
    family = FAMILIES[c.kind]
    state = {
        "final_logits_bias": torch.ones(1),
        "lm_head.weight": torch.ones(1),
    }  # which decide what there is
    settings = family.settings(c, state if name in ("opus-mt-en-de", "flan-t5-small") else {})
    c.finish()
    cls, config, _ = MODELS[family.kind]
    with torch.device("meta"):
        model = cls(config(**settings))
    assert sum(p.numel() for p in model.parameters()) == weights
