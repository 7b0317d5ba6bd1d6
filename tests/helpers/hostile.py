"""Valid model folders, ways to damage them, and limits that must hold when a damaged one is read."""

import contextlib
import copy
import faulthandler
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import ggufs
from helpers.folders import TEXT, save_folder
from helpers.runs import tiny, unmeasured, write_data
from regard.errors import UserError
from regard.runs.export import export
from regard.runs.load import load
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
INDEX, GENERATION, MODULES = "model.safetensors.index.json", "generation_config.json", "modules.json"
TEMPLATE, TOKENIZER_CONFIG, GGUF = "chat_template.jinja", "tokenizer_config.json", "model.gguf"
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}assistant:"
SLACK = 64 << 20  # bytes that the interpreter, torch and tokenizers may take besides
MAX_REQUEST = 4 << 30  # bytes: a larger request fails, to protect the machine
SECONDS = 20  # of processor time for one folder; what takes longer hangs

Damage = Callable[[Path], object]


# Good ones


def make_ours(folder: Path, case: str, data: Path) -> None:
    data.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        tiny(write_data(case, data), folder, case, train__steps=1)
    shutil.rmtree(folder / "checkpoints")


def make_sentences(folder: Path) -> None:
    save_folder(folder, "bert", architecture="BertModel")
    parts = [("", "models.Transformer"), ("1_Pooling", "models.Pooling"), ("2_Normalize", "models.Normalize")]
    modules = [{"idx": i, "name": str(i), "path": p, "type": t} for i, (p, t) in enumerate(parts)]
    (folder / MODULES).write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / CONFIG).write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 31}))


def make_gguf(folder: Path) -> None:
    folder.mkdir()
    (folder / GGUF).write_bytes(ggufs.gguf(*parts_of_gguf()))


def parts_of_gguf() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and tensors of a valid file."""
    model = json.loads(train_tokenizer("bpe", TEXT, 293, ("<|endoftext|>",)).inner.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    metadata = ggufs.llama() | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": CHAT,
    }
    return metadata, ggufs.weights(len(tokens), np.random.default_rng(3))


def make_good(top: Path) -> Path:
    """Write a folder of each kind: our runs, Hugging Face's folders, a GGUF file."""
    for kind, case in (("write", "write"), ("translate", "translate-gru"), ("classify", "classify-bert")):
        make_ours(top / kind, case, top / "data")
    for kind in ("llama", "marian", "roberta", "vit"):
        save_folder(top / kind, kind)
    save_folder(top / "bert", "bert", architecture="BertForSequenceClassification", num_labels=3)
    (top / "llama" / TEMPLATE).write_text(CHAT)
    (top / "llama" / TOKENIZER_CONFIG).write_text(
        json.dumps({"eos_token": "<|endoftext|>", "model_max_length": 37})
    )
    save_folder(top / "shards", "llama").save_pretrained(top / "shards", max_shard_size="20KB")
    (top / "shards" / WEIGHTS).unlink()
    (top / "vit" / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 15, "width": 15}}))
    make_sentences(top / "sentences")
    make_gguf(top / "gguf")
    Image.fromarray(np.full((15, 15, 3), 97, np.uint8)).save(top / "one.png")
    return top


def make_more(top: Path) -> None:
    """Write a folder of each kind in MORE, beside those of `make_good`."""
    for kind, case in (("restore", "restore-t5"), ("caption", "caption-soft"), ("span", "span-bert")):
        make_ours(top / kind, case, top / "data")
    make_ours(top / "words", "words", top / "data")
    save_folder(top / "t5", "t5")
    export(load(top / "write", "cpu"), top / "int8", dtype="int8")
    settings = {"train.lora": 2, "train.adapter": True, "train.device": "cpu", "train.batch": 3}
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        text = write_data("write", top / "data")
        train("write", text, out=top / "adapter", base=top / "write", steps=1, set=settings)
    shutil.rmtree(top / "adapter" / "checkpoints")


OURS = ("write", "translate", "classify")
THEIRS = ("llama", "shards", "marian", "roberta", "bert", "vit", "sentences")


# How to spoil one


def put_file(name: str, content: bytes | str) -> Damage:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def set_json(name: str, *path: Any, to: Any) -> Damage:
    """Set the value at a path of keys in a JSON file; `...` removes it."""

    def damage(folder: Path) -> None:
        file = folder / name
        top = inner = json.loads(file.read_text()) if file.exists() else {}
        for key in path[:-1]:
            inner = inner[key]
        if to is ...:
            del inner[path[-1]]
        else:
            inner[path[-1]] = to
        file.write_text(json.dumps(top))

    return damage


