"""From tokens to answers."""

from regard.tasks.answers import join_text, stream_text
from regard.text.tokenizer_kinds import train_tokenizer

STEPS: list[list[str | None]] = [["a", "é"], ["b", None], ["c", "é"]]


def test_whole_texts_are_those_that_are_streamed(monkeypatch):
    """Without stops, each is decoded once, not after every token."""
    tokenizer = train_tokenizer("char", ["abcdé"], 20, [])
    ids = [[None if c is None else tokenizer.encode(c)[0] for c in step] for step in STEPS]
    before = tokenizer.encode("d")
    for stop in ((), ("bc",), ("x",)):
        streamed = zip(*stream_text(ids, tokenizer, 2, stop, before), strict=True)
        assert join_text(ids, tokenizer, 2, stop, before) == ["".join(pieces) for pieces in streamed]
    calls, decode = [], type(tokenizer).decode
    monkeypatch.setattr(type(tokenizer), "decode", lambda self, ids: calls.append(1) or decode(self, ids))
    assert join_text(ids, tokenizer, 2, (), before) == ["abc", "éé"]
    assert len(calls) == 3  # and what stands before
