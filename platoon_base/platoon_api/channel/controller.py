"""The original's controller, which answers the workers' requests and may start the workers."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import inspect
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from platoon_base.controller.outcome import Result
from platoon_base.data.batch_server import BatchServer
from platoon_base.devices.discovery import choose_devices, require_devices
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.job.files import Origin
from platoon_base.job.hosting import Job, JobOptions, host_job
from platoon_base.job.starting import worker_starts
from platoon_base.platoon_api.arguments import CONTROL_PORT, DATA_HWM, add_port_options, port_arguments, require_port
from platoon_base.platoon_api.data_channel import from_json, open_server, pack, to_json
from platoon_base.worker_process.program import Program

log = logging.getLogger(__name__)

# The exit status after an error of the controller itself.
_OWN_ERROR = 2


class Controller:
    """Serves one job, under the names of the original Platoon.

    Override `handle_control`, construct it, and call `serve`. Workers can join as soon as it is
    constructed; `serve` answers them.

    Parameters
    ----------
    control_port : int or None
        A TCP port of this host, by which workers find the job; nobody listens there. None for no
        port, or for a later `init_control`.
    data_port : int, optional
        See `init_data`.
    data_hwm : int
        Ignored, as in `init_data`.
    devices : list of str, optional
        One for each worker. For workers that are started by hand it gives their number, which
        `Worker.all_reduce` needs.
    experiment_name : str
        Start ``<experiment_name>_worker.py`` once for each device. Empty if workers are started by
        hand.
    log_directory : str
        Folder for the output of started workers; empty for this process's own output.
    worker_args : str or list of str
        Arguments of started workers.
    multi : bool
        Several hosts, which is refused.

    Attributes
    ----------
    result : Result or None
        How the job ended; None before.

    Raises
    ------
    ConfigurationError
        If the port is in use, or the arguments are invalid.
    """

    def __init__(
        self,
        control_port: int | None = CONTROL_PORT,
        data_port: int | None = None,
        data_hwm: int = DATA_HWM,
        devices: Sequence[str] | None = None,
        experiment_name: str = "",
        log_directory: str = "",
        worker_args: str | Sequence[str] = "",
        multi: bool = False,
    ) -> None:
        if multi:
            raise ConfigurationError(
                "got multi=True (--multi): a job runs on one host; leave it out, and start one job on each host"
            )
        self._experiment = experiment_name
        self._devices = list(devices or ())
        self._log_folder = Path(log_directory) if log_directory else None
        self._worker_args = _words(worker_args)
        self._pid = os.getpid()
        self._open = contextlib.ExitStack()
        self._job: Job | None = None
        self._server: BatchServer | None = None
        self.result: Result | None = None
        if experiment_name:
            self._devices = self.get_workers_devices(devices)
            self._program.require()
            require_devices(self._devices)
        try:
            if data_port is not None:
                self.init_data(data_port, data_hwm)
            if control_port is not None:
                self.init_control(control_port)
            elif experiment_name:
                self._listen(0)
        except BaseException:
            # Otherwise the data port would stay in use until this process ends.
            self._close()
            raise

    @property
    def _workers(self) -> dict[int, str]:
        """The device of each worker by rank; the original's example numbers workers by it."""
        return dict(enumerate(self._devices))

    @property
    def _program(self) -> Program:
        return Program(f"{self._experiment}_worker.py")

    def init_control(self, port: int) -> None:
        """Reserve a port by which workers find this job; a second call takes another one.

        Raises
        ------
        ConfigurationError
            If the port is in use.
        """
        require_port(port)
        if self._job is not None and self._job.files.port == port:
            return
        self._job = None
        self._open.close()
        try:
            self._listen(port)
        except ConfigurationError as exc:
            if not self._experiment:
                raise ConfigurationError(
                    f"{exc}. Workers have to be given the same port (--control-port); `platoon jobs` lists your jobs"
                ) from exc
            # Workers that are started here do not need the port.
            log.warning("port %d is taken (%s): no worker can be added to this job by hand", port, exc)
            self._listen(0)

    def _listen(self, port: int) -> None:
        logs = "" if self._log_folder is None else str(self._log_folder.absolute())
        words = [*self._program.argv, *self._worker_args] if self._experiment else sys.argv
        origin = Origin(words, self._devices, logs)
        options = JobOptions(handler=self._answer, port=port, external=not self._experiment, origin=origin)
        self._job = self._open.enter_context(host_job(len(self._devices), options))
        atexit.register(self._close)

    def _close(self) -> None:
        """End the job if it is open, and release all its resources."""
        if self._server is not None:
            self._server.close()
        if os.getpid() != self._pid:
            # In a forked child the job belongs to the parent.
            return
        self._job = None
        self._open.close()
        atexit.unregister(self._close)

    # Serving.

    def serve(self) -> int:
        """Serve until all workers have ended.

        Workers that are started by hand may join at any time. The job ends when all joined workers
        have ended, and each of ``devices`` has had one or a worker has failed. A failed worker does
        not end the others.

        Returns
        -------
        int
            0; the exit status of the worker that failed, 1 for one started by hand; 128 + n after
            signal n; or 2 for an error of the controller itself, which is in its log.
        """
        try:
            job = self._require_open()
            self._arguments_of_handler()
            self._start_workers(job)
            self.result = job.serve()
            return self.result.status
        except (PlatoonError, OSError) as exc:
            log.error("the controller has ended: %s", exc)
            return _OWN_ERROR
        finally:
            self._close()

    def _require_open(self) -> Job:
        if self._job is None:
            raise ConfigurationError(
                "this controller listens nowhere: call init_control(port) before serve(); it serves one job, so make "
                "another one for the next"
            )
        return self._job

    def _start_workers(self, job: Job) -> None:
        if not self._experiment:
            return
        if self._log_folder is not None:
            self._log_folder.mkdir(parents=True, exist_ok=True)
        for start in worker_starts(self._program, self._worker_args, self._devices, self._log_folder):
            job.start(*start)

    def handle_control(self, req: Any, worker_id: int, req_info: Any) -> Any:
        """Answer a request of the worker with rank ``worker_id``; override it.

        ``req``, ``req_info`` and the answer are plain data: None, bool, int, float, str, list,
        dict. An exception is raised on the worker that sent the request, and the job continues.
        """
        raise ConfigurationError(
            f"got request {req!r}, but this controller answers none: override handle_control in a subclass"
        )

    def _answer(self, name: str, rank: int, info: Any) -> str:
        request = from_json(info)
        if not (isinstance(request, list) and len(request) == 2):
            raise ConfigurationError(f"got {request!r} as request {name!r}: send it by the worker's send_req")
        req, req_info = request
        answer = self.handle_control(*(req, rank, req_info)[: self._arguments_of_handler()])
        return to_json(answer, f"an answer of handle_control to {name!r}")

    def _arguments_of_handler(self) -> int:
        """Return how many arguments `handle_control` takes: 3, or 2 without ``req_info``."""
        signature = inspect.signature(self.handle_control)
        for count in (3, 2):
            with contextlib.suppress(TypeError):
                signature.bind(*range(count))
                return count
        raise ConfigurationError(
            f"got {type(self).__name__}.handle_control{signature}: it is called as handle_control(req, worker_id, "
            "req_info); give it these arguments"
        )

    def worker_is_done(self, worker_id: int) -> None:
        """Do nothing: the controller detects the end of workers itself. Deprecated."""
        warnings.warn(
            "worker_is_done has no effect: the controller sees which workers have ended; leave it out",
            DeprecationWarning,
            stacklevel=2,
        )

    # Mini-batches.

    def init_data(self, port: int, data_hwm: int = DATA_HWM, hwm: int = DATA_HWM) -> None:
        """Open the data channel of a port; ``data_hwm`` and ``hwm`` are ignored.

        Raises
        ------
        ConfigurationError
            If another process has this channel open.
        """
        if self._server is not None:
            self._server.close()
            self._server = None
        self._server = open_server(port, len(self._devices), self._remaining)
        atexit.register(self._close)
        # A child of multiprocessing runs its own finalizers instead of those of atexit.
        if os.getpid() != self._pid:
            Finalize(None, self._close, exitpriority=0)

    def _remaining(self) -> set[int] | None:
        """Return the ranks of the job's workers that may still read, None if there is no job."""
        job = self._job
        if job is not None and os.getpid() != self._pid and not Path(job.files.folder).exists():
            # A forked child has a copy of the job, which is not updated when workers leave.
            return set()
        return None if job is None else job.remaining

    def send_mb(self, arrays: Any) -> None:
        """Send one mini-batch, a list of ndarrays or an ndarray of rows, to any free worker.

        It waits while all workers have as many as they may.

        Raises
        ------
        WorkerLostError
            If all workers have left.
        """
        if self._server is None:
            raise ConfigurationError("this controller has no data channel: pass data_port, or call init_data(port)")
        self._server.send(pack(arrays))

    @property
    def asocket(self) -> BatchServer | None:
        """The server of the mini-batches, to ``close()`` after the last one; None without one."""
        return self._server

    # The command line.

    @staticmethod
    def default_parser() -> argparse.ArgumentParser:
        """Return a parser of a controller's arguments, to which scripts add their own."""
        parser = argparse.ArgumentParser(description="A controller.")
        parser.add_argument("experiment_name", nargs="?", default="", help="Start EXPERIMENT_NAME_worker.py.")
        parser.add_argument("log_directory", nargs="?", default="", help="Folder for the workers' logs.")
        hosts = parser.add_mutually_exclusive_group()
        hosts.add_argument("--single", dest="multi", action="store_false", default=False, help="One host.  [default]")
        hosts.add_argument("--multi", dest="multi", action="store_true", help="Several hosts, which is refused.")
        parser.add_argument("-D", "--devices", nargs="*", metavar="DEV", help="One worker for each device.  [all GPUs]")
        parser.add_argument(
            "-w", "--workers-args", dest="worker_args", default="", metavar="ARGS", help="Arguments of the workers."
        )
        add_port_options(parser)
        return parser

    @staticmethod
    def default_arguments(args: argparse.Namespace) -> dict[str, Any]:
        """Return the parsed arguments of `default_parser` as those of the constructor."""
        names = ("devices", "experiment_name", "log_directory", "worker_args", "multi")
        return {**port_arguments(args), **{name: getattr(args, name) for name in names}}

    @staticmethod
    def get_workers_devices(devices: Sequence[str] | None = None) -> list[str]:
        """Return the workers' devices: the named ones, or every GPU, or one CPU for each core."""
        return choose_devices(None, [name for word in devices or () for name in word.split(",") if name]).devices


def _words(worker_args: str | Sequence[str]) -> list[str]:
    if not isinstance(worker_args, str):
        return list(worker_args)
    try:
        return shlex.split(worker_args)
    except ValueError as exc:
        raise ConfigurationError(f"got worker_args {worker_args!r}, in which a quote is not closed ({exc})") from exc
