"""Facts about the data: small files are read once, large ones in samples."""

import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from regard.convert import efficientnet
from regard.data.archives import file_size, is_file, is_folder
from regard.data.columns import read_records
from regard.data.conversations import read_chat_pairs, read_conversations
from regard.data.documents import list_documents, read_chunks, text_size
from regard.data.files import COMPRESSED, expand_folders, missing_file
from regard.data.image_readers import (
    CAPTIONS,
    CLASSES,
    idx_labels_path,
    is_idx,
    read_class_folders,
    read_files,
    read_idx,
)
from regard.data.images import default_size
from regard.data.labels import LAYOUT
from regard.data.memory import is_memory
from regard.data.pairs import Pair, build_histories, read_pairs
from regard.data.reading import reading_stream
from regard.data.shards import concat_shards, is_prepared
from regard.data.sound_readers import read_sound_classes
from regard.data.sounds import DEFAULT_SECONDS, frames_of, open_sound, read_header
from regard.data.spans import read_spans
from regard.data.tables import SUFFIXES
from regard.data.tags import read_tags
from regard.tasks.hear import SPOKEN_SECONDS
from regard.tasks.see import WIDEST
from regard.tasks.similarity import read_triplets, table_kind
from regard.text.tokenizer import Tokenizer
from regard.vision.decoding import ImageSource, read_size

SAMPLE = 4_000_000  # characters that show the alphabet and the vocabulary
COUNTED = 60_000_000  # characters that are read of compressed texts, whose size is unknown
EXPANDS = 3.5  # assumed expansion of a compressed file that has more
ENDLESS = 1e11  # assumed characters of a stream
ROWS = 100_000  # rows that are read of a table
TURNS = 3  # turns of a conversation that are read before a reply: measured on DailyDialog (docs/results.md)
MIRRORED = 4000  # pictures that are compared with their mirror images
LOOKED_AT = 20  # pictures and recordings whose headers are read
SHAPES, DIGITS = 8000, 3000  # the approximate number of pictures and recordings, if none are given


@dataclass(frozen=True, kw_only=True)
class Side:
    """The texts of one side of pairs, or of the only side."""

    characters: int = 0
    words: int = 0
    alphabet: int = 0  # different characters
    vocabulary: int = 0  # different words
    longest: int = 0  # at most this many characters in 99 of 100 texts


