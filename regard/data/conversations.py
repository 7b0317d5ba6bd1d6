"""Read conversations in common formats: all become turns, each with a role and a text."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple

from regard.data.files import (
    check_surrogates,
    content_suffix,
    decode_utf8,
    display_name,
    empty_file,
    expand_folders,
    normalize_newlines,
    open_text,
    read_jsonl,
)
from regard.data.pairs import SUFFIXES, Pair, UserReply, locate_pairs, locate_table_pairs, read_pairs
from regard.data.reading import current_reading, record_source
from regard.data.tables import Table, folder_suffixes, is_table, read_table
from regard.errors import UserError, first_line, shorten

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
ROLES = {  # other names of the roles
    **dict.fromkeys(("user", "human", "prompter", "question"), USER),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "ai", "answer"), ASSISTANT),
    **dict.fromkeys(("system", "developer"), SYSTEM),
}
TURNS = ("messages", "conversations", "conversation", "turns", "dialog", "dialogue")  # columns of lists
QUESTIONS = ("instruction", "prompt", "question", "source")  # columns of prompts
MORE = ("input", "context")  # columns of an instruction's input
ANSWERS = ("output", "completion", "response", "answer", "target")
MESSAGE = (("role", "content"), ("from", "value"))  # columns of a single message
CONVERSATIONS = (
    "conversation_id",
    "conv_id",
    "dialogue_id",
    "dialog_id",
    "thread_id",
    "chat_id",
    "session_id",
)
EXPECTED = (
    '"messages" of role and content, "conversations" of from and value, "turns", "instruction" and "output", '
    '"prompt" and "completion", or "source" and "target"'
)


class Turn(NamedTuple):
    """The message of one speaker."""

    role: str  # system, user, assistant; empty: one of two speakers in turn
    text: str


Conversation = list[Turn]


def read_conversations(paths: Sequence[str]) -> Iterator[tuple[str, Conversation]]:
    """Yield the location of each conversation, and its turns.

    Conversations are objects, rows of tables, or pairs; a pair whose source is the target of the pair
    before it continues that conversation.
    """
    files = list(expand_folders(paths, folder_suffixes(SUFFIXES)))
    if not all(map(is_table, files)):
        yield from link_pairs(locate_pairs(files))
        return
    for file in files:
        rows, is_empty = read_rows(file), True
        if isinstance(rows, Table):
            conversations = link_pairs(locate_table_pairs(rows))
        else:
            conversations = parse_rows(file, rows)
        for where, turns in conversations:
            is_empty = is_empty and not any(turn.text for turn in turns)
            yield where, turns
        if is_empty:
            raise empty_file(file)


def read_chat_pairs(paths: Sequence[str]) -> Iterator[Pair]:
    """Yield each turn with the one before it; a user's message is a `UserReply`."""
    files = list(expand_folders(paths, folder_suffixes(SUFFIXES)))
    if not all(map(is_table, files)):
        yield from read_pairs(files)
        return
    for file in files:
        rows, is_empty = read_rows(file), True
        pairs: Iterator[Pair]
        if isinstance(rows, Table):
            pairs = (pair for _, pair in locate_table_pairs(rows))
        else:
            pairs = pair_turns(turns for _, turns in parse_rows(file, rows))
        for pair in pairs:
            is_empty = is_empty and not any(pair)
            yield pair
        if is_empty:
            raise empty_file(file)


def parse_rows(file: str, rows: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Conversation]]:
    record = record_source(display_name(file))
    for where, row in rows:
        turns = parse_row(row, where)
        record.add({turn.role or f"turn {n}": turn.text for n, turn in enumerate(turns, 1)})
        yield where, turns


def pair_turns(conversations: Iterable[Conversation]) -> Iterator[Pair]:
    for turns in conversations:
        said = [turn for turn in turns if turn.role != SYSTEM]
        for source, target in pairwise(said):
            pair = source.text, target.text
            yield UserReply(pair) if target.role == USER else pair


