"""Run folders: complete or absent, with errors that name what is wrong; and the answers of a model."""

import errno
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from helpers.errors import user_error
from regard.decode.runners import writing_dtype
from regard.files.tensors import read_tensors, write_tensors
from regard.models import GPT, GPTConfig
from regard.runs import checkpoints, recipe
from regard.runs.folder import begin
from regard.runs.layout import CONFIG, WEIGHTS
from regard.runs.load import load
from regard.runs.model import Model
from regard.tasks import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

TEXT = "What the hammer? What the chain? In what furnace was thy brain?\n"
SECTIONS: recipe.Sections = {
    "model": {"kind": "gpt", "dim": 12},
    "data": {"tokenizer": "char", "files": ['odd "name".txt']},
    "task": {"name": "write"},
    "train": {"steps": 3, "minutes": None},
}


def parts() -> tuple[GPT, Write]:
    """A language model with weights so large that its predictions are not uniform."""
    tokenizer = train_tokenizer("char", [TEXT], 0, Write.specials)
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=tokenizer.vocab, context=13, dim=12, depth=2, heads=3, kv_heads=1))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return model, Write(WriteConfig(name="write"), tokenizer, 13)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    model, task = parts()
    begin(folder, model, task, SECTIONS)
    write_tensors(folder / WEIGHTS, model.state_dict())
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run's folder, which tests may change."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def model(trained: Path) -> Model:
    return load(trained, "cpu")


# Beginning


def test_begin(tmp_path: Path) -> None:
    model, task = parts()
    (tmp_path / "deep" / "run").mkdir(parents=True)  # an empty folder will do
    for folder in (tmp_path / "deep" / "run", tmp_path / "new" / "run"):
        begin(folder, model, task, SECTIONS)
        assert [p.name for p in folder.parent.iterdir()] == ["run"]
        names = ["config.json", "generation_config.json", "log.jsonl", "recipe.toml", "tokenizer.json"]
        assert sorted(p.name for p in folder.iterdir()) == names
        config = json.loads((folder / "config.json").read_text())
        assert config["model_type"] == "regard-gpt"
        assert config["architectures"] == ["GPT"]
        assert (config["dim"], config["vocab"]) == (12, task.tokenizer.vocab)
        assert None not in config.values()
        generation = json.loads((folder / "generation_config.json").read_text())
        assert generation == {"eos_token_id": task.tokenizer.end} | Write.generation
        read = recipe.read_file(folder / "recipe.toml")
        assert read == SECTIONS | {"train": {"steps": 3}}


def test_begin_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = parts()
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):

        def fail(*_: Any, error: BaseException = error) -> None:
            raise error

        for owner, name in ((os, "rename"), (type(task.tokenizer), "save"), (recipe, "to_toml")):
            with monkeypatch.context() as m:
                m.setattr(owner, name, fail)
                with pytest.raises(type(error)):
                    begin(tmp_path / "run", model, task, SECTIONS)
            assert list(tmp_path.iterdir()) == []


