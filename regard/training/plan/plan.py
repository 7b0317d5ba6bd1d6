"""The plan of a run: every setting that was not given, and the reason for it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from regard.models import MODELS
from regard.training.plan import precision, rules
from regard.training.plan.built_in import BUILT_IN
from regard.training.plan.finetune import choose_weights
from regard.training.plan.rules import Size
from regard.training.plan.sizes import SHARE, Request, evaluation_seconds, fine_passes, scale_cost, sizes
from regard.training.plan.speed import Cost, Row, cost_of, free_units, memory_of, overhead, step_seconds

STREAMS = ("write", "fill", "restore", "words")  # running text
ROWS = ("see", "hear", "caption")  # counted in rows instead of tokens
USABLE = 0.8  # of the memory
AVERAGED = 200  # from this many steps on, the moving average of the loss is better than the last one
EVALUATED = 4000  # from this many given steps on, evaluations are as frequent as the plan advises
COMPILED = 3.0  # minutes of a run that is compiled on a GPU, see compilation.pays


@dataclass(frozen=True)
class Candidate:
    """A model size for these data, and the amount of data that it reads."""

    settings: dict[str, Any]  # of [model]
    size: Size
    units: float  # of the data
    row: float  # units of a row
    batch: float  # units of a step
    readable: float  # units in the given time or steps


@dataclass
class Plan:
    """The chosen settings, the reasons, and the expected cost."""

    request: Request
    settings: dict[str, Any] = field(default_factory=dict)  # by SECTION.NAME, if not given
    reasons: dict[str, str] = field(default_factory=dict)
    steps: int = 0  # expected, if the clock decides
    candidate: Candidate | None = None
    bound: str = ""  # what a larger model would be too large for
    data: list[str] = field(default_factory=list)  # facts about the data, in a few lines
    advised: dict[str, Any] = field(default_factory=dict)  # also what was given by hand

    def choose(self, key: str, value: Any, reason: str) -> None:
        """Choose a setting, unless it was given or chosen before."""
        self.advised.setdefault(key, value)
        if key not in self.request.by_hand and key not in self.settings and value is not None:
            self.settings[key], self.reasons[key] = value, reason

    def get(self, key: str, default: Any = None) -> Any:
        return self.request.by_hand.get(key, self.settings.get(key, default))

    def section(self, name: str) -> dict[str, Any]:
        """All settings of a section, given and chosen."""
        both = self.settings | dict(self.request.by_hand)
        return {key.partition(".")[2]: value for key, value in both.items() if key.startswith(f"{name}.")}

    def model_settings(self) -> dict[str, Any]:
        """Settings of [model], including the preset's."""
        own = self.section("model")
        own.pop("kind", None)
        return dict(MODELS[self.request.kind][2].get(own.pop("preset", ""), {})) | own

    @cached_property
    def cost(self) -> Cost:
        return self.request.teaching.added_to(self.cost_of({}, self.model_settings()))

    def cost_of(self, size: dict[str, Any], model: dict[str, Any]) -> Cost:
        """The cost of a model with these settings, without teachers."""
        _, row, fixed = rows_of(self, size)
        frozen = self.get("train.freeze", model.get("encoder") == "efficientnet" and not self.request.gpu)
        return cost_of(self.request.kind, model, fixed, row, self.by_muon, bool(frozen))

    @property
    def by_muon(self) -> bool:
        default = "adamw" if self.request.facts.built_in else self.request.advice.optimizer
        return bool(self.get("train.optimizer", default) == "muon")

    @property
    def batch(self) -> float:
        """Units of a step."""
        row = rows_of(self)[1].units
        tokens, rows = self.get("train.tokens"), float(self.get("train.batch", 12))
        if self.request.task in ROWS:
            return rows
        return rows * row if tokens is None else float(tokens)

    @property
    def passes(self) -> float:
        return self.steps * self.batch / rows_of(self)[0]

    @property
    def readings(self) -> int:
        """How often a step reads its rows."""
        return 2 if self.get("task.r_drop") else 1

    def seconds(self) -> float:
        """The time that the run takes."""
        machine, minutes = self.request.machine, self.get("train.minutes")
        assert machine is not None
        compiled = self.is_compiled()
        seconds = self.readings * self.steps * step_seconds(machine, self.cost, self.batch, compiled) / SHARE
        evaluations = max(1, self.steps // int(self.get("train.evaluate") or self.steps or 1))
        seconds += evaluations * evaluation_seconds(self.request, self.cost, rows_of(self)[0])
        seconds = (1 + int(self.get("train.folds") or 0)) * (seconds + precision.startup(machine, compiled))
        if minutes is None:
            return seconds + self.request.teaching.seconds
        return min(seconds + self.request.teaching.seconds_of(minutes), 60 * minutes)

    def is_compiled(self) -> bool:
        """Return whether training compiles its steps; on a GPU, see compilation.should_compile."""
        if not self.request.gpu:
            return bool(self.get("train.compile") == "on")
        steps, minutes = self.get("train.steps"), self.get("train.minutes")
        has_fixed_shapes = self.request.task in (*STREAMS, "see", "hear")
        if steps:
            return steps >= (5000 if has_fixed_shapes else 50_000)
        return (minutes or 0) >= (COMPILED if has_fixed_shapes else 15)

    def memory(self) -> float:
        """The largest number of bytes that are used; on a CPU, the data's are included."""
        assert self.request.machine is not None
        batch = self.batch
        if (micro := self.get("train.micro")) is not None:
            batch = min(batch, micro * rows_of(self)[1].units)
        facts = self.request.facts
        varies = self.get("train.precision") == "bf16" and self.request.task not in precision.STATIC
        data = overhead(facts.characters, self.steps * varies) + facts.rows * facts.channels * facts.size**2
        step = memory_of(self.request.machine, self.cost, batch, vocab_of(self), self.by_muon)
        return step if self.request.gpu else step + data


def make_plan(request: Request) -> Plan:
    """Choose all settings that were not given."""
    plan = Plan(request := precision.use_bf16(request))
    if request.facts.built_in and request.minutes is None:
        for key, value in BUILT_IN[request.task].items():
            if request.own_kind or not key.startswith("model.") or key == "model.preset":
                plan.choose(key, value, "as measured for the built-in data")
        plan.steps = int(plan.get("train.steps"))
        return plan
    for name, value in rules.choose_tokenizer(request.task, request.facts).items():
        plan.choose(f"data.{name}", value, f"for {request.facts.characters:,} characters")
    candidate = choose_size(plan)
    for name, value in candidate.settings.items():
        plan.choose(
            f"model.{name}",
            value,
            f"for {candidate.units:.2g} units of data, {candidate.readable:.2g} readable",
        )
    plan.steps = choose_steps(plan, candidate)
    choose_rates(plan, candidate)
    precision.choose_precision(plan)
    return plan


# Size


def choose_size(plan: Plan) -> Candidate:
    """The largest model that fits the data, the time and the memory; if none does, the smallest."""
    request, advice = plan.request, plan.request.advice

    def complete_settings(size: dict[str, Any]) -> dict[str, Any]:
        """All settings of a model of this size, which may be a preset."""
        preset = MODELS[request.kind][2].get(size.get("preset", ""), {})
        return preset | {k: v for k, v in size.items() if k != "preset"} | plan.model_settings()

    best: Candidate | None = None
    like: tuple[Cost, Size] | None = None  # the smallest one's cost, from which the others are derived
    for size, settings in sizes(request):
        settings = settings | shape_settings(plan, settings)
        if like is None and request.steps is None:
            like = plan.cost_of(settings, complete_settings(settings)), size
        cost = None if like is None else request.teaching.added_to(scale_cost(*like, size, request.kind))
        candidate = measure(plan, settings, size, cost)
        allowed = advice
        if size.dim <= advice.dim:  # enough for most data, if there is some time
            per_weight = 0.0 if request.steps is not None else advice.units_per_weight / 2
            allowed = replace(advice, weights_per_unit=math.inf, units_per_weight=per_weight)
        weights = size.weights(request.kind)
        bound = rules.too_large_for(allowed, weights, candidate.units, candidate.readable)
        if not bound and cost is not None and request.machine is not None:
            memory = memory_of(request.machine, cost, candidate.batch, vocab_of(plan), plan.by_muon)
            bound = "the memory" if memory > USABLE * request.machine.memory else ""
        if bound and best is not None:
            plan.bound = bound
            break
        best = candidate
    assert best is not None
    if request.steps is not None:
        return best
    exact = plan.cost_of(best.settings, complete_settings(best.settings))
    return measure(plan, best.settings, best.size, request.teaching.added_to(exact))


def shape_settings(plan: Plan, size: dict[str, Any]) -> dict[str, Any]:
    """Settings of a model that follow from its size and the data."""
    request, facts = plan.request, plan.request.facts
    fields = MODELS[request.kind][1].__dataclass_fields__
    chosen: dict[str, Any] = {}
    if "context" in fields and request.task != "words":
        chosen["context"] = context_of(plan, int(plan.get("model.dim", size.get("dim", 128))))
    if request.task == "see":
        chosen["patch"] = rules.choose_patch(facts.size, request.gpu, fine_passes(request))
    if request.task == "caption":
        chosen |= rules.choose_encoder(facts)
    return chosen


def measure(plan: Plan, settings: dict[str, Any], size: Size, cost: Cost | None) -> Candidate:
    """The amount that a model of this size reads, in total and in a step."""
    request, advice = plan.request, plan.request.advice
    units, row, _ = rows_of(plan, settings)
    limit = rules.choose_passes(advice, units, math.inf) * units
    batch = given_batch(plan, row.units)
    if request.steps is not None or cost is None:  # batch = c √(steps batch)
        steps = request.steps or advice.steps
        own = min(advice.batch[request.gpu] ** 2 * steps, limit / steps)
        batch = batch or rules.choose_batch(
            advice, own**2 / advice.batch[request.gpu] ** 2, row.units, request.gpu
        )
        return Candidate(settings, size, units, row.units, batch, steps * batch)
    assert request.machine is not None
    minutes, seconds = request.minutes or rules.DEFAULT_MINUTES, seconds_to_train(plan)
    readable, one = limit, evaluation_seconds(request, cost, units)
    free = 0.0 if request.gpu else min(free_units(request.machine, cost), units / 8)
    for _ in range(4):  # the batch depends on the total, and the total on the batch
        step = batch or rules.choose_batch(advice, min(readable, limit), row.units, request.gpu, free)
        times = rules.count_evaluations(min(readable, limit) / units, one / seconds)
        left = max(0.3 * seconds, seconds - times * one)
        readable = left / step_seconds(request.machine, cost, step, minutes >= COMPILED) * step
    return Candidate(settings, size, units, row.units, step, readable)


def seconds_to_train(plan: Plan) -> float:
    """The time that remains for steps."""
    minutes = plan.request.minutes or rules.DEFAULT_MINUTES
    assert plan.request.machine is not None
    compiled = minutes >= COMPILED if plan.request.gpu else precision.compiling_pays(plan.request)
    before = precision.startup(plan.request.machine, compiled) + plan.request.teaching.seconds_of(minutes)
    return SHARE * max(18 * minutes, 60 * minutes - before)


def given_batch(plan: Plan, row: float) -> float | None:
    """Units of a step, if the batch was given."""
    tokens, batch = plan.get("train.tokens"), plan.get("train.batch")
    if tokens is not None and plan.request.task not in ROWS:
        return float(tokens)
    return None if batch is None else batch * (1.0 if plan.request.task in ROWS else row)


# The data as a model reads them


def context_of(plan: Plan, dim: int) -> int:
    facts, vocab = plan.request.facts, vocab_of(plan)
    kind, target_kind = tokenizers_of(plan)
    lengths = [
        side.longest * rules.tokens_of(side, name, vocab) / max(1, side.characters)
        for side, name in ((facts.source, kind), (facts.target, target_kind))
    ]
    context = rules.choose_context(plan.request.task, max(lengths), dim, plan.request.gpu)
    tokens = facts.tokens or rules.tokens_of(facts.source, kind, vocab)
    if plan.request.task == "write" and tokens < 4 * context:  # a text of a few lines, or one
        return max(8, rules.round_power(tokens / 8))
    return context


def tokenizers_of(plan: Plan) -> tuple[str, str]:
    kind = str(plan.get("data.tokenizer") or "bpe")
    return kind, str(plan.get("data.target_tokenizer") or kind)


def vocab_of(plan: Plan) -> int:
    """The approximate number of different tokens."""
    facts, (kind, _) = plan.request.facts, tokenizers_of(plan)
    if facts.vocab:
        return facts.vocab
    alphabet = facts.source.alphabet + facts.target.alphabet
    words = facts.source.vocabulary + facts.target.vocabulary
    if kind in ("char", "byte"):
        return max(50, alphabet)
    if kind == "word":
        return max(100, words)
    return int(min(plan.get("data.vocab", 8192), alphabet + 2 * words + 300))


def rows_of(plan: Plan, model: Mapping[str, Any] | None = None) -> tuple[float, Row, dict[str, Any]]:
    """The units of all data, a typical row, and the settings of the model that follow from the data."""
    facts, task = plan.request.facts, plan.request.task
    fields = MODELS[plan.request.kind][1].__dataclass_fields__
    vocab, (kind, target_kind) = vocab_of(plan), tokenizers_of(plan)
    mels = 64 if task == "hear" else 0
    known = {"vocab": vocab, "size": facts.size, "channels": facts.channels, "mels": mels}
    fixed: dict[str, Any] = {name: value for name, value in known.items() if name in fields}
    if "target_vocab" in fields:
        fixed["target_vocab"] = vocab if target_kind != kind else None
    settings = {**(model or {}), **plan.model_settings()}
    rows, context = max(1, facts.rows), int(settings.get("context", 128))
    tokens = facts.tokens or rules.tokens_of(facts.source, kind, vocab)
    target_tokens = rules.tokens_of(facts.target, target_kind, vocab)
    picture = (1, facts.channels, mels or facts.size, facts.size)
    if task in ("see", "hear"):
        return rows, Row(1, [picture], 0), fixed
    n = max(2, min(context, round(target_tokens / rows) + 1))
    if task == "caption":
        return rows, Row(1, [picture, (1, n)], n), fixed
    both = "decoder_depth" in fields or "attention" in fields  # an encoder and a decoder
    if task in ("translate", "chat"):
        m = max(2, min(context, round(tokens / rows) + 1))
        longer = max(m, n)  # which train.tokens counts
        return float(rows * longer), Row(longer, [(1, m), (1, n)], n), fixed
    if task in STREAMS:
        texts = [(1, context), (1, max(2, context // 4))][: 1 + both]
        predicted = {"write": 1.0, "fill": 0.15, "restore": 0.25}.get(task, 0.0) * context
        return max(1.0, tokens), Row(context, [*texts], predicted), fixed
    m = max(2, min(context, round((tokens + target_tokens) / rows) + 2))
    texts = [(1, m), (1, 2)][: 1 + both]
    return float(m * rows), Row(m, [*texts], 0), fixed


# Steps and rates


def choose_steps(plan: Plan, candidate: Candidate) -> int:
    """Choose the batch and the length of training: by the clock, or fewer steps if there are few data."""
    request, advice, batch = plan.request, plan.request.advice, candidate.batch
    if given_batch(plan, candidate.row) is None:
        by_rows = request.task in ROWS or request.task == "embed"
        key, value = ("batch", round(batch / candidate.row)) if by_rows else ("tokens", batch)
        plan.choose(f"train.{key}", max(1, int(value)), "grows with the square root of what is read")
    if request.steps is not None:
        return request.steps
    passes = rules.choose_passes(advice, candidate.units, candidate.readable)
    plan.choose("task.r_drop", rules.choose_r_drop(request.task, passes, request.gpu), "for repeated data")
    possible = max(1, int(candidate.readable / batch / plan.readings))
    wanted = max(advice.steps, int(passes * candidate.units / batch))
    if wanted < possible:
        plan.choose("train.steps", wanted, "more passes over the data would only memorise them")
    plan.choose("train.minutes", rules.DEFAULT_MINUTES, "the default")
    return min(possible, wanted)


def choose_rates(plan: Plan, candidate: Candidate) -> None:
    """Choose the optimizer's settings and the regularisation."""
    request, advice, task, steps = plan.request, plan.request.advice, plan.request.task, plan.steps
    facts = request.facts
    passes = plan.readings * steps * candidate.batch / candidate.units
    best, often = "best measured for this task", f"for {passes:.2g} passes over the data"
    pressure = rules.pressure_to_memorise(passes, candidate.size.weights(request.kind) / candidate.units)
    fields = MODELS[request.kind][1].__dataclass_fields__
    if task == "fill" and plan.get("task.replaced"):
        plan.choose("model.pre", False, "as published, and as transformers has it (Clark et al. 2020)")
    tuned = plan.get("model.encoder") == "efficientnet"
    for key, value in rules.other_settings(task, request.facts, passes, request.gpu, tuned).items():
        if not key.startswith("model.") or key.removeprefix("model.") in fields:
            plan.choose(key, value, best)
    if task in ("classify", "see", "hear") and (weights := choose_weights(facts.classes, facts.balance)):
        plan.choose(weights.key, weights.value, f"{weights.reason} ({weights.source})")
    plan.choose("train.optimizer", advice.optimizer, best)
    plan.choose(
        "train.lr",
        rules.choose_lr(advice, candidate.size.dim, candidate.batch, steps),
        "by width, batch and steps",
    )
    plan.choose("train.warmup", rules.choose_warmup(steps), "7 % of the steps")
    plan.choose("train.schedule", rules.choose_schedule(task, pressure), often)
    plan.choose("train.beta2", advice.beta2, best)
    plan.choose("train.weight_decay", rules.choose_weight_decay(advice, pressure), often)
    if "dropout" in fields:
        plan.choose("model.dropout", rules.choose_dropout(advice, pressure, passes), often)
    if steps >= AVERAGED:
        plan.choose("train.ema", advice.ema, best)
    plan.choose("task.smoothing", advice.smoothing, best)
    if request.steps is not None and steps < EVALUATED:  # only as many as were asked for
        return
    share = 0.0
    if request.machine is not None and request.held:
        one = evaluation_seconds(request, plan.cost, candidate.units)
        step = step_seconds(request.machine, plan.cost, plan.batch, plan.is_compiled())
        share = one / (one + plan.readings * steps * step)
    evaluate = rules.choose_evaluation(steps, passes, share)
    plan.choose("train.evaluate", evaluate, "a few to many times in a run")
    plan.choose("train.save", plan.get("train.evaluate"), "as often as it is evaluated")
    if request.steps is None:
        plan.choose("train.patience", rules.choose_patience(passes), often)
