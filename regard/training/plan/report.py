"""A plan in words: a few lines to print, and comments for recipe.toml."""

from regard.audio.mel import HOP, RATE
from regard.training.plan.facts import Facts
from regard.training.plan.plan import Plan, rows_of
from regard.training.plan.speed import Machine

UNITS = {"see": "pictures", "hear": "recordings", "caption": "captions"}


def describe(plan: Plan) -> list[str]:
    """Describe the plan in a few lines: size, data, steps, rates, time and memory."""
    request = plan.request
    unit, (units, _, _) = UNITS.get(request.task, "tokens"), rows_of(plan)
    batch = f"{count(plan.batch)} {unit}" + ", each read twice (R-Drop)" * (plan.readings > 1)
    read = f"{plan.steps:,} steps of {batch}, {plan.passes:.3g} passes over the data"
    lines = [
        f"plan: {request.kind} of {count(plan.cost.weights)} weights ({size_words(plan)})",
        f"  data: {data_words(request.facts, request.task)}; {count(units)} {unit}",
        f"  {read}; {limit_words(plan)}",
        f"  {rate_words(plan)}",
    ]
    if words := odd_rate_words(plan):
        lines.append(f"  {words}")
    if plan.bound:
        lines[0] += f"; size limited by {plan.bound}"
    if request.teaching.teachers:
        lines.append(f"  {teacher_words(plan)}")
    if request.machine is not None:
        machine = machine_words(request.machine)
        lines.append(f"  about {duration(plan.seconds())} and {plan.memory() / 1e9:.2g} GB on {machine}")
    return lines


def comments(plan: Plan) -> list[str]:
    """The reason for each setting, for the top of recipe.toml."""
    return ["Planned by regard train:"] + [
        f"  {key} = {plan.settings[key]}: {reason}" for key, reason in plan.reasons.items()
    ]


def size_words(plan: Plan) -> str:
    names = ("preset", "dim", "depth", "heads", "context", "patch")
    parts = [f"{name} {plan.get(f'model.{name}')}" for name in names if plan.get(f"model.{name}")]
    if tokenizer := plan.get("data.tokenizer"):
        parts.append(f"{tokenizer} tokens")
        if vocab := plan.get("data.vocab"):
            parts[-1] += f", vocabulary {vocab:,}"
    return ", ".join(parts)


def data_words(facts: Facts, task: str) -> str:
    parts = [f"{facts.rows:,} row{'s' * (facts.rows != 1)}"]
    if facts.characters:
        alphabet = facts.source.alphabet or facts.target.alphabet
        parts.append(f"{count(facts.characters)} characters, {alphabet} different")
    if facts.size and task == "hear":
        parts.append(f"up to {facts.size * HOP / RATE:.2g} s each")
    elif facts.size:
        parts.append(f"{facts.size} pixels each way")
    if facts.classes:
        largest = f", the largest {facts.balance:.0%}" if facts.balance else ""
        parts.append(f"{facts.classes} classes{largest}")
    if facts.share == 0:
        parts.append("a guess, because they can be read only once")
    elif facts.share < 1:
        parts.append(f"from {facts.share:.2g} of them")
    return ", ".join(parts)


def limit_words(plan: Plan) -> str:
    by_hand, patience = plan.request.by_hand, plan.get("train.patience")
    if "train.steps" in by_hand:
        words = "as given"
    elif plan.request.facts.built_in and plan.get("train.minutes") is None:
        words = "as measured for the built-in data"
    else:
        words = "more would only memorise" if "train.steps" in plan.settings else "as many as the time allows"
    if folds := plan.get("train.folds"):
        words += f"; the best number of steps up to that by {folds} folds first"
    return words + (f"; stops after {patience} evaluations without progress" if patience else "")


def teacher_words(plan: Plan) -> str:
    """Describe the work of the teachers, and its share of the time."""
    teaching, minutes = plan.request.teaching, plan.get("train.minutes")
    who, s = ("the teacher", "s") if teaching.teachers == 1 else (f"{teaching.teachers} teachers", "")
    if teaching.flops:
        return f"{who} read{s} every step: {teaching.flops / plan.cost.flops:.0%} of its work"
    words = f"{who} answer{s} {plan.request.facts.rows:,} sources first"
    if not teaching.seconds:
        return words
    words += f", in about {duration(teaching.seconds)}"
    if minutes is not None and teaching.seconds > teaching.seconds_of(minutes):
        words += f", or as many as they can in {duration(teaching.seconds_of(minutes))}"
    return words


def rate_words(plan: Plan) -> str:
    parts = [f"{plan.get('train.optimizer', 'adamw')}, learning rate {plan.get('train.lr', 1e-3):g}"]
    for name, words in (("schedule", "schedule"), ("warmup", "warm-up"), ("weight_decay", "weight decay")):
        if (value := plan.get(f"train.{name}")) is not None:
            parts.append(f"{words} {value}")
    if (dropout := plan.get("model.dropout")) is not None:
        parts.append(f"dropout {dropout}")
    if plan.settings.get("train.precision"):
        parts.append(precision_words(plan))
    return ", ".join(parts)


def odd_rate_words(plan: Plan) -> str:
    """Say that the learning rate that was given is ten times the advised one or a tenth of it, or further."""
    advised, rate = plan.advised.get("train.lr"), plan.request.by_hand.get("train.lr")
    if not rate or not advised or plan.advised.get("train.optimizer") != plan.get("train.optimizer"):
        return ""
    if 0.1 < rate / advised < 10:
        return ""
    times = f"{rate / advised:.3g} times" if rate > advised else f"1/{advised / rate:.3g} of"
    return f"learning rate {rate:g} is {times} the {advised:g} that is advised: little may be learned"


def precision_words(plan: Plan) -> str:
    compiled = ", compiled" if plan.get("train.compile") == "on" else ""
    return f"in {plan.get('train.precision')}{compiled} (float32: --set train.precision=fp32)"


def machine_words(machine: Machine) -> str:
    several = f", {machine.processes} processes" if machine.processes > 1 else ""
    busy = "; other programs use it now: fewer steps, if they go on" if machine.busy else ""
    return f"{machine.name} ({count(machine.peak)}FLOP/s{several}){busy}"


def count(n: float) -> str:
    """Format a number with three digits: 10.6 M."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.3g} {letter}"
    return f"{n:.3g}"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"
