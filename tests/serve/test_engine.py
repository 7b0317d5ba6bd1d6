"""Continuous batching: tokens equal those of `generate`, scheduling, failures and shutdown."""

import logging
import queue
import random
import threading

import pytest
import torch
from torch.testing import assert_close

from regard.core.cache import State
from regard.decode.ensemble import Ensemble
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.decode.states import join, trim
from regard.errors import UserError
from regard.models import GPT, MODELS, GPTConfig
from regard.serve import batch as batches
from regard.serve.batch import Batch, EngineError, TokenOutput
from regard.serve.engine import Engine, QueueFull

VOCAB, TARGET, CONTEXT = 31, 29, 13
SIZES = {"vocab": VOCAB, "context": CONTEXT, "dim": 24, "depth": 2, "heads": 2}
PAIR = {**SIZES, "target_vocab": TARGET, "dropout": 0.0}
RECURRENT = {k: v for k, v in PAIR.items() if k != "heads"}
LAYERS = {k: v for k, v in RECURRENT.items() if k != "target_vocab"}
PICTURE = {**SIZES, "size": 12, "depth": 1, "decoder_depth": 2, "dropout": 0.0}
CASES = [
    *(("gpt", {**SIZES, "positions": p}) for p in ("none", "learned", "rotary", "alibi", "relative")),
    ("gpt", {**SIZES, "sliding_window": 3, "kv_heads": 1, "dropout": 0.3}),
    ("gpt", {**SIZES, "context": 1}),
    ("transformer", {**PAIR, "positions": "sinusoidal"}),
    ("transformer", {**SIZES, "positions": "rotary", "kv_heads": 1}),
    ("t5", PAIR),
    *((cell, {**RECURRENT, "attention": a}) for cell, a in (("rnn", "none"), ("gru", "additive"))),
    ("lstm", {**RECURRENT, "attention": "dot"}),
    *(("recurrent", {**LAYERS, "cell": cell}) for cell in ("rnn", "gru", "lstm")),
    *(("captioner", {**PICTURE, "decoder": decoder}) for decoder in ("lstm", "transformer")),
]
every_case = pytest.mark.parametrize(
    ("name", "settings"),
    CASES,
    ids=["-".join([n, *(str(v) for k, v in s.items() if k not in PICTURE)]) for n, s in CASES],
)
GREEDY = Sampling(temperature=0, max_new_tokens=19)
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 0.9, "top_k": 17, "top_p": 0.95, "seed": 7},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [5], "seed": 8},
]


def build(name="gpt", settings=SIZES):
    """A model in double precision, with weights so large that the next token depends on the whole prompt."""
    cls, config, _ = MODELS[name]
    model = cls(config(**settings))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.double()


def source_for(name, rng):
    if name in ("gpt", "recurrent"):
        return None
    if name == "captioner":
        return torch.randint(256, (3, 12, 12), dtype=torch.uint8)
    return [rng.randrange(VOCAB) for _ in range(rng.randint(1, CONTEXT))]


def generate_alone(model, prompt, sampling, source=None, ends=()):
    """What `generate` gives for this prompt alone, and the reason for its end."""
    sources = None if source is None else [source]
    written = [step[0] for step in generate(model, [prompt], sampling, sources=sources, end=ends)]
    limit = sampling.max_new_tokens
    if source is not None:
        limit = min(limit, 1 + CONTEXT - len(prompt))
    return written, "length" if len(written) == limit else "stop"


class Listener:
    """Collects the outputs of a request; `plan` has actions to run after so many tokens, or at the end."""

    def __init__(self, plan=None):
        self.tokens, self.plan, self.end, self.over = [], plan or {}, None, threading.Event()

    def __call__(self, output):
        assert self.end is None, "nothing comes after the end"
        if isinstance(output, int | TokenOutput):
            self.tokens.append(output)
        else:
            self.end = output
        for n in [n for n in self.plan if n == len(self.tokens) or self.end is not None]:
            for act in self.plan.pop(n):
                act()
        if self.end is not None:
            self.over.set()

    @property
    def ids(self):
        return [token if isinstance(token, int) else token.id for token in self.tokens]

    def wait(self):
        assert self.over.wait(60), "the request does not end"
        return self.ids, self.end


