"""Loading ahead: another process fills the next mini-batches while the worker trains on one."""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Union

import numpy as np

from platoon_base.data.batch_link import Link
from platoon_base.data.batch_reader import AHEAD, BatchReader
from platoon_base.data.batch_server import AllLeftError, BatchServer
from platoon_base.errors import ConfigurationError, WorkerLostError
from platoon_base.job.joining import connected
from platoon_base.timeouts import DEFAULT_TIMEOUT_S, timeout

Batches = Union[Callable[[], Iterable[Any]], Iterable[Any]]

_METHODS = ("fork", "spawn")
_THE_LOADER = "the process that loads ahead"
_passes = itertools.count()  # Each iteration in this process gets another seed.


def load_ahead(
    batches: Batches,
    *,
    ahead: int = AHEAD,
    copy: bool = False,
    seed: int | Sequence[int] | None = None,
    start_method: str = "fork",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> LoadAhead:
    """Iterate over mini-batches that another process prepares ahead of time.

    ::

        for epoch in range(epochs):
            for x, y in load_ahead(iterate_minibatches(x_train, y_train, 500, shuffle=True)):
                train(x, y)

    Each ``for`` loop starts a process, which iterates over ``batches`` and sends them through
    shared memory, in order. The loop raises its exceptions. The process ends with the loop, also
    after a ``break``. If this process is killed, it ends at its next batch.

    Parameters
    ----------
    batches : callable or iterable
        An iterable of batches, or a function without arguments that returns one and is called in
        that process. A batch is an array, or a tuple, list or dict of arrays. A generator serves
        one loop. Make calls of `Worker` before: that process is not part of the job. It is a daemon
        of ``multiprocessing``, so it cannot start processes of that module, such as a ``Pool``.
    ahead : int
        How many batches may exist at a time: those that the script keeps, and those that are ready.
    copy : bool
        See `BatchReader`.
    seed : int or sequence of int, optional
        For the global generators of ``random``, ``numpy.random`` and, if it is loaded, torch in
        that process. The default differs for each worker and each loop, and is the same in each
        run: it depends on the job's seed, the rank, the epoch of the resume, and the number of
        earlier loops.
    start_method : {"fork", "spawn"}
        With "fork" the process has all objects of this one, but must not use a GPU. With "spawn" it
        is a new Python: ``batches`` is pickled, and the script must guard its main program by
        ``__name__``.
    timeout_s : float
        Bound on the wait for each batch.
    """
    if not callable(batches) and not hasattr(batches, "__iter__"):
        raise ConfigurationError(
            f"got {type(batches).__name__}: pass an iterable of batches, or a function that returns one"
        )
    if start_method not in _METHODS:
        raise ConfigurationError(f"got start_method={start_method!r}: it must be one of {', '.join(_METHODS)}")
    return LoadAhead(batches, ahead, copy, seed, start_method, timeout_s)


class LoadAhead:
    """An iterable with a new process for each iteration; use `load_ahead`."""

    def __init__(
        self,
        batches: Batches,
        ahead: int,
        copy: bool,
        seed: int | Sequence[int] | None,
        start_method: str,
        timeout_s: float,
    ) -> None:
        self._batches = batches
        self._ahead, self._copy = ahead, copy
        self._seed, self._timeout_s = seed, timeout_s
        self._start_method = start_method
        self._used = False

    def __iter__(self) -> Pass:
        if self._used and isinstance(self._batches, Iterator):
            raise ConfigurationError(
                "got an iterator, such as a generator, which can be read only once: pass the "
                "function that makes it, load_ahead(lambda: make_batches(...))"
            )
        self._used = True
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = self._start(ours, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        link = Link(ours, process.pid)
        try:
            reader = BatchReader.over(
                link,
                ahead=self._ahead,
                copy=self._copy,
                timeout_s=self._timeout_s,
                server=_THE_LOADER,
            )
        except ConfigurationError:
            _end(process)
            raise
        return Pass(reader, process)

    def _start(self, ours: socket.socket, theirs: socket.socket) -> Any:
        context: Any = multiprocessing.get_context(self._start_method)
        forked = self._start_method == "fork"
        arguments = (theirs, ours if forked else None, os.getpid(), self._batches, _entropy(self._seed))
        # A daemon is ended with this process.
        process = context.Process(target=_load, args=arguments, daemon=True, name="platoon-load-ahead")
        with warnings.catch_warnings():
            # The loader does not use this process's threads, of ZeroMQ and frameworks.
            warnings.filterwarnings("ignore", message=".*fork\\(\\)")
            try:
                process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as exc:
                raise ConfigurationError(
                    f"the batches cannot be sent to a new process ({exc}): pass a function that "
                    'is defined at the top level of a module, or start_method="fork"'
                ) from exc
        return process


class Pass:
    """One iteration over a `LoadAhead`, which ends its process when it is dropped."""

    def __init__(self, reader: BatchReader, process: Any) -> None:
        self._reader = reader
        self._process = process
        self._pid = os.getpid()
        self._over = False

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            return next(self._reader)
        except StopIteration:
            self._process.join(timeout("end"))  # The iterable may have something to close.
            self.close()
            raise
        except WorkerLostError as exc:
            self._process.join(timeout("end"))
            code = self._process.exitcode
            self.close()
            if code is not None and code < 0:
                raise WorkerLostError(
                    f"{_THE_LOADER} was killed by signal {-code} ({signal.Signals(-code).name}): "
                    "check whether memory ran out (dmesg), and load fewer batches ahead"
                ) from exc
            raise

    def close(self) -> None:
        """End the process; a second call does nothing. Arrays in the script stay valid."""
        self._over = True
        if self._pid == os.getpid():
            self._reader.close()
            _end(self._process)

    def __del__(self) -> None:
        if hasattr(self, "_pid"):
            self.close()


def _end(process: Any) -> None:
    """End a loader, which may be running the user's code."""
    with contextlib.suppress(ValueError):  # The process was closed before.
        if process.is_alive():
            process.terminate()
        process.join(timeout("end"))
        if process.exitcode is None:
            process.kill()
            process.join()
        process.close()


def _entropy(seed: int | Sequence[int] | None) -> list[int]:
    number = next(_passes)
    if seed is not None:
        return [seed] if isinstance(seed, (int, np.integer)) else list(seed)
    worker = connected()
    if worker is None:
        return [0, 0, 0, number]
    return [worker.seed, worker.global_rank, worker.resume_at.epoch, number]


# In the other process.


def _load(
    theirs: socket.socket, ours: socket.socket | None, parent: int, batches: Batches, entropy: Sequence[int]
) -> None:
    """Send the batches that ``batches`` yields, until it ends or no reader is left."""
    if ours is not None:
        ours.close()
    # Ctrl-C reaches the whole group; the worker ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    server = BatchServer.over(Link(theirs, parent))
    try:
        _seed_generators(entropy)
        for batch in batches() if callable(batches) else batches:
            server.send(batch, timeout_s=math.inf)  # The wait ends if the reader ends.
        server.end(timeout_s=math.inf)
    except AllLeftError:
        pass
    except Exception as exc:
        server.fail(
            f"{type(exc).__name__}: {exc}\n{''.join(traceback.format_exception(type(exc), exc, exc.__traceback__))}"
        )
    finally:
        server.close()


def _seed_generators(entropy: Sequence[int]) -> None:
    words = np.random.SeedSequence(list(entropy)).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int(words[0]))
        torch.set_num_threads(1)  # The worker's thread pool does not exist here.
