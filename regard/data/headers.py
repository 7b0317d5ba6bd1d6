"""Recognise a first line that names the columns, in files that need no such line."""

from collections.abc import Sequence, Set

from regard.data.reading import reading_version, record_note

WORD_NAMES = {"word", "words", "token", "tokens", "form"}
TAG_NAMES = {"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "upos", "entity"}
SOURCES = {
    *("source", "src", "input", "question", "query", "prompt", "text", "text1", "text_a", "sentence"),
    *("sentence1", "sentence_a", "premise", "anchor", "utterance", "message", "original"),
}
TARGETS = {
    *("target", "tgt", "trg", "output", "answer", "reply", "response", "completion", "translation", "text2"),
    *("text_b", "other", "sentence2", "sentence_b", "hypothesis", "positive", "paraphrase", "reference"),
    *("label", "summary"),
}
LANGUAGES = {
    "ar", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "eo", "es", "et", "eu", "fa", "fi", "fr",
    "ga", "gl", "he", "hi", "hr", "hu", "id", "is", "it", "ja", "ka", "kk", "ko", "lt", "lv", "mk", "ms",
    "mt", "nb", "nl", "nn", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sq", "sr", "sv", "sw", "ta", "te",
    "th", "tl", "tr", "uk", "ur", "vi", "zh", "arabic", "chinese", "czech", "danish", "dutch", "english",
    "finnish", "french", "german", "greek", "hebrew", "hindi", "hungarian", "italian", "japanese",
    "korean", "norwegian", "polish", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish",
    "ukrainian", "vietnamese", "deutsch", "français", "español", "italiano",
}  # fmt: skip


def is_header(cells: Sequence[str], columns: tuple[Set[str], Set[str]]) -> bool:
    """Return whether two cells are names of two columns."""
    first, second = (cell.strip().lower() for cell in cells)
    return reading_version() > 1 and first != second and first in columns[0] and second in columns[1]


def is_pair_header(cells: Sequence[str]) -> bool:
    """Return whether two cells are names such as source and target, or languages such as en and de, en_US."""
    languages = [language_of(cell) for cell in cells]
    return is_header(cells, (SOURCES, TARGETS)) or is_header(languages, (LANGUAGES, LANGUAGES))


def language_of(name: str) -> str:
    return name.strip().lower().replace("_", "-").split("-")[0]


def is_language(name: str) -> bool:
    """Return whether the name of a column is a language: en, en_US, German."""
    return language_of(name) in LANGUAGES


def record_header(where: str, cells: Sequence[str], what: str) -> None:
    """Note that a line was taken for a header, and how to avoid that."""
    names = ", ".join(cell.strip() for cell in cells)
    record_note(f"{where}: left out, a header ({names}); if it is a {what}, put a blank line before it")
