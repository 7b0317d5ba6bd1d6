"""Each rule at the points that it was measured at, and at the ends of its range."""

import itertools

import pytest

from regard.training.plan import rules
from regard.training.plan.facts import Facts, Side


def side(characters: int, words: int, alphabet: int = 60, vocabulary: int = 9999, longest: int = 99) -> Side:
    return Side(characters=characters, words=words, alphabet=alphabet, vocabulary=vocabulary, longest=longest)


@pytest.mark.parametrize(
    ("task", "facts", "chosen"),
    [
        ("write", Facts(rows=1, source=side(1_100_000, 200_000)), {"tokenizer": "char"}),
        ("write", Facts(rows=1, source=side(11_000_000, 2_000_000)), {"tokenizer": "bpe", "vocab": 16_000}),
        (
            "write",
            Facts(rows=1, source=side(500_000, 5000, alphabet=3000)),
            {"tokenizer": "bpe", "vocab": 3000},
        ),
        ("write", Facts(rows=1, tokens=10**9, vocab=50_000), {}),  # prepared
        (
            "translate",
            Facts(rows=29_000, source=side(1_800_000, 350_000), target=side(2_000_000, 320_000)),
            {"tokenizer": "bpe", "vocab": 4000},
        ),
        (  # words and their pronunciations
            "translate",
            Facts(
                rows=100_000,
                source=side(750_000, 100_000, alphabet=27, vocabulary=100_000),
                target=side(2_000_000, 640_000, vocabulary=70),
            ),
            {"tokenizer": "char", "target_tokenizer": "word"},
        ),
        (  # words and words
            "translate",
            Facts(rows=5000, source=side(40_000, 5000), target=side(40_000, 5000)),
            {"tokenizer": "char"},
        ),
        ("see", Facts(rows=60_000, size=28, channels=1), {}),
        (
            "classify",
            Facts(rows=4500, source=side(27_000, 4500, vocabulary=4500, alphabet=26), classes=4),
            {"tokenizer": "char"},
        ),
    ],
)
def test_tokenizers(task: str, facts: Facts, chosen: dict[str, object]) -> None:
    assert rules.choose_tokenizer(task, facts) == chosen


def test_tokens_of_a_text() -> None:
    english = side(4_000_000, 700_000, vocabulary=30_000)
    assert rules.tokens_of(english, "char", 60) == 4_000_000
    assert rules.tokens_of(english, "word", 30_000) == 700_000
    assert rules.tokens_of(english, "bpe", 4000) == pytest.approx(4_000_000 / 3.7, rel=0.05)
    assert rules.tokens_of(english, "bpe", 32_000) >= 700_000


@pytest.mark.parametrize("kind", ["gpt", "bert", "transformer", "t5", "vit", "captioner"])
def test_ladders_rise(kind: str) -> None:
    sizes = rules.ladder(kind)
    weights = [size.weights(kind) for size in sizes]
    assert weights == sorted(weights)
    assert all(b < 6 * a for a, b in itertools.pairwise(weights))
    assert all(size.dim % size.heads == 0 and size.dim // size.heads % 2 == 0 for size in sizes)


def test_sizes_are_limited_by_data_and_by_time() -> None:
    advice = rules.ADVICE["write"]
    assert rules.too_large_for(advice, 10e6, units=1e6, readable=1e8) == ""
    assert rules.too_large_for(advice, 100e6, units=1e6, readable=1e9) == "the data"
    assert rules.too_large_for(advice, 10e6, units=1e6, readable=1e6) == "the time"


def test_batches_grow_with_what_is_read() -> None:
    advice = rules.ADVICE["translate"]
    assert rules.choose_batch(advice, 4.8e6, 20, gpu=False) == 2048
    assert rules.choose_batch(advice, 24.6e6, 20, gpu=True) == 4096
    assert rules.choose_batch(advice, 100, 20, gpu=True) == 128  # eight rows at least


def test_tiny_models_read_more_in_a_step() -> None:
    """The rest of a step takes as long as `free` units: more of them cost little time, up to four times."""
    advice = rules.ADVICE["translate"]
    batches = [rules.choose_batch(advice, 20_000, 11, False, free) for free in (0, 64, 256, 5000)]
    assert batches == [128, 128, 128, 512]


def test_short_runs_of_muon_have_higher_rates() -> None:
    muon, adamw = rules.ADVICE["classify"], rules.ADVICE["tag"]
    rates = [rules.choose_lr(muon, 64, 1024, steps) for steps in (2000, 600, 300, 100, 10)]
    assert rates == [2e-3, 2e-3, 4e-3, 0.012, 0.016]
    assert rules.choose_lr(adamw, 64, 1024, 10) == rules.choose_lr(adamw, 64, 1024, 2000)


def test_what_is_read_once_is_not_memorised() -> None:
    advice = rules.ADVICE["classify"]
    assert [rules.choose_dropout(advice, 0.0, passes) for passes in (0.9, 1, 2, 4, 9)] == [
        0,
        0,
        0.15,
        0.3,
        0.3,
    ]


def test_more_pressure_more_regularisation() -> None:
    advice = rules.ADVICE["translate"]
    pressures = [rules.pressure_to_memorise(passes, 10) for passes in (1, 4, 10, 32, 100)]
    assert pressures[:2] == [0, 0]
    assert pressures[3:] == [1, 1]
    assert pressures == sorted(pressures)
    dropouts = [rules.choose_dropout(advice, pressure, 4) for pressure in pressures]
    assert dropouts[0] == 0
    assert dropouts[-1] == 0.3
    assert dropouts == sorted(dropouts)
    assert rules.choose_patience(2) is None
    assert rules.choose_patience(20)


@pytest.mark.parametrize(("steps", "warmup"), [(10, 2), (600, 42), (6000, 400), (100_000, 400)])
def test_warmup(steps: int, warmup: int) -> None:
    assert rules.choose_warmup(steps) == warmup


def test_evaluations() -> None:
    assert rules.choose_evaluation(6000, 40) in (250, 500)
    assert rules.choose_evaluation(2000, 1) == 500
    assert rules.choose_evaluation(3, 1) == 10
    assert rules.choose_evaluation(2000, 1, share=0.05) == 1000  # two of them take a tenth of the time
    assert rules.choose_evaluation(2000, 1, share=0.5) == 2000
    assert rules.choose_evaluation(2000, 1, share=0.001) == 500


@pytest.mark.parametrize(("size", "gpu"), [(28, False), (28, True), (32, True), (64, False), (9, True)])
def test_patches_divide_pictures(size: int, gpu: bool) -> None:
    assert size % rules.choose_patch(size, gpu, 0) == 0
