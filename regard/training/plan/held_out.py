"""The share of the data that is held out to evaluate on.

Of running text, no more than is enough, or than there is time for: a tenth of a gigabyte would take longer to
evaluate on than all of a short run."""

from collections.abc import Mapping
from typing import Any

from regard.data.shards import is_prepared
from regard.tasks import TASKS
from regard.training.plan.plan import Plan, rows_of, seconds_to_train
from regard.training.plan.sizes import evaluation_seconds

TEXTS = ("write", "fill", "restore")
ENOUGH, LEAST = 2e6, 5e4  # characters: with this many, the mean loss differs by about 0.004, and by 0.02
EVALUATION = 0.025  # of the time


def share_held_out(task: str, section: Mapping[str, Any], rows: int) -> float:
    """The share of the data that is evaluated on; at most data.held_out conversations."""
    names = TASKS[task][0].data_config.__dataclass_fields__
    holdout, limit = (section.get(name, names[name].default if name in names else None)
                     for name in ("holdout", "held_out"))  # fmt: skip
    return float(holdout if limit is None else min(holdout, limit / max(1, rows)))


def may_limit(task: str, section: Mapping[str, Any], paths: list[str]) -> bool:
    """Return whether the plan chooses the share: it was not given, and the data are not split yet."""
    is_open = not ({"holdout", "stream"} & section.keys())
    return task in TEXTS and is_open and bool(paths) and not is_prepared(paths)


def limit_held_out(share: float, characters: int, plan: Plan | None = None) -> float:
    """A share of texts with this many characters; given a plan with this share, one that it has time for."""
    enough = ENOUGH
    if plan is not None and plan.request.machine is not None and plan.request.steps is None:
        seconds = evaluation_seconds(plan.request, plan.cost, rows_of(plan)[0])
        time = EVALUATION * seconds_to_train(plan) / max(1e-9, seconds)
        enough = min(ENOUGH, max(LEAST, time * share * characters))
    return float(f"{min(share, enough / max(1, characters)):.2g}")


def describe_held_out(share: float, rows: int) -> str:
    count = round(share * rows)
    of_rows = f", about {count:,} of {rows:,} rows" if count else ""
    return f"{100 * share:.2g}% held out to evaluate on{of_rows}"
