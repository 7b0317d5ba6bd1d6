"""Language modelling: batches, loss, answers and scores."""

import math

import numpy as np
import pytest
import torch

from helpers.errors import user_error
from regard.data import DataConfig, Stream
from regard.decode.beam import beam_search
from regard.decode.sampling import Sampling
from regard.models import GPT, GPTConfig
from regard.tasks import TASKS, Write, WriteConfig, idle, targets
from regard.tasks.request import DataRequest, Request
from regard.text.tokenizer_kinds import train_tokenizer

TEXT = "abcdefghij" * 7 + "\n"
CONTEXT = 7


@pytest.fixture
def task():
    return Write(WriteConfig(name="write"), train_tokenizer("char", [TEXT], 100, Write.specials), CONTEXT)


@pytest.fixture
def stream(task):
    return Stream([np.array(task.tokenizer.encode(TEXT))], len(TEXT.encode()))


@pytest.fixture
def model(task):
    return GPT(GPTConfig(vocab=task.tokenizer.vocab, context=CONTEXT, dim=6, depth=1, heads=1)).eval()


def test_a_task_has_its_name():
    for name, (_, config) in TASKS.items():
        assert config(name=name).name == name


def test_a_batch_asks_for_what_follows(task, stream):
    ids, following = task.batch(task.samples(stream, 3, 5, None), np.arange(5))
    assert ids.shape == following.shape == (5, CONTEXT)
    assert torch.equal(ids[:, 1:], following[:, :-1])
    for row in torch.cat([ids, following[:, -1:]], dim=1):
        assert task.tokenizer.decode(row.tolist()) in TEXT
    assert targets((ids, following)) == 5 * CONTEXT


def test_a_position_has_its_sample_at_any_time(task, stream):
    samples = task.samples(stream, 3, 5, None)
    ids, _ = task.batch(samples, np.array([17, 4]))
    again, _ = task.batch(task.samples(stream, 3, 2, None), np.array([4]))
    assert torch.equal(ids[1:], again)


@pytest.mark.parametrize(
    ("rows", "tokens", "expected"), [(5, None, 5), (5, 3 * CONTEXT, 3), (5, 3 * CONTEXT + 6, 3), (5, 1, 1)]
)
def test_a_step_has_so_many_rows_or_tokens(task, stream, rows, tokens, expected):
    samples = task.samples(stream, 3, rows, tokens)
    assert [len(samples.rows(step)) for step in range(40)] == [expected] * 40


