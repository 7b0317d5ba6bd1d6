"""Conversations in the formats that people have them in, and what is wrong with others."""

import csv
import gzip
import io
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from helpers.errors import user_error
from regard.data.conversations import Turn, read_chat_pairs, read_conversations
from regard.data.pairs import UserReply, build_histories, read_pairs
from regard.data.reading import read_together
from regard.tasks import Chat, ChatConfig, DataRequest
from regard.training.plan.facts import read_facts

ASKED, ANSWERED = Turn("user", "Hi how\nare you"), Turn("assistant", "I am fine")
MORE = [ASKED, ANSWERED, Turn("user", "Good"), Turn("assistant", "And you?")]
SYSTEM = Turn("system", "Be kind")


def messages(turns: list[Turn]) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for role, text in turns]


def shared(turns: list[Turn]) -> list[dict[str, str]]:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return [{"from": names[role], "value": text} for role, text in turns]


PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "Hi how"}, {"type": "text", "text": "are you"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "I am fine"}]},
]
FORMATS: dict[str, tuple[Any, list[Turn]]] = {
    "messages": ({"messages": messages([SYSTEM, *MORE]), "id": 7}, [SYSTEM, *MORE]),
    "content parts": ({"messages": PARTS}, MORE[:2]),
    "list": (messages(MORE), MORE),
    "sharegpt": ({"conversations": shared(MORE)}, MORE),
    "sharegpt with a system": ({"system": "Be kind", "conversations": shared(MORE)}, [SYSTEM, *MORE]),
    "conversations of roles": ({"conversations": messages(MORE)}, MORE),
    "alpaca": ({"instruction": "Hi how", "input": "are you", "output": "I am fine"}, MORE[:2]),
    "alpaca without input": ({"instruction": "Good", "input": "", "output": "And you?"}, MORE[2:]),
    "alpaca with history": (
        {"instruction": "Good", "output": "And you?", "history": [[ASKED.text, ANSWERED.text]]},
        MORE,
    ),
    "dolly": ({"instruction": "Hi how", "context": "are you", "response": "I am fine"}, MORE[:2]),
    "prompt": ({"prompt": ASKED.text, "completion": " I am fine "}, MORE[:2]),
    "prompt of messages": (
        {"prompt": messages(MORE[:3]), "completion": messages(MORE[3:])},
        MORE,
    ),
    "question": ({"question": ASKED.text, "answer": "I am fine"}, MORE[:2]),
    "prompt beside messages": ({"prompt": "Hi", "messages": messages(MORE)}, MORE),
    "turns": ({"turns": [turn.text for turn in MORE]}, [Turn("", turn.text) for turn in MORE]),
    "dialog": ({"dialog": [turn.text for turn in MORE]}, [Turn("", turn.text) for turn in MORE]),
    "in an object": ({"id": 7, "data": {"messages": messages(MORE)}}, MORE),
    "two levels deep": ({"id": 7, "data": {"thread": {"conversations": shared(MORE)}}}, MORE),
    "source": ({"source": "Good", "target": "And you?"}, [Turn("", "Good"), Turn("", "And you?")]),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz"])
def test_every_format_gives_the_same_turns(tmp_path: Path, name: str, suffix: str) -> None:
    row, expected = FORMATS[name]
    path = tmp_path / f"data{suffix}"
    text = json.dumps([row, row], indent=1) if suffix == ".json" else f"{json.dumps(row)}\n\n" * 2
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    (first, turns), (second, again) = read_conversations([str(path)])
    assert turns == again == expected
    lines = [2, 2 + json.dumps(row, indent=1).count("\n") + 1] if suffix == ".json" else [1, 3]
    assert [first, second] == [f"{path}:{line}" for line in lines]


def test_tables_of_questions_and_answers(tmp_path: Path) -> None:
    rows = [["Instruction", "input", "output"], ["Hi how", "are you", "I am fine"], ["Good", "", "And you?"]]
    for name, dialect in (("a.csv", "excel"), ("a.tsv", "excel-tab")):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file, dialect).writerows(rows)
        (where, first), (_, second) = read_conversations([str(tmp_path / name)])
        assert [*first, *second] == MORE
        assert where == f"{tmp_path / name}:2"
        assert list(read_chat_pairs([str(tmp_path / name)])) == [
            tuple(t.text for t in MORE[:2]),
            tuple(t.text for t in MORE[2:]),
        ]


