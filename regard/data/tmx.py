"""Read translation memories (.tmx) unit by unit, as a table with a column for each language."""

from collections.abc import Iterator
from typing import Any
from xml.parsers import expat

from regard.data.files import open_file
from regard.errors import UserError

BLOCK = 2**16  # bytes that are parsed at a time
MAX_UNIT = 10_000_000  # characters
CODES = {"bpt", "ept", "ph", "it", "ut"}  # in a segment, marks of a document's format, not text


class _Units:
    """Collects the translation units of a .tmx while it is parsed."""

    def __init__(self, path: str) -> None:
        self.path, self.units = path, list[tuple[int, dict[str, str]]]()
        self.unit: dict[str, str] = {}
        self.line, self.language, self.text, self.codes, self.is_segment = 0, "", list[str](), 0, False
        self.has_root = False
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.add
        self.parser.EntityDeclHandler = self.refuse_entity  # an entity may expand to any number of others

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self.has_root and name != "tmx":
            raise UserError(f"{self.path}: begins with <{name}>, not with <tmx>; give a translation memory")
        self.has_root = True
        if name == "tu":
            self.unit, self.line = {}, self.parser.CurrentLineNumber
        elif name == "tuv":
            self.language = attributes.get("xml:lang", attributes.get("lang", "")).lower()
        elif name == "seg":
            self.text, self.is_segment = [], True
        self.codes += name in CODES

    def end(self, name: str) -> None:
        self.codes -= name in CODES
        if name == "seg":
            self.is_segment = False
            self.unit.setdefault(self.language, " ".join("".join(self.text).split()))
        elif name == "tu":
            self.units.append((self.line, self.unit))

    def add(self, text: str) -> None:
        if self.is_segment and not self.codes:
            self.text.append(text)
            if len(self.text) > MAX_UNIT // 100 and sum(map(len, self.text)) > MAX_UNIT:
                raise UserError(f"{self.path}:{self.line}: a unit of over {MAX_UNIT:,} characters; divide it")

    def refuse_entity(self, name: str, *_: Any) -> None:
        raise UserError(
            f"{self.path}:{self.parser.CurrentLineNumber}: declares the entity {name[:40]}; write its text "
            "instead, as entities may expand without end"
        )


def read_units(path: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the location of each unit, and its texts by language."""
    units = _Units(path)
    with open_file(path) as file:
        while block := file.read(BLOCK):
            _parse(units, block, False)
            for line, unit in units.units:
                yield f"{path}:{line}", unit
            units.units.clear()
    _parse(units, b"", True)


def _parse(units: _Units, block: bytes, is_last: bool) -> None:
    try:
        units.parser.Parse(block, is_last)
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        raise UserError(f"{units.path}:{error.lineno}: not XML ({reason}); get it again") from None
