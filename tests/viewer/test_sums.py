"""Every number of every family is the sum that its description says it is."""

import pytest

from helpers.browsing import MODELS
from helpers.looking import reader
from helpers.sums import check_sums
from regard import trace

WORDS = "the quick brown fox jumps"
MORE = {
    "geglu": lambda: (reader("translate", "transformer", ffn="geglu"), WORDS),
    "t5-geglu": lambda: (reader("restore", "t5", ffn="geglu"), "the ___ fox"),
    "swiglu": lambda: (reader("write", "gpt", ffn="swiglu"), WORDS),
    "qk-norm": lambda: (reader("write", "gpt", qk_norm=True, kv_heads=1), WORDS),
    "qk-norm-learned": lambda: (reader("write", "gpt", qk_norm=True, positions="learned"), WORDS),
    "rnn": lambda: (reader("translate", "rnn", attention="dot", bidirectional=False), WORDS),
    "lstm-additive": lambda: (reader("translate", "lstm", attention="additive", depth=2), WORDS),
}
ALL = MODELS | MORE


@pytest.mark.parametrize("kind", ALL)
def test_every_sum_is_right(kind: str) -> None:
    model, input = ALL[kind]()
    traced = trace(model, input)
    errors = check_sums(model, traced)
    print(kind, len(errors), "of", len(traced), sorted(set(traced) - set(errors)))
    assert len(errors) > 5
