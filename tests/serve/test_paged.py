"""The batch of a model that writes on a GPU, here with plain operations: what `generate` gives, too."""

import random
import threading
from typing import Any

import pytest
import torch

from regard.decode import runners
from regard.decode.generate import generate
from regard.decode.runner import Runner
from regard.decode.sampling import Sampling
from regard.models import MODELS
from regard.serve.batch import EngineError, TokenOutput
from regard.serve.engine import Engine
from regard.serve.paged import PagedBatch

VOCAB, CONTEXT, ENDS = 31, 40, {1, 2}
SIZES = {"vocab": VOCAB, "context": CONTEXT, "dim": 24, "heads": 2, "dropout": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "gpt": {"depth": 2},
    "transformer": {"depth": 1},
    "t5": {"depth": 1},
    "captioner": {"decoder": "transformer", "size": 12},
}
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 0.9, "top_k": 17, "top_p": 0.95, "seed": 7},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "seed": 8},
]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if models on the CPU were on a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda t: True))


def build(name: str) -> Any:
    torch.manual_seed(3)
    cls, config, _ = MODELS[name]
    model = cls(config(**SIZES | CASES[name]))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    runners.set_dtype(model, torch.float32)
    return model.eval()


class Listener:
    def __init__(self) -> None:
        self.tokens: list[Any] = []
        self.end: Any = None
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, output: Any) -> None:
        if isinstance(output, int | TokenOutput):
            self.tokens.append(output)
            self.begun.set()
        else:
            self.end = output
            self.over.set()

    def wait(self) -> tuple[list[Any], Any]:
        assert self.over.wait(60), "the request does not end"
        return self.tokens, self.end


@pytest.mark.parametrize("name", CASES)
def test_requests_get_what_they_get_alone(name: str, on_gpu: None) -> None:
    rng, model = random.Random(3), build(name)
    engine = Engine(model, stop_ids=ENDS, places=4)
    requests, listeners = [], []
    for i in range(10):
        source: Any = None
        if name != "gpt":
            source = [rng.randrange(VOCAB) for _ in range(rng.randint(1, CONTEXT))]
        if name == "captioner":
            source = torch.randint(256, (3, 12, 12), dtype=torch.uint8)
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, CONTEXT if source is None else 3))]
        how = Sampling(**SAMPLINGS[i % 3], max_new_tokens=rng.choice([2, 5, 30]))  # type: ignore[arg-type]
        requests.append((prompt, how, source))
        listeners.append(Listener())
        engine.submit(prompt, how, listeners[-1], source=source)
    answers = [listener.wait() for listener in listeners]
    assert isinstance(engine._batch, PagedBatch)
    engine.close()
    for (prompt, how, source), (ids, end) in zip(requests, answers, strict=True):
        sources = None if source is None else [source]
        steps = generate(model, [prompt], how, sources=sources, end=ENDS, cached=False)
        expected = [step[0] for step in steps]
        limit = how.max_new_tokens if source is None else min(how.max_new_tokens, 1 + CONTEXT - len(prompt))
        assert (ids, end) == (expected, "length" if len(expected) == limit else "stop")
    assert engine.tokens == sum(len(ids) for ids, _ in answers)


def test_log_probabilities_come_with_tokens(on_gpu: None) -> None:
    engine, listener, plain = Engine(build("gpt"), places=2), Listener(), Listener()
    engine.submit([3], Sampling(max_new_tokens=5, temperature=0), listener, top_logprobs=2)
    engine.submit([3], Sampling(max_new_tokens=5, temperature=0), plain)
    tokens, _ = listener.wait()
    assert [token.id for token in tokens] == plain.wait()[0]
    for token in tokens:
        assert token.top_logprobs[0] == (token.id, pytest.approx(token.logprob, abs=1e-5))
        assert len(token.top_logprobs) == 2
    engine.close()


def test_cancelled_requests_leave(on_gpu: None) -> None:
    engine, listener, other = Engine(build("gpt"), places=1), Listener(), Listener()
    request = engine.submit([3], Sampling(max_new_tokens=10_000, temperature=0), listener)
    waiting = engine.submit([4], Sampling(max_new_tokens=3, temperature=0), other)
    assert listener.begun.wait(60)
    request.cancel()
    other.wait()
    assert not listener.over.is_set()
    assert not waiting.closed or other.end == "length"
    engine.close()
    runner = engine._batch.runner  # type: ignore[attr-defined]
    assert runner.pool.free == len(runner.pool.users)


def test_a_failed_step_ends_its_requests_only(on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, failing, later = Engine(build("gpt"), places=1), Listener(), Listener()
    step, broken = Runner.step, [True]

    def fail_once(runner: Runner) -> Any:
        if broken:
            broken.pop()
            raise RuntimeError("CUDA error")
        return step(runner)

    monkeypatch.setattr(Runner, "step", fail_once)
    engine.submit([3], Sampling(max_new_tokens=3, temperature=0), failing)
    engine.submit([3], Sampling(max_new_tokens=3, temperature=0), later)
    assert isinstance(failing.wait()[1], EngineError)
    assert later.wait()[1] == "length"
    assert engine.restarts == 1
    engine.close()


def test_requests_fail_alone_on_infinite_logits(on_gpu: None) -> None:
    model = build("gpt")
    with torch.no_grad():
        model.embed.weight[9] = float("nan")
        model.head = torch.nn.Linear(24, VOCAB, bias=False)
    engine, bad, good = Engine(model, places=2), Listener(), Listener()
    engine.submit([9], Sampling(max_new_tokens=3, temperature=0), bad)
    engine.submit([3], Sampling(max_new_tokens=3, temperature=0, suppress_tokens=(9,)), good)
    assert isinstance(bad.wait()[1], ValueError)
    assert good.wait()[1] == "length"
    engine.close()
