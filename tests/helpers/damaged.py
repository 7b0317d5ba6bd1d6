"""What can be wrong with a model folder: a valid one, how it is damaged, and a word of the error message."""

import json
import struct
from pathlib import Path
from typing import Any

import torch

from helpers import ggufs
from helpers.hostile import (
    CONFIG,
    GENERATION,
    GGUF,
    INDEX,
    MODULES,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Damage,
    apply_all,
    edit_config,
    edit_entry,
    edit_gguf,
    edit_header,
    edit_tensors,
    first_tensor,
    join_safetensors,
    link,
    put_directory,
    put_fifo,
    put_file,
    put_pickle,
    remove,
    resize,
    set_json,
    split_safetensors,
)

NAN, HUGE, DEEP = float("nan"), 10**12, 100_000
PICTURES, POOLING = "preprocessor_config.json", "1_Pooling/config.json"
SHARD = "model-00001-of-00005.safetensors"
EMBED, OURS_EMBED = "model.embed_tokens.weight", "embed.weight"
Q = "model.layers.0.self_attn.q_proj.weight"


def raw(change: Any, name: str = WEIGHTS) -> Damage:
    """Replace the bytes of a file by a function of them."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def header(content: bytes) -> Damage:
    return raw(lambda old: join_safetensors(content, split_safetensors(old)[1]))


def repeat_name(old: bytes) -> bytes:
    """Repeat the first key of the header."""
    top, body = split_safetensors(old)
    return join_safetensors(b"{" + b'"__metadata__":{"format":"pt"},' + top.lstrip()[1:], body)


def shift_offsets(header: dict[str, Any], by: int) -> None:
    for name, e in header.items():
        if name != "__metadata__":
            e["data_offsets"] = [n + by for n in e["data_offsets"]]


def ways(
    kind: str, name: str, word: str = "", but: tuple[str, ...] = ()
) -> list[tuple[str, str, Damage, str]]:
    """Return cases of a file that is replaced by something else."""
    damages = {
        "empty": put_file(name, b""), "a-byte": put_file(name, b"\0"), "a-directory": put_directory(name),
        "a-fifo": put_fifo(name),
        "endless": link(name, "/dev/zero"), "a-terminal": link(name, "/dev/tty"),
        "a-link-to-itself": link(name, name), "a-pickle": put_pickle(name),
    }  # fmt: skip
    return [
        (f"{kind}-{name}-{what}", kind, damage, word or name)
        for what, damage in damages.items()
        if what not in but
    ]


def texts(kind: str, name: str) -> list[tuple[str, str, Damage, str]]:
    """Return cases of text that is not JSON, or not the expected JSON."""
    damages = {
        "cut": raw(lambda old: old[:-9], name), "a-list": put_file(name, "[]"),
        "null": put_file(name, "null"),
        "deep-lists": put_file(name, "[" * DEEP), "deep-objects": put_file(name, '{"a":' * DEEP),
        "not-utf8": raw(lambda old: old.replace(b'"', b'"\xff', 1), name),
        "of-two-bytes": put_file(name, "{}".encode("utf-16")),
        "too-long": resize(name, 2**30),
        "a-number-of-5000-digits": put_file(name, '{"a": 1' + "0" * 5000 + "}"),
    }  # fmt: skip
    return [(f"{kind}-{name}-{what}", kind, damage, name) for what, damage in damages.items()]


def keys(kind: str, **values: Any) -> list[tuple[str, str, Damage, str]]:
    """Return cases of invalid values, key by key."""
    return [(f"{kind}-{key}={json.dumps(v)[:20]}", kind, edit_config(**{key: v}), f"{CONFIG}|{WEIGHTS}|{key}")
            for key, choices in values.items() for v in choices]  # fmt: skip


Case = tuple[
    str, str, Damage, str
]  # name, kind of the valid folder, how it is damaged, words of the message: a|b

LOOP = ("a-link-to-itself",)  # where the file is optional
FILES: list[Case] = [
    *ways("write", CONFIG), *ways("llama", CONFIG), *ways("write", WEIGHTS), *ways("llama", WEIGHTS),
    *ways("write", TOKENIZER), *ways("llama", TOKENIZER), *ways("write", GENERATION, but=LOOP),
    *ways("llama", TOKENIZER_CONFIG, but=LOOP),
    *ways("llama", TEMPLATE, but=(*LOOP, "empty", "a-byte")), *ways("sentences", MODULES, but=LOOP),
    *ways("shards", INDEX, WEIGHTS), *ways("shards", SHARD),
    *ways("vit", PICTURES, but=LOOP), *ways("sentences", POOLING, "1_Pooling"), *ways("gguf", GGUF, but=LOOP),
    *texts("write", CONFIG), *texts("llama", CONFIG), *texts("write", GENERATION), *texts("write", TOKENIZER),
    *texts("roberta", TOKENIZER), *texts("shards", INDEX),
]  # fmt: skip

HEADERS: list[Case] = [
    (what, kind, damage, WEIGHTS)
    for kind in ("llama", "write")
    for what, damage in {
        "longer-than-the-file": raw(lambda old: join_safetensors(*split_safetensors(old), size=len(old))),
        "of-2-to-63": raw(lambda old: join_safetensors(*split_safetensors(old), size=2**63)),
        "of-2-to-64": raw(lambda old: join_safetensors(*split_safetensors(old), size=2**64 - 1)),
        "of-no-length": raw(lambda old: join_safetensors(*split_safetensors(old), size=0)),
        "not-json": header(b"{tensors}"),
        "a-list": header(b"[]"),
        "not-utf8": header(b'{"\xff": 1}'),
        "deep": header(b'{"a":' * DEEP),
        "cut-before-it-ends": raw(lambda old: old[:50]),
        "cut-by-a-byte": raw(lambda old: old[:-1]),
        "a-byte-too-long": raw(lambda old: old + b"\0"),
        "a-name-twice": raw(repeat_name),
        "metadata-of-numbers": edit_header(lambda h: h.update(__metadata__={"a": 1})),
        "metadata-a-list": edit_header(lambda h: h.update(__metadata__=[])),
        "an-entry-null": edit_header(lambda h: h.update({next(reversed(h)): None})),
        "offsets-negative": edit_entry(data_offsets=[-4, 4]),
        "offsets-backwards": edit_header(lambda h: first_tensor(h)["data_offsets"].reverse()),
        "offsets-all-shifted": edit_header(lambda h: shift_offsets(h, 4)),
        "offsets-out-of-the-file": edit_header(lambda h: shift_offsets(h, 2**40)),
        "offsets-of-all-at-one-place": edit_header(
            lambda h: [e.update(first_tensor(h)) for n, e in h.items() if n[0] != "_"]
        ),
        "offsets-floats": edit_entry(data_offsets=[0.5, 4.5]),
        "offsets-three": edit_entry(data_offsets=[0, 4, 8]),
        "offsets-beyond-64-bits": edit_entry(data_offsets=[2**70, 2**71]),
        "offsets-texts": edit_entry(data_offsets=["0", "4"]),
        "dtype-unknown": edit_entry(dtype="F31"),
        "dtype-a-number": edit_entry(dtype=32),
        "dtype-wider": edit_entry(dtype="F64"),
        "dtype-of-pickles": edit_entry(dtype="O"),
        "shape-negative": edit_entry(shape=[-1, 40]),
        "shape-of-floats": edit_entry(shape=[2.5, 40]),
        "shape-nan": edit_entry(shape=[NAN, 40]),
        "shape-infinite": edit_entry(shape=[float("inf"), 40]),
        "shape-overflows": edit_entry(shape=[2**32, 2**32]),
        "shape-overflows-to-nothing": edit_entry(shape=[2**63, 2, 0]),
        "shape-of-texts": edit_entry(shape=["293", 40]),
        "shape-too-large": edit_entry(shape=[10**9, 40]),
        "shape-of-many-axes": edit_entry(shape=[1] * 5000),
        "shape-missing": edit_header(lambda h: first_tensor(h).pop("shape")),
        "dtype-missing": edit_header(lambda h: first_tensor(h).pop("dtype")),
        "offsets-missing": edit_header(lambda h: first_tensor(h).pop("data_offsets")),
    }.items()
]

TENSORS: list[Case] = [
    ("missing", "llama", edit_tensors(lambda t: t.pop(Q)), "q_proj"),
    ("too-many", "llama", edit_tensors(lambda t: t.update(mine=torch.ones(3))), "mine"),
    ("transposed", "llama", edit_tensors(lambda t: t.update({EMBED: t[EMBED].T.contiguous()})),
        "embed_tokens"),
    ("flat", "llama", edit_tensors(lambda t: t.update({EMBED: t[EMBED].flatten()})), "embed_tokens"),
    ("one-number", "llama", edit_tensors(lambda t: t.update({EMBED: torch.ones(())})), "embed_tokens"),
    ("nothing", "llama", edit_tensors(lambda t: t.update({EMBED: torch.ones(0, 40)})), "embed_tokens"),
    ("whole-numbers", "llama", edit_tensors(lambda t: t.update({EMBED: t[EMBED].long()})), "embed_tokens"),
    ("complex", "llama", edit_tensors(lambda t: t.update({EMBED: t[EMBED].cfloat()})), "embed_tokens"),
    ("none-at-all", "llama", edit_tensors(lambda t: t.clear()), WEIGHTS),
    ("another-name", "llama", edit_tensors(lambda t: t.update({"x." + Q: t.pop(Q)})), "q_proj"),
    ("ours-missing", "write", edit_tensors(lambda t: t.pop("embed.weight")), "embed.weight"),
    ("ours-too-many", "write", edit_tensors(lambda t: t.update(mine=torch.ones(3))), "mine"),
    ("ours-transposed", "write", edit_tensors(lambda t: t.update({OURS_EMBED: t[OURS_EMBED].T.contiguous()})),
        WEIGHTS),
    ("ours-complex", "write", edit_tensors(lambda t: t.update({"embed.weight": t["embed.weight"].cfloat()})),
        WEIGHTS),
    ("ours-other-numbers", "write", raw(lambda old: old[:-4] + b"\0\0\1\1"), "SHA-256"),
    ("ours-another-sum", "write", edit_header(lambda h: h["__metadata__"].update(sha256="0")), "SHA-256"),
    ("head-of-other-classes", "bert", edit_tensors(lambda t: t.update({"classifier.bias": torch.ones(5)})),
        WEIGHTS),
    ("head-without-weights", "bert", edit_tensors(lambda t: t.pop("classifier.weight")), WEIGHTS),
    ("only-a-pickle", "llama", apply_all(remove(WEIGHTS), put_pickle("pytorch_model.bin")), WEIGHTS),
    ("only-a-pickle-pt", "write", apply_all(remove(WEIGHTS), put_pickle("model.pt")), WEIGHTS),
    ("only-h5", "llama", apply_all(remove(WEIGHTS), put_file("tf_model.h5", b"\x89HDF")), WEIGHTS),
    ("pickled-shards", "llama", apply_all(remove(WEIGHTS), put_pickle("pytorch_model-00001-of-00001.bin"),
        put_file(INDEX, json.dumps({"weight_map": {Q: "pytorch_model-00001-of-00001.bin"}}))),
        "pytorch_model-00001"),
]  # fmt: skip

SHARDS: list[Case] = [
    *((f"shard-named-{str(name)[:9]!r}", "shards", set_json(INDEX, "weight_map", Q, to=name), INDEX)
      for name in (
        "../x.safetensors", "/etc/passwd", "a/b.safetensors", "", ".", "..", "a\0b", "\ud800", "x" * 9999,
        "~/x",
        INDEX, "absent.safetensors", 3, None, ["a"], {"a": "b"}, True,
    )),
    ("shard-of-another-tensor", "shards", set_json(INDEX, "weight_map", "mine", to=SHARD), "mine"),
    ("shard-left-out", "shards", set_json(INDEX, "weight_map", Q, to=...), "q_proj"),
    ("shards-none", "shards", set_json(INDEX, "weight_map", to={}), WEIGHTS),
    ("shards-a-list", "shards", set_json(INDEX, "weight_map", to=[SHARD]), INDEX),
    ("shards-no-map", "shards", set_json(INDEX, "weight_map", to=...), INDEX),
    ("tensor-in-two-shards", "shards", edit_tensors(lambda t: t.update({Q: torch.ones(1)}), SHARD), "q_proj"),
    ("shard-gone", "shards", remove(SHARD), SHARD),
    ("shard-cut", "shards", raw(lambda old: old[:-9], SHARD), SHARD),
]  # fmt: skip

ODD = (HUGE, 2**63, 10**40, -1, 0, 2.5, NAN, "7", [3], True, {})
SETTINGS: list[Case] = [
    *keys("write", vocab=ODD, dim=ODD, depth=ODD, heads=ODD, context=ODD, kv_heads=(HUGE, -1, "a"),
        head_dim=(HUGE, 3.5)),
    *keys("write", hidden=(HUGE, 0), window=(-1, "a"), base=(NAN, 0, -1, "a"), eps=(NAN, -1, "a"),
        dropout=(5, NAN, -1)),
    *keys("write", positions=("spiral", 3, []), norm=("none",), ffn=({},), tied=("yes", 3), bias=(2,),
        rope_scaling=([1], "a")),
    *keys("write", model_type=("regard-bert", "regard-", "", 3, None, [], "gpt5"),
        task=(None, 3, "write", [], {"name": []})),
    *keys("write", mine=(1,), auto_map=({"AutoModel": "x.y"},), __class__=("os",)),
    *keys("translate", vocab=(HUGE, -1), target_vocab=(HUGE, 7), dim=(HUGE,), depth=(HUGE, 3), context=(0,),
        attention=("x",)),
    *keys("classify", segments=(HUGE, -1), context=(HUGE,), hidden=(HUGE,),
        task=({"name": "classify", "labels": ["a"]}, {"name": "classify", "labels": 3},
        {"name": "classify"}, {"name": "tag", "labels": []})),
    *keys("llama", hidden_size=ODD, rms_norm_eps=(NAN, "a", -1), head_dim=(HUGE, 3),
        num_hidden_layers=(HUGE, 10**6)),
    *keys("llama", max_position_embeddings=(HUGE, 2**21), auto_map=({"AutoModelForCausalLM": "evil.Model"},)),
    *keys("llama", model_type=("evil", 3, [], {})),
    *keys("llama", rope_parameters=(3, {"rope_type": []}, {"rope_type": "llama3", "factor": NAN},
        {"rope_type": "llama3", "factor": 0}, {"rope_theta": NAN}, {"rope_theta": 0})),
    *keys("llama", quantization_config=({"quant_method": "evil"},), trust_remote_code=(True,),
        layer_types=("a", [3])),
    *keys("bert", id2label=({"0": "a"}, {"0": "a", "1": "b", "9": "c"}, [1, 2, 3], "abc",
        {"0": {}, "1": [], "2": "c", "3": "d"}), problem_type=("regression", 3)),
    *keys("bert", architectures=(["BertForEvil"],), hidden_act=("evil", [], {}),
        position_embedding_type=("relative_key",)),
    *keys("marian", d_model=(HUGE,), decoder_layers=(HUGE,), max_position_embeddings=(HUGE,)),
    *keys("vit", image_size=(HUGE, 7, [15, 15]), patch_size=(HUGE, 0), num_channels=(HUGE,)),
]  # fmt: skip


def vocabulary(change: Any) -> Damage:
    """Change the vocabulary of a valid tokenizer.json."""

    def damage(folder: Path) -> None:
        top = json.loads((folder / TOKENIZER).read_text())
        change(top)
        (folder / TOKENIZER).write_text(json.dumps(top))

    return damage


def added(id: Any) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": id, "content": "mine"} | flags


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
REPLACE = {"type": "Replace", "content": "b"}
WORDS: list[Case] = [
    (f"{kind}-{what}", kind, damage, TOKENIZER)
    for kind in ("write", "roberta")
    for what, damage in {
        "an-id-beyond": vocabulary(lambda t: t["model"]["vocab"].update(mine=10**7)),
        "an-id-of-32-bits": vocabulary(lambda t: t["model"]["vocab"].update(mine=2**32 - 1)),
        "an-id-of-40-bits": vocabulary(lambda t: t["model"]["vocab"].update(mine=2**40)),
        "an-id-below-0": vocabulary(lambda t: t["model"]["vocab"].update(mine=-1)),
        "an-id-nan": vocabulary(lambda t: t["model"]["vocab"].update(mine=NAN)),
        "an-added-id-beyond": vocabulary(lambda t: t["added_tokens"].append(added(2**32 - 1))),
        "an-added-id-a-text": vocabulary(lambda t: t["added_tokens"].append(added("7"))),
        "more-tokens": vocabulary(lambda t: t["model"]["vocab"].update({f"t{i}": i for i in range(999)})),
        "no-vocabulary": set_json(TOKENIZER, "model", "vocab", to=...),
        "a-vocabulary-of-lists": set_json(TOKENIZER, "model", "vocab", to=[[1, 2]]),
        "merges-of-strangers": set_json(TOKENIZER, "model", "merges", to=[["xx", "yy"]]),
        "merges-of-three": set_json(TOKENIZER, "model", "merges", to=["a b c"]),
        "merges-a-number": set_json(TOKENIZER, "model", "merges", to=3),
        "no-model": set_json(TOKENIZER, "model", to=...),
        "a-model-unknown": set_json(TOKENIZER, "model", "type", to="Evil"),
        "an-unknown-token-that-is-none": set_json(TOKENIZER, "model", "unk_token", to=3),
        "a-regex-that-is-none": set_json(TOKENIZER, "pre_tokenizer", to=SPLIT | {"pattern": {"Regex": "(("}}),
        "a-pre-tokenizer-unknown": set_json(TOKENIZER, "pre_tokenizer", to={"type": "Evil"}),
        "a-normalizer-of-bytes": set_json(TOKENIZER, "normalizer",
            to={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "a-decoder-unknown": set_json(TOKENIZER, "decoder", to={"type": "Evil"}),
        "a-version-unknown": set_json(TOKENIZER, "version", to="9.9"),
    }.items()
]  # fmt: skip

WRITING: list[Case] = [
    (f"{kind}-{key}={json.dumps(value)[:20]}", kind, set_json(GENERATION, key, to=value), key)
    for kind in ("write", "llama", "marian")
    for key, values in {
        "temperature": (-1, NAN, "hot", [], True), "top_k": (-1, 1.5, "a"), "top_p": (7, "a"), "min_p": (-1,),
        "max_new_tokens": (0, -1, "a", 2.5, {}), "num_beams": (0, "a", 10**9),
        "repetition_penalty": (0, NAN, "a"),
        "no_repeat_ngram_size": (-1, "a"), "length_penalty": (NAN, "a"),
        "suppress_tokens": (3, [-1], ["a"], [10**9]),
        "mine": (1,), "eos_token_id": (10**9, -1, "a", [[1]]), "decoder_start_token_id": (HUGE, "a", -1),
        "num_return_sequences": (10**9, "a"),
    }.items()
    for value in values
    if kind == "marian" or not (key.endswith("start_token_id") or (kind == "write" and key == "eos_token_id"))
]  # fmt: skip

PARTS: list[Case] = [
    *((f"part-at-{str(path)[:9]!r}", "sentences", set_json(MODULES, n, "path", to=path), name) for n, path,
        name in (
        (0, "..", MODULES), (0, "/etc", MODULES), (0, "a/../../b", MODULES), (1, "..", MODULES),
        (1, "a\0b", ""),
        (1, "x" * 9999, ""), (1, "absent", "absent"), (0, 3, ""), (0, None, ""), (1, "\ud800", ""),
        (1, MODULES, MODULES),
    )),
    ("parts-none", "sentences", put_file(MODULES, "[]"), MODULES),
    ("parts-of-code", "sentences", set_json(MODULES, 0, "type", to="evil.Transformer2"), MODULES),
    ("parts-a-number", "sentences", put_file(MODULES, "[3]"), MODULES),
    ("parts-without-type", "sentences", set_json(MODULES, 1, "type", to=...), MODULES),
    ("pooling-two", "sentences", set_json(POOLING, "pooling_mode_cls_token", to=True), POOLING),
    ("pooling-none", "sentences", set_json(POOLING, "pooling_mode_mean_tokens", to=False), POOLING),
    ("pooling-a-list", "sentences", set_json(POOLING, "pooling_mode", to=[[]]), POOLING),
    *((f"longest-{to}", "sentences", set_json("sentence_bert_config.json", "max_seq_length", to=to),
        "longest") for to in (-1, 0, "a", 2.5, [], NAN)),
    *((f"pictures-{key}", "vit", set_json(PICTURES, key, to=to), key) for key, to in (
        ("size", 99), ("size", {"height": HUGE, "width": HUGE}), ("size", "a"), ("image_mean", [NAN] * 3),
        ("image_mean", "abc"),
        ("image_std", [0, 0, 0]), ("image_std", {"a": 1}), ("rescale_factor", "a"), ("do_resize", 0),
        ("size", {"height": []}),
    )),
]  # fmt: skip

TEMPLATES: list[Case] = [
    (f"template-{what}", "llama", put_file(TEMPLATE, content), TEMPLATE)
    for what, content in {
        "broken": "{% for",
        "not-utf8": b"\xff{{ messages }}",
        "deep": "{{" + "(" * 5000 + ")" * 5000 + "}}",
        "deep-blocks": "{% if a %}" * 3000 + "{% endif %}" * 3000,
        "imports": "{% import 'os' as os %}",
        "includes": "{% include '/etc/passwd' %}",
        "extends": "{% extends '/etc/passwd' %}",
        "python's-classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "python's-globals": "{{ raise_exception.__globals__ }}",
        "a-function's-code": "{{ namespace.__init__.__code__ }}",
        "by-attr": "{{ ''|attr('__class__') }}",
        "by-format": "{{ '{0.__class__}'.format(messages) }}",
        "of-the-engine": "{{ self._TemplateReference__context }}{{ self.x.y }}",
        "loops": "{% for i in range(10**9) %}x{% endfor %}",
        "loops-in-loops": "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}",
        "long": "{{ 'a' * 10**10 }}",
        "a-number": "{{ 9 ** 999999 }}",
        "doubles": "{% set n = namespace(a='a') %}{% for i in range(60) %}{% set n.a = n.a*2 %}{% endfor %}",
        "calls-itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "divides-by-0": "{{ 1 / 0 }}",
        "refuses": "{{ raise_exception('no\nway') }}",
        "no-such-filter": "{{ messages|evil }}",
        "no-such-name": "{{ evil.evil }}",
        "pads": "{{ 'a'.ljust(10**10) }}",
        "too-long": "x" * (2**20 + 1),
    }.items()
]
TEMPLATES += [
    (
        f"template-in-{what}",
        "llama",
        apply_all(remove(TEMPLATE), set_json(TOKENIZER_CONFIG, "chat_template", to=to)),
        TOKENIZER_CONFIG,
    )
    for what, to in {"a-number": 3, "broken": "{% for", "an-object": {"a": "b"}, "true": True}.items()
]

TEMPLATES += [
    ("half-a-character", "llama", set_json(TOKENIZER_CONFIG, "eos_token", to="\ud800"), "tokenizer")
]

ONE = ggufs.value([1.0])
GGUFS: list[Case] = [
    (f"gguf-{what}", "gguf", damage, GGUF)
    for what, damage in {
        "magic": raw(lambda old: b"FUGG" + old[4:], GGUF),
        "version-1": edit_gguf(lies={"version": 1}),
        "big-endian": raw(lambda old: old[:4] + old[7:3:-1] + old[8:], GGUF),
        **{f"cut-at-{n}": raw(lambda old, n=n: old[:n], GGUF)
            for n in (3, 4, 7, 12, 23, 30, 500, 9000, 60_000)},
        **{f"count-{n}": edit_gguf(lies={"counts": n}) for n in ((2**63, 1), (1, 2**63), (2**40, 2), (0, 0),
            (0, 9), (20, 19))},
        "a-value-of-type-99": edit_gguf(general__name=struct.pack("<I", 99)),
        "a-text-of-2-to-63": edit_gguf(general__name=struct.pack("<IQ", 8, 2**63)),
        "a-list-of-2-to-60": edit_gguf(general__name=struct.pack("<IIQ", 9, 4, 2**60)),
        "a-list-of-lists": edit_gguf(general__name=struct.pack("<IIQ", 9, 9, 1) + ONE),
        "a-text-not-utf8": edit_gguf(general__name=struct.pack("<IQ", 8, 1) + b"\xff"),
        "an-alignment-of-0": edit_gguf(general__alignment=0),
        "an-alignment-of-text": edit_gguf(general__alignment="a"),
        "a-tensor-of-9-axes": edit_gguf({"mine": ((1,) * 9, 0, bytes(4))}),
        "a-tensor-of-no-numbers": edit_gguf({"mine": ((0, 3), 0, b"")}),
        "a-tensor-too-large": edit_gguf({"mine": ((2**40,), 0, bytes(4))}),
        "a-tensor-that-overflows": edit_gguf({"mine": ((2**32, 2**32), 0, bytes(4))}),
        "a-tensor-of-type-77": edit_gguf({"mine": ((3,), 77, bytes(12))}),
        "a-tensor-too-many": edit_gguf({"mine": ((3,), 0, bytes(12))}),
        "a-tensor-missing": edit_gguf({"output_norm.weight": ...}),
        "a-tensor-of-another-shape": edit_gguf({"output_norm.weight": ((3,), 0, bytes(12))}),
        "tensors-at-one-place": edit_gguf(lies={"places": {"blk.0.attn_norm.weight": 0}}),
        "a-tensor-outside": edit_gguf(lies={"places": {"output_norm.weight": 2**62}}),
        "a-tensor-askew": edit_gguf(lies={"places": {"output_norm.weight": 7}}),
        **{f"{key}={value}": edit_gguf(**{f"llama__{key}": value}) for key, value in (
            ("block_count", 10**9), ("block_count", 0), ("block_count", "a"), ("embedding_length", 2**31),
            ("attention__head_count", 0), ("attention__head_count", 10**9), ("context_length", 2**31),
            ("context_length", ...),
            ("rope__freq_base", NAN), ("attention__layer_norm_rms_epsilon", NAN),
            ("rope__scaling__type", "yarn"),
            ("feed_forward_length", 7), ("mine", 3), ("attention__key_length", 2**31),
            ("rope__dimension_count", 3),
        )},
        **{f"{key}={str(value)[:9]}": edit_gguf(**{f"tokenizer__ggml__{key}": value}) for key, value in (
            ("tokens", ...), ("tokens", 3), ("tokens", ["a"]), ("tokens", [1, 2]), ("tokens", ["a"] * 293),
            ("tokens", ["x" * 9999]),
            ("token_type", [1]), ("token_type", "a"), ("merges", ["abc"]), ("merges", ["xx yy"]),
            ("merges", ...), ("model", "evil"),
            ("pre", "evil"), ("eos_token_id", 10**6), ("eos_token_id", "a"), ("eos_token_id", 2.5),
            ("bos_token_id", -1),
        )},
        "an-architecture-unknown": edit_gguf(general__architecture="evil"),
        "an-architecture-a-number": edit_gguf(general__architecture=3),
        "a-template-a-number": edit_gguf(tokenizer__chat_template=3),
        "a-template-broken": edit_gguf(tokenizer__chat_template="{% for"),
    }.items()
]  # fmt: skip

CASES = FILES + HEADERS + TENSORS + SHARDS + SETTINGS + WORDS + WRITING + PARTS + TEMPLATES + GGUFS
