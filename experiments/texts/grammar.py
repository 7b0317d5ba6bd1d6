"""A grammar is a table of rules: a name, and the texts that it may become, in which {names} may occur."""

import random
import re
from collections.abc import Mapping, Sequence

NAME = re.compile(r"\{(\w+)\}")


def expand(text: str, rules: Mapping[str, Sequence[str]], draw: random.Random) -> str:
    """Replace every {name} by one of its texts, until there is none left."""
    while match := NAME.search(text):
        text = text[: match.start()] + draw.choice(rules[match[1]]) + text[match.end() :]
    return text
