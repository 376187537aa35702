"""The latest collective call of a worker on devices, as one 64-bit integer that the other workers can read."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Call", "sign"]

_SIGNATURE_BITS = 24


class Call(NamedTuple):
    """The latest collective call of a rank.

    Attributes
    ----------
    number : int
        Counted from 1; 0 before the first.
    signature : int
        Equal on two ranks if they make the same call with arrays of the same size and dtype.
    begun, deadline : float
        Seconds of the monotonic clock; infinite on other ranks, where they are not known.
    """

    number: int
    signature: int
    begun: float = float("inf")
    deadline: float = float("inf")

    @property
    def word(self) -> int:
        """Number and signature in 63 bits, which are written and read atomically."""
        return self.number << _SIGNATURE_BITS | self.signature

    @classmethod
    def of(cls, word: int) -> Call:
        """Read a `word`."""
        return cls(word >> _SIGNATURE_BITS, word & (1 << _SIGNATURE_BITS) - 1)


def sign(kind: int, typecode: int, size: int) -> int:
    """Return a signature for a kind of call on an array: the same in every process, since it hashes whole numbers."""
    return hash((kind, typecode, size)) & (1 << _SIGNATURE_BITS) - 1
