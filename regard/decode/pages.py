"""The allocation of the cache's pages. Texts with the same beginning share its pages."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np


class PagePool:
    """Hands out pages of `length` tokens. An unused page keeps its content until it is needed.

    Full pages can be found again by all tokens up to their end, so that these are not read twice.
    """

    def __init__(self, count: int, length: int):
        self.length, self.users = length, [0] * count
        self.key_of: dict[int, bytes] = {}  # of pages with known content
        self.page_of: dict[bytes, int] = {}  # the inverse
        self.unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))  # oldest first

    @property
    def free(self) -> int:
        return len(self.unused)

    def take(self, count: int) -> list[int] | None:
        """Take `count` pages, or return None if there are not enough."""
        if count > len(self.unused):
            return None
        pages = [self.unused.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self.users[page] = 1
            self._forget(page)
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Give pages back; pages without other users become free, the last ones of a text first."""
        for page in reversed(pages):
            self.users[page] -= 1
            if not self.users[page]:
                self.unused[page] = None

    def lookup(self, tokens: Sequence[int]) -> list[int]:
        """The longest run of pages with the beginning of these tokens, which get one more user."""
        pages = []
        for key in self._keys(tokens):
            page = self.page_of.get(key)
            if page is None:
                break
            if not self.users[page]:
                del self.unused[page]
            self.users[page] += 1
            pages.append(page)
        return pages

    def remember(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Record the content of full pages: the beginning of these tokens."""
        for key, page in zip(self._keys(tokens), pages, strict=False):
            if key not in self.page_of and page not in self.key_of:
                self.page_of[key], self.key_of[page] = page, key

    def _forget(self, page: int) -> None:
        key = self.key_of.pop(page, None)
        if key is not None:
            del self.page_of[key]

    def _keys(self, tokens: Sequence[int]) -> list[bytes]:
        """A key for each full page of tokens, which depends on all the tokens up to its end.

        It is a cryptographic hash, so that no text can be made whose pages are mistaken for another's.
        """
        L, key = self.length, b""
        keys: list[bytes] = []
        for i in range(0, len(tokens) - L + 1, L):
            key = hashlib.blake2b(
                key + np.asarray(tokens[i : i + L], "<i8").tobytes(), digest_size=16
            ).digest()
            keys.append(key)
        return keys
