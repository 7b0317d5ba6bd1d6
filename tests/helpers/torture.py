"""Hostile chat templates and tokenizers by a grammar: each seed gives another one."""

import json
import random
from typing import Any

from regard.text.tokenizer_kinds import train_tokenizer

NUMBERS = (
    "0",
    "1",
    "-1",
    "7",
    "99",
    "9999",
    "99999",
    "10**7",
    "10**10",
    "2**70",
    "messages|length",
    "i",
    "1.5",
)
TEXTS = (
    "'a'",
    "'ab'",
    "messages[0].content",
    "ns.x",
    "''",
    "'{:>99999999}'",
    "'%99999999d'",
    "'\\n'",
    "'é' * 999",
)
FILTERS = (
    *(
        "sort",
        "list",
        "string",
        "length",
        "join",
        "upper",
        "reverse",
        "tojson",
        "unique|list",
        "trim",
        "pprint",
    ),
    *(
        "join(T)",
        "replace(T, T)",
        "indent(N)",
        "center(N)",
        "tojson(indent=N)",
        "batch(N)|list",
        "wordwrap(N)",
    ),
    *(
        "tojson(separators=(T, T))",
        "truncate(N)",
        "slice(N)|list",
        "format(N)",
        "map('string')|list",
        "int",
        "abs",
    ),
    *(
        "select('in', L)|list",
        "map('replace', T, T)|list",
        "groupby(0)",
        "round(N)",
        "urlize(N)",
        "xmlattr",
        "max",
    ),
    *(
        "sum(start=L)",
        "dictsort",
        "attr('x')",
        "default(L)",
        "reject('in', L)|list",
        "filesizeformat",
        "wordcount",
    ),
)
METHODS = (
    *(
        "ljust(N)",
        "zfill(N)",
        "expandtabs(N)",
        "join(L)",
        "replace(T, T)",
        "split(T)",
        "encode()",
        "count(T)",
    ),
    *(
        "encode().ljust(N)",
        "encode().hex()",
        "format(N)",
        "translate({97: T})",
        "partition(T)",
        "splitlines()",
    ),
)
STATEMENTS = (
    "{% for i in R %}S{% endfor %}",
    "{% for i in L recursive %}S{{ loop(L) }}{% endfor %}",
    "{% set ns.x = E %}",
    "{% set ns.x = [ns.x, ns.x, E] %}",
    "{% set ns.x = ns.x ~ ns.x %}",
    "{% set y %}S{{ ns.x }}S{% endset %}{% set ns.x = y %}",
    "{% macro m(i) %}S{{ m(E) }}S{% endmacro %}{{ m(N) }}",
    "{% if E %}S{% else %}S{% endif %}",
    "{{ E }}",
    "{{ raise_exception(T) }}",
    "{{ strftime_now(T) }}",
)
SEPARATE = {"E", "L", "N", "R", "S", "T"}


def expand(rng: random.Random, rule: str, depth: int) -> str:
    """Replace each capital letter of a rule that stands for another one."""
    result = ""
    for at, letter in enumerate(rule):
        alone = not (rule[at - 1 : at] + rule[at + 1 : at + 2]).strip("'").isalpha()
        result += choose(rng, letter, depth) if letter in SEPARATE and alone else letter
    return result


def choose(rng: random.Random, kind: str, depth: int) -> str:
    """A piece of a template: a statement, expression, number, text, list, or range, by its first letter."""
    if kind == "S":
        return "x" if depth <= 0 else expand(rng, rng.choice(STATEMENTS), depth - 1)
    if kind == "R":
        return f"range({rng.choice(('3', '60', '999', '99999'))})"
    if kind == "E":
        kind = rng.choice("LNT")
    if depth <= 0:
        return rng.choice(NUMBERS) if kind == "N" else rng.choice(TEXTS) if kind == "T" else "[ns.x, i]"
    way = rng.randrange(6)
    if kind == "N" or way == 0:
        operator = rng.choice(("*", "**", "+", "//", "%", "~", "*", "-"))
        return "(" + expand(rng, f"{rng.choice('NTL') if kind != 'N' else 'N'} {operator} N", depth - 2) + ")"
    if way == 1:
        return "(" + expand(rng, f"E|{rng.choice(FILTERS)}", depth - 2) + ")"
    if way == 2:
        return "(" + expand(rng, f"T.{rng.choice(METHODS)}", depth - 2) + ")"
    if kind == "L":
        return expand(rng, rng.choice(("[E, E]", "(R|list)", "[T] * N", "{1: E, 2: E}", "L + L")), depth - 2)
    return expand(rng, rng.choice(("T", "(T ~ T)", "(T * N)", "E|string", "T[N:]")), depth - 2)


