"""What is asked of the C library's allocator."""

from types import SimpleNamespace

from regard.memory import MMAP_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD, Allocator


def test_a_training_keeps_all_memory_whatever_is_loaded_meanwhile() -> None:
    calls: list[tuple[int, ...]] = []
    allocator = Allocator()
    allocator.library = SimpleNamespace(
        mallopt=lambda *a: calls.append(a), malloc_trim=lambda *a: calls.append(a)
    )
    allocator.keep()
    assert calls == [(MMAP_THRESHOLD, 32 << 20), (TRIM_THRESHOLD, 64 << 20)]
    allocator.keep_all()
    allocator.keep()
    assert calls[2:] == [(MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1)]
    allocator.release()
    assert calls[4:] == [(0,)]


def test_other_systems_keep_theirs() -> None:
    allocator = Allocator()
    allocator.library = None
    allocator.keep()
    allocator.keep_all()
    allocator.release()
