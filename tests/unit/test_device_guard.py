"""The guard that ends a wait in which no Python can run: here for a semaphore, with the interpreter's lock held."""

import ctypes
import math
import subprocess
import sys
import time

import numpy as np
import pytest

from platoon_base.collectives import device_guard
from platoon_base.collectives.device_guard import HAVE_GUARD, DeviceGuard
from platoon_base.shm.calls import Call

pytestmark = [
    pytest.mark.base,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not HAVE_GUARD, reason="needs the extension in C: `make setup` builds it"),
]

LOCK = 1025
# A process that takes part, as long as it holds its lock: until its standard input ends, or for some seconds.
RANK = """
import fcntl, struct, sys, time
file = open(sys.argv[1], "r+b")
lock = struct.pack("hhqqi", fcntl.F_WRLCK, 0, int(sys.argv[2]), 1, 0)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
print("locked", flush=True)
time.sleep(float(sys.argv[3])) if len(sys.argv) > 3 else sys.stdin.read()
"""


class Words:
    """What the guard asks `Liveness` for, on a file with locks."""

    def __init__(self, file, words):
        self.file, self.words = file, words

    def call_word(self, rank):
        return self.words[rank : rank + 1]

    def locks(self, ranks):
        return self.file.fileno(), [LOCK for _ in ranks]


class Semaphore:
    """A semaphore of C; `wait` keeps the interpreter's lock, as torch does while it waits for a number."""

    def __init__(self):
        self._with_lock, self._libc = ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None)
        self.memory = ctypes.create_string_buffer(64)
        self._libc.sem_init(self.memory, 0, 0)
        self.address = ctypes.addressof(self.memory)
        self.post = ctypes.cast(self._libc.sem_post, ctypes.c_void_p).value

    def wait(self):
        assert self._with_lock.sem_wait(self.memory) == 0

    @property
    def posted(self):
        value = ctypes.c_int()
        self._libc.sem_getvalue(self.memory, ctypes.byref(value))
        return value.value


@pytest.fixture
def rank_1(tmp_path, monkeypatch):
    """Start another rank; returns the liveness of both and a function that makes the guard of rank 0."""
    monkeypatch.setattr(device_guard, "GRACE_S", 0.3)
    path = tmp_path / "locks"
    path.write_bytes(b"")
    words = np.zeros(2, np.int64)
    with path.open("r+b") as file:
        started = []

        def start(*seconds):
            process = subprocess.Popen(
                [sys.executable, "-c", RANK, str(path), str(LOCK), *map(str, seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            started.append(process)
            assert process.stdout.readline() == b"locked\n"
            return words, lambda semaphore: DeviceGuard(
                [1], Words(file, words), words[:1], semaphore.post, semaphore.address
            )

        yield start
        for process in started:
            process.communicate(timeout=30)


def test_it_ends_the_wait_for_a_rank_that_is_gone(rank_1):
    words, guard_of = rank_1(1.0)
    semaphore = Semaphore()
    words[:] = Call(4, 7).word, Call(3, 7).word
    guard = guard_of(semaphore)
    guard.expect(math.inf)
    begun = time.monotonic()
    semaphore.wait()  # for ever, but for the guard
    assert 0.3 < time.monotonic() - begun < 20
    guard.end()
    assert semaphore.posted == 0  # not a second time
    guard.stop()
    guard.stop()


def test_it_ends_the_wait_for_a_rank_that_does_not_come(rank_1):
    words, guard_of = rank_1()
    semaphore = Semaphore()
    words[:] = Call(4, 7).word, Call(3, 7).word
    guard = guard_of(semaphore)
    begun = time.monotonic()
    guard.expect(begun + 1)
    semaphore.wait()
    assert time.monotonic() - begun > 1.2
    guard.stop()


def test_it_leaves_ranks_alone_that_live_and_have_come(rank_1):
    words, guard_of = rank_1()
    semaphore = Semaphore()
    words[:] = Call(4, 7).word, Call(4, 7).word
    guard = guard_of(semaphore)
    guard.expect(0)  # long ago
    ended = time.monotonic() + 1.5  # the guard looks fifteen times meanwhile
    while time.monotonic() < ended:
        assert semaphore.posted == 0
        time.sleep(0.05)
    guard.end()
    assert semaphore.posted == 1
    guard.stop()
