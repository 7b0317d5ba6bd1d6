"""Random numbers and random orders that are functions of a seed and a position, without state."""

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: its multiples are spread evenly over 64 bits


def mix64(x: np.ndarray) -> np.ndarray:
    """Hash 64-bit numbers: every output bit depends on every input bit (splitmix64, Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def random_keys(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Return an independent random 64-bit key for every number."""
    start = mix64(np.array([seed % 2**64], dtype=np.uint64) + np.uint64(GOLDEN))
    return mix64((numbers.astype(np.uint64) + start) * np.uint64(GOLDEN))


def shuffle_index(index: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Return the place of each index in a random permutation of range(n), chosen by its key, without a table.

    A Feistel network permutes the numbers of 2 * half bits; a result outside of range(n) is permuted again
    until it is inside (cycle walking, Black & Rogaway 2002).
    """
    key = np.broadcast_to(key, index.shape)
    if n <= 64:  # too few bits for a network, and few enough to sort
        noise = mix64(key[:, None] + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN))
        return np.take_along_axis(noise.argsort(axis=1), index[:, None], axis=1)[:, 0]
    half = -(-(n - 1).bit_length() // 2)
    low = np.uint64(2**half - 1)
    place = index.astype(np.uint64)
    outside = np.arange(place.size)
    while outside.size:
        left, right = place[outside] >> np.uint64(half), place[outside] & low
        for step in range(6):
            noise = mix64(right + key[outside] + np.uint64(step * GOLDEN % 2**64))
            left, right = right, left ^ (noise >> np.uint64(64 - half))
        place[outside] = left << np.uint64(half) | right
        outside = outside[place[outside] >= n]
    return place.astype(np.int64)


class CounterRandom:
    """A counter-based random generator: call it for one number in [0, 1) per key.

    The n-th call gives the same numbers for the same keys, independent of the rest of the batch.
    """

    def __init__(self, keys: np.ndarray):
        self.keys, self.counter = keys, 0

    def __call__(self) -> np.ndarray:
        self.counter += 1
        noise = mix64(self.keys + np.uint64(self.counter * GOLDEN % 2**64))
        return (noise >> np.uint64(11)).astype(np.float64) / 2**53