@pytest.fixture
def run():
    """Starts engines, and closes them at the end."""
    started = []

    def start(*args, **kw):
        started.append(Engine(*args, **kw))
        return started[-1]

    yield start
    for engine in started:
        engine.close(finish=False)
        assert not engine._thread.is_alive()


class Gate(GPT):
    """Waits for permission before every call."""

    def __init__(self, c):
        super().__init__(c)
        self.permits, self.calls = threading.Semaphore(0), []

    def start(self, *args):
        return self._call(super().start, args)

    def step(self, *args):
        return self._call(super().step, args)

    def _call(self, do, args):
        assert self.permits.acquire(timeout=60)
        self.calls.append((do.__name__, *args[0].shape))
        return do(*args)


def permit_all(model):
    """Permit all calls."""
    model.permits.release(10_000)
    return model


# The tokens of a request do not depend on the batch


@every_case
def test_batched_requests_equal_single_ones(name, settings, run, monkeypatch):
    """Requests of all kinds arrive while others run, wait, are cancelled and end."""
    rng, model, ends = random.Random(3), build(name, settings), {1, 2}
    sizes, write = set(), Batch._sample

    def watched(batch, logits):
        assert len(logits) == len(batch.running) <= 4
        assert batch.state.length == max(request.cached for request in batch.running), "needless padding"
        sizes.add(len(logits))
        write(batch, logits)

    monkeypatch.setattr(batches, "MAX_PREFILL_TOKENS", 37)
    monkeypatch.setattr(Batch, "_sample", watched)
    engine = run(model, stop_ids=ends, places=4)
    requests, listeners, handles, cancelled = [], [], {}, {6: 3, 7: 1}
    for i in range(13):
        source = source_for(name, rng)
        prompt = [rng.randrange(TARGET) for _ in range(rng.randint(1, 2 * CONTEXT if source is None else 3))]
        how = Sampling(**SAMPLINGS[i % 3], max_new_tokens=rng.choice([2, 5, 3 * CONTEXT]))
        requests.append((prompt, how, source))
        listeners.append(Listener())

    def submit(i):
        if i < len(requests):
            prompt, how, source = requests[i]
            handles[i] = engine.submit(prompt, how, listeners[i], source=source)

    def cancel(i):
        handles[i].cancel()
        listeners[i].over.set()

    for i, listener in enumerate(listeners):  # each brings another, after a while
        listener.plan[1 if i in cancelled else rng.randint(1, 5)] = [lambda i=i: submit(i + 5)]
        if i in cancelled:
            listener.plan.setdefault(cancelled[i], []).append(lambda i=i: cancel(i))
    for i in range(5):
        submit(i)
    for i, ((prompt, how, source), listener) in enumerate(zip(requests, listeners, strict=True)):
        answer = listener.wait()
        ids, end = generate_alone(model, prompt, how, source, ends)
        if i in cancelled and len(ids) >= cancelled[i]:
            ids, end = ids[: cancelled[i]], None
        assert answer == (ids, end)
    engine.close()
    assert engine.tokens == sum(len(listener.ids) for listener in listeners)
    assert engine.running == engine.waiting == 0
    assert max(sizes) > 2


def test_large_vocabulary_in_float32(run):
    """Logits of a batch differ by rounding, but neither greedy nor sampled tokens do."""
    torch.manual_seed(1)
    model = build(settings={**SIZES, "vocab": 32_003}).float()
    engine, rng, rows = run(model), random.Random(2), []
    for i in range(24):
        prompt = [rng.randrange(32_003) for _ in range(rng.randint(1, 2 * CONTEXT))]
        rows.append((prompt, Sampling(**SAMPLINGS[i % 3], max_new_tokens=7), Listener()))
        engine.submit(*rows[-1])
    for prompt, how, listener in rows:
        assert listener.wait() == generate_alone(model, prompt, how)