def test_begin_spares_what_is_there(folder: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    user_error(lambda: begin(folder, *parts(), SECTIONS), folder, "not empty", "--out")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    file = folder / CONFIG
    user_error(lambda: begin(file, *parts(), SECTIONS), file, "--out")
    user_error(lambda: begin(file / "below", *parts(), SECTIONS), file, "--out")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


# Loading


def test_load_is_exact(folder: Path) -> None:
    loaded = load(folder, "cpu")
    model, task = parts()
    assert loaded.folder == folder
    assert loaded.tokenizer.digest == task.tokenizer.digest
    assert loaded.model.config == model.config
    assert not loaded.model.training
    ids = torch.randint(model.config.vocab, (3, 13))
    assert loaded.model(ids).equal(model.eval()(ids))
    assert load(str(folder)).generation == Write.generation


def test_a_model_says_what_it_is(folder: Path) -> None:
    model = load(folder)
    words = repr(model)
    weights = sum(p.numel() for p in model.model.parameters())
    assert all(
        word in words
        for word in (str(folder), model.kind, f"{weights:,} weights", "cpu", model.task.config.name)
    )
    assert "step" not in words
    model.step = 1500
    assert "step 1,500" in repr(model)


def test_load_of_no_model(tmp_path: Path) -> None:
    user_error(lambda: load(tmp_path / "none"), tmp_path / "none", "no such model folder")
    user_error(lambda: load(tmp_path), tmp_path, "not a model folder", "config.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not readable as JSON"),
        ("{", "not readable as JSON"),
        ("[1]", "one JSON object"),
        ("{}", "model_type is 'missing'"),
        ('{"model_type": "gpt_neox", "task": {"name": "write"}}', "'gpt_neox'"),
        ('{"model_type": "gpt_neox"}', "of Hugging Face's, known are bert"),
        ('{"model_type": ["regard-gpt"], "task": {"name": "write"}}', "not a model of Regard's"),
        ('{"model_type": "regard-gpt"}', "not a model of Regard's"),
        ('{"model_type": "regard-gpt", "task": "write"}', "not a model of Regard's"),
        ('{"model_type": "regard-gpt", "task": {}}', "not a model of Regard's"),
        ('{"model_type": "regard-gpt", "task": {"name": ["write"]}}', "not a model of Regard's"),
    ],
)
def test_load_with_another_config(folder: Path, content: str, words: str) -> None:
    (folder / "config.json").write_text(content)
    user_error(lambda: load(folder), folder / "config.json", words)


def reconfigure(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"depht": 3}, "model.depht"),
        ({"dim": "x"}, "model.dim='x'"),
        ({"positions": "rotery"}, "did you mean rotary?"),
        ({"heads": 5}, "config.json"),
        ({"vocab": None}, "model.vocab is missing"),
    ],
)
def test_load_with_a_bad_value(folder: Path, values: dict[str, Any], words: str) -> None:
    reconfigure(folder, **values)
    user_error(lambda: load(folder), folder / "config.json", words)


def test_load_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    user_error(lambda: load(folder), folder, "no model.safetensors", "--resume")


