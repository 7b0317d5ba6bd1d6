"""Which rows are held out for evaluation: whole groups of rows with one source, or a folder's own splits."""

import os
import re
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from regard.data.archives import enter_archive, is_folder, list_entries
from regard.data.files import COMPRESSED, content_suffix
from regard.data.reading import reading_fold, reading_version, record_note
from regard.data.tables import SUFFIXES
from regard.errors import UserError

TRAIN = ("train", "training")
VALID = ("valid", "val", "validation", "dev")
TEST = ("test", "testing")
NAMES = {name: kind for kind, names in (("train", TRAIN), ("valid", VALID), ("test", TEST)) for name in names}
RECORDING = re.compile(r"(?P<label>[^_]+)_(?P<voice>.+)_(\d+)\.wav", re.DOTALL | re.IGNORECASE)  # as in FSDD
SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$")  # after the name of a split in several files, as on hubs
ABOUT = ("readme", "license", "licence", "dataset_dict", "dataset_info")  # files that are not data


def number_groups(keys: Sequence[Hashable] | np.ndarray) -> np.ndarray:
    """Number the groups of rows with equal keys, in the order of their first rows.

    Rows of one group are never on both sides of a split: a model could have memorised the held-out ones.
    """
    if reading_version() == 1:  # every row on its own
        return np.arange(len(keys))
    if isinstance(keys, np.ndarray):  # of many documents, for which a dictionary would be large
        _, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
        rank: np.ndarray = firsts.argsort().argsort()[inverse]
        return rank
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def hold_out_groups(keys: Sequence[Hashable], holdout: float) -> np.ndarray:
    """Return whether each row is held out: every tenth group of rows, for a holdout of 0.1; if there are few,
    the last one; if there is only one, none."""
    groups = number_groups(keys)
    count = int(groups.max()) + 1 if len(groups) else 0
    if not holdout or count < 2:
        return np.zeros(len(keys), dtype=bool)
    every = min(max(2, round(1 / holdout)), count)
    held_out: np.ndarray = groups % every == first_held_out(every)
    return held_out


def first_held_out(every: int) -> int:
    """Return the first group that is held out of `every` groups: the last one, or another fold's."""
    return (every - 1 - reading_fold()) % every


# Folders with folders or files named train, valid, test


def find_splits(folder: str, has_classes: bool) -> dict[str, list[str]]:
    """Return the paths of a folder's own splits by "train", "valid" and "test"; none if it has other entries.

    `has_classes`: folders are named after classes, so that a folder with a file in it is a class.
    """
    splits: dict[str, list[str]] = {}
    try:
        entries = list_entries(folder)
    except OSError:  # the reader of the folder reports why it can't be read
        return {}
    inside = [entry for entry in entries if not is_about(entry[0])]
    if [is_dir for _, is_dir in inside] == [True] and inside[0][0].lower() not in NAMES and not has_classes:
        return find_splits(os.path.join(folder, inside[0][0]), False) if reading_version() > 3 else {}
    for entry, is_dir in entries:
        name, path = entry.lower(), os.path.join(folder, entry)
        while not is_dir and Path(name).suffix in COMPRESSED:
            name = Path(name).stem
        stem = name if is_dir else Path(name).stem
        if stem in ABOUT:
            continue
        is_shard = not is_dir and SHARD.search(stem) is not None and reading_version() > 3
        kind = NAMES.get(SHARD.sub("", stem) if is_shard else stem)
        is_second = kind in splits and not is_shard
        if kind is None or is_second or (has_classes and not (is_dir and _has_classes(path, stem))):
            return {}
        splits.setdefault(kind, []).append(path)
    return splits if "train" in splits else {}


def _has_classes(folder: str, name: str) -> bool:
    """Return whether a folder has only class folders, or recordings CLASS_VOICE_NUMBER.wav of classes that
    are not its own name."""
    inside = list_entries(folder)
    named = [RECORDING.fullmatch(entry) for entry, is_dir in inside if not is_dir]
    has_recordings = len(named) == len(inside) and all(m is not None and m["label"] != name for m in named)
    return bool(inside) and (has_recordings or all(is_dir for _, is_dir in inside))


def enter_folder(path: str, has_classes: bool, has_media: bool) -> str:
    """Return the path of the data in a folder or .zip: the only folder in an archive; with images or
    recordings (`has_media`), the table that names them."""
    if not has_media or reading_version() < 3 or not is_folder(path):
        return enter_archive(path, has_classes)
    inner = path
    while len(entries := list_entries(inner)) == 1 and entries[0][1]:
        inner = os.path.join(inner, entries[0][0])
    files = [name for name, is_dir in entries if not is_dir]
    tables = [name for name in files if content_suffix(name) in SUFFIXES and not is_about(name)]
    has_named = has_classes and any(RECORDING.fullmatch(name) for name in files)
    if not tables or has_named or (has_classes and len(entries) - len(files) > 1):
        return enter_archive(path, has_classes)
    if len(tables) > 1:
        listed = ", ".join(tables[:5])
        raise UserError(f"{inner}: several tables, {listed}; give one of them, and another with --valid")
    record_note(f"{path}: what its table {tables[0]} names")
    return os.path.join(inner, tables[0])


def is_about(path: str) -> bool:
    """Whether a file describes the data beside it."""
    return Path(path.lower()).stem in ABOUT


def use_splits(
    paths: Sequence[str], valid: Sequence[str], has_classes: bool, has_media: bool = False
) -> tuple[list[str], list[str]]:
    """Return the paths to train on and to evaluate on, if folders have their own splits."""
    train, held_out = [], [enter_folder(str(path), has_classes, has_media) for path in valid]
    for path in (enter_folder(str(path), has_classes, has_media) for path in paths):
        splits = find_splits(path, has_classes) if reading_version() > 1 and is_folder(path) else {}
        train += splits.get("train", [path])
        if not splits:
            continue
        used = {"train": "to train on"}
        if "valid" in splits and not valid:
            held_out += splits["valid"]
            used["valid"] = "to evaluate on"
        record_note(f"{path}: {describe_splits(splits, used)}")
    return train, held_out


def choose_test(paths: Sequence[str], has_classes: bool, has_media: bool = False) -> list[str]:
    """Return the paths to score on, if folders have their own splits: test, else valid."""
    chosen: list[str] = []
    for path in (enter_folder(str(path), has_classes, has_media) for path in paths):
        splits = find_splits(path, has_classes) if reading_version() > 1 and is_folder(path) else {}
        kind = next((kind for kind in ("test", "valid") if kind in splits), None)
        chosen += [path] if kind is None else splits[kind]
        if kind is not None:
            record_note(f"{path}: {describe_splits(splits, {kind: 'to score on'})}")
    return chosen


def describe_splits(splits: dict[str, list[str]], used: dict[str, str]) -> str:
    lines = []
    for kind, (first, *more) in splits.items():
        verb = f"and {len(more):,} more are" if more else "is"
        lines.append(f"{os.path.basename(first)} {verb} {used.get(kind, 'left out')}")
    return ", ".join(lines)
