"""What is held out: whole groups of rows with one source, and a folder's own splits."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from helpers.runs import FILES, RUNS, settings_of, tiny, write_data
from regard.data.encoding import split_texts
from regard.data.reading import VERSION, read_together
from regard.data.splitting import choose_test, find_splits, hold_out_groups, number_groups, use_splits
from regard.runs import recipe
from regard.tasks import TASKS, DataRequest

pytestmark = pytest.mark.usefixtures("quick")


def test_groups_are_numbered_by_their_first_rows():
    keys = ["b", "a", "b", "c", "a"]
    assert number_groups(keys).tolist() == [0, 1, 0, 2, 1]
    assert number_groups(np.array([7, 3, 7, 9, 3], dtype=np.uint64)).tolist() == [0, 1, 0, 2, 1]
    assert hold_out_groups(keys, 0.5).tolist() == [False, True, False, False, True]
    assert hold_out_groups(["a", "a"], 0.5).tolist() == [False, False]
    with read_together(version=1):
        assert number_groups(keys).tolist() == [0, 1, 2, 3, 4]
        assert hold_out_groups(["a", "a"], 0.5).tolist() == [False, True]


def test_equal_documents_stay_together():
    """Also in pieces; the share of distinct ones counts."""
    texts = [chunk for n in range(69) for chunk in ((True, f"text {n % 23},"), (False, " the rest"))]
    held = {text for out, _, text in split_texts(texts, None, 0.1) if out}
    trained = {text for out, _, text in split_texts(texts, None, 0.1) if not out}
    assert held & trained == {" the rest"}
    assert sorted(held - trained) == ["text 19,", "text 9,"]
    with read_together(version=1):
        assert len({text for out, _, text in split_texts(texts, None, 0.1) if out}) > 3


ROWS = ["translate-gru", "chat-gru", "classify-bert", "tag-bert", "span-bert", "embed-bert", "fill-bert"]


@pytest.mark.parametrize("case", ROWS)
def test_what_is_held_out_is_not_trained_on(tmp_path, case):
    """Every row is there three times, in random order."""
    path = Path(write_data(case, tmp_path))
    text, name = path.read_text("utf-8"), RUNS[case][0]
    end = "\n\n" if name in ("tag", "fill") else "\n"
    header, rows = text.split(end)[: name == "classify"], text.strip("\n").split(end)[name == "classify" :]
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows) * 3) % len(rows)]
    path.write_text(end.join([*header, *rows]) + "\n", "utf-8")
    shared = []
    for version in (2, 1):
        corpus = read_corpus(case, path, version)
        sides = [sources(side) for side in (corpus.train, corpus.valid)]
        assert len(sides[1]) > 0
        shared.append(len(set(sides[0]) & set(sides[1])))
    assert shared[0] == 0
    assert (shared[1] > 0) == (name != "span")  # of which whole texts were always held out


def sources(data):
    if hasattr(data, "sources"):
        return [str(source) for source in data.sources]
    return [data.sentence_ids(a, b).tobytes() for a, b in pairwise(data.firsts.tolist())]


def test_equal_images_and_recordings_stay_together(tmp_path):
    """Each is there three times, under other names."""
    data = Path(write_data("hear-vit", tmp_path))
    files = {f"{n % 2}/{n % 13}-{n}.wav": sorted(data.iterdir())[n % 13].read_bytes() for n in range(39)}
    for name, content in files.items():
        write(tmp_path / "sounds" / name, content)
    write_data("caption-soft", tmp_path)
    for n in range(39):
        write(
            tmp_path / "images" / str(n % 2) / f"{n % 13}-{n}.png",
            (tmp_path / f"caption/{n % 13}.png").read_bytes(),
        )
    table = "".join(f"{n % 2}/{n % 13}-{n}.png\tfox {n}\n" for n in range(39))
    (tmp_path / "images.tsv").write_text("image\tcaption\n" + table)
    for case, folder in (("hear-vit", "sounds"), ("see-vit", "images"), ("caption-soft", "images.tsv")):
        corpus = read_corpus(case, tmp_path / folder)
        train, held = (
            {Path(name).name.split("-")[0] for name in side.sources.names}
            for side in (corpus.train, corpus.valid)
        )
        assert held
        assert not train & held, case


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def read_corpus(case, path, version=2):
    """What a run of this case reads."""
    task_class, task_config = TASKS[RUNS[case][0]]
    sections = recipe.change(recipe.read(RUNS[case][0]), settings_of(case, {"data.version": version}))
    data = recipe.fill("data", sections["data"], task_class.data_config)
    config = recipe.fill("task", sections["task"], task_config)
    with read_together(version=version):
        return task_class.read(DataRequest([str(path)], [], data, config, 23))


def test_a_run_is_resumed_with_the_version_that_it_began_with(tmp_path):
    """Also one that began before there were versions."""
    path = Path(write_data("translate-gru", tmp_path))
    path.write_text(path.read_text("utf-8") * 3, "utf-8")
    out = tmp_path / "out"
    tiny(str(path), out, "translate-gru", steps=1, data__version=1)
    recipe_file = out / "recipe.toml"
    assert "version = 1\n" in recipe_file.read_text()
    recipe_file.write_text(recipe_file.read_text().replace("version = 1\n", ""))
    tiny(str(path), out, "translate-gru", steps=2, resume=True)
    assert "version = 1\n" in recipe_file.read_text()
    tiny(str(path), tmp_path / "new", "translate-gru", steps=1)
    assert f"version = {VERSION}\n" in (tmp_path / "new" / "recipe.toml").read_text()


# A folder's own splits


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return str(folder)


def test_splits_of_a_folder(tmp_path):
    a = make(
        tmp_path / "a",
        "train/cat/1.png",
        "Val/cat/2.png",
        "test/cat/3.png",
        "README.md",
        "dataset_dict.json",
        ".hidden/x",
    )
    assert find_splits(a, True) == {
        k: [f"{a}/{v}"] for k, v in (("train", "train"), ("valid", "Val"), ("test", "test"))
    }
    b = make(tmp_path / "b", "train.tsv.gz", "dev.tsv")
    assert find_splits(b, False) == {"train": [f"{b}/train.tsv.gz"], "valid": [f"{b}/dev.tsv"]}
    shards = [f"{name}-0000{n}-of-00002-0a1f.csv" for name in ("train", "validation", "test") for n in (0, 1)]
    c = make(tmp_path / "c", "README.md", *(f"data/{name}" for name in shards))  # as on hubs
    files = [f"{c}/data/{name}" for name in shards]
    with read_together() as reading:
        assert use_splits([f"{c}/data"], [], False) == (files[:2], files[2:4])
        assert use_splits([c], [], False) == (files[:2], files[2:4])
        assert choose_test([c], False) == files[4:]
    assert f"{shards[4]} and 1 more are left out" in next(iter(reading.notes))
    with read_together(version=3):
        assert use_splits([c], [], False) == ([c], [])
    for n, names in enumerate(
        (
            ["train/1.png", "bus/2.png"],  # vehicles
            ["train/1.png", "val/2.png"],  # classes by these names, with pictures in them
            ["val/cat/1.png", "test/cat/2.png"],
            ["train/cat/1.png", "training/cat/2.png"],
        )
    ):
        assert find_splits(make(tmp_path / str(n), *names), True) == {}
    with read_together() as reading:
        assert use_splits([a, "x.tsv"], [], True) == ([f"{a}/train", "x.tsv"], [f"{a}/Val"])
        assert use_splits([a], ["mine"], True) == ([f"{a}/train"], ["mine"])
        assert choose_test([a], True) == [f"{a}/test"]
        assert choose_test([b, "x"], False) == [f"{b}/dev.tsv", "x"]
    assert all(note.startswith((f"{a}: ", f"{b}: ")) for note in reading.notes)
    assert "test is left out" in next(iter(reading.notes))
    with read_together(version=1):
        assert use_splits([a], [], True) == ([a], [])
        assert choose_test([a], True) == [a]


@pytest.mark.parametrize("case", ["hear-vit", "write", "classify-bert"])
def test_a_folder_with_splits_trains_and_evaluates_on_them(tmp_path, case, capsys):
    ending, _ = FILES[RUNS[case][0]]
    data = Path(write_data(case, tmp_path))
    for split in ("train", "valid"):
        (tmp_path / "all" / split).mkdir(parents=True)
        if case == "hear-vit":
            for file in data.iterdir():
                label = tmp_path / "all" / split / file.name.split("_")[0]
                label.mkdir(exist_ok=True)
                (label / file.name).write_bytes(file.read_bytes())
        else:
            (tmp_path / "all" / split / f"a{ending}").write_bytes(data.read_bytes())
    model = tiny(str(tmp_path / "all"), tmp_path / "out", case, steps=1)
    said = capsys.readouterr().err
    assert "train is to train on" in said
    assert "valid is to evaluate on" in said
    text = (tmp_path / "out" / "recipe.toml").read_text()
    assert json.dumps([str(tmp_path / "all" / "valid")]) in text
    if case == "hear-vit":
        assert model.task.labels == ("high", "low", "middle")
    tiny(str(tmp_path / "all"), tmp_path / "out", case, steps=2, resume=True)
    assert model.score(str(tmp_path / "all")) == model.score(str(tmp_path / "all" / "valid"))


def test_recordings_with_splits_of_their_own(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        for name in ("0_ann_1.wav", "1_bob_2.WAV"):
            (tmp_path / split).mkdir(exist_ok=True)
            (tmp_path / split / name).touch()
    folder = str(tmp_path)
    with read_together():
        assert use_splits([folder], [], True) == ([f"{folder}/train"], [f"{folder}/val"])
        assert choose_test([folder], True) == [f"{folder}/test"]
        (tmp_path / "test" / "test_ann_3.wav").touch()  # a class of that name
        assert use_splits([folder], [], True) == ([folder], [])
