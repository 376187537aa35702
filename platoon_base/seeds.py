"""Random generators of Python, NumPy and torch that all workers share."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

_one_at_a_time = threading.Lock()
# This is added to the job's seed, to differ from each worker's own seed.
_ALIKE = 33
_numpy: Any = np.random  # The types of NumPy lack functions of it.


def seed_alike(seed: int) -> int:
    """Seed Python, NumPy and torch alike on all workers, for scripts without seeds; return it."""
    # A seed of the script is kept: NumPy has drawn no number since.
    number = int(np.random.SeedSequence([seed, _ALIKE]).generate_state(1)[0])
    if not _just_seeded():
        random.seed(number)
        np.random.seed(number)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(number)
    return number


def _just_seeded() -> bool:
    """Return whether NumPy's generator is as ``np.random.seed(number)`` leaves it."""
    state: Any = np.random.get_state()
    _, key, position, *_ = state
    first, second = int(key[0]), int(key[1])  # The first one is the seed.
    return bool(position == len(key) and second == (1812433253 * (first ^ (first >> 30)) + 1) % 2**32)


class Common:
    """Python, NumPy and torch draw from common generators of all workers within ``with``."""

    # They continue in the next block. A lock admits one thread at a time, as Keras reads training
    # and validation data in separate threads.

    def __init__(self, seed: Sequence[int]) -> None:
        words = np.random.SeedSequence(seed).generate_state(4)
        self._python = random.Random(str(list(seed))).getstate()
        self._numpy: Any = (
            np.random.RandomState(words)._bit_generator if _SWAPS else np.random.RandomState(words).get_state()
        )
        self._torch: Any = None
        self._torch_seed = int(words[0])

    def __enter__(self) -> None:
        _one_at_a_time.acquire()
        self._swap()

    def __exit__(self, *error: Any) -> None:
        self._swap()
        _one_at_a_time.release()

    def drawn(self, read: Callable[[], Iterable[Any]], ahead: int) -> Iterator[list[Any]]:
        """Yield all that ``read()`` yields within ``with``, in lists of ``ahead``, the last shorter."""
        with self:
            items = iter(read())
        while True:
            with self:
                found = list(itertools.islice(items, ahead))
            yield found
            if len(found) < ahead:
                return

    def _swap(self) -> None:
        mine, self._python = self._python, random.getstate()
        random.setstate(mine)
        if _SWAPS:
            mine, self._numpy = self._numpy, _numpy.get_bit_generator()
            _numpy.set_bit_generator(mine)
        else:
            mine, self._numpy = self._numpy, np.random.get_state()
            np.random.set_state(mine)
        torch = sys.modules.get("torch")
        if torch is not None:
            before = torch.get_rng_state()
            torch.random.default_generator.manual_seed(self._torch_seed) if self._torch is None else (
                torch.set_rng_state(self._torch)
            )
            self._torch = before


# Replacing the generator takes a hundredth of the time of `set_state`.
_SWAPS = hasattr(np.random, "set_bit_generator")
