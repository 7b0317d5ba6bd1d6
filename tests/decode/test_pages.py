"""Pages are shared by equal beginnings only, and nobody's page is given to another."""

import numpy as np

from regard.decode.pages import PagePool


def test_pages_go_round() -> None:
    pool = PagePool(4, 2)
    first, second = pool.take(3), pool.take(1)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3]
    assert pool.take(1) is None
    pool.release(first)
    assert pool.free == 3
    assert pool.take(4) is None


def test_equal_beginnings_are_found() -> None:
    pool = PagePool(6, 2)
    pages = pool.take(3)
    assert pages is not None
    pool.remember([1, 2, 3, 4, 5], pages)
    assert pool.lookup([1, 2, 3, 4, 9]) == pages[:2]
    assert pool.lookup([1, 2, 9, 4]) == pages[:1]
    assert pool.lookup([3, 4]) == []  # the same tokens at another place
    pool.release(pages)
    assert pool.free == 4  # the looked-up ones are still used
    pool.release(pages[:2])
    pool.release(pages[:1])
    assert pool.free == 6
    assert pool.lookup([1, 2]) == pages[:1]  # unused, but not forgotten


def test_pages_in_new_hands_are_forgotten() -> None:
    pool = PagePool(2, 2)
    pages = pool.take(2)
    assert pages is not None
    pool.remember([1, 2, 3, 4], pages)
    pool.release(pages)
    taken = pool.take(1)  # the end of a text goes first: its beginning is the more useful part
    assert taken == pages[1:]
    assert pool.lookup([1, 2, 3, 4]) == pages[:1]


def test_random_use_keeps_count() -> None:
    rng = np.random.default_rng(0)
    pool, held = PagePool(20, 3), []
    for _ in range(500):
        tokens = rng.integers(2, size=rng.integers(1, 20)).tolist()
        shared = pool.lookup(tokens)
        more = pool.take(-(-len(tokens) // 3) - len(shared))
        if more is None:
            pool.release(shared)
        else:
            held.append(shared + more)
            pool.remember(tokens, held[-1])
        if held and rng.random() < 0.5:
            pool.release(held.pop(int(rng.integers(len(held)))))
        users = [sum(page in pages for pages in held) for page in range(20)]
        assert users == pool.users
        assert pool.free == users.count(0)