def hostile_template(seed: int) -> str:
    rng = random.Random(seed)
    body = "".join(choose(rng, "S", rng.randrange(2, 9)) for _ in range(rng.randrange(1, 5)))
    return "{% set ns = namespace(x='a') %}{% set i = 3 %}" + body + "{{ ns.x }}"


def hostile_regex(rng: random.Random, depth: int) -> str:
    if depth <= 0:
        return rng.choice(("a", "b", ".", r"\s", r"\w", "[ab]", "[^a]", r"\p{L}", "c", " "))
    inner = hostile_regex(rng, depth - 1)
    other = hostile_regex(rng, depth - 1)
    quantifier = rng.choice(("*", "+", "?", "{2,}", "{1,99}", "{9}", "*?", "+?", "*+"))
    ways = (f"(?:{inner}){quantifier}", inner + other, f"(?:{inner}|{other})", f"{inner}(?={other})")
    return rng.choice((*ways, f"(?:{inner}){quantifier}", f"(?<!{'a'}){inner}", f"({inner}){other}\\1"))


def hostile_tokenizer(seed: int) -> str:
    """A tokenizer.json with random parts, which may be absurd."""
    rng = random.Random(seed)
    kind = rng.choice(("bpe", "unigram", "wordpiece", "word", "char"))
    content = json.loads(train_tokenizer(kind, ["a bc ab aa abc"], 300, ["<s>"]).inner.to_str())

    def pattern() -> dict[str, str]:
        if rng.random() < 0.5:
            return {"Regex": hostile_regex(rng, rng.randrange(5))}
        return {"String": rng.choice(("a", "b", " ", "aa", "", "ab", "é"))}

    def text() -> str:
        return rng.choice(("a", "b", "ab", " ")) * rng.choice((0, 1, 2, 9, 999, 10**5))

    def normalizer() -> dict[str, Any]:
        plain = [{"type": name} for name in ("Lowercase", "NFKD", "StripAccents", "ByteLevel", "Nmt")]
        grown = [{"type": "Replace", "pattern": pattern(), "content": text()}] * 4
        return rng.choice([*plain, *grown, {"type": "Prepend", "prepend": text()}])

    def pre_tokenizer() -> dict[str, Any]:
        way = rng.choice(("Isolated", "Removed", "MergedWithPrevious", "Contiguous"))
        metaspace = {"type": "Metaspace", "replacement": "a", "prepend_scheme": "always", "split": True}
        split = {"type": "Split", "pattern": pattern(), "behavior": way, "invert": rng.random() < 0.3}
        return rng.choice([split, split, metaspace, {"type": "Digits", "individual_digits": True}])

    def decoder() -> dict[str, Any]:
        replace = {"type": "Replace", "pattern": pattern(), "content": text()}
        return rng.choice(
            [replace, {"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 1, "stop": 9}]
        )

    def several(name: str, make: Any) -> dict[str, Any]:
        return {"type": "Sequence", name: [make() for _ in range(rng.choice((1, 2, 3, 9, 40)))]}

    if rng.random() < 0.7:
        content["normalizer"] = several("normalizers", normalizer)
    if rng.random() < 0.7:
        content["pre_tokenizer"] = several("pretokenizers", pre_tokenizer)
    if rng.random() < 0.3:
        content["decoder"] = several("decoders", decoder)
    if rng.random() < 0.2:
        sequence = {"Sequence": {"id": "A", "type_id": 0}}
        single = [sequence] * rng.choice((1, 2, 99, 9999))
        pair = [sequence, {"Sequence": {"id": "B", "type_id": 0}}]
        content["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": pair,
                                     "special_tokens": {}}  # fmt: skip
    if rng.random() < 0.2:
        content["model"]["continuing_subword_prefix"] = text()
    if kind == "wordpiece":
        content["model"]["max_input_chars_per_word"] = rng.choice((1, 100, 10**9))
    if rng.random() < 0.2 and kind == "unigram":
        content["model"]["vocab"] += [["a" * n, -1.0] for n in range(2, rng.choice((9, 99, 999)))]
    return json.dumps(content)
