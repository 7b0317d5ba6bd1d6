"""docs/data.md lists what each recipe reads, as the code has it."""

from pathlib import Path

from regard.data import documents, image_readers, labels, pairs, sound_readers, spans, tags
from regard.data.columns import FEW, Layout
from regard.data.tables import READERS
from regard.tasks import similarity

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
LAYOUTS: dict[str, Layout] = {
    "write, fill, restore, words": documents.LAYOUT,
    "classify": labels.LAYOUT,
    "translate": pairs.LAYOUT,
    "embed, triplets": similarity.TRIPLETS,
    "tag": tags.LAYOUT,
    "span": spans.LAYOUT,
    "see": image_readers.CLASSES,
    "caption": image_readers.CAPTIONS,
    "hear": sound_readers.LAYOUT,
}


def field_rows() -> list[str]:
    """The rows of the page's table of columns."""
    rows = []
    for recipe, layout in LAYOUTS.items():
        for field in layout.fields:
            name = f"`{field.name}`" + ("" if field.required and not field.group else " (or none)")
            name = name.replace("(or none)", f"({field.group})") if field.group else name
            rows.append(f"| {recipe} | {name} | {', '.join(sorted(field.synonyms))} |")
    return rows


def test_the_page_lists_the_columns_of_each_recipe() -> None:
    listed = [
        line for line in PAGE.read_text().splitlines() if line.startswith(tuple(f"| {r} |" for r in LAYOUTS))
    ]
    assert listed == field_rows(), "put these lines on the page:\n" + "\n".join(field_rows())


def test_the_page_lists_the_formats() -> None:
    text = PAGE.read_text()
    assert all(f"`{suffix}`" in text for suffix in READERS)
    assert f"one in {FEW}" in text
