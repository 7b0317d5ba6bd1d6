import logging
import queue
import random
import threading

import pytest
import torch
from torch.testing import assert_close

from regard.cache import State
from regard.ensemble import Ensemble
from regard.errors import Mistake
from regard.generate import Sampling, generate
from regard.models import GPT, MODELS, GPTConfig
from regard.serve import engine as engines
from regard.serve.engine import Crashed, Engine, Full, Token
from regard.serve.states import join, trim

VOCAB, TARGET, CONTEXT = 31, 29, 13
SIZES = {"vocab": VOCAB, "context": CONTEXT, "dim": 24, "depth": 2, "heads": 2}
PAIR = {**SIZES, "target_vocab": TARGET, "dropout": 0.0}
RECURRENT = {k: v for k, v in PAIR.items() if k != "heads"}
PICTURE = {**SIZES, "size": 12, "depth": 1, "decoder_depth": 2, "dropout": 0.0}
CASES = [
    *(("gpt", {**SIZES, "positions": p}) for p in ("none", "learned", "rotary", "alibi", "relative")),
    ("gpt", {**SIZES, "window": 3, "kv_heads": 1, "dropout": 0.3}),
    ("gpt", {**SIZES, "context": 1}),
    ("transformer", {**PAIR, "positions": "sinusoidal"}),
    ("transformer", {**SIZES, "positions": "rotary", "kv_heads": 1}),
    ("t5", PAIR),
    *((cell, {**RECURRENT, "attention": a}) for cell, a in (("rnn", "none"), ("gru", "additive"))),
    ("lstm", {**RECURRENT, "attention": "dot"}),
    *(("captioner", {**PICTURE, "decoder": decoder}) for decoder in ("lstm", "transformer")),
]
every_case = pytest.mark.parametrize(
    ("name", "settings"),
    CASES,
    ids=["-".join([n, *(str(v) for k, v in s.items() if k not in PICTURE)]) for n, s in CASES],
)
GREEDY = Sampling(temperature=0, max_new_tokens=19)
HOWS = [
    {"temperature": 0},
    {"temperature": 0.9, "top_k": 17, "top_p": 0.95, "seed": 7},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [5], "seed": 8},
]


def build(name="gpt", settings=SIZES):
    """In double precision, with weights so large that the next token depends on all that was read."""
    cls, config, _ = MODELS[name]
    model = cls(config(**settings))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.double()


def source_for(name, rng):
    if name == "gpt":
        return None
    if name == "captioner":
        return torch.randint(256, (3, 12, 12), dtype=torch.uint8)
    return [rng.randrange(VOCAB) for _ in range(rng.randint(1, CONTEXT))]


def alone(model, prompt, sampling, source=None, ends=()):
    """What `generate` writes, and how it ends."""
    sources = None if source is None else [source]
    written = [step[0] for step in generate(model, [prompt], sampling, sources=sources, end=ends)]
    most = sampling.max_new_tokens
    if source is not None:
        most = min(most, 1 + CONTEXT - len(prompt))
    return written, "length" if len(written) == most else "stop"


class Listener:
    """Hears a job; does what is planned after so many tokens, or at the end."""

    def __init__(self, plan=None):
        self.tokens, self.plan, self.end, self.over = [], plan or {}, None, threading.Event()

    def __call__(self, what):
        assert self.end is None, "nothing comes after the end"
        if isinstance(what, Token):
            self.tokens.append(what)
        else:
            self.end = what
        for n in [n for n in self.plan if n == len(self.tokens) or self.end is not None]:
            for act in self.plan.pop(n):
                act()
        if self.end is not None:
            self.over.set()

    @property
    def ids(self):
        return [token.id for token in self.tokens]

    def wait(self):
        assert self.over.wait(30), "the job has no end"
        return self.ids, self.end


@pytest.fixture
def run():
    """Begins an engine, and ends it."""
    begun = []

    def begin(*args, **kw):
        begun.append(Engine(*args, **kw))
        return begun[-1]

    yield begin
    for one in begun:
        one.close(finish=False)
        assert not one._thread.is_alive()


class Gate(GPT):
    """Does a step when it is let to."""

    def __init__(self, c):
        super().__init__(c)
        self.pass_, self.calls = threading.Semaphore(0), []

    def start(self, *args):
        return self._call(super().start, args)

    def step(self, *args):
        return self._call(super().step, args)

    def _call(self, do, args):
        assert self.pass_.acquire(timeout=30)
        self.calls.append((do.__name__, *args[0].shape))
        return do(*args)


