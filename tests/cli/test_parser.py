"""Options stand anywhere on the line of a command."""

import itertools

import pytest

from regard.cli.parser import build_parser
from regard.errors import UserError

LINES = {  # a command's arguments in groups that stay together, and what they are read as
    "train": (["translate", "a.en", "a.de"], ["--steps", "3"], ["--set", "model.dim=8"], ["--resume"]),
    "ask": (["RUN", "A dog", "two"], ["--num-beams", "2"], ["--json"], ["--stop", "x"]),
    "score": (["RUN", "a", "b"], ["--json"], ["--against", "OTHER"]),
    "look": (["RUN", "A dog", "B"], ["--save", "a.svg"], ["--head", "1"]),
    "serve": (["RUN", "OTHER"], ["--port", "1"], ["--log", "none"]),
    "export": (["RUN", "DIR"], ["--to", "onnx"]),
    "prepare": (["a", "b"], ["--out", "DIR"], ["--valid", "c"]),
}


@pytest.mark.parametrize("command", LINES)
def test_options_stand_anywhere(command):
    """In every order of the options, with arguments between them."""
    arguments, *options = LINES[command]
    parse = build_parser().parse_args
    want = parse([command, *arguments, *itertools.chain(*options)])
    assert want.command == command
    for order in itertools.permutations(options):
        for cut in range(len(arguments) + 1):
            first, *rest = order
            words = [*arguments[:cut], *first, *arguments[cut:], *itertools.chain(*rest)]
            assert parse([command, *words]) == want, words
            words = [*first, *arguments[:cut], *itertools.chain(*rest), *arguments[cut:]]
            assert parse([command, *words]) == want, words


def test_two_dashes_end_the_options():
    parse = build_parser().parse_args
    for words in (
        ["RUN", "A", "--json", "--", "--json"],
        ["--json", "--", "RUN", "A", "--json"],
        ["RUN", "--json", "--", "A", "--json"],
    ):
        options = parse(["ask", *words])
        assert (options.model, options.input, options.json) == ("RUN", ["A", "--json"], True), words
    assert parse(["ask", "RUN", "-1", "-"]).input == ["-1", "-"]


def test_what_is_missing_or_unknown_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-a.csv").touch()
    for words, names in (
        (["train", "write", "-a.csv"], ["./-a.csv"]),
        (["train", "write", "--txet=review"], ["--txet;", "--text?"]),
        (["ask", "RUN", "--color", "A"], ["--color", "regard ask --help"]),
        (["score", "--json", "RUN"], ["DATA", "regard score --help"]),
        (["prepare", "x"], ["--out", "regard prepare --help"]),
        (["trian", "write"], ["trian", "train?", "regard --help"]),
        (["train", "write", "--out", ""], ["--out", "empty"]),
        (["export", "RUN", ""], ["DIR", "empty"]),
        (["look", "RUN", "--save", ""], ["--save", "empty"]),
    ):
        with pytest.raises(UserError) as e:
            build_parser().parse_args(words)
        assert all(name in str(e.value) for name in names), e.value
