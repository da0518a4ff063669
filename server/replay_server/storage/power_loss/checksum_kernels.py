"""The kernels of `row_checksums`, which documents the algorithm.

This module imports nothing else from storage, so changes there do not trigger recompilation of the kernels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_server.kernels.compile import kernel

_PRIME = np.uint64(0xBF58476D1CE4E5B9)
"""First multiplier of SplitMix64; odd."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64: 2^64 over the golden ratio."""
_SHIFT = np.uint64(32)

HAS_WRITER, FIRST, LAST = 1, 2, 4
"""Bits of a row's origin."""


@kernel
def _step(checksum: np.uint64, word: np.uint64) -> np.uint64:
    checksum = (checksum ^ word) * _PRIME
    return checksum ^ (checksum >> _SHIFT)


@kernel
def begin(words: NDArray[np.uint64], first: int, first_key: int, count: int) -> NDArray[np.uint64]:
    """Return new checksums of rows in consecutive slots. So far, they cover only keys and origins."""
    sums = np.empty(count, dtype=np.uint64)
    slot = first
    for i in range(count):
        sums[i] = _step(_step(_GOLDEN, np.uint64(first_key + i)), words[slot, 0])
        slot = slot + 1 if slot + 1 < len(words) else 0
    return sums


def with_words(sums: NDArray[np.uint64], words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return checksums, uint64[n], which also cover one more word each. words: int64[n]."""
    added = (sums ^ words.view(np.uint64)) * _PRIME
    return added ^ (added >> _SHIFT)


@kernel
def take_in(words: NDArray[Any], first: int, sums: NDArray[np.uint64]) -> None:
    """Add the values of a column in consecutive slots to the checksums of their rows."""
    slot = first
    for i in range(len(sums)):
        checksum = sums[i]
        for j in range(words.shape[1]):
            checksum = _step(checksum, np.uint64(words[slot, j]))
        sums[i] = checksum
        slot = slot + 1 if slot + 1 < len(words) else 0


@kernel
def store_origins(words: NDArray[np.uint64], first: int, count: int, origin: np.uint64) -> None:
    """Store the origin of rows in consecutive slots, and mark the first and last row of an insert."""
    slot = first
    for i in range(count):
        word = origin
        if word != np.uint64(0):
            if i == 0:
                word |= np.uint64(FIRST)
            if i == count - 1:
                word |= np.uint64(LAST)
        words[slot, 0] = word
        slot = slot + 1 if slot + 1 < len(words) else 0


@kernel
def store_checksums(words: NDArray[np.uint64], first: int, sums: NDArray[np.uint64]) -> None:
    """Store the checksums of rows in consecutive slots."""
    slot = first
    for i in range(len(sums)):
        words[slot, 1] = sums[i]
        slot = slot + 1 if slot + 1 < len(words) else 0


@cache
def compile_checksums() -> None:
    """Compile or load every kernel for every word width, before tables are served."""
    words = np.zeros((2, 2), np.uint64)
    store_origins(words, 1, 2, np.uint64(HAS_WRITER))
    sums = begin(words, 1, 0, 2)
    for dtype in (np.uint64, np.uint32, np.uint16, np.uint8):
        take_in(np.zeros((2, 1), dtype), 1, sums)
    store_checksums(words, 1, sums)