def test_ensemble(run):
    model = Ensemble([build(), build(settings={**SIZES, "positions": "alibi", "dim": 16})])
    engine, listeners = run(model), [Listener() for _ in range(3)]
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [3]]
    for prompt, listener in zip(prompts, listeners, strict=True):
        engine.submit(prompt, GREEDY, listener)
    assert [x.wait() for x in listeners] == [generate_alone(model, prompt, GREEDY) for prompt in prompts]


def test_samples_have_their_own_random_numbers(run):
    model, how = build(), Sampling(seed=11, max_new_tokens=7)
    engine, listeners = run(model), [Listener() for _ in range(3)]
    for sample, listener in enumerate(listeners):
        engine.submit([3, 1, 4], how, listener, sample=sample)
    answers = [listener.wait()[0] for listener in listeners]
    rows = zip(*generate(model, [[3, 1, 4]], how, samples=3), strict=True)
    assert answers == [list(row) for row in rows]
    unseeded = [Listener() for _ in range(2)]
    for listener in unseeded:
        engine.submit([3, 1, 4], Sampling(temperature=5.0, max_new_tokens=17), listener)
    assert unseeded[0].wait() != unseeded[1].wait()


def test_prefixes_that_fill_the_context_end_at_once(run):
    engine = run(build("t5", PAIR))
    for length, expected in ((CONTEXT, 1), (CONTEXT + 1, 0)):
        listener = Listener()
        engine.submit([3] * length, GREEDY, listener, source=[1, 2])
        ids, end = listener.wait()
        assert (len(ids), end) == (expected, "length")


def test_logprobs_are_the_models_own(run):
    model = build(settings={**SIZES, "context": 23})
    engine, listeners = run(model), [Listener() for _ in range(3)]
    hows = [GREEDY, Sampling(seed=3, max_new_tokens=5, temperature=2.0, suppress_tokens=[0, 1]), GREEDY]
    for k, (how, listener) in enumerate(zip(hows, listeners, strict=True)):
        engine.submit([3, 1, 4][: k + 1], how, listener, top_logprobs=[0, 4, 99][k])
    for k, listener in enumerate(listeners):
        ids, _ = listener.wait()
        text = torch.tensor([[3, 1, 4][: k + 1] + ids])
        expected = model(text)[0, k:-1].float().log_softmax(-1)
        own = torch.tensor([token.logprob for token in listener.tokens])
        assert_close(own, expected.gather(1, torch.tensor(ids)[:, None])[:, 0])
        for token, row in zip(listener.tokens, expected, strict=True):
            best = row.topk([0, 4, VOCAB][k])
            assert [id for id, _ in token.top_logprobs] == best.indices.tolist()
            assert_close(torch.tensor([p for _, p in token.top_logprobs]), best.values, check_dtype=False)


# Scheduling


def test_requests_share_steps(run):
    torch.manual_seed(0)
    model = Gate(GPTConfig(**SIZES))
    engine, listeners = run(model, places=3), [Listener() for _ in range(4)]
    lengths = [2, 4, 3, 2]
    engine.submit([1], Sampling(max_new_tokens=2), listeners[0])
    for listener, n in zip(listeners[1:], lengths[1:], strict=True):
        engine.submit([1, 2], Sampling(max_new_tokens=n), listener)
    assert engine.waiting >= 1
    permit_all(model)
    for listener in listeners:
        assert listener.wait()[1] == "length"
    assert sum(rows for kind, rows, _ in model.calls if kind == "step") == sum(lengths) - 4
    assert engine.tokens == sum(lengths)
    assert engine.steps <= 5, "requests run together"


def test_prefill_is_limited_per_step(run, monkeypatch):
    monkeypatch.setattr(batches, "MAX_PREFILL_TOKENS", 10)
    model = Gate(GPTConfig(**SIZES))
    engine = run(model)
    listeners = [Listener() for _ in range(6)]
    for i, listener in enumerate(listeners):
        engine.submit([i] * (12 if i == 3 else 5), Sampling(max_new_tokens=9), listener)
    permit_all(model)
    for listener in listeners:
        listener.wait()
    reads = [(rows, length) for kind, rows, length in model.calls if kind == "start"]
    assert len(reads) >= 4
    assert all(rows == 1 or rows * length <= 10 for rows, length in reads)