def opened(model):
    """Lets through whatever comes."""
    model.pass_.release(10_000)
    return model


# A job's tokens are its own


@every_case
def test_in_company_is_alone(name, settings, run, monkeypatch):
    """Jobs of all kinds come while others are under way, wait, are cancelled and end."""
    rng, model, ends = random.Random(3), build(name, settings), {1, 2}
    sizes, write = set(), Engine._write

    def watched(engine, logits):
        assert len(logits) == len(engine._rows) <= 4
        assert engine._state.length == max(job.length for job in engine._rows), "needless padding"
        sizes.add(len(logits))
        write(engine, logits)

    monkeypatch.setattr(engines, "READ", 37)
    monkeypatch.setattr(Engine, "_write", watched)
    engine = run(model, ends=ends, places=4)
    jobs, listeners, handles, cancelled = [], [], {}, {6: 3, 7: 1}
    for i in range(13):
        source = source_for(name, rng)
        prompt = [rng.randrange(TARGET) for _ in range(rng.randint(1, 2 * CONTEXT if source is None else 3))]
        how = Sampling(**HOWS[i % 3], max_new_tokens=rng.choice([2, 5, 3 * CONTEXT]))
        jobs.append((prompt, how, source))
        listeners.append(Listener())

    def begin(i):
        if i < len(jobs):
            prompt, how, source = jobs[i]
            handles[i] = engine.submit(prompt, how, listeners[i], source=source)

    def cancel(i):
        handles[i].cancel()
        listeners[i].over.set()

    for i, listener in enumerate(listeners):  # each brings another, after a while
        listener.plan[1 if i in cancelled else rng.randint(1, 5)] = [lambda i=i: begin(i + 5)]
        if i in cancelled:
            listener.plan.setdefault(cancelled[i], []).append(lambda i=i: cancel(i))
    for i in range(5):
        begin(i)
    for i, ((prompt, how, source), listener) in enumerate(zip(jobs, listeners, strict=True)):
        found = listener.wait()
        ids, end = alone(model, prompt, how, source, ends)
        if i in cancelled and len(ids) >= cancelled[i]:
            ids, end = ids[: cancelled[i]], None
        assert found == (ids, end)
    engine.close()
    assert engine.tokens == sum(len(listener.ids) for listener in listeners)
    assert engine.running == engine.waiting == 0
    assert max(sizes) > 2


def test_an_ensemble_writes_too(run):
    model = Ensemble([build(), build(settings={**SIZES, "positions": "alibi", "dim": 16})])
    engine, listeners = run(model), [Listener() for _ in range(3)]
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [3]]
    for prompt, listener in zip(prompts, listeners, strict=True):
        engine.submit(prompt, GREEDY, listener)
    assert [x.wait() for x in listeners] == [alone(model, prompt, GREEDY) for prompt in prompts]


def test_samples_have_dice_of_their_own(run):
    model, how = build(), Sampling(seed=11, max_new_tokens=7)
    engine, listeners = run(model), [Listener() for _ in range(3)]
    for sample, listener in enumerate(listeners):
        engine.submit([3, 1, 4], how, listener, sample=sample)
    found = [listener.wait()[0] for listener in listeners]
    rows = zip(*generate(model, [[3, 1, 4]], how, samples=3), strict=True)
    assert found == [list(row) for row in rows]
    unseeded = [Listener() for _ in range(2)]
    for listener in unseeded:
        engine.submit([3, 1, 4], Sampling(temperature=5.0, max_new_tokens=17), listener)
    assert unseeded[0].wait() != unseeded[1].wait()


def test_targets_that_fill_the_context_end_at_once(run):
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
        engine.submit([3, 1, 4][: k + 1], how, listener, likeliest=[0, 4, 99][k])
    for k, listener in enumerate(listeners):
        ids, _ = listener.wait()
        text = torch.tensor([[3, 1, 4][: k + 1] + ids])
        expected = model(text)[0, k:-1].float().log_softmax(-1)
        own = torch.tensor([token.logprob for token in listener.tokens])
        assert_close(own, expected.gather(1, torch.tensor(ids)[:, None])[:, 0])
        for token, row in zip(listener.tokens, expected, strict=True):
            best = row.topk([0, 4, VOCAB][k])
            assert [id for id, _ in token.likeliest] == best.indices.tolist()
            assert_close(torch.tensor([p for _, p in token.likeliest]), best.values, check_dtype=False)


# Places


