"""Sums over hosts by an installed library, gloo or MPI, in place of the links between hosts.

The arrays of each host's ranks are combined in shared memory, the first ranks of the hosts sum them by the library, and
the result is broadcast in shared memory. Neither library encrypts.
"""

from __future__ import annotations

import ctypes
import importlib
import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_base.hosts.world import GLOO, MPI, World
from platoon_base.system.awake import awake

__all__ = ["LIBRARIES", "HostsLibrary", "Pending", "takes"]

Array = np.ndarray[Any, Any]

_ADDED = frozenset(map(np.dtype, ("float32", "float64", "int32", "int64")))
_CAUSE_TIMEOUT_S = 1.5  # wait for a better reason of a failure, such as the end of a process
_LIBRARY_TIMEOUT_S = 24 * 3600.0  # gloo's own timeout; lost hosts are detected by the launchers


class Pending(Protocol):
    """A sum in progress."""

    def done(self) -> bool:
        """Return whether the result is complete; always False after a failure."""
        ...

    def why_failed(self) -> str:
        """Return why it has failed; empty if it has not, or while a better reason may become known."""
        ...


class HostsLibrary(Protocol):
    """A library that sums arrays of one process per host.

    Attributes
    ----------
    port : int
        The port that host 0 has opened, which the other hosts need; 0 for none.
    """

    port: int

    def connect(self) -> None:
        """Connect to the other hosts, which do so at the same time."""
        ...

    def begin_sum(self, array: Array) -> Pending:
        """Begin to replace a contiguous array by the sum over the hosts; all make these calls in the same order."""
        ...

    def close(self, failed: bool) -> None:
        """Release the library; if a call has ``failed``, without waiting for the other hosts."""
        ...


def takes(dtype: Any, op: str) -> bool:
    """Return whether libraries support this operation on this dtype; links combine all others."""
    return dtype in _ADDED and op in ("sum", "mean")


class _GlooSum:
    def __init__(self, work: Any) -> None:
        self._work = work
        self._failure, self._failed_at = "", 0.0

    def done(self) -> bool:
        if self._failure or not self._work.is_completed():
            return False
        try:
            self._work.wait()
        except RuntimeError as exc:
            self._failure, self._failed_at = str(exc).splitlines()[0], awake()
            return False
        return True

    def why_failed(self) -> str:
        late = self._failure and awake() > self._failed_at + _CAUSE_TIMEOUT_S
        return f"gloo could not add the arrays of the hosts: {self._failure}" if late else ""


class GlooHosts:
    """gloo, by `torch.distributed`, in a group that is not the process's default one.

    Parameters
    ----------
    world : World
    port : int
        The port of the store by which the hosts' first ranks find each other; 0 to open it, on host 0.
    timeout_s : float
        Bound on the wait for the other hosts.

    Attributes
    ----------
    port : int
    """

    def __init__(self, world: World, port: int, timeout_s: float) -> None:
        self._torch = _import("torch", GLOO)
        distributed = self._torch.distributed
        if not distributed.is_available() or not distributed.is_gloo_available():
            raise BackendUnavailableError("this build of torch has no gloo")
        self._store = distributed.TCPStore(
            world.addresses[0], port, world.hosts, port == 0, timedelta(seconds=timeout_s), wait_for_workers=False
        )
        self.port = int(self._store.port)
        self._world, self._until = world, awake() + timeout_s
        # Create the device now: that fails if the address is not this host's, and the others must not wait then.
        self._device = distributed.ProcessGroupGloo.create_device(hostname=world.addresses[world.host])
        self._group: Any = None

    def connect(self) -> None:
        """Connect to the other hosts, which do so at the same time."""
        group = self._torch.distributed.ProcessGroupGloo
        options = group._Options()
        options._devices = [self._device]
        options._timeout = timedelta(seconds=max(self._until - awake(), 1.0))
        self._group = group(self._store, self._world.host, self._world.hosts, options)
        self._group._set_default_timeout(timedelta(seconds=_LIBRARY_TIMEOUT_S))

    def begin_sum(self, array: Array) -> Pending:
        """Begin to replace a contiguous array by the sum over the hosts, each of which calls this in the same order."""
        return _GlooSum(self._group.allreduce([self._torch.from_numpy(array)]))

    def close(self, failed: bool) -> None:
        """Release the library; where a call has ``failed``, without waiting for the other hosts."""
        if failed and self._group is not None:
            _keep_for_ever(self._group)  # its destructor would wait for data that never arrive
        self._group = self._store = self._device = None


