"""Ways to damage bytes."""

from __future__ import annotations

import random

_MOST_NEW = 9
_LONGEST_RANDOM = 300
_HOSTILE = (b"\xff" * 10, b"\x80" * 10, bytes(8), b"\x7f" + b"\xff" * 7, b"\x00\x00\xf8\x7f", b"../", b"\xff\xfe")


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content after one to four damages, or in one case of ten something else altogether."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(_LONGEST_RANDOM))
    for _ in range(rng.randint(1, 4)):
        content = _damaged(content, rng)
    return content


def _damaged(content: bytes, rng: random.Random) -> bytes:
    first, second = sorted(rng.randint(0, len(content)) for _ in range(2))
    start, middle, end = content[:first], content[first:second], content[second:]
    new = rng.choice([*_HOSTILE, rng.randbytes(rng.randint(1, _MOST_NEW))])
    match rng.randrange(7):
        case 0:
            return start + new + content[first + len(new) :]
        case 1:
            return start + new + content[first:]
        case 2:
            return start + end
        case 3:
            return start + middle + middle + end
        case 4:
            return start + end + middle
        case 5:
            return content[:first]
        case _:
            return flipped(content, rng)


def flipped(content: bytes, rng: random.Random) -> bytes:
    """The content with one bit turned over."""
    if not content:
        return content
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)
