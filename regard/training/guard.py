"""Detect a run that goes wrong, and correct it or advise the user.

The guard sees the loss of each logged step and the metrics of each evaluation. Its state is part of a
checkpoint and all processes see the same figures, so a run that is resumed, or trained by several processes,
takes the same decisions. `train.guard=false` switches it off.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from regard.errors import UserError
from regard.tasks import Batch, Guess, Task, targets
from regard.tasks.batches import Samples
from regard.training.config import TrainConfig

ROWS = 10  # logged losses that a decision needs
MEMORY = 0.1  # share of the newest loss in the moving average
MAX_ROLLBACKS = 5  # of a run
MAX_RESTARTS = 2  # of these, how many because the loss is that of guessing
FROM_START, FROM_CHECKPOINT, RESTARTED = 0.25, 0.5, 0.125  # factor of the learning rate after going back
# A run diverges if it loses this share of what it had gained, for this share of the budget and ROWS losses.
LOST, LONG = 0.5, 0.02
FEW_STEPS = (
    50  # after this, twice the warm-up, and some of each word, every run should have learned something
)
# A run is stuck if, after this share of the budget, the loss is above this share of that of guessing, and
# above this share of what it was half as much before.
BUDGET, OF_GUESSING, OF_EARLIER = 0.25, 0.97, 0.98
# A run memorises if the validation loss is above the best by this share, rose from one evaluation to
# the next this many times in succession, and has not been better for this share of the budget, while the
# training loss fell. Another deciding metric often improves although the loss rises: then it takes longer.
MEMORISES = ((0.25, 1, 0.0), (0.10, 2, 0.0), (0.05, 4, 0.2))
STALE = ((0.25, 1, 0.3),)
# With n rows, the loss may be off by chance by this many standard errors, 1/√n of it; if that is more than
# the share above, it must be exceeded instead, and more often.
ERRORS, AND_MORE = 3.0, 2
TO_THE_END = 0.9  # share of the budget after which no run stops: the last steps, at low rates, gain most
MOST_BATCHES, ENOUGH_TARGETS = 16, 2**16
LARGEST = 2**53  # number in a checkpoint


@dataclass
class GuardState:
    """The state of the guard, which is part of a checkpoint."""

    scale: float = 1.0  # of the learning rate
    mends: int = 0
    restarts: int = 0  # of these, how many because the loss was that of guessing
    back_to: int = 0  # step that it last went back to
    back_from: int = 0  # the step from which it went back
    back_done: float = 0.0  # share of the budget that was used then
    rows: int = 0  # logged losses since then
    first: float | None = None  # the first loss of the run
    mean: float | None = None  # moving average of the loss
    last: float | None = None  # the last loss
    variance: float = 0.0  # moving average of half of its squared change from row to row
    lowest: float | None = None  # lowest mean
    lowest_step: int = 0
    high: int = 0  # losses in succession for which the mean was far above it
    high_done: float = 0.0  # share of the budget that was used when that began
    earlier: float | None = None  # mean when the run was last checked for being stuck
    earlier_share: float = 0.0  # share of the time at that check
    is_learning: bool = False  # the loss is known to be lower than that of guessing
    good: int = 0  # step of the last good checkpoint, after which training went well; 0: the start
    saved: int = 0  # step of a checkpoint that may become a good one
    saved_rows: int = 0  # `rows` at that step
    best_mean: float | None = None  # `mean` at the best evaluation
    best_done: float = 0.0  # share of the budget that was used then
    valid_loss: float | None = None  # of the last evaluation
    rising: int = 0  # evaluations in succession in which it rose, while the training loss fell
    has_stopped: bool = False  # because more steps only memorise
    has_advised: bool = False  # the user was advised to check the data
    remarks: int = 0  # evaluations in succession with a remark by the task

    @classmethod
    def read(cls, content: Any) -> "GuardState | None":
        """Return the state in a checkpoint, or None if it can't be one."""
        if not isinstance(content, dict) or content.keys() - vars(cls()).keys():
            return None
        for kind, value in ((f.type, content[f.name]) for f in fields(cls) if f.name in content):
            if kind in (int, bool):
                is_right = type(value) is kind and 0 <= value < LARGEST
            else:
                is_number = type(value) in (int, float) and abs(value) < LARGEST
                is_right = is_number or (value is None and kind is not float)
            if not is_right:
                return None
        return cls(**content)


@dataclass(frozen=True)
class Rollback:
    """A correction: go back to a step, and continue with a lower rate."""

    to: int
    line: str  # says why


