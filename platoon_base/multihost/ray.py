"""Jobs on a cluster of Ray: one launcher per node, in an actor of a placement group."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from platoon_base.controller.stop_signals import StopSignals
from platoon_base.errors import ConfigurationError
from platoon_base.job.starting import free_address
from platoon_base.multihost.start import PASSED
from platoon_base.system.environment import KEY_FILE
from platoon_base.timeouts import POLL_S, timeout

__all__ = ["Shares", "launch", "shares"]

log = logging.getLogger(__name__)

_CONNECT_S = 10.0
_RETRY_INTERVAL_S = 1.0
_OTHER_HOSTS_EXIT_S = 30.0  # The other hosts may take this time to end after host 0 has ended.
_LOST_STATUS = 1
_CONCURRENT = 4  # Concurrent calls of one actor: one waits for output while others send signals.
_LINES = 200  # Lines of output in one answer.
_FOLDER, _KEY = "platoon-ray-", "key"
# This launcher ends when its actor has ended for any reason, and removes the key's folder.
_LAUNCH = """
import atexit, shutil, signal, sys
from platoon_base.system.orphan import OrphanPolicy, end_with
end_with(int(sys.argv.pop(1)), OrphanPolicy(0.0, 0.0, signal.SIGTERM, 20.0))
atexit.register(shutil.rmtree, sys.argv.pop(1), ignore_errors=True)
from platoon_base.cli import main
main()
"""


class Shares(NamedTuple):
    """Number of workers for each host; ``kind`` is ``"GPU"`` or ``"CPU"``: each worker gets one."""

    workers: list[int]
    kind: str


def shares(
    nodes: Sequence[Mapping[str, float]], workers: int, device: str = "auto", hosts: int | None = None
) -> Shares:
    """Divide workers among as few nodes as possible, or as evenly as possible among ``hosts``.

    ``nodes`` are resources such as ``{"CPU": 8.0, "GPU": 2.0}``. ``device`` is ``"cuda"``,
    ``"cpu"``, or ``"auto"`` for GPUs if the cluster has any. There may be fewer nodes than
    ``hosts``: the cluster may grow. Raises `ConfigurationError` if it is too small, or there are
    fewer workers than hosts.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigurationError(f"got -D {device}: on Ray it must be cpu, cuda or auto; Ray chooses the devices")
    if workers < 1:
        raise ConfigurationError(f"got {workers} workers: there must be at least one")
    have_gpus = any(node.get("GPU", 0) >= 1 for node in nodes)
    kind = "GPU" if device == "cuda" or (device == "auto" and have_gpus) else "CPU"
    if hosts is not None:
        if not 1 <= hosts <= workers:
            raise ConfigurationError(f"got {workers} workers on {hosts} hosts: each host needs at least one")
        return Shares([workers // hosts + (host < workers % hosts) for host in range(hosts)], kind)
    rooms = sorted((int(node.get(kind, 0)) for node in nodes), reverse=True)
    divided, left = [], workers
    for room in rooms:
        if left and room:
            divided.append(min(room, left))
            left -= divided[-1]
    if left:
        raise ConfigurationError(
            f"got {workers} workers, one {kind} each, and the cluster has {sum(rooms)} {kind}s on "
            f"{len(rooms)} nodes: start fewer workers, or pass --nnodes if the cluster grows on "
            "demand"
        )
    return Shares(divided, kind)


def launch(
    script: str,
    args: Sequence[str] = (),
    *,
    workers: int,
    device: str = "auto",
    hosts: int | None = None,
    options: Sequence[str] = (),
    timeout_s: float | None = None,
    show: Callable[[str], object] | None = None,
) -> int:
    """Run a script as workers of one job on a cluster of Ray; return the exit status.

    Each node runs ``platoon launch``. The package must be installed there. The script must exist
    there: put it on a shared file system, or set ``working_dir`` in Ray's runtime environment. If
    ``ray.init`` was not called, ``RAY_ADDRESS`` names the cluster; by default it is this machine's.
    ``workers`` is the total; each gets a GPU or a core of Ray. By default there are as few
    ``hosts`` as possible. ``options`` are further options of ``platoon launch``. ``show`` gets each
    line of output, by default written to standard output; lines of hosts other than host 0 begin
    with the host's name. Raises `ConfigurationError` if Ray is not installed or has no cluster or
    no room.
    """
    ray = _ray()
    timeout_s = timeout("rendezvous") if timeout_s is None else timeout_s
    words = [*options, script, *args]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_connected(ray))
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        divided = shares(nodes, workers, device, hosts)
        group = stack.enter_context(_placed(ray, divided, timeout_s))
        signals = stack.enter_context(StopSignals()) if _is_main_thread() else None
        job = _Job(ray, group, divided, words, show or _write)
        stack.callback(job.close)
        job.start(timeout_s)
        return job.serve(signals)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as exc:
        raise ConfigurationError('jobs on Ray need Ray: pip install "platoon-plugins[ray]" on all nodes') from exc


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _connected(ray: Any) -> Iterator[None]:
    """Connect this process to a cluster within the ``with`` block, unless it is connected."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        _require_answer(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as exc:
        raise ConfigurationError(
            f"there is no Ray cluster ({exc}): start one with `ray start --head` and, on the "
            "other nodes, `ray start --address=HEAD:6379`, or name one in RAY_ADDRESS"
        ) from exc
    try:
        yield
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Raise OSError if nothing listens at ``HOST:PORT``: Ray would end this process."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


@contextlib.contextmanager
def _placed(ray: Any, divided: Shares, timeout_s: float) -> Iterator[Any]:
    """Reserve a bundle for each host, each on its own node, within the ``with`` block."""
    placement = importlib.import_module("ray.util.placement_group")
    bundles = [{"CPU": float(count), **({"GPU": float(count)} if divided.kind == "GPU" else {})}
               for count in divided.workers]  # fmt: skip
    group = placement.placement_group(bundles, strategy="STRICT_SPREAD")
    try:
        try:
            ray.get(group.ready(), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as exc:
            raise ConfigurationError(
                f"Ray had no room for {bundles} on separate nodes within {timeout_s:g} s "
                "(--rdzv-timeout): do other jobs use the cluster (`ray status`)? A worker needs "
                "a core, and on GPUs also a GPU"
            ) from exc
        yield group
    finally:
        placement.remove_placement_group(group)


def _remove_stale_keys() -> None:
    """Remove the key files that killed actors have left: nobody holds their locks."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*/{_KEY}"):
        with contextlib.suppress(OSError):  # The file belongs to another user, or is locked.
            fd = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(fd)