def test_columns_that_were_chosen_are_those_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "no", "completion": "no", "asked": "Hi", "said": "Hello"}\n')
    with read_together(columns={"source": "asked", "target": "said"}):
        assert list(read_chat_pairs([str(path)])) == [("Hi", "Hello")]


def test_a_json_file_may_be_an_object(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"messages": messages(MORE)}]}))
    ((_, turns),) = read_conversations([str(tmp_path / "a.json")])
    assert turns == MORE


WHOLE_FILES: dict[str, tuple[Any, list[list[Turn]]]] = {
    "one conversation": ({"title": "a", "messages": messages(MORE)}, [MORE]),
    "one conversation, its messages alone": (messages(MORE), [MORE]),
    "one of ShareGPT": (shared(MORE), [MORE]),
    "by their names": ({"a": messages(MORE), "b": messages(MORE[:2])}, [MORE, MORE[:2]]),
    "lists": ([messages(MORE), shared(MORE[:2])], [MORE, MORE[:2]]),
    "lists in an object": (
        {"version": 2, "conversations": [messages(MORE), messages(MORE[:2])]},
        [MORE, MORE[:2]],
    ),
    "an object in an object": (
        {
            "about": {"by": "me"},
            "data": {"count": 2, "rows": [{"turns": messages(MORE)}, {"turns": messages(MORE[:2])}]},
        },
        [MORE, MORE[:2]],
    ),
    "messages that name their conversation": (
        [
            {"conversation_id": n, **each}
            for n, turns in ((7, MORE), (8, MORE[:2]))
            for each in messages(turns)
        ],
        [MORE, MORE[:2]],
    ),
}


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_a_json_file_may_have_its_conversations_anywhere(tmp_path: Path, name: str) -> None:
    value, expected = WHOLE_FILES[name]
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert [turns for _, turns in read_conversations([str(tmp_path / "a.json")])] == expected
    pairs = [tuple(t.text for t in pair) for turns in expected for pair in pairwise(turns)]
    assert list(read_chat_pairs([str(tmp_path / "a.json")])) == pairs