UNKNOWN = Side(characters=500_000, words=100_000, alphabet=80, vocabulary=8000, longest=200)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about the training data that a plan needs."""

    rows: int = 0  # pairs, texts with labels, pictures, recordings; documents of running text
    source: Side = Side()
    target: Side = Side()  # of pairs and captions
    tokens: int = 0  # of a prepared text, with its vocabulary
    vocab: int = 0
    classes: int = 0
    balance: float = 0.0  # the share of the largest class
    size: int = 0  # of pictures, in pixels each way; of recordings, frames
    channels: int = 0
    mirrored: bool = False  # mirrored pictures still look like their class
    has_encoder: bool = False  # the weights of EfficientNet are installed
    turns: int = 1  # turns of a conversation that are read before a reply
    built_in: bool = False
    share: float = 1.0  # the share of the data that was read for this; 0: none

    @property
    def characters(self) -> int:
        return self.source.characters + self.target.characters

    def training_part(self, share: float) -> "Facts":
        """The facts about the rest when some rows are held out."""

        def part(side: Side) -> Side:
            return replace(side, characters=int(side.characters * share), words=int(side.words * share))

        rows, tokens = max(1, int(self.rows * share)), int(self.tokens * share)
        return replace(self, rows=rows, tokens=tokens, source=part(self.source), target=part(self.target))


class Texts:
    """Counts the facts of `Side`, text by text; words only up to SAMPLE."""

    def __init__(self) -> None:
        self.rows = self.characters = self.words = self.sampled = 0
        self.alphabet: set[str] = set()
        self.vocabulary: set[str] = set()
        self.lengths: list[int] = []

    def add(self, text: str) -> None:
        self.rows += 1
        self.characters += len(text)
        self.lengths.append(len(text))
        if self.sampled < SAMPLE:
            self.sampled += len(text)
            words = text.split()
            self.words += len(words)
            self.alphabet.update(text)
            self.vocabulary.update(words)

    def side(self, scale: float = 1.0) -> Side:
        """The counts as a Side, for texts that are `scale` times as long together."""
        more = scale * self.characters / max(1, self.sampled)
        return Side(
            characters=int(self.characters * scale),
            words=int(self.words * more),
            alphabet=len(self.alphabet),
            vocabulary=int(len(self.vocabulary) * max(1.0, more) ** 0.6),  # Heaps' law
            longest=int(np.quantile(self.lengths, 0.99)) if self.lengths else 0,
        )


def read_facts(task: str, paths: Sequence[str], built_in: bool = False, turns: int | None = None) -> Facts:
    """Read the facts about a task's data; raise UserError if they can't be read."""
    if not paths:  # drawn shapes, spoken digits
        rows, size, channels = (DIGITS, frames_of(SPOKEN_SECONDS), 1) if task == "hear" else (SHAPES, 32, 3)
        return Facts(rows=rows, classes=10, size=size, channels=channels, built_in=True)
    pipes = [p for p in paths if not (p.startswith("hf:") or is_memory(p) or is_file(p) or is_folder(p))]
    if missing := [p for p in pipes if p != "-" and not os.path.exists(p)]:
        raise missing_file(missing[0])
    if pipes:  # which can be read only once
        return Facts(rows=10_000, source=UNKNOWN, target=UNKNOWN, classes=2, size=32, channels=3, share=0.0)
    if task == "chat":
        return read_pair_facts(paths, turns, read_chat_pairs)
    return replace(READERS[task](paths), built_in=built_in)


def read_text_facts(paths: Sequence[str]) -> Facts:
    if is_prepared(paths):
        tokenizer = Tokenizer.load(paths[0])
        tokens = len(concat_shards(paths, ["train"], tokenizer))
        return Facts(
            rows=1, tokens=tokens, vocab=tokenizer.vocab, source=replace(UNKNOWN, characters=4 * tokens)
        )
    texts, size, documents, scale = Texts(), text_size(paths), 0, 1.0
    for starts, text in read_chunks(paths):
        documents += starts
        texts.add(text)
        if texts.characters >= (COUNTED if size is None and not reading_stream() else SAMPLE):
            is_endless = reading_stream() and any(path.startswith("hf:") for path in paths)
            expected = ENDLESS if is_endless else size or count_bytes(list_documents(paths))
            scale = max(1.0, expected / texts.characters)
            break
    return Facts(rows=int(documents * scale), source=texts.side(scale), share=1 / scale)


def read_pair_facts(
    paths: Sequence[str],
    turns: int | None = 1,
    read: Callable[[Sequence[str]], Iterator[Pair]] = read_pairs,
) -> Facts:
    """`turns` None: read several turns if most rows continue the conversation of the row before."""
    rows = read(paths)
    pairs = list(islice(rows, ROWS))
    if turns is None:
        follow = sum(source == reply for (_, reply), (source, _) in pairwise(pairs))
        turns = TURNS if follow > len(pairs) / 2 else 1
    source, target = Texts(), Texts()
    for turns_before, reply in build_histories(pairs, turns):
        source.add("\n".join(turns_before))
        target.add(reply)
    scale = count_rest(rows, paths, sum(len(a) + len(b) + 2 for a, b in pairs))
    return Facts(
        rows=int(target.rows * scale),
        source=source.side(scale),
        target=target.side(scale),
        turns=turns,
        share=1 / scale,
    )


def read_conversation_facts(paths: Sequence[str]) -> Facts:
    rows, texts = read_conversations(paths), Texts()
    for _, turns in islice(rows, ROWS):
        texts.add("\n".join(turn.text for turn in turns))
    scale = count_rest(rows, paths, texts.characters + texts.rows)
    return Facts(rows=int(texts.rows * scale), source=texts.side(scale), share=1 / scale)


def read_label_facts(paths: Sequence[str]) -> Facts:
    texts, labels, has_scores = Texts(), Counter[str](), False
    read, scale = 0, 1.0
    for file in expand_folders(paths, SUFFIXES):
        records = read_records(file, LAYOUT)
        for _, record in islice(records, ROWS):
            texts.add(" ".join(record[name] for name in ("text", "other") if name in record))
            has_scores = has_scores or "score" in record
            labels[record.get("label", "")] += 1
            read += sum(len(str(value)) + 1 for value in record.values())
        scale = max(scale, count_rest(records, paths, read))
    classes = {} if has_scores else labels
    largest = max(classes.values(), default=0) / max(1, texts.rows)
    return Facts(
        rows=int(texts.rows * scale),
        source=texts.side(scale),
        classes=len(classes),
        balance=largest,
        share=1 / scale,
    )


def read_embed_facts(paths: Sequence[str]) -> Facts:
    kind = table_kind(paths)
    if kind != "triplets":
        return read_label_facts(paths) if kind == "scores" else read_pair_facts(paths)
    texts = Texts()
    rows = read_triplets(paths)
    for text in (text for row in rows for text in row):
        texts.add(text)
    return Facts(rows=len(rows), source=texts.side())


def read_tag_facts(paths: Sequence[str]) -> Facts:
    texts, tags = Texts(), Counter[str]()
    for words, names in read_tags(paths):
        texts.add(" ".join(words))
        tags.update(names)
    return Facts(rows=texts.rows, source=texts.side(), classes=len(tags))


def read_span_facts(paths: Sequence[str]) -> Facts:
    texts = Texts()
    for span in read_spans(paths):
        texts.add(f"{span.question} {span.context}")
    return Facts(rows=texts.rows, source=texts.side())


def read_picture_facts(paths: Sequence[str]) -> Facts:
    if is_idx(paths[0]):
        pictures, labels = read_idx(paths[0], 3), read_idx(idx_labels_path(paths[0]), 1)
        counts = Counter(label for path in paths for label in read_idx(idx_labels_path(path), 1).tolist())
        facts = class_facts(counts, default_size(min(pictures.shape[1:]), WIDEST), 1)
        return replace(facts, mirrored=stay_mirrored(pictures[:MIRRORED], labels[:MIRRORED]))
    rows = [
        row
        for path in paths
        for row in (
            read_class_folders(path)
            if is_folder(path)
            else ((source, row["label"]) for source, row in read_files(path, CLASSES))
        )
    ]
    return class_facts(Counter(label for _, label in rows), *look_at([s for s, _ in rows], WIDEST))


def stay_mirrored(pictures: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether mirrored pictures still look like their class: clothes do, digits don't.

    Decided by the nearest mean picture of a class, right for 70 % of Fashion-MNIST, mirrored 59 %."""
    x = pictures.astype(np.float32)
    means = np.stack([x[labels == label].mean(axis=0) for label in np.unique(labels)])
    flat = means.reshape(len(means), -1)

    def accuracy(x: np.ndarray) -> float:
        nearest = (x.reshape(len(x), -1) @ flat.T - (flat**2).sum(axis=1) / 2).argmax(axis=1)
        return float((np.unique(labels)[nearest] == labels).mean())

    return accuracy(x[:, :, ::-1]) > 0.75 * accuracy(x)


