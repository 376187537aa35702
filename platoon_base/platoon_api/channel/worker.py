"""The original's worker, on top of the handle of `platoon_base.connect`."""

from __future__ import annotations

import argparse
import atexit
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from platoon_base.compat.theano_flags import chosen_device
from platoon_base.data.batch_reader import BatchReader
from platoon_base.data.shared_data import SharedArrays
from platoon_base.errors import ConfigurationError, PlatoonWarning, WorkerLostError
from platoon_base.job.joining import connect, connect_at_port
from platoon_base.platoon_api.arguments import (
    CONTROL_PORT,
    DATA_HWM,
    add_port_options,
    context_of_device,
    port_arguments,
    ports_of,
    require_port,
    without_job_name,
)
from platoon_base.platoon_api.data_channel import (
    from_json,
    open_reader,
    reader_of_running,
    require_hwm,
    to_json,
    unpack,
)
from platoon_base.platoon_api.param_sync import ParamSyncRule, is_user_defined, require_params
from platoon_base.system.environment import DEVICE, JOB
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker as Handle


class Worker:
    """One worker of a job, under the names of the original Platoon.

    A process is one worker: a second construction warns and returns the first one. A worker that a
    launcher has started joins its job, whatever the port. Others join the job of this user whose
    controller listens at that port of this host.

    Parameters
    ----------
    control_port : int
    data_port : int, optional
        Port of the controller's mini-batches, see `init_mb_sock`.
    socket_timeout : float
        Milliseconds to wait for the controller's answers and mini-batches. With -1, as in ZeroMQ,
        there is no limit while the controller lives, and 300 s for it to open its data port.
    data_hwm : int
        Mini-batches that may wait here.
    cport, port : int, optional
        The names of ``control_port`` and ``data_port`` in scripts of 2016.

    Attributes
    ----------
    handle : platoon_base.worker.Worker
        The handle of this worker, which has more methods.

    Raises
    ------
    ConfigurationError
        If there is no controller at the port.
    """

    _current: ClassVar[Worker | None] = None
    handle: Handle

    def __new__(cls, *args: Any, **kwargs: Any) -> Worker:
        current = Worker._current
        if current is None or current.handle.closed or current._pid != os.getpid():
            return super().__new__(cls)
        warnings.warn(
            "this process is a worker already: the second Worker is the first one, with its ports",
            PlatoonWarning,
            stacklevel=2,
        )
        return current

    def __init__(
        self,
        control_port: int = CONTROL_PORT,
        data_port: int | None = None,
        socket_timeout: float = 300000,
        data_hwm: int = DATA_HWM,
        *,
        cport: int | None = None,
        port: int | None = None,
    ) -> None:
        if Worker._current is self:
            return
        control_port, data_port = ports_of(control_port, data_port, cport, port)
        self._pid = os.getpid()
        self._timeout_s = _seconds(socket_timeout)
        self._params: list[Any] = []
        # Set for a user-defined rule only.
        self._rule: ParamSyncRule | None = None
        self._update: Callable[[list[Any]], object] | None = None
        self._data_port: int | None = None
        self._data_hwm = data_hwm
        self._reader: BatchReader | None = None
        if data_port is not None:
            self._set_data_port(data_port, data_hwm)
        if os.environ.get(JOB):
            self.handle = connect()
        else:
            device = os.environ.get(DEVICE) or chosen_device(os.environ)
            self.handle = connect_at_port(control_port, self._timeout_s, device)
            atexit.register(self._end_of_script)
        self._arrays = SharedArrays(self.handle)
        atexit.register(self._end_of_data)
        Worker._current = self
        self._find_data()

    # The job.

    @property
    def local_size(self) -> int:
        """Number of workers on this host."""
        return self.handle.local_size

    @property
    def local_rank(self) -> int:
        """Number of this worker among those of this host."""
        return self.handle.local_rank

    @property
    def global_size(self) -> int:
        """Number of workers of the job; if it is not configured, the number that had joined."""
        return self.handle.global_size

    @property
    def global_rank(self) -> int:
        """Number of this worker."""
        return self.handle.global_rank

    def send_req(self, req: Any, info: Any = None) -> Any:
        """Send a request to the controller's `handle_control`, and return its answer.

        Both are plain data, as in `handle_control`. Names that begin with ``platoon-`` are
        reserved.

        Raises
        ------
        ConfigurationError
            If JSON cannot represent the request.
        ProtocolError
            If `handle_control` raised an exception; the controller's log has the traceback.
        """
        name = req if isinstance(req, str) else type(req).__name__
        text = to_json([req, info], f"a request {name!r}")
        # The handler may send a mini-batch before it answers, which waits for a reader.
        self._find_data()
        return from_json(self.handle.send_req(name, text, timeout_s=self._timeout_s))

    def lock(self, timeout: float | None = None) -> None:
        """Acquire the job's advisory lock within ``timeout`` s: 300 by default, 0 tries once."""
        self.handle.lock(timeout_s=DEFAULT_TIMEOUT_S if timeout is None else timeout)

    def unlock(self) -> None:
        """Release the job's advisory lock."""
        self.handle.unlock()

    # Parameters and their center.

    @without_job_name
    def init_shared_params(self, params: Sequence[Any], param_sync_rule: Any, cleanup: bool = False) -> None:
        """Share parameters: the first worker's values become the center, and go to all others.

        Parameters
        ----------
        params : list of Theano shared variable
        param_sync_rule : ParamSyncRule, or a rule of `platoon_base.rules`
        cleanup : bool
            Ignored, like a job name before ``params`` or as ``job_name``.

        Raises
        ------
        ConfigurationError
            If ``params`` is no list, or the rule's methods differ from those of `ParamSyncRule`.
        """
        params = require_params(params)
        update, rule = None, None
        if is_user_defined(param_sync_rule):
            rule = param_sync_rule
            rule.require_signatures()
            update = rule.make_update_function(params)
            if not callable(update):
                raise ConfigurationError(
                    f"{type(rule).__name__}.make_update_function returned {update!r}: return a function that takes the "
                    "list of the center's values and changes them in place"
                )
        self.handle.init_shared_params(params, param_sync_rule)
        self._params, self._update, self._rule = params, update, rule
        if rule is not None:
            rule.took_center_over()

    @property
    def shared_params(self) -> list[Any]:
        """The center's memory: one ndarray for each parameter."""
        return self.handle.center_arrays

    def sync_params(self, synchronous: bool = True) -> None:
        """Apply the rule once; without locks if ``synchronous`` is False."""
        if self._update is not None:
            self.handle.update_center(self._update, synchronous=synchronous)
        else:
            self.handle.sync_params(synchronous)

    def copy_to_local(self, synchronous: bool = True) -> None:
        """Copy the center to the parameters; without locks if ``synchronous`` is False."""
        self._copy(self.handle.copy_to_local, synchronous)
        if self._rule is not None:
            self._rule.took_center_over()

    def copy_to_global(self, synchronous: bool = True) -> None:
        """Copy the parameters to the center; without locks if ``synchronous`` is False."""
        self._copy(self.handle.copy_to_global, synchronous)

    def _copy(self, copy: Callable[[], None], synchronous: bool) -> None:
        """Copy; a user-defined rule needs the job's lock, while stripes are always locked."""
        if self._update is None or not synchronous:
            copy()
            return
        self.handle.lock()
        try:
            copy()
        finally:
            self.handle.unlock()

    # Arrays.

    @property
    def gpuctx(self) -> Any:
        """The pygpu context of this worker's device, as for ``pygpu.zeros``; None on the CPU."""
        return context_of_device()

    def all_reduce(self, src: Any, op: str, dest: Any = None) -> Any:
        """Combine the arrays of all workers; return a new array, or None if there is a ``dest``.

        Parameters
        ----------
        src : GpuArray or ndarray
        op : str
            ``"+"``, ``"sum"``, ``"add"``, ``"*"``, ``"prod"``, ``"product"``, ``"mul"``, ``"max"``,
            ``"maximum"``, ``"min"`` or ``"minimum"``.
        dest : array like ``src``, optional
        """
        result = self.handle.all_reduce(src, op, dest)
        return result if dest is None else None

    def shared(self, array: Any) -> Any:
        """Return zeros like ``array`` in memory that all workers of this host share.

        The k-th call of each worker has the same shape and dtype.
        """
        return self._arrays.like(array)

    # Mini-batches.

    def init_mb_sock(self, port: int, data_hwm: int = DATA_HWM) -> None:
        """Read mini-batches from the controller with this data port, like ``data_port``.

        If the controller has not opened the port, each request looks for it, and `recv_mb` waits
        for it. After a second call, mini-batches that waited here for the first one go to other
        readers.
        """
        self._set_data_port(port, data_hwm)
        before, self._reader = self._reader, None
        self._find_data()
        if before is not None:
            # Close it only now: a controller without any reader ends its data.
            before.close()

    def _set_data_port(self, port: int, data_hwm: int) -> None:
        require_port(port)
        require_hwm(data_hwm)
        self._data_port, self._data_hwm = port, data_hwm

    def _find_data(self) -> None:
        """Join the readers if the controller already serves mini-batches."""
        if self._reader is None and self._data_port is not None:
            self._reader = reader_of_running(self._data_port, self._data_hwm, self.global_rank, self._timeout_s)

    def recv_mb(self) -> list[Any]:
        """Return the next mini-batch: a list of ndarrays, in shared memory until dropped.

        Raises
        ------
        ConfigurationError
            If there is no data port.
        CollectiveTimeoutError
            If nothing arrives within ``socket_timeout``.
        WorkerLostError
            If the controller has closed the channel or is lost.
        """
        if self._reader is None:
            if self._data_port is None:
                raise ConfigurationError("this worker has no data channel: pass data_port, or call init_mb_sock(port)")
            # The wait is bounded, since no failure of a controller would end it.
            opens_s = min(self._timeout_s, DEFAULT_TIMEOUT_S)
            self._reader = open_reader(self._data_port, self._data_hwm, self.global_rank, opens_s)
        batch = self._reader.receive(timeout_s=self._timeout_s)
        if batch is None:
            raise WorkerLostError(
                "the controller has ended its mini-batches: let its answers to send_req end the loop before"
            )
        return unpack(batch)

    # The end.

    def close(self) -> None:
        """Leave the job; the others continue."""
        self._end_of_data()
        self._data_port = None
        self._arrays.close()
        self.handle.close()

    def _end_of_data(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _end_of_script(self) -> None:
        """Leave as failed if an exception ended the script; Python stores it in `sys.last_type`."""
        if getattr(sys, "last_type", None) is not None:
            self.handle.close(failed=True)

    # The command line.

    @staticmethod
    def default_parser() -> argparse.ArgumentParser:
        """Return a parser of a worker's options, to which scripts add their own."""
        parser = argparse.ArgumentParser(description="A worker.")
        add_port_options(parser)
        return parser

    @staticmethod
    def default_arguments(args: argparse.Namespace) -> dict[str, Any]:
        """Return the parsed arguments of `default_parser` as those of the constructor."""
        return port_arguments(args)


def _seconds(socket_timeout: Any) -> float:
    if socket_timeout == -1:
        return math.inf
    if not (isinstance(socket_timeout, (int, float)) and 0 < socket_timeout < float("inf")):
        raise ConfigurationError(
            f"got socket_timeout={socket_timeout!r}: it is a positive number of milliseconds, such as 300000, or "
            "-1 for no limit"
        )
    return socket_timeout / 1000