def test_jobs_share_steps(run):
    torch.manual_seed(0)
    model = Gate(GPTConfig(**SIZES))
    engine, listeners = run(model, places=3), [Listener() for _ in range(4)]
    lengths = [2, 4, 3, 2]
    engine.submit([1], Sampling(max_new_tokens=2), listeners[0])
    for listener, n in zip(listeners[1:], lengths[1:], strict=True):
        engine.submit([1, 2], Sampling(max_new_tokens=n), listener)
    assert engine.waiting >= 1
    opened(model)
    for listener in listeners:
        assert listener.wait()[1] == "length"
    assert sum(rows for kind, rows, _ in model.calls if kind == "step") == sum(lengths) - 4
    assert engine.tokens == sum(lengths)
    assert engine.steps <= 5, "not one after the other"


def test_reading_is_bounded_while_others_write(run, monkeypatch):
    monkeypatch.setattr(engines, "READ", 10)
    model = Gate(GPTConfig(**SIZES))
    engine = run(model)
    listeners = [Listener() for _ in range(6)]
    for i, listener in enumerate(listeners):
        engine.submit([i] * (12 if i == 3 else 5), Sampling(max_new_tokens=9), listener)
    opened(model)
    for listener in listeners:
        listener.wait()
    reads = [(rows, length) for kind, rows, length in model.calls if kind == "start"]
    assert len(reads) >= 4
    assert all(rows == 1 or rows * length <= 10 for rows, length in reads)


def test_full_and_cancelled(run):
    model = Gate(GPTConfig(**SIZES))
    engine, listeners = run(model, places=2, queue=1), [Listener() for _ in range(4)]
    jobs = [engine.submit([1, 2], GREEDY, listener) for listener in listeners[:3]]
    with pytest.raises(Full, match="2 jobs are under way and 1 wait"):
        engine.submit([1, 2], GREEDY, listeners[3])
    jobs[2].cancel()
    jobs[0].cancel()
    engine.submit([1, 2], GREEDY, listeners[3])
    opened(model)
    assert listeners[3].wait()[1] == listeners[1].wait()[1] == "length"
    engine.close()
    assert listeners[0].tokens == listeners[2].tokens == []
    assert listeners[0].end is listeners[2].end is None
    assert engine.running == engine.waiting == 0


def test_what_cannot_be_is_refused_at_once(run):
    engine, pair = run(build()), run(build("t5", PAIR))
    for prompt, how, match in (
        ([], GREEDY, "empty"),
        ([VOCAB], GREEDY, "prompt has tokens beyond"),
        ([1], Sampling(suppress_tokens=[VOCAB]), "suppress_tokens"),
    ):
        with pytest.raises(ValueError, match=match):
            engine.submit(prompt, how, Listener())
    with pytest.raises(Mistake, match="num_beams=2"):
        engine.submit([1], Sampling(num_beams=2), Listener())
    for source in ([], [1] * (CONTEXT + 1)):
        with pytest.raises(ValueError, match="give from 1 to 13"):
            pair.submit([1], GREEDY, Listener(), source=source)
    assert engine.running + engine.waiting + pair.running + pair.waiting == 0


# What goes wrong


class Failing(Gate):
    """Fails when told to; may go mad about a token."""

    wrong = mad = None

    def start(self, prompt, real=None):
        if self.wrong == "start":
            self.wrong = None
            raise RuntimeError("no memory")
        return super().start(prompt, real)

    def step(self, ids, state):
        if self.wrong == "step":
            self.wrong = None
            raise RuntimeError("no memory")
        logits, state = super().step(ids, state)
        return logits.masked_fill(ids == self.mad, torch.nan) if self.mad is not None else logits, state


def test_a_crash_ends_what_is_under_way_and_no_more(run, caplog):
    model = Failing(GPTConfig(**SIZES))
    engine = run(model, places=2)
    breaks = {3: [lambda: setattr(model, "wrong", "step")]}
    listeners = [Listener(breaks), Listener(), Listener(), Listener()]
    with caplog.at_level(logging.CRITICAL):
        for listener in listeners:
            engine.submit([1, 2], GREEDY, listener)
        opened(model)
        for listener in listeners[:2]:
            ids, end = listener.wait()
            assert isinstance(end, Crashed)
            assert str(end) == "RuntimeError: no memory"
            assert 2 <= len(ids) <= 3
        for listener in listeners[2:]:
            assert listener.wait() == alone(model, [1, 2], GREEDY)


