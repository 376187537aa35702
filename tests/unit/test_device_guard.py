"""The guard that ends a wait in which no Python can run: here for a semaphore, with the interpreter's lock held."""

import ctypes
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.collectives import device_faults
from platoon_base.collectives.device_faults import HAVE_GUARD, DeviceGuard, DeviceWatch
from platoon_base.errors import WorkerLostError
from platoon_base.shm.liveness import Call
from platoon_base.system.process import awake

pytestmark = [
    pytest.mark.base,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not HAVE_GUARD, reason="needs the extension in C: `make setup` builds it"),
]

LOCK = 1025
# A process that takes part, as long as it holds its lock: until its standard input ends, or for some seconds.
RANK = script_path("device_guard_rank")


class Words:
    """What the guard asks `Liveness` for, on a file with locks: the calls of two ranks, and whether they have left."""

    def __init__(self, file, words):
        self.file, self.words = file, words

    def call_counter(self, rank):
        return self.words[rank : rank + 1]

    def left_flag(self, rank):
        return self.words[2 + rank : 3 + rank]

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
    """Start another rank; returns the calls of both, what rank 0 waits for, and its guard."""
    monkeypatch.setattr(device_faults, "timeout", {"cause": 0.15}.get)
    path = tmp_path / "locks"
    path.write_bytes(b"")
    words = np.zeros(4, np.int64)
    with path.open("r+b") as file:
        started, guards = [], []

        def start(*seconds):
            process = subprocess.Popen(
                [sys.executable, RANK, str(path), str(LOCK), *map(str, seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            started.append(process)
            assert process.stdout.readline() == b"locked\n"
            semaphore = Semaphore()
            guards.append(DeviceGuard([1], Words(file, words), words[:1], semaphore.post, semaphore.address))
            return words, semaphore, guards[-1]

        yield start
        for guard in guards:
            guard.stop()
            guard.stop()
        for process in started:
            process.communicate(timeout=200)


def test_it_ends_the_wait_for_a_rank_that_is_gone(rank_1):
    words, semaphore, guard = rank_1(1.0)
    words[:2] = Call(4, 7).word, Call(3, 7).word
    guard.expect(math.inf)
    begun = time.monotonic()
    semaphore.wait()  # for ever, but for the guard
    assert time.monotonic() - begun > 0.3
    guard.end()
    assert semaphore.posted == 0  # not a second time


def test_it_ends_the_wait_for_a_rank_that_does_not_come(rank_1):
    words, semaphore, guard = rank_1()
    words[:2] = Call(4, 7).word, Call(3, 7).word
    begun = time.monotonic()
    guard.expect(awake() + 1)
    semaphore.wait()
    assert time.monotonic() - begun > 1.2


@pytest.mark.parametrize("how", ["it died in the call", "its call is another"])
def test_it_ends_the_wait_for_what_will_not_complete(rank_1, how):
    died = "died" in how
    words, semaphore, guard = rank_1(*[1.0] * died)
    words[:2] = Call(4, 7).word, Call(4, 7 if died else 8).word
    guard.expect(math.inf)
    semaphore.wait()
    assert guard.ended


@pytest.mark.parametrize("left", [False, True], ids=["there", "left in good order"])
def test_it_leaves_ranks_alone_that_have_come(rank_1, left):
    words, semaphore, guard = rank_1(*[0.1] * left)
    words[:2] = Call(4, 7).word, Call(4, 7).word
    words[3] = left
    guard.expect(0)  # long ago
    ended = time.monotonic() + 1.5  # the guard looks fifteen times meanwhile
    while time.monotonic() < ended:
        assert semaphore.posted == 0
        time.sleep(0.05)
    guard.end()
    assert semaphore.posted == 1


def test_nothing_begins_once_the_wait_was_ended(rank_1):
    """The device's end is gone then, and the thread that knows the reason may not have run yet."""
    words, _, guard = rank_1()
    watch = DeviceWatch([1], None, words[:1], guard.end, guard)
    watch.begin(7, 60)
    assert Call.of(int(words[0])).number == 1
    guard.end()
    with pytest.raises(WorkerLostError, match="did not complete"):
        watch.begin(7, 60)
    assert Call.of(int(words[0])).number == 1