class Launcher:
    """Runs ``platoon launch`` on the node of this actor; only the user can read the key file."""

    def __init__(self, key: str) -> None:
        _remove_stale_keys()
        self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER))  # The mode is 0700.
        self._key_file = self._folder / _KEY
        unlocked = self._folder / "unlocked"
        self._lock = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, f"{key}\n".encode())
        unlocked.rename(self._key_file)
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None

    def where(self) -> tuple[str, str, str]:
        """Return Ray's id of this node, its name, and its address with a free port."""
        ray = importlib.import_module("ray")
        endpoint = free_address(ray.util.get_node_ip_address())
        return ray.get_runtime_context().get_node_id(), os.uname().nodename, endpoint

    def start(self, words: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
        """Start the launcher, in ``folder`` if it exists here."""
        variables = {**os.environ, **environment, KEY_FILE: str(self._key_file)}
        for name in ("RAY_JOB_ID", "RAY_RAYLET_PID"):  # The launcher is not a process of Ray.
            variables.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(os.getpid()), str(self._folder), "launch", *words],
            cwd=folder if os.path.isdir(folder) else None,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        process.wait()
        with self._changed:
            self._changed.notify_all()

    def poll(self, seen: int, timeout_s: float) -> tuple[list[str], int | None]:
        """Return output after ``seen`` lines, and the exit status if there is no more output."""
        process = self._process
        if process is None:
            return [], None
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) > seen or process.returncode is not None, timeout_s)
            lines = self._lines[seen : seen + _LINES]
            at_end = process.returncode is not None and seen + len(lines) == len(self._lines)
            return lines, process.returncode if at_end else None

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def close(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


class _Host:
    """The actor of one host, and the state of its launcher's output."""

    def __init__(self, actor: Any, workers: int) -> None:
        self.index = 0
        self.name = ""
        self.actor = actor
        self.workers = workers
        self.words: list[str] = []
        self.seen = 0
        self.status: int | None = None
        self.lost = False
        self.ask_at = 0.0  # Time of the next query whether a lost actor has been restarted.


class _Job:
    def __init__(
        self, ray: Any, group: Any, divided: Shares, words: Sequence[str], show: Callable[[str], object]
    ) -> None:
        self._ray = ray
        self._divided = divided
        self._words = words
        self._show = show
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        key = secrets.token_hex(32)  # The key is for this job only.
        actor = ray.remote(Launcher)
        self._hosts = []
        for index, count in enumerate(divided.workers):
            options = actor.options(
                num_cpus=count,
                num_gpus=count if divided.kind == "GPU" else 0,
                max_concurrency=_CONCURRENT,
                max_restarts=-1,  # The actor is restarted if its node, or another one, returns.
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group, index),
            )
            self._hosts.append(_Host(options.remote(key), count))

    def start(self, timeout_s: float) -> None:
        found = self._ray.get([host.actor.where.remote() for host in self._hosts], timeout=timeout_s)
        own = self._ray.get_runtime_context().get_node_id()
        # Host 0 has the logs and the summary. It is this node if the job has workers here.
        order = sorted(range(len(found)), key=lambda i: (found[i][0] != own, found[i][1], i))
        self._hosts = [self._hosts[i] for i in order]
        endpoint = found[order[0]][2]
        for index, (host, i) in enumerate(zip(self._hosts, order)):
            host.index, host.name = index, found[i][1]
            place = ["--nnodes", str(len(found)), "--node-rank", str(index), "--rdzv-endpoint", endpoint]
            # On each host, Ray shows only the GPUs that it has assigned.
            what = ["-D", "cuda"] if self._divided.kind == "GPU" else ["-n", str(host.workers), "-D", "cpu"]
            host.words = [*(place if len(found) > 1 else ["--nnodes", "1"]), *what, *self._words]
        self._ray.get([self._start(host) for host in self._hosts], timeout=timeout_s)

    def _start(self, host: _Host) -> Any:
        environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
        environment.pop(KEY_FILE, None)
        return host.actor.start.remote(host.words, os.getcwd(), environment)

    def serve(self, signals: StopSignals | None) -> int:
        """Show the launchers' output until all have ended; return the exit status of host 0."""
        pending: dict[Any, _Host] = {}
        deadline: float | None = None
        while any(host.status is None for host in self._hosts):
            now = time.monotonic()
            for host in self._hosts:
                if host not in pending.values() and (host.status is None or (host.lost and now > host.ask_at)):
                    pending[self._asked(host)] = host
            done, _ = self._ray.wait(list(pending), timeout=POLL_S)
            for answer in done:
                host = pending.pop(answer)
                if host.lost:
                    self._take_back(host, answer)
                else:
                    self._take(host, answer)
            for number in () if signals is None else (*signals.take(), *signals.take_for_workers()):
                self._pass_on(number)
            if self._hosts[0].status is not None and deadline is None:
                deadline = time.monotonic() + _OTHER_HOSTS_EXIT_S
            if deadline is not None and time.monotonic() > deadline:
                names = ", ".join(host.name for host in self._hosts if host.status is None)
                log.warning("%s did not end within %g s after host 0: killing it", names, _OTHER_HOSTS_EXIT_S)
                break
        status = self._hosts[0].status
        return _LOST_STATUS if status is None else status if status >= 0 else 128 - status

    def _asked(self, host: _Host) -> Any:
        return host.actor.where.remote() if host.lost else host.actor.poll.remote(host.seen, 20 * POLL_S)

    def _take(self, host: _Host, answer: Any) -> None:
        try:
            lines, host.status = self._ray.get(answer)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.RayTaskError) as exc:
            host.lost, host.status = host.index > 0, _LOST_STATUS  # Without host 0 there is no job.
            reason = str(exc).strip().splitlines() or [type(exc).__name__]
            log.warning("Ray reports that %s (host %d) is lost: %s", host.name, host.index, reason[0])
            return
        host.seen += len(lines)
        for line in lines:
            self._show(f"({host.name}) {line}" if host.index else line)

    def _take_back(self, host: _Host, answer: Any) -> None:
        """Restart the launcher of a host whose actor Ray has restarted; the job may refuse it."""
        try:
            _, host.name, _ = self._ray.get(answer)
            self._ray.get(self._start(host), timeout=_OTHER_HOSTS_EXIT_S)
        except self._ray.exceptions.RayError:
            host.ask_at = time.monotonic() + _RETRY_INTERVAL_S
            return
        log.warning("Ray reports that %s (host %d) has returned", host.name, host.index)
        host.lost, host.status, host.seen = False, None, 0

    def _pass_on(self, number: signal.Signals) -> None:
        """Send a signal to the launcher of the first live host, which serves the whole job."""
        for host in self._hosts:
            if host.status is None:
                host.actor.signal.remote(int(number))
                return

    def close(self) -> None:
        closing = [host.actor.close.remote() for host in self._hosts if not host.lost]
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.wait(closing, num_returns=max(1, len(closing)), timeout=10) if closing else None
        for host in self._hosts:
            self._ray.kill(host.actor)
