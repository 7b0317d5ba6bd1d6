"""Patterns of a tokenizer.json, which are Oniguruma's, as JavaScript reads them with the flag u."""

import re

TOKEN = re.compile(
    r"""(?P<space>\\s)|(?P<other>\\S)|(?P<kind>\\[pP]\{[LMNPSZC][a-z]?\})|(?P<escape>\\[rntf\\^$.*+?()\[\]{}|/\-])
    |(?P<case>\(\?i:)|(?P<open>\((?!\?)|\(\?[:=!])|(?P<class>\[\^?)|(?P<close>[)\]])
    |(?P<repeat>(?:[?*+]|\{\d+(?:,\d*)?\})\??(?![+?*]))|(?P<bar>\|)|(?P<plain>[^\\^$.*+?()\[\]{}|&])""",
    re.VERBOSE,
)
FOLDED = {"s": "\u017f", "k": "\u212a"}  # also the small letters of these


def to_javascript(pattern: str) -> str | None:
    """The same pattern in JavaScript; None if it has anything that is not certain to mean the same."""
    result, open_groups, in_class, at = [], [], False, 0
    while at < len(pattern):
        token = TOKEN.match(pattern, at)
        if token is None:
            return None
        kind, text, at = token.lastgroup, token.group(), token.end()
        if in_class and kind in ("case", "open", "class", "repeat", "bar"):
            if kind == "class":
                return None  # a class in a class
            kind, text = "plain", f"\\{text}" if len(text) == 1 else ""
            if not text:
                return None
        if kind == "space":
            text = r"\p{White_Space}"
        elif kind == "other":
            text = r"\P{White_Space}"
        elif kind in ("case", "open"):
            open_groups.append(kind)
            text = "(?:" if text in ("(?i:", "(") else text
        elif kind == "class":
            in_class = True
        elif text == "]":
            in_class = False
        elif text == ")":
            if not open_groups:
                return None
            open_groups.pop()
        elif kind == "plain" and "case" in open_groups and text.isalpha():
            if in_class or not text.isascii():
                return None
            text = f"[{text.lower()}{text.upper()}{FOLDED.get(text.lower(), '')}]"
        result.append(text)
    return None if open_groups or in_class else "".join(result)
