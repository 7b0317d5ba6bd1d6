"""The English of docstrings, comments, messages and recipes: without phrases that have a plainer form."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "regard"

PLAINER = {  # what to write instead
    r"so many": "this many, or the parameter's name",
    r"nobody|somebody|whoever": "who it is: the user, a client, another process",
    r"whatever": "any",
    r"by heart": "memorise",
    r"makes? nothing of": "say what happens: writes no text, reads no file",
    r"mend(s|ed|ing)?": "correct, fix",
    r"told": "reported, given",
    r"tells? (what|which|whether|how|where)": "show, describe, predict",
    r"what tells": "the value that shows",
    r"worth": "gain, effect; pay off",
    r"knows? (what|how|which|where)": "say what is done with it",
    r"(has|have) not (a|an|any|the|these|those)": "has no, lacks",
    r"(?<!there )(is|are) no (token|text|model|number|conversation|word|data|file|trace|part)s?": "is not a",
    r"no use": "not needed",
    r"no place in": "not supported by",
}
ANY = re.compile(
    "|".join(rf"(?P<p{i}>\b(?:{pattern})\b)" for i, pattern in enumerate(PLAINER)), re.IGNORECASE
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every comment, docstring and message, but not of names."""
    source = path.read_text("utf-8")
    if path.suffix == ".toml":
        yield from enumerate(source.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from enumerate(node.value.splitlines(), node.lineno)


def test_phrases_that_have_a_plainer_form() -> None:
    phrases_used = []
    paths = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("recipes/*.toml")])
    for path in (path for path in paths if ANY.search(path.read_text("utf-8"))):
        for line, text in texts(path):
            for match in ANY.finditer(text) if " " in text else ():
                instead = list(PLAINER.values())[int(match.lastgroup[1:])]
                phrases_used.append(
                    f"{path.relative_to(PACKAGE.parent)}:{line}: {match[0]!r}; plainer: {instead}"
                )
    assert not phrases_used, "\n".join(phrases_used)


def test_phrases_are_found() -> None:
    for text in (
        "so many rows",
        "a line that tells which",
        "It is no token of them",
        "has not these",
        "if told",
    ):
        assert ANY.search(text), text
    for text in ("there is no token", "is no longer", "is no better", "it has not ended", "recommended"):
        assert not ANY.search(text), text
