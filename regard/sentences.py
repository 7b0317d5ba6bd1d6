"""Running text as sentences, by rule, and in parts that a model has room for."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

CLOSING = "\"'”“’‘»›«‹)]}」』）】》"  # a quotation mark that opens in one language closes in another
OPENING = "\"'“‘„‚«‹»›([{¿¡「『（【《"
_closing, _opening = re.escape(CLOSING), re.escape(OPENING)

# Where a sentence may end: at a line's end, at Chinese and Japanese marks, and at ours before a space; French
# has one before the quotation mark, too. A run of marks is tried from its beginning only: a line of dots
# would take the square of its length.
END = re.compile(
    rf"\n|[。！？][。！？.!?…{_closing}]*"
    rf"|(?<![.!?…])([.!?…]++)[{_closing}]*+(?:[ \u00a0\u202f]»(?!\S))?+(?=[^\S\n])"
)
BEGINNING = re.compile(rf"\s*([-–—]\s+)?(?P<quote>[{_opening}]?)[{_opening}]*(?P<word>\w*)")
CLAUSE = re.compile(r"(?<=[,;:])(?=\s)|(?<=\s[-–—])(?=\s)|(?<=[、，；：])")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A full stop after these ends no sentence: English and German.
ABBREVIATIONS = _words("""
    mr mrs ms messrs dr prof st rev hon gen col capt lt sgt gov sen rep hr fr frl dipl ing mme mlle sr sra
    e.g i.e etc vs cf viz approx dept al resp z.b d.h u.a u.ä o.ä i.d.r s.o s.u v.a z.t usw usf bzw ca evtl
    ggf inkl exkl zzgl vgl sog geb gest mind nr str hrsg
""")
# These are words as well: only before a number.
BEFORE_NUMBERS = _words("""
    no nos p pp s fig figs vol ch sec eq art abs bd kap abb tab tel max min jan feb apr aug sept oct nov dec
""")
# German ordinals: "am 3. Mai", "der 2. Versuch", "zum 1. Mal".
MONTHS = _words("januar jänner februar märz april mai juni juli august september oktober november dezember")
ARTICLES = _words("der die das des dem den im vom zum zur beim jeder jede jedes")


def sentences(text: str) -> list[str]:
    """The sentences of a text in a European language, Chinese or Japanese.

    A line's end ends a sentence, too. White space between sentences is dropped, within them it stays.
    """
    found, begin = [], 0
    for m in END.finditer(text):
        if _ends(text, begin, m):
            found.append(text[begin : m.end()].strip())
            begin = m.end()
    return [sentence for sentence in (*found, text[begin:].strip()) if sentence]


def fitted(text: str, length: Callable[[str], int], longest: int) -> list[str]:
    """The text in parts that are at most `longest` long, as `length` counts.

    A text that fits is one part, untouched. Else every sentence is one. A sentence that is too long is cut
    after commas and the like if that will do, else between words; such a word, between characters, which stay
    whole whatever their length.
    """
    if length(text) <= longest:
        return [text]
    return [part for sentence in sentences(text) for part in _cut(sentence, length, longest)]


def _ends(text: str, begin: int, m: re.Match[str]) -> bool:
    """Whether the marks that were found end the sentence that begins there."""
    if m[1] is None:  # not ours
        return True
    after = BEGINNING.match(text, m.end())
    assert after is not None  # all of it may be missing
    first = after["word"][:1]
    if not (after["quote"] or (first.isalnum() and not first.islower())):
        return False
    if m[1] != ".":
        return True
    *others, last = [""] * 2 + text[max(begin, m.start() - 40) : m.start()].split()
    last = last.lstrip(OPENING).rsplit("-", 1)[-1]  # Dipl.-Ing.
    word = last.lower()
    if word in ABBREVIATIONS or word.endswith("str") or (word in BEFORE_NUMBERS and first.isdecimal()):
        return False
    if word.isdecimal():
        month = len(word) <= 2 and after["word"].lower() in MONTHS
        numbered = text[begin : m.start()].strip() == last  # an item of a list
        return not (month or numbered or others[-1].lower() in ARTICLES)
    letters = last.split(".")  # of initials, J. or J.R.R.; but "at 5 p.m." and "so am I."
    initials = all(len(letter) == 1 and letter.isalpha() for letter in letters)
    return last == "I" or not initials or (len(letters) > 1 and last.islower())


def _cut(sentence: str, length: Callable[[str], int], longest: int) -> Iterator[str]:
    """A sentence in parts that fit, as whole as can be."""
    if length(sentence) <= longest:
        yield sentence
        return
    clauses = CLAUSE.split(sentence)
    if all(length(clause.strip()) <= longest for clause in clauses):
        yield from _packed(clauses, length, longest)
        return
    for part in _packed(re.findall(r"\s*\S+", sentence), length, longest):
        if length(part) <= longest:
            yield part
        else:  # a single word
            yield from _packed(list(part), length, longest)


def _packed(pieces: list[str], length: Callable[[str], int], longest: int) -> Iterator[str]:
    """Part after part, each of as many pieces as fit, but of one at least."""
    a = 0

    def size(b: int) -> int:
        return length("".join(pieces[a:b]).strip())

    while a < len(pieces):
        reach = 1  # doubled while it fits: `length` never sees much more than a part
        while a + reach < len(pieces) and size(a + reach) <= longest:
            reach *= 2
        ends = range(a + 1, min(a + reach, len(pieces)) + 1)
        b = a + max(bisect_right(ends, longest, key=size), 1)
        yield "".join(pieces[a:b]).strip()
        a = b
