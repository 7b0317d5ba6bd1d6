"""Conversations as token ids for a language model, which learns only their answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

import numpy as np

from regard.data.conversations import ASSISTANT, USER, Conversation
from regard.data.encoding import DataConfig
from regard.data.ragged import Ragged
from regard.errors import UserError
from regard.tasks.batches import fingerprint, ragged
from regard.text.chat_template import Message, Span, Template
from regard.text.tokenizer import Tokenizer

MOST_REFUSED = 0.05  # the share of conversations that a template may refuse
AT_ONCE = 1000  # conversations that are encoded together
EXAMPLES = 3  # conversations whose answers are shown while training


@dataclass(frozen=True, kw_only=True)
class ChatDataConfig(DataConfig):
    longest: int | None = None  # the tokens of a conversation, at most; None: the context
    held_out: int = 200  # the largest number of conversations to evaluate on
    pack: int | None = None  # tokens of a row that has several short conversations; None: one in a row

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest is not None and self.longest < 2:
            raise ValueError(f"longest={self.longest} must be 2 or more")
        if self.pack is not None and self.pack < 2:
            raise ValueError(f"pack={self.pack} must be 2 or more")
        if self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must be 1 or more")


class ChatDataset:
    """Token ids of conversations, and which of them are learned: the answers and their end tokens."""

    def __init__(
        self,
        ids: Ragged,  # a conversation in each row, or several
        learned: np.ndarray,
        examples: list[list[Message]],
        tokenizer: Tokenizer,
        positions: np.ndarray | None = None,  # of each token in its conversation, if rows have several
    ):
        self.ids, self.learned, self.examples, self.tokenizer = ids, learned, examples, tokenizer
        self.positions = positions

    def __len__(self) -> int:
        return len(self.ids.lengths)

    @property
    def conversations(self) -> int:
        return len(self) if self.positions is None else int((self.positions == 0).sum())

    def pack(self, width: int) -> "ChatDataset":
        """Return the same conversations in fewer rows: each has as many as fit into `width`."""
        lengths = self.ids.lengths
        rows: list[int] = []
        for length in lengths.tolist():
            if rows and rows[-1] + length <= width:
                rows[-1] += length
            else:
                rows.append(length)
        positions = np.arange(len(self.ids.ids)) - np.repeat(self.ids.offsets[: len(lengths)], lengths)
        learned = self.learned & (positions > 0)  # a first token has nothing before it to be predicted from
        packed = Ragged(self.ids.ids, np.array(rows, dtype=np.int64))
        return ChatDataset(packed, learned, self.examples, self.tokenizer, positions)

    @cached_property
    def bytes(self) -> int:
        """The size of all answers in UTF-8, without special tokens."""
        return len(self.tokenizer.decode(self.ids.ids[self.learned].tolist()).encode())

    def fingerprint(self) -> str:
        return fingerprint([self.ids.lengths, self.ids.ids, self.learned])

    def describe(self) -> str:
        answers = int(self.learned.sum())
        count, rows = self.conversations, f" in {len(self):,} rows" if self.positions is not None else ""
        return f"{count:,} conversation{'s' * (count != 1)} with {answers:,} tokens of answers{rows}"


def to_messages(turns: Conversation) -> list[Message]:
    """The turns up to the last answer, for a template. If roles are missing, the user begins."""
    roles = [turn.role or (USER, ASSISTANT)[n % 2] for n, turn in enumerate(turns)]
    last = max((n for n, role in enumerate(roles) if role == ASSISTANT and turns[n].text), default=-1)
    return [{"role": roles[n], "content": turns[n].text} for n in range(last + 1)]


def encode_conversations(
    rows: Sequence[tuple[str, Conversation]],
    tokenizer: Tokenizer,
    template: Template,
    ends: Sequence[int],
    longest: int,
) -> tuple[ChatDataset, list[str]]:
    """Encode conversations, and report what is left out.

    `ends` are the tokens that may end an answer; only the first `longest` tokens of each are kept.
    """
    messages = [(where, to_messages(turns)) for where, turns in rows]
    asked = [(where, m) for where, m in messages if len(m) > 1]
    ids: list[np.ndarray] = []
    learned: list[np.ndarray] = []
    refused: list[str] = []
    cut = lost = 0
    for start in range(0, len(asked), AT_ONCE):
        texts = render(asked[start : start + AT_ONCE], template, refused)
        for row, mask in encode_rows(texts, tokenizer, ends):
            cut += len(row) > longest
            if mask[1:longest].any():
                ids.append(row[:longest])
                learned.append(mask[:longest])
            else:
                lost += 1
    if len(refused) > MOST_REFUSED * len(asked):
        raise UserError(refused[0])
    of = f"of {len(rows):,} conversations"
    notes = {
        f"left out {len(rows) - len(asked):,} {of}: no answer in them": len(rows) - len(asked),
        f"left out {len(refused):,} {of}: {refused[0] if refused else ''}": len(refused),
        f"left out {lost:,} {of}: no answer in their first {longest:,} tokens (data.longest)": lost,
        f"cut {cut - lost:,} {of} to their first {longest:,} tokens (data.longest)": max(0, cut - lost),
    }
    report = [note for note, count in notes.items() if count]
    if not ids:
        raise UserError(f"no conversation is left: {', '.join(report) or 'there are none'}; give others")
    examples = [m for _, m in asked[:EXAMPLES]]
    return ChatDataset(ragged(ids), np.concatenate(learned), examples, tokenizer), report


def render(
    rows: Sequence[tuple[str, list[Message]]], template: Template, refused: list[str]
) -> list[tuple[str, list[Span]]]:
    """Render conversations as texts, and find the answers in them; errors of the template are collected."""
    try:
        several = template.mark_answers([messages for _, messages in rows])
        return [text for texts in several for text in texts]
    except UserError as error:
        if len(rows) == 1:
            refused.append(f"{rows[0][0]}: {error}")
            return []
    middle = len(rows) // 2
    return render(rows[:middle], template, refused) + render(rows[middle:], template, refused)


def encode_rows(
    rows: Sequence[tuple[str, list[Span]]], tokenizer: Tokenizer, ends: Sequence[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encode texts, and mark the ids of their answers, up to the tokens that end them.

    An answer begins after the tokens of the text before it, as when the model is asked with that text.
    """
    places = [[0, *(at for span in spans for at in span), len(text)] for text, spans in rows]
    parts = [[text[a:b] for a, b in pairwise(cuts)] for (text, _), cuts in zip(rows, places, strict=True)]
    texts = [part for (text, _), several in zip(rows, parts, strict=True) for part in (text, *several)]
    encoded = iter(tokenizer.encode_spellings(texts))
    for (text, _), cuts in zip(rows, places, strict=True):
        ids, *pieces = islice(encoded, len(cuts))
        bounds = np.cumsum([len(piece) for piece in pieces])[:-1]
        if not np.array_equal(np.concatenate(pieces), ids):  # a token spans the border of an answer
            prefixes = tokenizer.encode_spellings([text[:at] for at in cuts[1:-1]])
            bounds = np.array([count_equal(ids, prefix) for prefix in prefixes])
        learned = np.zeros(len(ids), dtype=bool)
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            last = np.flatnonzero(np.isin(ids[start:stop], ends))
            learned[start : start + last[-1] + 1 if len(last) else stop] = True
        yield ids, learned


def count_equal(ids: np.ndarray, prefix: np.ndarray) -> int:
    """The number of ids that both have in common at the beginning."""
    n = min(len(ids), len(prefix))
    different = np.flatnonzero(ids[:n] != prefix[:n])
    return int(different[0]) if len(different) else n
