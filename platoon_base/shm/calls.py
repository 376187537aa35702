"""Latest collective call of a worker on devices, as one 64-bit integer that others can read."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Call", "sign"]

_SIGNATURE_BITS = 24


class Call(NamedTuple):
    """Latest collective call of a rank, with a signature of its kind, array size and dtype."""

    number: int  # Counted from 1; 0 before the first.
    signature: int
    # Seconds of the monotonic clock; infinite on other ranks, where they are unknown.
    begun: float = float("inf")
    deadline: float = float("inf")

    @property
    def word(self) -> int:
        """Number and signature in 63 bits, which are written and read atomically."""
        return self.number << _SIGNATURE_BITS | self.signature

    @classmethod
    def of(cls, word: int) -> Call:
        return cls(word >> _SIGNATURE_BITS, word & (1 << _SIGNATURE_BITS) - 1)


def sign(kind: int, typecode: int, size: int) -> int:
    """Return a signature for a call on an array, the same in every process."""
    # The hash of integers is not randomized.
    return hash((kind, typecode, size)) & (1 << _SIGNATURE_BITS) - 1
