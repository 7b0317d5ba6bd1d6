"""Write the built-in texts that are made by rules: `python -m experiments.texts`. A test compares them."""

from pathlib import Path

from experiments import ROOT
from experiments.texts.pronouns import make_rows
from experiments.texts.relations import make_sentences
from experiments.texts.stories import make_stories

BUILTIN = ROOT / "regard" / "builtin"


def make_files() -> dict[str, str]:
    """The text of each file."""
    sides = ("".join(f"{text}\t{noun}\n" for text, noun in rows) for rows in make_rows(1000, 200))
    files = dict(zip(("it.tsv", "it.valid.tsv"), sides, strict=True))
    return files | {"stories.txt": make_stories(), "words.txt": make_sentences()}


def write_files(folder: Path = BUILTIN) -> None:
    for name, text in make_files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_files()
