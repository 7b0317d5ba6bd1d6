"""Split text into sentences by rule, and into parts that fit into a model's context."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

CLOSING = "\"'”“’‘»›«‹)]}」』）】》"  # a quotation mark that opens in one language closes in another
OPENING = "\"'“‘„‚«‹»›([{¿¡「『（【《"
_closing, _opening = re.escape(CLOSING), re.escape(OPENING)

# Where a sentence may end: at a newline, at Chinese and Japanese marks, and at Latin marks before a space;
# French has a space before the quotation mark, too. A run of marks is matched from its beginning only, else
# a line of dots would take quadratic time.
END = re.compile(
    rf"\n|[。！？][。！？.!?…{_closing}]*"
    rf"|(?<![.!?…])([.!?…]++)[{_closing}]*+(?:[ \u00a0\u202f]»(?!\S))?+(?=[^\S\n])"
)
BEGINNING = re.compile(rf"\s*([-–—]\s+)?(?P<quote>[{_opening}]?)[{_opening}]*(?P<word>\w*)")
CLAUSE = re.compile(r"(?<=[,;:])(?=\s)|(?<=\s[-–—])(?=\s)|(?<=[、，；：])")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A full stop after these does not end a sentence: English and German.
ABBREVIATIONS = _words("""
    mr mrs ms messrs dr prof st rev hon gen col capt lt sgt gov sen rep hr fr frl dipl ing mme mlle sr sra
    e.g i.e etc vs cf viz approx dept al resp z.b d.h u.a u.ä o.ä i.d.r s.o s.u v.a z.t usw usf bzw ca evtl
    ggf inkl exkl zzgl vgl sog geb gest mind nr str hrsg
""")
# Abbreviations only before a number, because they are also words.
BEFORE_NUMBERS = _words("""
    no nos p pp s fig figs vol ch sec eq art abs bd kap abb tab tel max min jan feb apr aug sept oct nov dec
""")
# German ordinals: "am 3. Mai", "der 2. Versuch", "zum 1. Mal".
MONTHS = _words("januar jänner februar märz april mai juni juli august september oktober november dezember")
ARTICLES = _words("der die das des dem den im vom zum zur beim jeder jede jedes")


def split_sentences(text: str) -> list[str]:
    """Split a text in a European language, Chinese or Japanese into sentences.

    A newline ends a sentence, too. White space between sentences is dropped, within them it stays.
    """
    sentences, begin = [], 0
    for m in END.finditer(text):
        if _ends_sentence(text, begin, m):
            sentences.append(text[begin : m.end()].strip())
            begin = m.end()
    return [sentence for sentence in (*sentences, text[begin:].strip()) if sentence]


def split_to_fit(text: str, length: Callable[[str], int], longest: int) -> list[str]:
    """Split a text into parts that are at most `longest` long, as `length` counts.

    A text that fits is one part, unchanged. Otherwise every sentence is a part. A sentence that is too long
    is cut after commas and the like if that suffices, else between words; a word that is too long, between
    characters.
    """
    if length(text) <= longest:
        return [text]
    return [part for sentence in split_sentences(text) for part in _cut(sentence, length, longest)]


def _ends_sentence(text: str, begin: int, m: re.Match[str]) -> bool:
    """Return whether the matched marks end the sentence that begins at `begin`."""
    if m[1] is None:  # a newline, or a Chinese or Japanese mark
        return True
    after = BEGINNING.match(text, m.end())
    assert after is not None  # it matches the empty text
    first = after["word"][:1]
    if not (after["quote"] or (first.isalnum() and not first.islower())):
        return False
    if m[1] != ".":
        return True
    *before, last = [""] * 2 + text[max(begin, m.start() - 40) : m.start()].split()
    last = last.lstrip(OPENING).rsplit("-", 1)[-1]  # Dipl.-Ing.
    word = last.lower()
    if word in ABBREVIATIONS or word.endswith("str") or (word in BEFORE_NUMBERS and first.isdecimal()):
        return False
    if word.isdecimal():
        month = len(word) <= 2 and after["word"].lower() in MONTHS
        list_item = text[begin : m.start()].strip() == last
        return not (month or list_item or before[-1].lower() in ARTICLES)
    letters = last.split(".")  # initials, J. or J.R.R.; but not "at 5 p.m." and "so am I."
    initials = all(len(letter) == 1 and letter.isalpha() for letter in letters)
    return last == "I" or not initials or (len(letters) > 1 and last.islower())


def _cut(sentence: str, length: Callable[[str], int], longest: int) -> Iterator[str]:
    """Split a sentence into as few parts as fit."""
    if length(sentence) <= longest:
        yield sentence
        return
    clauses = CLAUSE.split(sentence)
    if all(length(clause.strip()) <= longest for clause in clauses):
        yield from _pack(clauses, length, longest)
        return
    for part in _pack(re.findall(r"\s*\S+", sentence), length, longest):
        if length(part) <= longest:
            yield part
        else:  # a single word
            yield from _pack(list(part), length, longest)


def _pack(pieces: list[str], length: Callable[[str], int], longest: int) -> Iterator[str]:
    """Yield parts of as many pieces as fit, but of at least one."""
    a = 0

    def size(b: int) -> int:
        return length("".join(pieces[a:b]).strip())

    while a < len(pieces):
        reach = 1  # doubled while it fits, so that `length` never measures much more than a part
        while a + reach < len(pieces) and size(a + reach) <= longest:
            reach *= 2
        ends = range(a + 1, min(a + reach, len(pieces)) + 1)
        b = a + max(bisect_right(ends, longest, key=size), 1)
        yield "".join(pieces[a:b]).strip()
        a = b