def read_caption_facts(paths: Sequence[str]) -> Facts:
    texts, sources = Texts(), dict[ImageSource, None]()
    for path in paths:
        for source, row in read_files(path, CAPTIONS):
            for caption in row["caption"]:
                texts.add(caption)
            sources[source] = None
    size, channels = look_at(list(sources), 224)
    has_encoder = importlib.util.find_spec(efficientnet.PACKAGE) is not None
    return Facts(rows=texts.rows, target=texts.side(), size=size, channels=channels, has_encoder=has_encoder)


def read_sound_facts(paths: Sequence[str]) -> Facts:
    recordings = read_sound_classes(paths)
    longest = 0.0
    for recording in recordings[:LOOKED_AT]:
        with open_sound(recording.source) as file:
            longest = max(longest, read_header(file, recording.source.name).seconds)
    frames = frames_of(min(longest, DEFAULT_SECONDS))
    return class_facts(Counter(recording.label for recording in recordings), frames, 1)


def class_facts(counts: Counter[str] | Counter[int], size: int, channels: int) -> Facts:
    rows = sum(counts.values())
    largest = max(counts.values(), default=0) / max(1, rows)
    return Facts(rows=rows, classes=len(counts), balance=largest, size=size, channels=channels)


def look_at(sources: Sequence[ImageSource], widest: int) -> tuple[int, int]:
    """The size and the channels of pictures, from a sample that is spread over all of them."""
    sizes = [read_size(source) for source in sources[:: max(1, len(sources) // LOOKED_AT)]]
    if not sizes:
        return 32, 3
    side = int(np.median([min(width, height) for width, height, _ in sizes]))
    return default_size(side, widest), 1 if all(grey for *_, grey in sizes) else 3


def count_rest(rows: Iterator[object], paths: Sequence[str], characters: int) -> float:
    """The ratio of all data to the part that was read; 1 if nothing is left."""
    if next(rows, None) is None:
        return 1.0
    return max(1.0, count_bytes(expand_folders(paths, SUFFIXES)) / max(1, characters))


def count_bytes(files: Iterable[str]) -> float:
    """The bytes of files, approximately as they expand."""
    return sum(file_size(f) * (EXPANDS if Path(f).suffix.lower() in COMPRESSED else 1) for f in files)


def compare_sizes(paths: Sequence[str], against: Sequence[str]) -> float:
    """The ratio of the sizes of two lists of files; a tenth if it is not known."""
    sizes = [
        count_bytes(str(f) for p in side for f in (Path(p).rglob("*") if os.path.isdir(p) else [p]))
        for side in (paths, against)
    ]
    return sizes[0] / sizes[1] if all(sizes) else 0.1


READERS: dict[str, Callable[[Sequence[str]], Facts]] = {
    "write": read_text_facts,
    "fill": read_text_facts,
    "restore": read_text_facts,
    "words": read_text_facts,
    "translate": read_pair_facts,
    "converse": read_conversation_facts,
    "classify": read_label_facts,
    "embed": read_embed_facts,
    "tag": read_tag_facts,
    "span": read_span_facts,
    "see": read_picture_facts,
    "caption": read_caption_facts,
    "hear": read_sound_facts,
}