def test_full_queue_and_cancellation(run):
    model = Gate(GPTConfig(**SIZES))
    engine, listeners = run(model, places=2, queue=1), [Listener() for _ in range(4)]
    requests = [engine.submit([1, 2], GREEDY, listener) for listener in listeners[:3]]
    with pytest.raises(QueueFull, match="2 requests are running and 1 wait"):
        engine.submit([1, 2], GREEDY, listeners[3])
    requests[2].cancel()
    requests[0].cancel()
    engine.submit([1, 2], GREEDY, listeners[3])
    permit_all(model)
    assert listeners[3].wait()[1] == listeners[1].wait()[1] == "length"
    engine.close()
    assert listeners[0].tokens == listeners[2].tokens == []
    assert listeners[0].end is listeners[2].end is None
    assert engine.running == engine.waiting == 0


def test_invalid_requests_are_refused_at_once(run):
    engine, pair = run(build()), run(build("t5", PAIR))
    for prompt, how, match in (
        ([], GREEDY, "empty"),
        ([VOCAB], GREEDY, "prompt has tokens outside"),
        ([1], Sampling(suppress_tokens=[VOCAB]), "suppress_tokens"),
    ):
        with pytest.raises(ValueError, match=match):
            engine.submit(prompt, how, Listener())
    with pytest.raises(UserError, match="num_beams=2"):
        engine.submit([1], Sampling(num_beams=2), Listener())
    for source in ([], [1] * (CONTEXT + 1)):
        with pytest.raises(ValueError, match="give from 1 to 13"):
            pair.submit([1], GREEDY, Listener(), source=source)
    assert engine.running + engine.waiting + pair.running + pair.waiting == 0


# Failures


class Failing(Gate):
    """Fails on demand; gives NaN after one token."""

    fails_in = nan_after = None

    def start(self, prompt, attention_mask=None):
        if self.fails_in == "start":
            self.fails_in = None
            raise RuntimeError("no memory")
        return super().start(prompt, attention_mask)

    def step(self, ids, state):
        if self.fails_in == "step":
            self.fails_in = None
            raise RuntimeError("no memory")
        logits, state = super().step(ids, state)
        return logits.masked_fill(
            ids == self.nan_after, torch.nan
        ) if self.nan_after is not None else logits, state


def test_failure_ends_running_requests_only(run, caplog):
    model = Failing(GPTConfig(**SIZES))
    engine = run(model, places=2)
    breaks = {3: [lambda: setattr(model, "fails_in", "step")]}
    listeners = [Listener(breaks), Listener(), Listener(), Listener()]
    with caplog.at_level(logging.CRITICAL):
        for listener in listeners:
            engine.submit([1, 2], GREEDY, listener)
        permit_all(model)
        for listener in listeners[:2]:
            ids, end = listener.wait()
            assert isinstance(end, EngineError)
            assert str(end) == "RuntimeError: no memory"
            assert 2 <= len(ids) <= 3
        for listener in listeners[2:]:
            assert listener.wait() == generate_alone(model, [1, 2], GREEDY)


def test_failed_prefill_leaves_other_requests_alone(run, caplog):
    model = permit_all(Failing(GPTConfig(**SIZES)))
    engine, bad = run(model), Listener()

    def submit_bad():
        model.fails_in = "start"
        engine.submit([4], GREEDY, bad)

    good = Listener({2: [submit_bad]})
    with caplog.at_level(logging.CRITICAL):
        engine.submit([3], Sampling(temperature=0, max_new_tokens=9), good)  # less than the context
        assert isinstance(bad.wait()[1], EngineError)
    assert good.wait() == generate_alone(model, [3], Sampling(temperature=0, max_new_tokens=9))


