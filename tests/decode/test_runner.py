"""The runner writes what `generate` writes plainly, whatever the company, the pages and the order."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench.equality import GPTS as COMPARED_GPTS
from bench.equality import make_noisy
from torch import nn

from regard.cancel import make_cancellable
from regard.core.cache import State
from regard.decode import runners
from regard.decode.buffers import Text
from regard.decode.generate import generate
from regard.decode.kernels import plain
from regard.decode.runner import Output, Runner
from regard.decode.sampling import Sampling, row_generator, row_rules
from regard.decode.steps import PAGE
from regard.errors import UserError
from regard.models import GPT, Captioner, CaptionerConfig, GPTConfig, Transformer, TransformerConfig
from regard.models.t5 import T5Config

CONTEXT, VOCAB, ENDS = 70, 40, (3, 4, 5)
SIZES: dict[str, Any] = {"vocab": VOCAB, "dim": 32, "heads": 4, "depth": 2, "context": CONTEXT}
GPTS: dict[str, dict[str, Any]] = COMPARED_GPTS | {
    "sliding window": {"sliding_window": 7},
    "qwen3": {"qk_norm": True, "head_dim": 16, "tied": False},
    "no positions": {"positions": "none", "ffn": "relu"},
}
ENCODER_DECODERS = {
    "transformer": TransformerConfig(**SIZES),
    "pre-norm": TransformerConfig(**SIZES, pre=True, ffn="swiglu", norm="rms", output_bias=True),
    "deep": TransformerConfig(**SIZES, decoder_depth=1, target_vocab=31, positions="rotary"),
    "t5": T5Config(**SIZES),
}
GREEDY = Sampling(max_new_tokens=40, temperature=0)
OPTIONS = {
    "greedy": GREEDY,
    "sampled": Sampling(max_new_tokens=40, seed=3),
    "filtered": Sampling(max_new_tokens=40, temperature=0.9, top_k=9, top_p=0.8, min_p=0.02, seed=3),
    "top_p": Sampling(max_new_tokens=40, temperature=0.9, top_p=0.8, seed=3),
    "suppressed": Sampling(max_new_tokens=40, seed=3, suppress_tokens=[9, 0, 12]),
    "by text": Sampling(max_new_tokens=20, temperature=0.9, repetition_penalty=1.3, seed=3),
}


noisy = partial(make_noisy, scale=0.3)


def make_gpt(name: str) -> GPT:
    torch.manual_seed(0)
    return noisy(GPT(GPTConfig(**SIZES | GPTS[name])))


def make_prompts(count: int, longest: int = CONTEXT) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(8, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def make_texts(prompts: list, sampling: Sampling, sources: list | None = None) -> list[Text]:
    asked = prompts if sources is None else [[*s, *p] for s, p in zip(sources, prompts, strict=True)]
    limit = sampling.max_new_tokens if sources is None else min(sampling.max_new_tokens, CONTEXT)
    return [
        Text(list(p), sampling, row_generator(sampling.seed or 0, 0, a), limit, sources and sources[i])
        for i, (p, a) in enumerate(zip(prompts, asked, strict=True))
    ]


def write(runner: Runner, texts: list[Text]) -> list[list[Output]]:
    outputs: dict[Text, list[Output]] = {text: [] for text in texts}
    for text in texts:
        runner.add(text)
    for _ in range(3000):
        if runner.idle:
            break
        for output in runner.step():
            outputs[output.text] += [output] if output.token not in ENDS else []
            if output.token in ENDS or output.last:
                runner.remove(output.text)
    assert runner.idle
    assert runner.pool.free == len(runner.pool.users)  # every page is given back
    return list(outputs.values())


def tokens(outputs: list[list[Output]]) -> list[list[int]]:
    return [[output.token for output in row] for row in outputs]


def write_plainly(model: Any, prompts: list, sampling: Sampling, sources: list | None = None) -> list:
    rows: list[list[int]] = [[] for _ in prompts]
    for step in generate(model, prompts, sampling, sources=sources, end=ENDS):
        for row, token in zip(rows, step, strict=True):
            row += [] if token is None else [token]
    return rows


CASES = [(name, "greedy") for name in GPTS] + [(name, o) for name in ("llama", "gpt2") for o in OPTIONS]


@pytest.mark.parametrize(("name", "options"), dict.fromkeys(CASES))
def test_writes_as_plainly(name: str, options: str) -> None:
    model, prompts = make_gpt(name), make_prompts(6)
    expected = write_plainly(model, prompts, OPTIONS[options])
    assert len(set(map(tuple, expected))) > 1
    runner = Runner(model, slots=4)
    assert tokens(write(runner, make_texts(prompts, OPTIONS[options]))) == expected


@pytest.mark.parametrize("options", ["greedy", "sampled"])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_writes_answers_to_sources(name: str, options: str) -> None:
    torch.manual_seed(0)
    model = noisy(Transformer(ENCODER_DECODERS[name]))
    sources, prompts = make_prompts(6), [[1], [1, 9], [1], [1, 2, 3], [1], [1]]
    for group in ([0, 2, 4, 5], [1], [3]):  # plainly, prompts of a batch are equally long
        chosen, read = [prompts[i] for i in group], [sources[i] for i in group]
        expected = write_plainly(model, chosen, OPTIONS[options], read)
        runner = Runner(model, slots=2)
        assert tokens(write(runner, make_texts(chosen, OPTIONS[options], read))) == expected


def test_writes_captions() -> None:
    torch.manual_seed(0)
    config = CaptionerConfig(vocab=VOCAB, dim=32, heads=4, context=16, size=32, decoder="transformer")
    model = noisy(Captioner(config))
    images = [torch.randint(256, (3, 32, 32), dtype=torch.uint8) for _ in range(3)]
    sampling = Sampling(max_new_tokens=12, temperature=0)
    expected = write_plainly(model, [[1]] * 3, sampling, images)
    texts = [Text([1], sampling, row_generator(0, 0, [1]), 12, image) for image in images]
    assert tokens(write(Runner(model, slots=2), texts)) == expected


def test_few_pages_change_nothing() -> None:
    model, prompts = make_gpt("llama"), make_prompts(8)
    sampling = OPTIONS["sampled"]
    expected = write_plainly(model, prompts, sampling)
    runner = Runner(model, slots=8, pages=4)  # three for a whole context: texts have to make room for others
    requeued = []
    before = runner._requeue
    runner._requeue = lambda texts: (requeued.extend(texts), before(texts))[1]  # type: ignore[method-assign]
    assert tokens(write(runner, make_texts(prompts, sampling))) == expected
    assert requeued


def test_shared_beginnings_are_read_once() -> None:
    model, beginning = make_gpt("gpt2"), make_prompts(1, 2)[0] * (PAGE + 5)
    prompts = [[*beginning, i] for i in range(8, 12)]
    sampling = Sampling(max_new_tokens=10, temperature=0)
    expected = write_plainly(model, prompts, sampling)
    runner = Runner(model, slots=1)
    read: list[int] = []
    plain = runner.steps.read
    runner.steps.read = lambda rows, R: (read.append(rows.shape[1]), plain(rows, R))[1]  # type: ignore[method-assign]
    assert tokens(write(runner, make_texts(prompts, sampling))) == expected
    assert read == [PAGE + 5, 5, 5, 5]


def test_a_finished_text_is_known() -> None:
    """The next turn of a conversation begins with all of the last one."""
    model = make_gpt("llama")
    runner, sampling = (
        Runner(model, slots=1),
        Sampling(max_new_tokens=PAGE + 10, temperature=0, suppress_tokens=ENDS),
    )
    (first,) = make_texts([[9, 10]], sampling)
    write(runner, [first])
    assert len(runner.pool.lookup(first.ids)) == 1


@pytest.mark.parametrize("options", ["greedy", "sampled", "filtered"])
def test_guesses_change_nothing(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = make_gpt("gpt2"), [[9, 10, 11] * 8, *make_prompts(3)]
    plain = replace(OPTIONS[options], max_new_tokens=90)
    expected = tokens(write(Runner(model, slots=3), make_texts(prompts, plain)))
    steps: list[int] = []
    monkeypatch.setattr("regard.decode.runner.ROWS", (1, 2, 4))
    monkeypatch.setattr("regard.decode.runner.READ", (4, 16))  # fewer rows than there may be guesses
    runner = Runner(model, slots=3)
    check = runner.steps.check
    runner.steps.check = lambda *rows: (steps.append(1), check(*rows))[1]  # type: ignore[method-assign]
    sampling = replace(plain, prompt_lookup_num_tokens=5)
    assert tokens(write(runner, make_texts(prompts, sampling))) == expected
    assert steps


def test_right_guesses_save_steps() -> None:
    model, sampling = make_gpt("no positions"), replace(GREEDY, prompt_lookup_num_tokens=5)
    runner, steps = Runner(model, slots=1), []
    check = runner.steps.check
    runner.steps.check = lambda *rows: (steps.append(1), check(*rows))[1]  # type: ignore[method-assign, func-returns-value]
    (row,) = tokens(write(runner, make_texts([[9, 10, 11] * 4], sampling)))
    assert len(steps) < 0.7 * len(row)


def test_texts_of_all_kinds_write_as_alone() -> None:
    """Those whose tokens the host chooses, or guesses at, have steps of their own."""
    model, beginning = make_gpt("gpt2"), [9, 10, 11] * 8
    samplings = [
        *OPTIONS.values(),
        replace(OPTIONS["sampled"], prompt_lookup_num_tokens=5),
        Sampling(max_new_tokens=40, seed=3, logit_bias=[(9, 4.0)], frequency_penalty=0.5),
        replace(GREEDY, max_new_tokens=5),
    ]

    def make(i: int) -> Text:
        (text,) = make_texts([[*beginning, 12 + i]], samplings[i].without_rules())
        rules = row_rules(samplings[i], len(text.ids), ENDS, text.limit)
        return replace(text, rules=rules, top_logprobs=2 * (i == len(samplings) - 1))

    alone = [write(Runner(model, slots=1), [make(i)])[0] for i in range(len(samplings))]
    runner, by_kind = Runner(model, slots=9, pages=18), dict[str, list[int]]()

    def counted(name: str, step: Any) -> Any:
        def count(*args: Any) -> Any:
            used = runner.buffers.numbers[1] >= 0 if name == "generate" else args[0][1] >= 0
            by_kind.setdefault(name, []).append(int(used.sum()))
            return step(*args)

        return count

    for name in ("generate", "logits", "check"):
        setattr(runner.steps, name, counted(name, getattr(runner.steps, name)))
    together = write(runner, [make(i) for i in range(len(samplings))])
    assert tokens(together) == tokens(alone)
    for a, b in zip(together[-1], alone[-1], strict=True):
        assert [i for i, _ in a.top] == [i for i, _ in b.top]
    assert max(by_kind["generate"]) == 5
    assert max(by_kind["logits"]) == 3


def test_removed_texts_leave_the_others_alone() -> None:
    model, prompts = make_gpt("llama"), make_prompts(4)
    expected = write_plainly(model, prompts, GREEDY)
    runner, texts = Runner(model, slots=4), make_texts(prompts, GREEDY)
    for text in texts:
        runner.add(text)
    streamed: list[list[int]] = [[] for _ in texts]
    for n in range(100):
        for output in runner.step():
            streamed[texts.index(output.text)].append(output.token)
            if output.last:
                runner.remove(output.text)
        if n == 3:
            runner.remove(texts[1])
    assert len(streamed[1]) < 5
    for i in (0, 2, 3):
        assert streamed[i][: len(expected[i])] == expected[i]


def test_log_probabilities_are_the_models() -> None:
    model, (prompt, *_) = make_gpt("gpt2"), make_prompts(1, 20)
    for top, suppressed in ((0, ()), (0, (9, 10)), (3, ())):
        (text,) = make_texts([prompt], Sampling(max_new_tokens=8, seed=1, suppress_tokens=suppressed))
        text = replace(text, top_logprobs=top)
        (outputs,) = write(Runner(model, slots=1), [text])
        with torch.no_grad():
            logprobs = model(torch.tensor([text.ids]))[0].log_softmax(-1)
        for n, output in enumerate(outputs):
            row = logprobs[len(prompt) - 1 + n]
            assert output.logprob == pytest.approx(float(row[output.token]), abs=1e-4)
            assert [i for i, _ in output.top] == row.topk(top).indices.tolist()


def test_infinite_logits_are_reported() -> None:
    model = make_gpt("llama")
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    for sampling in (GREEDY, OPTIONS["sampled"], OPTIONS["by text"]):
        for rules in (None, row_rules(Sampling(logit_bias=[(9, 1.0)]), 1, ENDS, 40)):
            runner, (text,) = Runner(model, slots=1), make_texts([[9]], sampling)
            runner.add(replace(text, rules=rules))
            outputs = runner.step() + runner.step()
            assert outputs[0].token == -1


def test_unknown_parts_are_refused() -> None:
    model = make_gpt("llama")
    model.blocks[0].ffn.f.down = nn.Sequential(nn.Linear(64, 32), nn.Tanh())
    with pytest.raises(ValueError, match="pages"):
        Runner(model)


# The runners of models


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if models on the CPU were on a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda t: True))


def test_generate_by_a_runner(on_gpu: None) -> None:
    model, prompts = make_gpt("llama"), make_prompts(5)
    runners.set_dtype(model, torch.float32)
    for sampling in OPTIONS.values():
        steps = list(generate(model, prompts, sampling, end=ENDS, samples=2))
        plain = list(generate(model, prompts, sampling, end=ENDS, samples=2, cached=False))
        for row in range(10):
            written = [[step[row] for step in each if step[row] is not None] for each in (steps, plain)]
            assert written[0] == written[1]
    assert model in runners._entries


def test_a_runner_follows_its_model(on_gpu: None) -> None:
    model = make_gpt("llama")
    runners.set_dtype(model, torch.float32)
    with runners.borrow_runner(model, 1) as first, runners.borrow_runner(model, 1) as second:
        assert first is not None
        assert second is None  # one user at a time
    with runners.borrow_runner(model, 1) as again:
        assert again is first
    with torch.no_grad():
        model.blocks[0].ffn.f.down.weight.mul_(2)  # type: ignore[union-attr]
    with runners.borrow_runner(model, 1) as changed:
        assert changed is not first
    with runners.borrow_runner(model, 5) as larger:
        assert larger is not None
        assert larger is not changed
    with pytest.raises(UserError), runners.borrow_runner(model, 1):
        raise UserError("a failure")
    assert model not in runners._entries  # what a failed one holds may be anything


def test_watched_changed_and_trained_models_write_plainly(on_gpu: None) -> None:
    model = make_gpt("llama")
    assert runners.can_run(model)
    make_cancellable(model)
    assert runners.can_run(model)
    with runners.borrow_runner(model, 1) as runner:
        assert runner is not None
    handle = model.embed.register_forward_hook(lambda *_: None)
    assert not runners.can_run(model)
    handle.remove()
    assert not runners.can_run(model.train())


class OwnLoop(GPT):
    """Calls its blocks one by one."""

    def hidden(self, ids: torch.Tensor, state: State | None = None) -> torch.Tensor:
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, **(state.of_layer(i) if state else {}))
        return self.norm(x)

    decode = hidden


def test_models_that_call_their_blocks_otherwise_write_plainly(on_gpu: None) -> None:
    model = noisy(OwnLoop(GPTConfig(**SIZES, positions="none")))
    steps = list(generate(model, [[9, 10]], GREEDY))
    assert len(steps) == GREEDY.max_new_tokens
    assert model not in runners._entries


def test_kernels_that_differ_are_not_used(on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_residual(*args: Any) -> torch.Tensor:
        return plain.linear_residual(*args) - args[3]

    wrong = SimpleNamespace(**vars(plain) | {"linear_residual": forget_residual})
    for kernels, right in ((plain, True), (wrong, False)):
        monkeypatch.setattr("regard.decode.kernels.for_device", lambda device, kernels=kernels: kernels)
        assert (runners.make_runner(make_gpt("gpt2"), 1) is not None) == right


def test_models_on_a_cpu_write_plainly() -> None:
    assert not runners.can_run(make_gpt("llama"))


def test_models_write_in_bfloat16_unless_told_otherwise(on_gpu: None) -> None:
    for dtype in (None, torch.float32):
        model = make_gpt("llama")
        if dtype is not None:
            runners.set_dtype(model, dtype)
        with runners.borrow_runner(model, 1) as runner:
            assert runner is not None
            assert runner.steps.dtype == (dtype or torch.bfloat16)
        assert next(model.parameters()).dtype == torch.float32  # what else is computed with it stays exact


@pytest.mark.parametrize("name", ["sample", "copy_pages", "paged_attention"])
def test_operations_that_do_something_else_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Runner(make_gpt("llama"), 2).steps
    assert steps.try_out()
    wrong: dict[str, Any] = {
        "sample": lambda logits, *args: (logits.argmin(-1), logits[:, 0]),
        "copy_pages": lambda *args: None,
        "paged_attention": lambda q, *args: q,
    }
    attributes = {key: getattr(plain, key) for key in dir(plain) if not key.startswith("_")}
    steps.kernels = SimpleNamespace(**attributes | {name: wrong[name]})
    steps.fused.use(steps.kernels)
    assert not steps.try_out()
