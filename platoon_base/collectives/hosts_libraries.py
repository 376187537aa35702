"""Sums over hosts by a library that users have, in place of the links between hosts: gloo or MPI.

The first rank of each host takes part. It has combined the arrays of its host's ranks in shared memory, the library
adds those of the hosts, and shared memory gives the result to all. Neither library encrypts.
"""

from __future__ import annotations

import ctypes
import importlib
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_base.hosts.world import GLOO, MPI, World

__all__ = ["LIBRARIES", "HostsLibrary", "Pending", "takes"]

Array = np.ndarray[Any, Any]

_ADDED = frozenset(map(np.dtype, ("float32", "float64", "int32", "int64")))
_CAUSE_TIMEOUT_S = 1.5  # that the cause of a failure has to become known in: a process has ended, say
_LIBRARY_TIMEOUT_S = 24 * 3600.0  # for which gloo waits for data; whether a host is lost is found out by other ways


class Pending(Protocol):
    """A sum that is under way."""

    def done(self) -> bool:
        """Return whether the result is there; False for ever once it has failed."""
        ...

    def why_failed(self) -> str:
        """Say why it has failed; empty while it has not, or its cause may yet become known in other ways."""
        ...


class HostsLibrary(Protocol):
    """A library that adds arrays of one process per host.

    Attributes
    ----------
    port : int
        That host 0 has opened and the others need to know; 0 for none.
    """

    port: int

    def connect(self) -> None:
        """Connect to the other hosts, which do so at the same time."""
        ...

    def begin_sum(self, array: Array) -> Pending:
        """Begin to replace a contiguous array by the sum over the hosts, each of which calls this in the same order."""
        ...

    def close(self, failed: bool) -> None:
        """Release the library; where a call has ``failed``, without waiting for the other hosts."""
        ...


def takes(dtype: Any, op: str) -> bool:
    """Return whether libraries add such arrays as the links do; links combine all others."""
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
            self._failure, self._failed_at = str(exc).splitlines()[0], time.monotonic()
            return False
        return True

    def why_failed(self) -> str:
        late = self._failure and time.monotonic() > self._failed_at + _CAUSE_TIMEOUT_S
        return f"gloo could not add the arrays of the hosts: {self._failure}" if late else ""


class GlooHosts:
    """gloo, by `torch.distributed`, in a group that is not the process's default one.

    Parameters
    ----------
    world : World
    port : int
        Of the store at which the hosts' first ranks find each other; 0 to open it, on host 0.
    timeout_s : float
        How long to wait for them.

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
        self._world, self._until = world, time.monotonic() + timeout_s
        # Now, since it fails where the address is none of this host's, and the others are not to wait for that.
        self._device = distributed.ProcessGroupGloo.create_device(hostname=world.addresses[world.host])
        self._group: Any = None

    def connect(self) -> None:
        """Connect to the other hosts, which do so at the same time."""
        group = self._torch.distributed.ProcessGroupGloo
        options = group._Options()
        options._devices = [self._device]
        options._timeout = timedelta(seconds=max(self._until - time.monotonic(), 1.0))
        self._group = group(self._store, self._world.host, self._world.hosts, options)
        self._group._set_default_timeout(timedelta(seconds=_LIBRARY_TIMEOUT_S))

    def begin_sum(self, array: Array) -> Pending:
        """Begin to replace a contiguous array by the sum over the hosts, each of which calls this in the same order."""
        return _GlooSum(self._group.allreduce([self._torch.from_numpy(array)]))

    def close(self, failed: bool) -> None:
        """Release the library; where a call has ``failed``, without waiting for the other hosts."""
        if failed and self._group is not None:
            _keep_for_ever(self._group)  # its end would wait for what never comes
        self._group = self._store = self._device = None


class _MpiSum:
    """A sum in a thread of its own: what MPI does without a thread moves twice the bytes for large arrays."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self._done = False
        self._failure = ""

    def run(self, comm: Any, in_place: Any, op: Any) -> None:
        """Add; in the thread."""
        try:
            comm.Allreduce(in_place, self.array, op)
            self._done = True
        except Exception as exc:  # MPI's own, if it does not end the process
            self._failure = str(exc)

    def done(self) -> bool:
        return self._done

    def why_failed(self) -> str:
        return f"MPI could not add the arrays of the hosts: {self._failure}" if self._failure else ""


class MpiHosts:
    """MPI, by mpi4py: its world is the processes that mpirun has started, one launcher on each host.

    MPI ends all of them if a process that uses it dies, so the job does not survive the loss of a host.

    Parameters
    ----------
    world : World
    port, timeout_s
        Not used: the processes know each other.
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
        """Meet the other hosts, which do so at the same time."""
        if self._mpi.Is_finalized():
            raise ConfigurationError("this process has ended its use of MPI already, which cannot be begun again")
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
            # At the very end of the process: it waits for the other hosts, which may wait for this one to leave.
            # After a failure never: MPI then ends all its processes, which have no other way to end together.
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