def edit_config(**changes: Any) -> Damage:
    return lambda folder: [set_json(CONFIG, key, to=value)(folder) for key, value in changes.items()]


def link(name: str, to: str) -> Damage:
    return lambda folder: ((folder / name).unlink(missing_ok=True), (folder / name).symlink_to(to))


def put_fifo(name: str) -> Damage:
    return lambda folder: ((folder / name).unlink(missing_ok=True), os.mkfifo(folder / name))


def put_directory(name: str) -> Damage:
    return lambda folder: ((folder / name).unlink(missing_ok=True), (folder / name).mkdir())


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def resize(name: str, size: int) -> Damage:
    """Make a file this large, without using disk space."""
    return lambda folder: os.truncate(folder / name, size)


def apply_all(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def put_pickle(name: str) -> Damage:
    """Write a pickle that creates a folder when it is loaded."""
    return lambda folder: (folder / name).write_bytes(pickle.dumps(Planted(folder / "it-ran")))


class Planted:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def split_safetensors(raw: bytes) -> tuple[bytes, bytes]:
    """Return the header of a safetensors file, and the rest."""
    size = int.from_bytes(raw[:8], "little")
    return raw[8 : 8 + size], raw[8 + size :]


def join_safetensors(header: bytes, body: bytes, size: int | None = None) -> bytes:
    return (len(header) if size is None else size).to_bytes(8, "little") + header + body


def edit_header(change: Callable[[dict[str, Any]], object], name: str = WEIGHTS) -> Damage:
    """Change the header of a safetensors file."""

    def damage(folder: Path) -> None:
        old, body = split_safetensors((folder / name).read_bytes())
        header = json.loads(old)
        change(header)
        (folder / name).write_bytes(join_safetensors(json.dumps(header).encode(), body))

    return damage


def first_tensor(header: dict[str, Any]) -> dict[str, Any]:
    """Return the header's entry of the first tensor in the file."""
    places = {name: e["data_offsets"][0] for name, e in header.items() if name != "__metadata__"}
    return header[min(places, key=places.__getitem__)]


def edit_entry(**changes: Any) -> Damage:
    """Change the header's entry of the first tensor."""
    return edit_header(lambda header: first_tensor(header).update(changes))


def edit_tensors(change: Callable[[dict[str, Any]], object], name: str = WEIGHTS) -> Damage:
    """Change the tensors of a file that stays valid."""
    from safetensors.torch import load_file, save_file

    def damage(folder: Path) -> None:
        weights = load_file(folder / name)
        change(weights)
        save_file(weights, folder / name)

    return damage


def edit_gguf(
    tensors: dict[str, Any] | None = None, lies: dict[str, Any] | None = None, **changes: Any
) -> Damage:
    """Write a changed GGUF file; keys have two underscores for a dot, and `...` removes one."""

    def damage(folder: Path) -> None:
        metadata, known = parts_of_gguf()
        metadata |= {key.replace("__", "."): value for key, value in changes.items()}
        known |= tensors or {}
        contents = [{k: v for k, v in part.items() if v is not ...} for part in (metadata, known)]
        (folder / GGUF).write_bytes(ggufs.gguf(*contents, **(lies or {})))

    return damage


# What must hold


def use_model(folder: Path) -> None:
    """Load a model and ask it something, so that all of its files are used."""
    where = folder / GGUF if (folder / GGUF).exists() else folder
    model = load(where, "cpu")
    name = model.task.config.name
    picture = folder.parent / "one.png"
    text = "The cat sleeps on aaaaaaaaaaaaaaaaaaaaaaaaaaaa b"
    questions = dict.fromkeys(("fill", "restore"), "The ___ fox")
    questions |= {"span": f"Who sleeps then?\t{text}", "words": "brown"}
    asked = str(picture) if name in ("see", "caption") else questions.get(name, text)
    if name == "embed":
        model.embed([asked])
    else:
        model.ask(
            asked, **({"max_new_tokens": 3} if name in ("write", "translate", "chat", "restore") else {})
        )


def status(key: str) -> int:
    """Return a value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) << 10


@contextlib.contextmanager
def limit_memory(folder: Path) -> Iterator[None]:
    """Check that the block needs at most twice the files' size in memory, and little processor time."""

    def late(*_: Any) -> None:
        raise TimeoutError(folder.name)

    size = sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
    before, old = status("VmRSS"), signal.signal(signal.SIGPROF, late)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + 2 * size + MAX_REQUEST, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, old)
    assert status("VmHWM") - before < 2 * size + SLACK, f"{(status('VmHWM') - before) >> 20} MiB"
    assert not (folder / "it-ran").exists()


