"""The models that a run begins with or learns from. It goes on only with the same ones, by their SHA-256."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from regard.errors import UserError
from regard.files.untrusted import read_json, write_json
from regard.runs.adapter import digest_weights
from regard.runs.layout import ORIGINS


def write_origins(folder: Path, models: Mapping[str, Sequence[str]]) -> None:
    """Write the SHA-256 of the weights of these models, by their key in the recipe, to a run's folder."""
    if digests := {key: [digest_weights(path) for path in paths] for key, paths in models.items() if paths}:
        write_json(folder / ORIGINS, digests)


def check_origins(folder: Path, key: str, models: Sequence[str]) -> None:
    """Raise UserError if the weights of a model are not what they were; an older run does not say."""
    if not models or not (folder / ORIGINS).exists():
        return
    known = read_json(folder / ORIGINS).get(key, [])
    for model, before in zip(models, known, strict=False):
        if before != (now := digest_weights(model)):
            before = before if isinstance(before, dict) else {}
            name = next(n for n in sorted({*now, *before, ORIGINS}) if before.get(n) != now.get(n))
            raise UserError(
                f"{model}: {name} is not what it was when {folder} began; restore it, or begin a new run "
                "with another --out"
            )