def link_pairs(pairs: Iterable[tuple[str, Pair]]) -> Iterator[tuple[str, Conversation]]:
    """Join pairs to conversations, each at its first pair."""
    begins, turns = "", list[str]()
    for where, (source, target) in pairs:
        if turns and source == turns[-1]:
            turns.append(target)
            continue
        if turns:
            yield begins, [Turn("", text) for text in turns]
        begins, turns = where, [source, target]
    if turns:
        yield begins, [Turn("", text) for text in turns]


# Files


def read_rows(file: str) -> Iterator[tuple[str, Any]] | Table:
    """Return the location and the values of each conversation in a file; or a table of pairs."""
    suffix, reading = content_suffix(file), current_reading()
    if reading.columns or reading.usual_columns or (suffix == ".tsv" and reading.config.version < 3):
        return read_table(file)
    if suffix == ".jsonl":
        return join_messages(read_jsonl(file))
    if suffix == ".json" and begins_list(file):
        return join_messages(read_json_list(file))
    if suffix == ".json" and (rows := read_object(file)):
        return iter(rows)
    table = read_table(file)
    header = table.header or [str(cell) for cell in table.sample()[0][1]]
    names = [name.strip().lower() for name in header]
    asks, answers = ([n for n in names if n in known] for known in (QUESTIONS[:-1], ANSWERS[:-1]))
    if not (any(name in TURNS for name in names) or is_message(names) or (asks and answers)):
        return table
    if table.header is None:
        table.take_header()
    return join_messages((where, dict(zip(names, cells, strict=True))) for where, cells in table.rows)


def is_message(row: Any) -> bool:
    """Return whether an object with these names is a single message."""
    names = row if isinstance(row, Mapping | list) else ()
    return not any(name in TURNS for name in names) and any(
        speaker in names and said in names for speaker, said in MESSAGE
    )


def join_messages(rows: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield conversations. Rows that are single messages are joined if they follow each other with the same
    value in one of the columns CONVERSATIONS, or else all together."""
    first = next(rows, None)
    if first is None:
        return
    rows = chain([first], rows)
    if not isinstance(first[1], Mapping) or not is_message(first[1]):
        yield from rows
        return
    column = next((name for name in CONVERSATIONS if name in first[1]), None)
    for _, group in groupby(rows, lambda row: row[1].get(column) if isinstance(row[1], Mapping) else None):
        messages = list(group)
        yield messages[0][0], [message for _, message in messages]


def read_object(path: str) -> list[tuple[str, Any]]:
    """Return the conversations in a .json file that is an object: one of them, or several by name; none, if
    it is another object or can't be read."""
    name = display_name(path)
    with open_text(path) as file:
        text = decode_utf8(file.read(), path).removeprefix("\ufeff")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, Mapping):
        return []
    if any(is_turns(value.get(key)) for key in TURNS):
        return [(name, value)]
    for key in TURNS:
        if isinstance(lists := value.get(key), list) and lists and all(map(is_turns, lists)):
            return [(f"{name} row {number}", turns) for number, turns in enumerate(lists, 1)]
    return [(f"{name} {key}", turns) for key, turns in value.items() if is_turns(turns)]


def is_turns(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and is_message(value[0])


def begins_list(path: str) -> bool:
    with open_text(path) as file:
        return file.read(2**10).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def read_json_list(path: str) -> Iterator[tuple[str, Any]]:
    """Yield the location (file:line) and the value of every item of the list in a .json file."""
    name = display_name(path)
    with open_text(path) as file:
        text = decode_utf8(file.read(), path).removeprefix("\ufeff")
    decoder = json.JSONDecoder()
    at, line, counted = skip_blanks(text, 0), 1, 0
    at = skip_blanks(text, at + 1)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}:{line}: not JSON ({first_line(error)}); correct it there") from None
        yield f"{name}:{line}", value
        at = skip_blanks(text, at)
        if text[at : at + 1] not in (",", "]"):
            line += text.count("\n", counted, at)
            raise UserError(f"{name}:{line}: the list goes on without a comma, or ends; correct it there")
        at = skip_blanks(text, at + 1) if text[at] == "," else at


def skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in " \t\r\n":
        at += 1
    return at


# Objects


def parse_row(row: Any, where: str) -> Conversation:
    """The conversation in an object of any of the formats."""
    if isinstance(row, list):
        return parse_turns(row, where)
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: no conversation; write an object with {EXPECTED}")
    row = find_inner(row)
    system = [Turn(SYSTEM, clean(row["system"], where, "system"))] if row.get("system") else []
    for name in TURNS:
        if isinstance(row.get(name), list):
            turns = parse_turns(row[name], where)
            return turns if turns and turns[0].role == SYSTEM else system + turns
    question = next((name for name in QUESTIONS if row.get(name) is not None), None)
    answer = next((name for name in ANSWERS if row.get(name) is not None), None)
    if question is None or answer is None:
        names = ", ".join(map(str, row)) or "nothing"
        raise UserError(f"{where}: no conversation, only {shorten(names)}; write {EXPECTED}")
    if (question, answer) == ("source", "target"):
        return [Turn("", clean(row[name], where, name)) for name in (question, answer)]
    if isinstance(row[question], list):  # messages, of which the last ones are the answer
        last = row[answer] if isinstance(row[answer], list) else [{"role": ASSISTANT, "content": row[answer]}]
        return system + parse_turns([*row[question], *last], where)
    earlier = [
        Turn((USER, ASSISTANT)[n], clean(text, where, "history"))
        for pair in row.get("history") or ()
        for n, text in enumerate(pair[:2])
    ]
    about = [clean(row[name], where, name) for name in MORE if row.get(name)]
    asked = "\n".join(text for text in [clean(row[question], where, question), *about] if text)
    return [*system, *earlier, Turn(USER, asked), Turn(ASSISTANT, clean(row[answer], where, answer))]


def find_inner(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object with a conversation, if it is inside this one or one level deeper; else this one."""
    inner = row
    for _ in range(3):
        if any(not isinstance(inner.get(name, {}), Mapping) for name in (*TURNS, *QUESTIONS)):
            return inner
        objects = [value for value in inner.values() if isinstance(value, Mapping)]
        if len(objects) != 1:
            break
        inner = objects[0]
    return row


def parse_turns(items: list[Any], where: str) -> Conversation:
    if len(items) < 2:
        raise UserError(f"{where}: {len(items)} turns are not a conversation; give at least two turns")
    if all(isinstance(item, str) for item in items):
        return [Turn("", clean(item, where, "a turn")) for item in items]
    turns = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping):
            raise UserError(f"{where}: turn {number} is {shorten(item)}; write it as role and content")
        name = item.get("role", item.get("from"))
        if str(name).lower() not in ROLES:
            raise UserError(
                f"{where}: turn {number} has the role {shorten(name)}; known are system, user and assistant, "
                "whose turns are learned: write one of them for each name"
            )
        content = item.get("content", item.get("value"))
        turns.append(Turn(ROLES[str(name).lower()], clean(content, where, f"turn {number}")))
    return turns


def clean(text: Any, where: str, name: str) -> str:
    """A text, or the texts of its parts, with the line ends of Unix."""
    if isinstance(text, list):
        values = [part.get("text") if isinstance(part, Mapping) else part for part in text]
        parts = [value for value in values if isinstance(value, str)]
        if len(parts) < len(values):
            raise UserError(f"{where}: {name} has parts that are not text; leave images and others out")
        text = "\n".join(parts)
    if not isinstance(text, str):
        raise UserError(f"{where}: {name} has no text but {shorten(text)}; give each turn a text")
    return normalize_newlines(check_surrogates(text, where)).strip()