def test_load_with_weights_that_do_not_fit(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = read_tensors(path)
    name = sorted(weights)[3]
    for bad in (
        {n: t for n, t in weights.items() if n != name},
        {(f"{n}.new" if n == name else n): t for n, t in weights.items()},
        weights | {name: torch.zeros(2, 3)},
    ):
        write_tensors(path, bad)
        user_error(lambda: load(folder), path, name, "does not fit")
    write_tensors(path, weights | {"more": torch.zeros(2)})
    user_error(lambda: load(folder), path, "more", "does not fit")
    write_tensors(path, weights)
    reconfigure(folder, depth=3)
    user_error(lambda: load(folder), path, "blocks.2.", "does not fit")


def test_load_notices_damage(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x40
    path.write_bytes(content)
    user_error(lambda: load(folder), path, "damaged")
    path.write_bytes(content[:-1])
    user_error(lambda: load(folder), path, "damaged")


def test_load_without_its_other_files(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert load(folder).generation == Write.generation
    (folder / "generation_config.json").write_text("no")
    user_error(lambda: load(folder), folder / "generation_config.json", "JSON")
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer.json").unlink()
    user_error(lambda: load(folder), folder / "tokenizer.json")


def test_a_folder_of_hugging_faces(tmp_path: Path) -> None:
    """It is asked, and fine-tuned for another task, with its own tokenizer."""
    sizes = {"vocab_size": 97, "max_position_embeddings": 23, "hidden_size": 12, "num_hidden_layers": 2}
    more = {"num_attention_heads": 3, "intermediate_size": 17, "type_vocab_size": 2}
    theirs = BertModel(BertConfig(**sizes, **more))  # type: ignore[arg-type]
    theirs.save_pretrained(tmp_path / "hf")
    tokenizer = train_tokenizer("wordpiece", [TEXT], 97, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
    tokenizer.save(tmp_path / "hf" / "tokenizer.json")
    user_error(lambda: load(tmp_path / "hf").score(str(tmp_path / "none.tsv")), "none.tsv", "no such file")
    assert len(json.loads(load(str(tmp_path / "hf"), "cpu").ask(TEXT))) == 12
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\n" + "What hammer\tyes\nIn what chain\tno\n" * 9)
    settings = {"train.device": "cpu", "train.lr": 1e-9, "train.batch": 5}
    run = train("classify", str(data), out=tmp_path / "run", base=tmp_path / "hf", steps=1, set=settings)
    assert run.ask("What hammer") in ("yes", "no")
    assert run.tokenizer.digest == tokenizer.digest
    ours = load(tmp_path / "run", "cpu").model.model
    ids = torch.randint(tokenizer.vocab, (3, 11))
    with torch.no_grad():
        torch.testing.assert_close(ours.encode(ids), theirs.eval()(ids).last_hidden_state, atol=1e-5, rtol=0)
    wide = settings | {"model.dim": 24}
    user_error(
        lambda: train("classify", str(data), out=tmp_path / "b", base=tmp_path / "hf", steps=1, set=wide),
        "model.dim=24",
        "has 12",
    )


# Asking


def test_a_text_a_list_and_several_samples(model: Model) -> None:
    options: dict[str, Any] = {"max_new_tokens": 17, "seed": 5}
    one, other = model.ask("What", **options), model.ask("In wh", **options)
    assert isinstance(one, str)
    assert 0 < len(one) <= 17
    assert model.ask(["What", "In wh"], **options) == [one, other]
    assert model.ask(["What"], **options) == [one]
    assert model.ask([], **options) == []
    several = model.ask("What", num_return_sequences=3, **options)
    assert several[0] == one
    assert len(set(several)) == 3
    both = model.ask(["What", "In wh"], num_return_sequences=3, **options)
    assert both[:3] == several
    assert both[3] == other
    assert model.ask("What", num_return_sequences=None, **options) == one
    assert model.ask("", **options)  # from nothing


def test_a_stream_is_the_answer_in_pieces(model: Model) -> None:
    options: dict[str, Any] = {"max_new_tokens": 17, "seed": 5}
    pieces = list(model.stream("What", **options))
    assert len(pieces) > 10
    assert all(isinstance(piece, str) for piece in pieces)
    assert "".join(pieces) == model.ask("What", **options)
    rows = list(model.stream(["What", "In wh"], **options))
    assert all(len(row) == 2 for row in rows)
    assert ["".join(row) for row in zip(*rows, strict=True)] == model.ask(["What", "In wh"], **options)
    rows = list(model.stream("What", num_return_sequences=2, **options))
    assert all(isinstance(row, list) for row in rows)


def test_unknown_options_name_the_nearest(model: Model) -> None:
    user_error(
        lambda: model.ask("a", temprature=1), "temprature is not an option", "did you mean temperature?"
    )
    user_error(lambda: model.ask("a", num_return_sequence=2), "did you mean num_return_sequences?")
    user_error(lambda: model.ask("a", stops="x"), "did you mean stop?")
    user_error(lambda: model.ask("a", temperature=-1), "temperature=-1")
    user_error(lambda: model.ask("a", num_return_sequences=0), "=0")
    user_error(lambda: model.ask("a", stop=""), "stop=")


def test_the_folders_own_defaults(folder: Path) -> None:
    own = {"max_new_tokens": 5, "temperature": 0, "num_return_sequences": 2, "eos_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(own))
    model = load(folder, "cpu")
    first, second = model.ask("What")
    assert first == second  # the likeliest token, always
    assert len(first) == 5
    assert len(model.ask("What", max_new_tokens=3, num_return_sequences=1)) == 3
    assert model.ask("What", max_new_tokens=None) == [first, second]
    assert model.ask("What", num_return_sequences=1, temperature=9.0, seed=0) != first


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grammar", "x"),
        ("stop", 5),
        ("stop", [5]),
        ("temperature", 10**400),
        ("logit_bias", [[1]]),
        ("logit_bias", {"1": 2}),
        ("logit_bias", [[1, 10**400]]),
    ],
)
def test_impossible_defaults_of_a_folder(folder: Path, name: str, value: Any) -> None:
    file = folder / "generation_config.json"
    file.write_text(json.dumps({name: value}))
    user_error(lambda: load(folder, "cpu"), file, name)
    file.write_text(json.dumps({"logit_bias": [[3, 9]]}))
    assert load(folder, "cpu").generation["logit_bias"] == [[3, 9]]
    load(folder, "cpu").ask("What", max_new_tokens=3)


def test_stop_strings(model: Model) -> None:
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0.9, "seed": 1}
    answer = model.ask("What", **options)
    stop = answer[20:22]
    cut = answer[: answer.index(stop)]
    assert model.ask("What", stop=stop, **options) == cut
    assert model.ask("What", stop=["never", stop], **options) == cut
    assert "".join(model.stream("What", stop=stop, **options)) == cut
    rows = model.ask(["What", "In wh"], stop=stop, **options)
    assert rows == [cut, model.ask("In wh", stop=stop, **options)]


# Scoring


def test_score_is_a_plain_loop(model: Model, tmp_path: Path) -> None:
    content = TEXT * 5 + "naïve é"  # two of its characters are unknown, and each is two bytes
    (tmp_path / "a.txt").write_text(content, "utf-8")
    ids = torch.tensor(model.tokenizer.encode(content))
    total, context = 0.0, 13
    with torch.no_grad():
        for start in range(0, len(ids) - 1, context):
            x, y = ids[start : start + context], ids[start + 1 : start + context + 1]
            x = x[: len(y)]
            total += float(F.cross_entropy(model.model(x[None])[0], y, reduction="sum"))
    scores = model.score(str(tmp_path / "a.txt"))
    assert scores["loss"] == pytest.approx(total / (len(ids) - 1), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["bits_per_byte"] == pytest.approx(total / math.log(2) / len(content.encode()), rel=1e-5)
    (tmp_path / "b.txt").write_text(content, "utf-8")
    two = model.score(str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    assert two["bits_per_byte"] == pytest.approx(scores["bits_per_byte"], rel=0.1)


def test_score_of_too_little(model: Model, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    user_error(lambda: model.score(str(tmp_path / "a.txt")), tmp_path / "a.txt", "too few")
    user_error(lambda: model.score(), "nothing to score on")
    user_error(lambda: model.score(str(tmp_path / "none.txt")), tmp_path / "none.txt", "no such file")


def test_the_dtype_is_that_of_writing(tmp_path: Path) -> None:
    model, task = parts()
    begin(tmp_path / "run", model, task, SECTIONS)
    write_tensors(tmp_path / "run" / WEIGHTS, dict(model.state_dict()))
    loaded = load(tmp_path / "run", "cpu", dtype="float32")
    assert writing_dtype(loaded.model) == torch.float32
    assert writing_dtype(load(tmp_path / "run", "cpu").model) == torch.bfloat16
    user_error(lambda: load(tmp_path / "run", "cpu", dtype="int3"), "dtype=int3", "bfloat16")


def test_a_checkpoint_is_a_model_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RUN/checkpoints/step-N, wherever one stands; a step that is not there is named."""
    earlier = {name: t + 1 for name, t in read_tensors(folder / WEIGHTS).items()}
    checkpoints.save(folder / "checkpoints", 7, earlier, {"a": torch.zeros(1)}, {})
    monkeypatch.chdir(folder / "checkpoints")
    for path in (folder / "checkpoints" / "step-7", Path("step-7")):
        model = load(path)
        assert model.step == 7
        assert all(model.model.state_dict()[name].equal(t) for name, t in earlier.items())
    user_error(lambda: load(folder / "checkpoints" / "step-8"), "step 8", "7")