def copy_folder(good: Path, kind: str, to: Path) -> Path:
    shutil.copytree(good / kind, to, ignore=shutil.ignore_patterns("curve.svg", "README.md"))
    if not (to.parent / "one.png").exists():
        shutil.copy(good / "one.png", to.parent)
    return to


# By chance


def mutate(rng: random.Random, raw: bytes) -> bytes:
    """Flip, remove, insert, repeat or replace bytes; in JSON, sometimes a value."""
    if rng.random() < 0.3 and (other := mutate_json(rng, raw)) is not None:
        return other
    data = bytearray(raw)
    head = min(len(data), 4096 if rng.random() < 0.7 else len(data))  # the header comes first
    for _ in range(rng.choice((1, 1, 1, 2, 3, 9))):
        at, way = rng.randrange(head + 1), rng.randrange(6)
        count = rng.choice((1, 1, 2, 4, 8, 64, 999))
        if way == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif way == 1 and at < len(data):
            data[at] = rng.choice((0, 1, 0x22, 0x2C, 0x2D, 0x39, 0x5B, 0x5D, 0x7B, 0x7D, 0x7F, 0x80, 0xFF))
        elif way == 2:
            del data[at : at + count if rng.random() < 0.8 else None]
        elif way == 3:
            data[at:at] = rng.randbytes(count)
        elif way == 4:
            there = rng.randrange(len(data) + 1)
            data[at:at] = data[there : there + count]
        else:
            data[at : at + 8] = rng.choice((2**63, 2**64 - 1, 2**32, 2**31 - 1, 0, 1)).to_bytes(8, "little")
    return bytes(data)


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 0.5, 1e30, 10**6, 10**12, 2**31, 2**63, float("nan"), float("inf")),
    *("", "a", "../x", "\0", "\ud800", "{{ 7 }}", [], {}, [[]], [0], [-1], {"a": 1}, ["a", "b"]),
)


def mutate_json(rng: random.Random, raw: bytes) -> bytes | None:
    """Change values, keys or elements of a JSON file or of a safetensors header."""
    safetensors = raw[8:9] == b"{"
    try:
        top = json.loads(split_safetensors(raw)[0] if safetensors else raw)
    except ValueError:
        return None
    for _ in range(rng.choice((1, 1, 2))):
        inner = top
        while isinstance(inner, dict | list) and inner:
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            key = rng.choice(keys)
            if isinstance(inner[key], dict | list) and inner[key] and rng.random() < 0.8:
                inner = inner[key]
                continue
            way = rng.randrange(4)
            if way == 0:
                del inner[key]
            elif way == 1 and isinstance(inner, dict):
                inner[rng.choice(("mine", key + "x", ""))] = inner.pop(key)
            elif way == 2:
                inner[key] = inner[rng.choice(keys)]
            else:
                inner[key] = copy.deepcopy(rng.choice(ODD_VALUES))  # it may be changed next
            break
    header = json.dumps(top).encode()
    return join_safetensors(header, split_safetensors(raw)[1]) if safetensors else header


KINDS = (*OURS, *THEIRS, "gguf")
MORE = ("restore", "caption", "span", "words", "t5", "int8", "adapter")


def try_mutation(good: Path, place: Path, number: int) -> str:
    """Return the error message of one mutation, or an empty string if it had no effect."""
    rng = random.Random(number)
    kind = rng.choice(KINDS)
    folder = place / kind
    if not folder.exists():
        copy_folder(good, kind, folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in ("log.jsonl", "recipe.toml"))
    file = rng.choice(files)
    raw = file.read_bytes()
    file.write_bytes(mutate(rng, raw))
    try:
        with limit_memory(folder):
            use_model(folder)
        said = ""
    except UserError as e:
        said = str(e)
    finally:
        file.write_bytes(raw)
    assert "\n" not in said
    return said


def main(good: str, place: str, start: int, stop: int) -> None:
    """Try mutations in a process of its own, and print the outcomes as a line of JSON."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    for kind in KINDS:  # what is loaded once takes memory once
        use_model(Path(good) / kind)
    outcomes, peak = Counter[str](), 0
    for number in range(start, stop):
        faulthandler.dump_traceback_later(30 * SECONDS, exit=True)  # also inside of a library
        try:
            outcomes["mistakes" if try_mutation(Path(good), Path(place), number) else "loads"] += 1
        except Exception as e:
            outcomes[f"{number}: {type(e).__name__}: {e}"] += 1
        peak = max(peak, status("VmHWM"))
    print(json.dumps({"outcomes": outcomes, "peak": peak}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
