"""The commands on the pages run as printed, in their order, on small data and with two steps of training."""

import pytest

from helpers.documents import ROOT, Command, blocks, fenced, inline, run_command, run_page, split_commands

QUICK = ("README.md", "docs/start.md", "docs/words.md")
NOT_RUN = {  # lines that begin so, and why
    "regard ask hf:OWNER/NAME": "a model on the Hub, which tests don't reach",
    "torchrun --nproc-per-node 8": "eight GPUs; tests/training/test_distributed.py has two processes",
    "python bench/spoken_digits.py": "6,000 recordings by espeak-ng take minutes; the test writes a few",
    "regard prepare FOLDER --out shards --part": "64 parts; tests/data/test_prepare_parts.py has two",
    "from openai import OpenAI": "needs a server on this port; tests/serve/test_openai.py has this client",
    'client.chat.completions.create(model="chat", messages=messages, response_format=form)': "the same",
}
PAGES_NOT_RUN = {
    "docs/results.md": "hours of training on data that are not here",
    "docs/experiments.md": "python -m experiments, which tests/test_experiments.py runs",
}

SUBJECT = "docs/subject.md"
STANDS_FOR = {  # words of its commands, by another word that stands beside them
    "RUN": {
        **dict.fromkeys(("A", "The fox [MASK] over the dog."), "runs/bert"),
        **dict.fromkeys(("king", "king queen man woman"), "runs/words"),
        **dict.fromkeys(("--by-position", "As aliens entered our planet"), "runs/mine"),
        "cheap hotels": "runs/embed",
        "gates": "runs/gru",
        "look": "runs/de",
    },
    "TEXT": {"look": "A man is walking his dog."},
    "FILE": {"score": "my.txt"},
    "glove.txt": {"ask": "glove.6B.300d.txt"},
    **{f"{name}_FOLDER": {"train": "their-bert"} for name in ("BERT", "ROBERTA", "ELECTRA", "LONGFORMER")},
}


def has_commands(path):
    text = path.read_text()
    commands = any(words[0] == "regard" for line in fenced(text) for words in split_commands(line))
    return commands or "import torch, regard" in text


PAGES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")) if has_commands(path)]
PAGES = [page for page in ["README.md", *PAGES] if page not in PAGES_NOT_RUN]


@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in PAGES]
)
def test_commands_of_a_page_run(page, tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    assert run_page(page, tuple(NOT_RUN), monkeypatch)


def fill_in(words):
    """The words of a command of the subject, with what each stands for."""
    return [next((to for by, to in STANDS_FOR.get(w, {}).items() if by in words), w) for w in words]


@pytest.mark.slow
def test_commands_of_the_subject_run(tmp_path, monkeypatch, quick):
    """They stand in its table, and name runs and files as RUN and FILE."""
    monkeypatch.chdir(tmp_path)
    commands = [words for line in inline((ROOT / SUBJECT).read_text()) for words in split_commands(line)]
    commands = [fill_in(words) for words in commands if words[0] == "regard"]
    assert len(commands) > 20
    for words in commands:
        run_command(SUBJECT, Command(words), monkeypatch)


def test_what_does_not_run_is_on_a_page():
    lines = [line for page in PAGES for _, block in blocks((ROOT / page).read_text()) for line in block]
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in lines), start
    assert all((ROOT / page).is_file() for page in PAGES_NOT_RUN)


def test_a_command_that_fails_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="nowhere"):
        run_command("docs/start.md", Command(["regard", "ask", "nowhere", "Hello"]), monkeypatch)