def test_prompts_that_cannot_be_read_leave_the_others_alone(run, caplog):
    model = opened(Failing(GPTConfig(**SIZES)))
    engine, bad = run(model), Listener()

    def comes():
        model.wrong = "start"
        engine.submit([4], GREEDY, bad)

    good = Listener({2: [comes]})
    with caplog.at_level(logging.CRITICAL):
        engine.submit([3], Sampling(temperature=0, max_new_tokens=9), good)  # less than the context
        assert isinstance(bad.wait()[1], Crashed)
    assert good.wait() == alone(model, [3], Sampling(temperature=0, max_new_tokens=9))


def test_nan_ends_the_row_that_has_it(run):
    model = opened(Failing(GPTConfig(**SIZES)).double())
    prompts = [[3, 1], [4], [5, 9, 2]]
    expected = [alone(model, prompt, GREEDY)[0] for prompt in prompts]
    model.mad = next(iter(set(expected[0][1:5]) - set(expected[1]) - set(expected[2])))
    engine, listeners = run(model), [Listener() for _ in prompts]
    for prompt, listener in zip(prompts, listeners, strict=True):
        engine.submit(prompt, GREEDY, listener)
    ids, end = listeners[0].wait()
    assert ids == expected[0][: expected[0].index(model.mad) + 1]
    assert isinstance(end, ValueError)
    assert "NaN" in str(end)
    assert [listener.wait() for listener in listeners[1:]] == [(text, "length") for text in expected[1:]]


def test_who_cannot_hear_is_dropped(run, caplog):
    def deaf(what):
        raise RuntimeError("the loop is closed")

    engine, listener = run(build()), Listener()
    with caplog.at_level(logging.CRITICAL):
        engine.submit([1], GREEDY, deaf)
        engine.submit([1], GREEDY, listener)
        assert listener.wait()[1] == "length"


def test_closing(run):
    for finish in (True, False):
        model = Gate(GPTConfig(**SIZES))
        engine, listeners = run(model, places=2), [Listener() for _ in range(3)]
        for listener in listeners:
            engine.submit([1], GREEDY, listener)
        closer = threading.Thread(target=engine.close, args=(finish,))
        closer.start()
        while engine._finish is None:
            pass
        with pytest.raises(Full, match="closed"):
            engine.submit([1], GREEDY, Listener())
        opened(model)
        closer.join(30)
        ends = [listener.wait()[1] for listener in listeners]
        if finish:
            assert ends == ["length"] * 3
        else:
            assert all(isinstance(end, Crashed) for end in ends)
        engine.close()


def test_jobs_from_many_threads(run):
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
        thread.join(30)
    found = dict(results.get() for _ in threads)
    assert found == {i: alone(model, [i, i + 1], GREEDY) for i in range(7)}


# States


@torch.no_grad()
def test_joined_states_go_on_as_each_would_and_keep_no_needless_padding():
    model = build()
    texts = [torch.randint(VOCAB, (2, 3)), torch.randint(VOCAB, (1, 7))]
    (_, a), (_, b) = (model.start(text) for text in texts)
    state = join(a, b)
    assert isinstance(state, State)
    assert state.real.sum(1).tolist() == [3, 3, 7]
    following = torch.tensor([[1], [2], [3]])
    logits, state = model.step(following, state)
    rows = [*texts[0], *texts[1]]
    for i, row in enumerate(rows):
        assert_close(logits[i], model(torch.cat([row, following[i]])[None])[0, -1])
    state.reorder(torch.tensor([1, 0]))
    trim(state, [4, 4])
    assert (state.length, state.real) == (4, None)
    logits, _ = model.step(following[:2], state)
    for i, row in enumerate((1, 0)):
        assert_close(logits[i], model(torch.cat([rows[row], following[row], following[i]])[None])[0, -1])


@pytest.mark.parametrize(("name", "settings"), [("t5", PAIR), ("gru", RECURRENT)])
@torch.no_grad()
def test_sources_keep_no_needless_padding(name, settings):
    model = build(name, settings)
    sources = [torch.randint(VOCAB, (2, 3)), torch.randint(VOCAB, (1, 7))]
    (_, a), (_, b) = (model.start(source, torch.ones(len(source), 2, dtype=torch.long)) for source in sources)
    state = join(a, b)
    state.reorder(torch.tensor([0, 1]))
    trim(state, [2, 2], [3, 3])
    assert (state.source_real if name == "t5" else state.real) is None
    logits, _ = model.step(torch.tensor([[4], [5]]), state)
    assert_close(logits, model(sources[0], torch.tensor([[1, 1, 4], [1, 1, 5]]))[:, -1])
