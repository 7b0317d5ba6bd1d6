"""What the data are like: read once, and of large files a sample."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Side:
    """The texts of one side of pairs, or the only side."""

    characters: int = 0
    words: int = 0
    alphabet: int = 0  # different characters
    vocabulary: int = 0  # different words
    longest: int = 0  # characters of a text, but for one in a hundred

    def words_per_row(self, rows: int) -> float:
        return self.words / max(1, rows)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a plan needs to know of the data that are trained on."""

    rows: int = 0  # pairs, texts with labels, pictures, recordings; documents of running text
    source: Side = Side()
    target: Side = Side()  # of pairs and captions
    classes: int = 0
    balance: float = 0.0  # the share of the largest class
    size: int = 0  # of pictures, in pixels each way; of recordings, frames
    channels: int = 0
    mirrored: bool = False  # pictures look the same in a mirror, so that half of them may be flipped
    built_in: bool = False
    share: float = 1.0  # of the data that was read to know this

    @property
    def characters(self) -> int:
        return self.source.characters + self.target.characters
