"""Masked words: how many, which, and that they do not leak."""

import numpy as np
import pytest
import torch

from helpers.filling import TEXT, build, filler, random_generator, within
from regard.data import Stream
from regard.tasks import targets
from regard.tasks.fill import SPECIALS
from regard.tasks.loss import IGNORED
from regard.text.tokenizer_kinds import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("wordpiece", [TEXT], 200, SPECIALS)


@pytest.fixture
def task(tokenizer):
    return filler(tokenizer)


def test_what_is_hidden_in_a_million_words(tokenizer):
    """15 %; of these 80 % are [MASK], 10 % random words and 10 % unchanged."""
    task = filler(tokenizer, 102, next=False)
    stream = Stream([np.random.default_rng(5).choice(task.masker.words, 100_003)], 0)
    samples = task.samples(stream, seed=3, rows=1000, tokens=None)
    masked = changed = unchanged = hidden = 0
    replacements, at = np.zeros(tokenizer.vocab), np.zeros(102)
    for step in range(10):
        rows = samples.rows(step)
        ids, attention_mask, segments, label, places, following = task.batch(samples, rows)
        assert ids.shape == attention_mask.shape == segments.shape == (1000, 102)
        assert attention_mask.all()
        assert not segments.any()
        assert (label == IGNORED).all()
        assert following.shape == places.shape == (1000, task.masker.limit) == (1000, 15)
        text = ids.scatter(1, places, following)
        assert torch.equal(text[:, 1:-1], torch.from_numpy(samples.batch(rows)[:, :-1]))
        assert (text[:, 0] == task.first).all()
        assert (text[:, -1] == task.end).all()
        shown = ids.gather(1, places)
        hidden += targets((following,))
        masked += int((shown == task.mask).sum())
        unchanged += int((shown == following).sum())
        other = (shown != task.mask) & (shown != following)
        changed += int(other.sum())
        replacements += np.bincount(shown[other], minlength=tokenizer.vocab)
        at += np.bincount(places.flatten(), minlength=102)
        assert all(len(set(row)) == 15 for row in places.tolist())
    V = len(task.masker.words)
    assert hidden == 150_000
    assert within(masked, hidden, 0.8)
    assert within(unchanged, hidden, 0.1 + 0.1 / V)
    assert within(changed, hidden, 0.1 - 0.1 / V)
    special = [tokenizer.id(name) for name in SPECIALS]
    assert not replacements[special].any()
    expected = changed / V
    squares = ((replacements[task.masker.words] - expected) ** 2 / expected).sum()
    assert abs(squares - (V - 1)) < 5 * (2 * (V - 1)) ** 0.5
    assert at[0] == at[-1] == 0
    assert all(within(n, 10_000, 0.15) for n in at[1:-1])


@pytest.mark.parametrize("whole_words", [False, True])
def test_specials_are_never_hidden(tokenizer, whole_words):
    task = filler(tokenizer, whole_words=whole_words)
    special = [tokenizer.id(name) for name in SPECIALS]
    text = np.array([task.first, *special, *task.masker.words[:3], *special, task.end])
    for n in range(50):
        _, chosen = task.masker.mask(text, random_generator(0, n))
        assert len(chosen) == 1
        assert text[chosen[0]] in task.masker.words[:3]
    shown, chosen = task.masker.mask(np.array([task.first, *special, task.end]), random_generator(0, 0))
    assert len(chosen) == 0
    assert shown.tolist() == [task.first, *special, task.end]


@pytest.mark.parametrize(("length", "many"), [(1, 1), (3, 1), (10, 2), (20, 3), (44, 7), (45, 7)])
def test_a_text_has_so_many_hidden(task, length, many):
    text = np.array([task.first, *task.masker.words[:length], task.end])
    assert {len(task.masker.mask(text, random_generator(0, n))[1]) for n in range(20)} == {many}


def test_hidden_words_leave_no_trace(task):
    """Neither inputs nor predictions depend on the word that [MASK] replaces."""
    model = build(task)
    for n in range(20):
        text = np.random.default_rng(n).choice(task.masker.words, 40)
        text = np.array([task.first, *text[:17], task.end, *text[17:], task.end])
        first = task.collate([(text.tolist(), 19, 0)], [random_generator(3, n)])
        ids, attention_mask, segments, _, places, following = first
        masks = places[0][(ids.gather(1, places) == task.mask)[0]]
        assert 2 <= len(masks) <= len(places[0]) == 6 + 1
        other = text.copy()
        other[masks] = task.masker.words[
            (np.searchsorted(task.masker.words, text[masks]) + 1 + n) % len(task.masker.words)
        ]
        second = task.collate([(other.tolist(), 19, 0)], [random_generator(3, n)])
        assert all(torch.equal(a, b) for a, b in zip(first[:-1], second[:-1], strict=True))
        changed = following != second[-1]
        assert set(places[changed].tolist()) == set(masks.tolist())
        with torch.no_grad():
            assert torch.equal(model(ids, attention_mask, segments), model(*second[:3]))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_whole_words(kind):
    """All pieces of a word are masked or none, with words as the library splits them."""
    line = 'The "quick" brownish fox\'s den, über 12 geese;\nNobody saw (any) of the other creatures: neither'
    words = train_tokenizer(kind, [" ".join(line), " the the of of quick quick quick"], 300, SPECIALS)
    task = filler(words, 300, whole_words=True, next=False)
    encoded = words.inner.encode(line, add_special_tokens=False)
    text, of = np.array(encoded.ids), np.array(encoded.word_ids)
    space = np.array([token.isspace() for token in words.tokens(text)])  # a piece, or the beginning of one
    pieces = {word: np.flatnonzero((of == word) & ~space) for word in set(of[~space].tolist())}
    assert max(map(len, pieces.values())) > 7
    spans, shares = set(), []
    for n in range(300):
        _, chosen = task.masker.mask(np.array([task.first, *text, task.end]), random_generator(0, n))
        assert np.array_equal(np.sort(chosen), chosen)
        hidden = set((chosen - 1).tolist())
        shares.append(len(hidden) / len(text))
        for word, places in pieces.items():
            if inside := hidden & set(places.tolist()):
                assert inside == set(places.tolist()), line[slice(*encoded.offsets[places[0]])]
                spans.add(word)
    assert max(shares) <= 0.15 + 1 / len(text)
    assert np.mean(shares) > 0.11  # what has no room is passed over, and others are tried
    short = {word for word, places in pieces.items() if len(places) <= 0.15 * len(text)}
    assert len(spans & short) > 0.8 * len(short)  # words are not stuck together


def test_a_word_that_is_too_long_for_all(tokenizer):
    task = filler(tokenizer, 23, whole_words=True)
    inside = np.flatnonzero(task.masker.inside & task.masker.ordinary)
    begins = np.flatnonzero(~task.masker.inside & task.masker.ordinary)
    text = np.array([task.first, begins[0], *inside[:4], begins[1], inside[5], task.end])
    for n in range(20):
        assert task.masker.mask(text, random_generator(0, n))[1].tolist() == [6, 7]  # the shortest
    text = np.array([task.first, begins[0], *inside[:9], task.end])
    _, chosen = task.masker.mask(text, random_generator(0, 0))
    assert len(chosen) == task.masker.limit == 3