def test_nan_ends_only_its_own_request(run):
    model = permit_all(Failing(GPTConfig(**SIZES)).double())
    prompts = [[3, 1], [4], [5, 9, 2]]
    expected = [generate_alone(model, prompt, GREEDY)[0] for prompt in prompts]
    model.nan_after = next(iter(set(expected[0][1:5]) - set(expected[1]) - set(expected[2])))
    engine, listeners = run(model), [Listener() for _ in prompts]
    for prompt, listener in zip(prompts, listeners, strict=True):
        engine.submit(prompt, GREEDY, listener)
    ids, end = listeners[0].wait()
    assert ids == expected[0][: expected[0].index(model.nan_after) + 1]
    assert isinstance(end, ValueError)
    assert "NaN" in str(end)
    assert [listener.wait() for listener in listeners[1:]] == [(text, "length") for text in expected[1:]]


def test_request_whose_callback_fails_is_dropped(run, caplog):
    def fail(output):
        raise RuntimeError("the loop is closed")

    engine, listener = run(build()), Listener()
    with caplog.at_level(logging.CRITICAL):
        engine.submit([1], GREEDY, fail)
        engine.submit([1], GREEDY, listener)
        assert listener.wait()[1] == "length"


def test_close(run):
    for finish in (True, False):
        model = Gate(GPTConfig(**SIZES))
        engine, listeners = run(model, places=2), [Listener() for _ in range(3)]
        for listener in listeners:
            engine.submit([1], GREEDY, listener)
        closer = threading.Thread(target=engine.close, args=(finish,))
        closer.start()
        while engine._finish is None:
            pass
        with pytest.raises(QueueFull, match="closed"):
            engine.submit([1], GREEDY, Listener())
        permit_all(model)
        closer.join(60)
        ends = [listener.wait()[1] for listener in listeners]
        if finish:
            assert ends == ["length"] * 3
        else:
            assert all(isinstance(end, EngineError) for end in ends)
        engine.close()


def test_requests_from_many_threads(run):
    model, results = build(), queue.Queue()
    engine = run(model, places=3)

    def ask(i):
        listener = Listener()
        engine.submit([i, i + 1], GREEDY, listener)
        results.put((i, listener.wait()))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    answers = dict(results.get() for _ in threads)
    assert answers == {i: generate_alone(model, [i, i + 1], GREEDY) for i in range(7)}


# States


@torch.no_grad()
def test_joined_states_continue_alike_without_needless_padding():
    model = build()
    texts = [torch.randint(VOCAB, (2, 3)), torch.randint(VOCAB, (1, 7))]
    (_, a), (_, b) = (model.start(text) for text in texts)
    state = join(a, b)
    assert isinstance(state, State)
    assert state.attention_mask.sum(1).tolist() == [3, 3, 7]
    following = torch.tensor([[1], [2], [3]])
    logits, state = model.step(following, state)
    rows = [*texts[0], *texts[1]]
    for i, row in enumerate(rows):
        assert_close(logits[i], model(torch.cat([row, following[i]])[None])[0, -1])
    state.reorder(torch.tensor([1, 0]))
    trim(state, [4, 4])
    assert (state.length, state.attention_mask) == (4, None)
    logits, _ = model.step(following[:2], state)
    for i, row in enumerate((1, 0)):
        assert_close(logits[i], model(torch.cat([rows[row], following[row], following[i]])[None])[0, -1])


@pytest.mark.parametrize(("name", "settings"), [("t5", PAIR), ("gru", RECURRENT)])
@torch.no_grad()
def test_joined_sources_have_no_needless_padding(name, settings):
    model = build(name, settings)
    sources = [torch.randint(VOCAB, (2, 3)), torch.randint(VOCAB, (1, 7))]
    (_, a), (_, b) = (model.start(source, torch.ones(len(source), 2, dtype=torch.long)) for source in sources)
    state = join(a, b)
    state.reorder(torch.tensor([0, 1]))
    trim(state, [2, 2], [3, 3])
    assert (state.source_attention_mask if name == "t5" else state.attention_mask) is None
    logits, _ = model.step(torch.tensor([[4], [5]]), state)
    assert_close(logits, model(sources[0], torch.tensor([[1, 1, 4], [1, 1, 5]]))[:, -1])