@pytest.mark.parametrize(("tokens", "longest"), [(1, 1), (CONTEXT, 1), (3 * CONTEXT + 1, 3), (700, 100)])
def test_in_order_asks_for_everything_once(task, stream, tokens, longest):
    batches = list(task.evaluation_batches(stream, tokens))
    asked = torch.cat([following.flatten() for _, following in batches])
    assert asked.tolist() == stream.read(1, len(stream)).tolist()
    assert max(len(ids) for ids, _ in batches) == min(longest, len(stream) // CONTEXT)
    assert sum(map(task.batch_length, batches)) == len(stream) - 1


def test_an_idle_batch_asks_for_nothing(task, stream, model):
    ids, following = task.batch(task.samples(stream, 3, 5, None), np.arange(5))
    nothing = idle((ids, following))
    assert torch.equal(nothing[0], ids)
    assert targets(nothing) == 0
    assert targets((ids, following)) == 5 * CONTEXT  # as before
    loss = task.loss(model, *nothing)
    loss.backward()
    assert loss == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_the_loss_is_the_sum_of_cross_entropies(task, stream, model):
    ids, following = task.batch(task.samples(stream, 3, 5, None), np.arange(5))
    expected = torch.nn.functional.cross_entropy(
        model(ids).flatten(0, 1), following.flatten(), reduction="sum"
    )
    torch.testing.assert_close(task.loss(model, ids, following), expected)


def test_metrics(task, stream):
    metrics = task.metrics(70 * math.log(4), 70, stream)
    assert metrics == pytest.approx({"loss": math.log(4), "perplexity": 4.0, "bits_per_byte": 140 / 71})
    assert task.metrics(1e9, 1, stream)["perplexity"] < math.inf  # JSON knows no infinity


def test_reading_holds_out_and_brings_the_tokenizer(tmp_path, task):
    (tmp_path / "a.txt").write_text(TEXT)
    paths = [str(tmp_path / "a.txt")]
    corpus = Write.read(DataRequest(paths, [], DataConfig(holdout=0.25), task.config, CONTEXT))
    assert len(corpus.train) + len(corpus.valid) == len(TEXT)
    assert corpus.tokenizer.end is not None
    with_tokenizer = Write.read(DataRequest(paths, [], DataConfig(), task.config, CONTEXT, [task.tokenizer]))
    assert with_tokenizer.tokenizer is task.tokenizer


def test_all_of_a_text_is_scored_on(tmp_path, task):
    (tmp_path / "a.txt").write_text(TEXT)
    assert len(task.held_out([str(tmp_path / "a.txt")])) == len(TEXT)
    (tmp_path / "short.txt").write_text("a")
    user_error(lambda: task.held_out([str(tmp_path / "short.txt")]), tmp_path / "short.txt")


def test_a_sample_goes_on_from_the_data(task, stream, model):
    sample = task.preview(model, stream, seed=4)
    opening = TEXT[:8]
    assert sample.startswith(opening)
    options = Write.generation | {"max_new_tokens": 120, "seed": 4}
    assert sample[len(opening) :] == answers(task, model, [opening], **options)[0] != ""
    assert task.preview(model, stream, seed=5) != sample


def answers(task, model, texts, stop=(), samples=1, **options):
    pieces = task.stream(model, Request(texts, Sampling(**options), stop, samples))
    return ["".join(row) for row in zip(*pieces, strict=True)]


def test_asked_alone_or_together(task, model):
    texts = ["abc", "j", "defghijabc"]
    together = answers(task, model, texts, max_new_tokens=9, seed=5)
    assert together == [answers(task, model, [t], max_new_tokens=9, seed=5)[0] for t in texts]
    assert all(together)


def test_samples_stand_text_by_text(task, model):
    several = answers(task, model, ["abc", "j"], samples=3, max_new_tokens=9, seed=5)
    assert len(several) == 6
    assert several[:3] == answers(task, model, ["abc"], samples=3, max_new_tokens=9, seed=5)
    assert len(set(several)) > 1


def test_an_empty_text_can_be_gone_on_from(task, model):
    assert answers(task, model, [""], max_new_tokens=4, seed=1)[0]


def test_every_row_ends_before_its_stop(task, model):
    free = answers(task, model, ["abc", "j"], max_new_tokens=30, seed=5)
    stop = free[0][2]
    assert answers(task, model, ["abc", "j"], stop=[stop], max_new_tokens=30, seed=5) == [
        row.split(stop)[0] for row in free
    ]


def test_the_best_answer_by_beams(task, model):
    prompts, texts = [[5], [7, 3]], []
    for prompt in prompts:
        texts.append(task.tokenizer.decode(prompt))
        logits, state = model.start(torch.tensor([prompt]))
        options = {"beams": 4, "end": task.tokenizer.end, "max_new_tokens": 5, "length_penalty": 0.5}
        (hypotheses,) = beam_search(model.step, logits, state, **options)
        texts.append([task.tokenizer.decode(h.tokens) for h in hypotheses])
    options = {"num_beams": 4, "max_new_tokens": 5, "length_penalty": 0.5}
    assert answers(task, model, texts[::2], **options) == [texts[1][0], texts[3][0]]
    assert answers(task, model, texts[::2], samples=3, **options) == texts[1][:3] + texts[3][:3]
    stop = texts[1][0][1]
    assert answers(task, model, texts[:1], stop=[stop], **options) == [texts[1][0].split(stop)[0]]
    user_error(lambda: answers(task, model, ["a"], num_beams=4), "max_new_tokens=200", "context of 7")
    user_error(
        lambda: answers(task, model, ["a"], samples=5, **options), "num_return_sequences=5", "num_beams=4"
    )