class _MpiSum:
    """A sum in a separate thread: MPI's non-blocking sums move twice the bytes for large arrays."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self._done = False
        self._failure = ""

    def run(self, comm: Any, in_place: Any, op: Any) -> None:
        """Make the sum; runs in the thread."""
        try:
            comm.Allreduce(in_place, self.array, op)
            self._done = True
        except Exception as exc:  # errors of MPI, unless it ends the process
            self._failure = str(exc)

    def done(self) -> bool:
        return self._done

    def why_failed(self) -> str:
        return f"MPI could not add the arrays of the hosts: {self._failure}" if self._failure else ""


class MpiHosts:
    """MPI, by mpi4py; its world are the processes that mpirun has started, one launcher on each host.

    If one of its processes dies, MPI ends all of them, so the job does not survive the loss of a host.

    Parameters
    ----------
    world : World
    port, timeout_s
        Not used: mpirun connects the processes.
    """

    port = 0

    def __init__(self, world: World, port: int, timeout_s: float) -> None:
        _import("mpi4py", MPI)
        settings: Any = importlib.import_module("mpi4py.rc")
        settings.initialize = settings.finalize = False
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._world, self._began = world, False
        self._ours: Any = None
        self._orders: queue.SimpleQueue[_MpiSum | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Connect to the other hosts, which do so at the same time."""
        if self._mpi.Is_finalized():
            raise ConfigurationError("this process has finalized MPI already, which cannot be initialized again")
        if not self._mpi.Is_initialized():
            self._mpi.Init_thread()
            self._began = True
        found = self._mpi.COMM_WORLD
        if (found.rank, found.size) != (self._world.host, self._world.hosts):
            raise ConfigurationError(
                f"MPI says that this is process {found.rank} of {found.size}, and the launchers that this is host "
                f"{self._world.host} of {self._world.hosts}: start them by `mpirun -np {self._world.hosts} platoon "
                "launch ...`, one on each host, with the MPI that mpi4py was built for"
            )
        self._ours = found.Dup()

    def begin_sum(self, array: Array) -> Pending:
        """Begin to replace a contiguous array by the sum over the hosts, each of which calls this in the same order."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="platoon-mpi", daemon=True)
            self._thread.start()
        pending = _MpiSum(array)
        self._orders.put(pending)
        return pending

    def _run(self) -> None:
        while (pending := self._orders.get()) is not None:
            pending.run(self._ours, self._mpi.IN_PLACE, self._mpi.SUM)

    def close(self, failed: bool) -> None:
        """Release the library; where a call has ``failed``, without waiting for the other hosts."""
        self._orders.put(None)  # a thread that is in a call stays there, and keeps the array
        if self._began and not failed:
            # Finalize MPI at exit: it waits for the other hosts, which may wait for this one to leave the job first.
            # Not after a failure: MPI then ends all its processes.
            finalize = ctypes.cast(ctypes.CDLL(self._mpi.__file__).MPI_Finalize, ctypes.c_void_p)
            ctypes.pythonapi.Py_AtExit(finalize)
            self._began = False


def _keep_for_ever(thing: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _import(name: str, backend: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise BackendUnavailableError(
            f"--hosts-backend {backend} needs {name}, which cannot be imported ({exc}): install it for this Python on "
            "every host, or leave the option out"
        ) from exc


LIBRARIES: dict[str, Callable[[World, int, float], HostsLibrary]] = {GLOO: GlooHosts, MPI: MpiHosts}