class Guard:
    """Watches one run.

    `guess` computes the loss of guessing at its first use; `notice` shows a line.
    """

    def __init__(
        self,
        config: TrainConfig,
        state: GuardState,
        metric: str | None,  # the metric that chooses the best evaluation; None: the loss
        guess: Callable[[], Guess | None],
        notice: Callable[[str], None],
    ):
        self.config, self.state, self.metric = config, state, metric
        self.compute_guess, self.notice = guess, notice

    @cached_property
    def guess(self) -> Guess | None:
        return self.compute_guess()

    def factor(self, step: int) -> float:
        """The factor of the learning rate after `step` steps: lower after each rollback, with warm-up."""
        s, warmup = self.state, max(1, self.config.warmup)
        return s.scale * min(1.0, (step + 1 - s.back_to) / warmup) if s.mends else 1.0

    # The training loss

    def see_gradient(self, step: int, norm: float, done: float) -> Rollback | None:
        """Return what to do about a gradient, when a share `done` of the budget is used."""
        if math.isfinite(norm):
            return None
        return self.go_back(f"the gradient became {norm} at step {step}", step, done)

    def see_loss(self, step: int, loss: float, done: float) -> Rollback | None:
        """Add the loss of a logged step. Return what to do about it."""
        s = self.state
        if not self.config.guard or not math.isfinite(loss):  # then the gradient is not finite, either
            return None
        s.rows += 1
        s.first = loss if s.first is None else s.first
        s.mean, s.last = (loss, loss) if s.mean is None or s.last is None else (s.mean, s.last)
        share = max(MEMORY, 1 / s.rows)
        s.variance += share * ((loss - s.last) ** 2 / 2 - s.variance)
        s.mean, s.last = s.mean + share * (loss - s.mean), loss
        if s.rows < ROWS:
            return None
        if s.lowest is None:
            s.lowest, s.lowest_step = s.first, 1
        if s.mean < s.lowest:
            s.lowest, s.lowest_step = s.mean, step
        limit = self.limit(s.lowest)
        if s.mean > limit:
            s.high_done = s.high_done if s.high else done
            s.high += 1
        else:
            s.high = 0
        if s.high >= ROWS and done - s.high_done >= LONG and not s.has_advised:
            rose = f"the loss rose from {s.lowest:.4g} at step {s.lowest_step} to {s.mean:.4g} at step {step}"
            if s.mends < MAX_ROLLBACKS:
                return self.go_back(rose, step, done)
            s.has_advised = True
            self.notice(self.give_up(rose))
        if s.saved > s.good and s.rows >= s.saved_rows + ROWS and s.mean <= (limit + s.lowest) / 2:
            s.good = s.saved
        return self.check_stuck(s.mean, step, done)

    def start(self) -> float:
        """The loss of an untrained model."""
        first = self.state.first or 0.0
        return min(first, self.guess.loss) if self.guess else first

    def limit(self, lowest: float) -> float:
        """The mean loss above which a run counts as diverging."""
        start = self.start()
        noise = min(math.sqrt(self.state.variance), LOST * abs(start))
        return lowest + max(LOST * (start - lowest), 0.1 * abs(start), noise)

    def check_stuck(self, mean: float, step: int, done: float) -> Rollback | None:
        """Return what to do if, after a while, the loss is still that of guessing."""
        s, guess = self.state, self.guess
        if s.is_learning or s.has_advised or guess is None:
            return None
        s.is_learning = mean < OF_GUESSING * guess.loss
        # With a budget in steps, the steps are repeated; with a budget in time, the time is lost.
        before = s.back_done if s.back_done < done else 0.0
        share = (done - before) / (BUDGET * (1 - before)) if before < 1 else 0.0
        share = min(share, (step - s.back_to) / max(FEW_STEPS, 2 * self.config.warmup, guess.steps))
        if s.is_learning or share < s.earlier_share + 0.5:
            return None
        is_falling = s.earlier is None or mean < OF_EARLIER * s.earlier
        s.earlier, s.earlier_share = mean, share
        if is_falling or share < 1:
            return None
        problem = f"at step {step} the loss is {mean:.4g}, no better than guessing ({guess.loss:.4g})"
        if s.restarts < MAX_RESTARTS and s.mends < MAX_ROLLBACKS:
            s.restarts += 1
            return self.go_back(problem, step, done, to=0, factor=RESTARTED)
        s.has_advised = True
        s.scale /= RESTARTED**s.restarts
        lr = f"train.lr={self.config.lr * s.scale:.3g}"
        self.notice(f"{problem}, also with lower rates; training continues with {lr}. {ADVICE.capitalize()}")
        return None

    def go_back(
        self, reason: str, step: int, done: float, to: int | None = None, factor: float | None = None
    ) -> Rollback:
        """Lower the rate and return the step to go on from. Raise UserError after too many attempts."""
        s, lr = self.state, self.config.lr
        if not self.config.guard or s.mends >= MAX_ROLLBACKS:
            raise UserError(self.give_up(reason))
        to = s.good if to is None else to
        factor = factor or (FROM_CHECKPOINT if to else FROM_START)
        before, s.scale = s.scale, s.scale * factor
        s.mends, s.back_to, s.back_from, s.back_done = s.mends + 1, to, step, done
        s.rows, s.mean, s.variance, s.high, s.rising, s.valid_loss = 0, None, 0.0, 0, 0, None
        s.good, s.saved, s.saved_rows = to, to, 0
        if to == 0:
            s.lowest = s.best_mean = s.earlier = None
            s.earlier_share, s.is_learning = 0.0, False
        where = f"to step {to}" if to else "to the start"
        return Rollback(
            to, f"{reason}: back {where}, with train.lr={lr * s.scale:.3g} instead of {lr * before:.3g}"
        )

    def give_up(self, reason: str) -> str:
        lr, s = self.config.lr, self.state
        tried = (
            f", also after {s.mends} attempts with less, the last with {lr * s.scale:.3g}" if s.mends else ""
        )
        return f"{reason}{tried}; lower train.lr (now {lr})"

    # Checkpoints

    def see_checkpoint(self, step: int) -> None:
        """Consider this checkpoint as the next good one, if training goes well after it."""
        s = self.state
        if self.config.guard and s.rows >= ROWS and s.saved <= s.good and s.high == 0:
            s.saved, s.saved_rows = step, s.rows

    # Evaluations

    def see_evaluation(
        self, metrics: dict[str, float], best: dict[str, float], rows: int, done: float, left: float | None
    ) -> None:
        """Add an evaluation on `rows` rows, with the best one so far, when a share `done` of the budget is
        used and `left` seconds remain. Stop the run if more steps only memorise."""
        s, loss, lowest = self.state, metrics["valid_loss"], best["valid_loss"]
        before, s.valid_loss = s.valid_loss, loss
        if metrics["step"] == best["step"]:
            s.best_mean, s.best_done, s.rising = s.mean, done, 0
        if not self.config.guard or self.config.patience or s.mean is None or s.best_mean is None:
            return
        is_falling = s.mean < min(0.98 * s.best_mean, self.start()) and s.rows >= ROWS and s.high == 0
        s.rising = s.rising + 1 if is_falling and before is not None and loss > before else 0
        chance = ERRORS / math.sqrt(max(1, rows))
        s.has_stopped = done < TO_THE_END and any(
            loss > lowest + max(share, chance) * max(abs(lowest), 0.1 * self.start())
            and s.rising >= count + AND_MORE * (chance > share)
            and done - s.best_done >= long
            for share, count, long in (STALE if self.metric else MEMORISES)
        )
        if s.has_stopped:
            self.notice(
                f"more steps only memorise: since step {best['step']:.0f} the training loss fell from "
                f"{s.best_mean:.4g} to {s.mean:.4g}, and the validation loss rose from {lowest:.4g} to "
                f"{loss:.4g}. Stopped at step {metrics['step']:.0f}, {left or 0:.0f} s early; "
                "train.guard=false continues to the end"
            )

    def see_remark(self, remark: str | None, done: float) -> None:
        """Show a remark that is made in two evaluations of the second half."""
        s = self.state
        if self.config.guard and done >= 0.5:
            s.remarks = s.remarks + 1 if remark else 0
        if remark and s.remarks == 2 and not s.has_advised:
            self.notice(remark)

    def sum_up(self, best: dict[str, float], rows: int) -> None:
        """Show a notice if the best evaluation is no better than guessing."""
        s, guess = self.state, self.guess if self.config.guard and self.state.rows >= ROWS else None
        if guess is None or s.has_advised:
            return
        loss, accuracy = best["valid_loss"], best.get("valid_accuracy", 0.0)
        chance = 2 * math.sqrt(guess.share * (1 - guess.share) / max(1, rows))
        if loss >= OF_GUESSING * guess.plain_loss and accuracy <= guess.share + chance:
            s.has_advised = True
            what = (
                f", and the accuracy {accuracy:.3g} ({guess.share:.3g})" if "valid_accuracy" in best else ""
            )
            self.notice(
                f"the best validation loss is {loss:.4g}, no better than guessing ({guess.plain_loss:.4g})"
                f"{what}; try another train.lr, and {ADVICE}"
            )


ADVICE = "check that each target belongs to its input: it may not be predictable from it"


def first_batches(task: Task, samples: Samples) -> Iterator[Batch]:
    """Yield batches from which the frequency of each target is counted."""
    count, step = 0, 0
    while step < MOST_BATCHES and count < ENOUGH_TARGETS:
        batch = task.batch(samples, samples.rows(step))
        count, step = count + targets(batch), step + 1
        yield batch
