"""Prefetched batches are those that would be made at once, in any order of steps."""

import threading
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from regard.errors import UserError
from regard.tasks.loss import IGNORED
from regard.training.prefetch import Prefetcher, copy_stream

CPU = torch.device("cpu")


def count_rows(batches: Sequence[tuple[torch.Tensor, ...]]) -> Counter[str]:
    return Counter(rows=sum(len(batch[0]) for batch in batches))


class Maker:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.threads: set[str] = set()

    def __call__(self, step: int) -> list[tuple[torch.Tensor, ...]]:
        self.steps.append(step)
        self.threads.add(threading.current_thread().name)
        if step == 7:
            raise UserError("a damaged file")
        return [(torch.full((2, 3), step), torch.tensor([step, IGNORED]))] * 2


@pytest.mark.parametrize("ahead", [0, 3])
def test_batches_belong_to_their_step(ahead: int) -> None:
    make = Maker()
    prefetch = Prefetcher(make, CPU, count_rows, ahead=ahead)
    for step in (0, 1, 2, 5, 6, 0):  # a run may be continued anywhere
        batches, count, read = prefetch(step)
        assert count == 2
        assert read == {"rows": 4}
        assert all(torch.equal(ids, torch.full((2, 3), step)) for ids, _ in batches)
    with pytest.raises(UserError, match="damaged"):
        prefetch(7)


def test_the_next_ones_are_made_by_a_thread() -> None:
    make = Maker()
    prefetch = Prefetcher(make, CPU, count_rows, ahead=2)
    prefetch(0)
    prefetch(1)
    assert prefetch.executor is not None
    prefetch.executor.shutdown(wait=True)
    assert make.steps == [0, 1, 2, 3]  # each once
    assert threading.current_thread().name not in make.threads


def test_several_threads_make_batches_in_order() -> None:
    make, second = Maker(), threading.Event()

    def make_slowly(step: int) -> list[tuple[torch.Tensor, ...]]:
        if step == 0:
            assert second.wait(60)  # ends only after the next one has begun
        elif step == 1:
            second.set()
        return make(step)

    prefetch = Prefetcher(make_slowly, CPU, count_rows, ahead=2, makers=2)
    for step in range(4):
        assert all(torch.equal(ids, torch.full((2, 3), step)) for ids, _ in prefetch(step)[0])


def test_a_cpu_has_no_thread_for_it() -> None:
    assert Prefetcher(Maker(), CPU, count_rows).executor is None


def test_all_runs_of_a_process_copy_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has 32, then returns the first again; a copy on a stream that captures ends the run."""
    streams: list[object] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: streams.append(object()) or streams[-1])
    copy_stream.cache_clear()
    for _ in range(3):
        assert Prefetcher(Maker(), torch.device("cuda"), count_rows).stream is streams[0]
    assert len(streams) == 1
    copy_stream.cache_clear()