def test_a_table_may_have_a_message_in_each_row(tmp_path: Path) -> None:
    rows = [["chat_id", "Role", "content"], *([n, *turn] for n in (1, 2) for turn in MORE)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (where, first), (_, second) = read_conversations([str(tmp_path / "a.csv")])
    assert first == second == MORE
    assert where == f"{tmp_path / 'a.csv'}:2"


def test_deep_objects_are_no_conversations(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": ' * 900 + '{"turns": ["b", "c"]}' + "}" * 900 + "\n")
    user_error(lambda: list(read_conversations([str(path)])), f"{path}:1", "only a")


@pytest.mark.parametrize(
    "text",
    [
        '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n',
        "Hi\tHello\n",
    ],
)
def test_standard_input(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert list(read_chat_pairs(["-"])) == [("Hi", "Hello")]


def test_parquet(tmp_path: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = {"id": [1, 2], "messages": [messages([SYSTEM, *MORE]), messages(MORE[:2])]}
    parquet.write_table(arrow.table(rows), tmp_path / "a.parquet")
    (_, first), (_, second) = read_conversations([str(tmp_path / "a.parquet")])
    assert (first, second) == ([SYSTEM, *MORE], MORE[:2])


def test_pairs_that_go_on_are_one_conversation(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    with path.open("w", newline="") as file:
        csv.writer(file, "excel-tab").writerows(
            [["a", "b"], ["b", "c"], ["d", "e"], ["e", "f"], ["f", "d"], ["g", "h"]]
        )
    texts = [[turn.text for turn in turns] for _, turns in read_conversations([str(path)])]
    assert texts == [["a", "b", "c"], ["d", "e", "f", "d"], ["g", "h"]]
    assert [where for where, _ in read_conversations([str(path)])][1] == f"{path}:3"


def test_a_chatbot_learns_from_the_same_pairs_as_before(tmp_path: Path) -> None:
    tsv, turns, parallel = tmp_path / "a.tsv", tmp_path / "b.jsonl", [tmp_path / "c.en", tmp_path / "c.de"]
    tsv.write_text("source\ttarget\na\tb\nb\tc\n\t\nx\t\n")
    turns.write_text('{"turns": ["a", "b", "c"]}\n{"source": "c", "target": "d "}\n')
    for path in parallel:
        path.write_text("one\ntwo\n")
    for paths in ([tsv], [turns], [tsv, turns], parallel, [tmp_path / "folder"]):
        if paths[0].name == "folder":
            paths[0].mkdir()
            (paths[0] / "a.tsv").write_text("a\tb\n")
        names = list(map(str, paths))
        assert list(read_chat_pairs(names)) == list(read_pairs(names))


def test_a_chatbot_learns_the_answers_of_messages(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": messages([SYSTEM, *MORE])}) + "\n")
    pairs = list(read_chat_pairs([str(path)]))
    assert pairs == [(a.text, b.text) for a, b in pairwise(MORE)]
    assert [isinstance(pair, UserReply) for pair in pairs] == [False, True, False]
    assert build_histories(pairs, 3) == [
        ([ASKED.text], ANSWERED.text),
        ([ASKED.text, ANSWERED.text, "Good"], "And you?"),
    ]
    data = Chat.data_config(holdout=0.0)
    corpus = Chat.read(DataRequest([str(path)], [], data, ChatConfig(name="chat", turns=3), 64))
    assert corpus.train.targets == ["I am fine", "And you?"]
    assert read_facts("chat", [str(path)], turns=3).rows == 2


BAD = {
    "no keys": ('{"a": 1, "b": 2}', ":1", "only a, b", '"messages"'),
    "not an object": ('"text"', ":1", "no conversation"),
    "one turn": ('{"turns": ["a"]}', ":1", "1 turns"),
    "a role": ('{"messages": [{"role": "tool", "content": "a"}, {}]}', ":1", "turn 1", "tool"),
    "no role": ('{"messages": [{"content": "a"}, {}]}', ":1", "turn 1", "None"),
    "no content": ('\n{"messages": [{"role": "user", "content": null}, {}]}', ":2", "turn 1", "None"),
    "an image": (
        '{"messages": [{"role": "user", "content": [{"type": "image"}]}, {}]}',
        ":1",
        "turn 1",
        "images",
    ),
    "mixed": ('{"turns": ["a", 3]}', ":1", "turn 1"),
    "a number": ('{"prompt": "a", "completion": 3}', ":1", "completion", "3"),
    "not JSON": ('{"turns": ["a", "b"]}\n{oops', ":2", "not JSON"),
    "empty": ("", "empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_line(tmp_path: Path, name: str) -> None:
    text, *facts = BAD[name]
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    user_error(lambda: list(read_conversations([str(path)])), str(path), *facts)


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        ('\n[\n{"turns": ["a"]}]', 3, "two turns"),
        ('[\n{"turns": ["a", "b"]},\n{oops]', 3, "not JSON"),
        ("[\n1", 2, "ends"),
    ],
)
def test_errors_of_a_json_file_name_the_line(tmp_path: Path, text: str, line: int, fact: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    if fact == "ends":
        path.write_text(text.replace("1", '{"turns": ["a", "b"]}'))
    user_error(lambda: list(read_conversations([str(path)])), f"{path}:{line}", fact)
