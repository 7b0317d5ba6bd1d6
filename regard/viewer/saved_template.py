"""A chat template as a saved page describes it: the texts around what is said, which are always the same."""

import json
from collections.abc import Sequence
from typing import Any

from regard.errors import UserError
from regard.text.chat_template import Template
from regard.text.tokenizer import Tokenizer

SAID = ["qUe1", "aNs1", "qUe2", "aNs2", "qUe3"]  # in turn; nothing else in a template is spelled so
ODD = [" \n Wie, 'so'? <b>&amp;", "a\n\n{{ b }} ", "\t\t", "", "x\n"]  # a template may trim, or escape
MATCHING = "lstrip", "rstrip", "single_word"  # of an added token, which a page does not know


def pack_template(template: Template, tokenizer: Tokenizer) -> dict[str, Any]:
    """What stands before the first question, between a question and its answer, between that and the next
    question, and after the last question; and whether questions and answers are trimmed."""
    added = json.loads(tokenizer.inner.to_str())["added_tokens"]
    if strange := next((token["content"] for token in added if any(map(token.get, MATCHING))), None):
        refuse(f"the tokenizer takes the spaces around {strange} away, which a page can't")
    text, rest = render(template, SAID), list[str]()
    for said in SAID:
        before, separator, text = text.partition(said)
        if not separator:
            refuse("the chat template does not repeat what was said word for word")
        rest.append(before)
    begin, answer, following, *_ = rest
    for trims in ([False, False], [True, True], [True, False], [False, True]):
        packed = {"begin": begin, "answer": answer, "next": following, "end": text, "trims": trims}
        if all(join_turns(packed, turns) == render(template, turns) for turns in (SAID[:1], SAID, ODD)):
            return packed
    return refuse("the chat template does not put the same texts around all that is said, as a page does")


def join_turns(packed: dict[str, Any], turns: Sequence[str]) -> str:
    """What the page makes of questions and answers in turn."""
    said = [turn.strip() if packed["trims"][i % 2] else turn for i, turn in enumerate(turns)]
    between = [packed[("next", "answer")[i % 2]] for i in range(1, len(turns))]
    pieces = zip([packed["begin"], *between], said, strict=True)
    return "".join(before + turn for before, turn in pieces) + str(packed["end"])


def render(template: Template, turns: Sequence[str]) -> str:
    roles = "user", "assistant"
    return template.render([{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)])


def refuse(why: str) -> Any:
    raise UserError(f"{why}; give an INPUT to save the page of that one")
