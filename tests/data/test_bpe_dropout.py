"""Words in other pieces: the same text, in as many pieces as BPE-dropout makes, by seed and key alone."""

import numpy as np
import pytest

from helpers.errors import user_error
from helpers.runs import at_step, rows, same, stopped, tiny, write_data
from regard.data.bpe_dropout import TokenDropout
from regard.data.pair_dataset import PairConfig
from regard.data.ragged import Ragged
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training import distributed
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

TEXTS = [f"the newest owner of number {n} renewed the oldest widow's renewal" for n in range(97)]


@pytest.fixture(scope="module")
def bpe():
    tokenizer = train_tokenizer("bpe", TEXTS, 331, ["</s>"])
    ids = tokenizer.encode_batch(TEXTS)
    return tokenizer, Ragged(np.concatenate(ids).astype(np.uint16), np.array([len(row) for row in ids]))


def spell(bpe, probability, rows=range(97), seed=5, longest=10**6, numbers=None):
    dropout, rows = TokenDropout(bpe[0], probability, seed), np.array(rows)
    return dropout(bpe[1], rows, dropout.keys(rows if numbers is None else np.array(numbers)), longest)


def test_the_text_stays_and_more_is_left_out_in_more_pieces(bpe):
    counts = []
    for probability in (0.0, 0.1, 0.4, 0.999):
        spelled = spell(bpe, probability)
        assert [bpe[0].decode(spelled[row]) for row in range(97)] == TEXTS
        counts.append(len(spelled.ids))
    assert counts == sorted(set(counts))
    assert np.array_equal(spell(bpe, 0.0).ids, bpe[1].ids)  # off: as before
    assert counts[-1] > 0.9 * len("".join(TEXTS))  # nearly all bytes alone


def test_of_one_merge_the_share_that_is_left_out(bpe):
    """A token of two symbols is in two pieces exactly when its merge is left out."""
    tokenizer = bpe[0]
    token = next(id for id in range(tokenizer.vocab) if len(tokenizer.inner.id_to_token(id)) == 2)
    side = Ragged(np.full(40_000, token), np.array([40_000]))
    dropout = TokenDropout(tokenizer, 0.3, 1)
    pieces = dropout(side, np.array([0]), dropout.keys(np.array([0])), 10**6)
    drawn = dropout.spellings.lengths[token * (dropout.count + 1) :][: dropout.count]
    assert len(pieces.ids) / 40_000 == pytest.approx(drawn.mean(), abs=0.01)  # evenly among those drawn
    shares = [
        (
            TokenDropout(tokenizer, 0.3, seed).spellings.lengths[token * (dropout.count + 1) :][
                : dropout.count
            ]
            == 2
        ).mean()
        for seed in range(8)
    ]
    assert np.mean(shares) == pytest.approx(0.3, abs=0.06)


def test_seed_and_key_decide_and_nothing_else_does(bpe):
    every = spell(bpe, 0.2)
    part = spell(bpe, 0.2, rows=[80, 3, 41])
    assert [part[i].tolist() for i in range(3)] == [every[row].tolist() for row in (80, 3, 41)]
    assert not np.array_equal(every.ids, spell(bpe, 0.2, seed=6).ids)
    later = spell(bpe, 0.2, numbers=np.arange(97) + 97)  # the next pass
    assert sum(later[row].tolist() != every[row].tolist() for row in range(97)) > 80


def test_a_row_that_would_be_too_long_stays_as_it_is(bpe):
    limit = int(bpe[1].lengths.max())
    spelled = spell(bpe, 0.3, longest=limit)
    assert spelled.lengths.max() <= limit
    too_long = [row for row in range(97) if len(spell(bpe, 0.3)[row]) > limit]
    assert too_long
    assert all(spelled[row].tolist() == bpe[1][row].tolist() for row in too_long)


@pytest.mark.parametrize("kind", ["unigram", "char", "wordpiece"])
def test_a_tokenizer_without_merges_is_refused(kind):
    tokenizer = train_tokenizer(kind, TEXTS, 300, ["</s>"])
    user_error(lambda: TokenDropout(tokenizer, 0.1, 1), "data.bpe_dropout", "data.tokenizer=bpe")


def test_settings_are_checked():
    assert PairConfig().bpe_dropout == 0
    with pytest.raises(ValueError, match="bpe_dropout"):
        PairConfig(bpe_dropout=1.0)


# --------------------------------------------------------------------------------------- in training


@pytest.fixture
def pairs(tmp_path):
    return write_data("translate-transformer", tmp_path)


def batches(task, samples, steps, monkeypatch, rank=0, world=1):
    """The rows of a process's batches: source and target, without padding."""
    monkeypatch.setattr(distributed, "RANK", rank)
    monkeypatch.setattr(distributed, "WORLD", world)
    encoded = []
    for step in steps:
        source, mask, _, following = task.batch(samples, distributed.local_rows(samples.rows(step)))
        encoded += [
            (tuple(s[m].tolist()), tuple(f[f >= 0].tolist()))
            for s, m, f in zip(source, mask, following, strict=True)
        ]
    return encoded


def test_passes_differ_and_processes_share_a_step(pairs, tmp_path, monkeypatch):
    trainings = []
    true = Trainer.__init__
    monkeypatch.setattr(
        Trainer,
        "__init__",
        lambda self, *args: (true(self, *args), trainings.append((self.task, self.samples)))[0],
    )
    tiny(pairs, tmp_path / "out", case="translate-transformer", steps=1, data__bpe_dropout=0.3)
    ((task, samples),) = trainings
    count = samples.buckets.count
    first, second = (batches(task, samples, range(n * count, (n + 1) * count), monkeypatch) for n in (0, 1))
    texts = [{task.tokenizer.decode(source) for source, _ in several} for several in (first, second)]
    assert texts[0] == texts[1]
    assert set(first) != set(second)
    shared = [row for rank in (0, 1) for row in batches(task, samples, [1], monkeypatch, rank, 2)]
    assert sorted(shared) == sorted(batches(task, samples, [1], monkeypatch))


def test_resumed_bit_for_bit(pairs, tmp_path):
    settings = {"case": "translate-transformer", "steps": 9, "train__evaluate": 3, "data__bpe_dropout": 0.3}
    tiny(pairs, tmp_path / "straight", **settings)
    with stopped(Trainer, "train_step", at_step(5)):
        tiny(pairs, tmp_path / "out", **settings)
    tiny(pairs, tmp_path / "out", **settings, resume=True)
    same(tmp_path / "straight", tmp_path / "out")
    tiny(pairs, tmp_path / "without", **settings | {"data__bpe_dropout": 0.0})
    assert rows(tmp_path / "without") != rows(tmp_path / "straight")
