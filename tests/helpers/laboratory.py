"""Hosts on one machine: each is a set of namespaces, and a switch joins them; needs root.

A host has its own network, process ids, hostname, ``/dev/shm``, ``/tmp`` and home. The folder of the laboratory has the
same path on all of them, as on a shared file system. Nothing outlives the process that made a laboratory, even if that
is killed: the first process of each host is killed with it, and all others of the host with that one.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
NETWORK = "10.77.0"
LOGIN = f"{NETWORK}.254"
TOOLS = ("ip", "bridge", "tc", "nsenter", "unshare", "setpriv", "mount")
WIRE = Path(__file__).with_name("wire.py")
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
WAIT_S = 60.0

# The kernel reaps the orphans of a host: its first process ignores their end.
_HOLD = 'ip link set lo up; trap "" CHLD; echo ready; exec sleep infinity'
# Arguments: a name, a file of hosts, and folders below /tmp that this host shares with the others.
_BECOME_HOST = f"""
set -e
hostname "$1"
mount --make-rprivate /
mount -t tmpfs -o size=2g tmpfs /dev/shm
mount --bind "$2" /etc/hosts
shift 2
mount -t tmpfs tmpfs /mnt
n=0
for path; do n=$((n + 1)); mkdir /mnt/$n; mount --bind "$path" /mnt/$n; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
n=0
for path; do n=$((n + 1)); mkdir -p "$path"; mount --bind /mnt/$n "$path"; done
umount -R /mnt
mkdir -m 700 /tmp/home
{_HOLD}
"""
_BECOME_LOGIN = 'hostname login; mount --bind "$1" /etc/hosts; shift; exec "$@"'
_IN_FOLDER = 'cd "$1" && shift && exec "$@"'


@functools.cache
def problem():
    """Return why there can be no laboratory here; empty if there can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}: install iproute2 and util-linux"
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"needs namespaces, which this system refuses: {tried.stderr.strip()}" if tried.returncode else ""


def clean_environment():
    """Return this environment without what the user has configured, and without the variables of engines."""
    ours = ("PLATOON", "SLURM", "PET_", "OMPI_", "PMI", "RAY_", "MASTER_", "TMPDIR", "XDG_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def until(found, what, timeout_s=WAIT_S):
    """Poll until ``found()`` is true, and return it; fail with ``what`` otherwise, a text or what makes one."""
    deadline = time.monotonic() + timeout_s
    while not (value := found()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what() if callable(what) else what}")
        time.sleep(0.01)
    return value


class Running:
    """A command on a host.

    Attributes
    ----------
    output : Path
        The file of its standard output and error.
    """

    def __init__(self, command, output, environment):
        self.output = Path(output)
        with open(self.output, "ab") as file:
            self._outer = subprocess.Popen(
                [*DIES_WITH_US, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self):
        """Of the command itself, as this process sees it; None if it has ended."""
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")

        def found():
            if self._outer.poll() is not None:
                return [None]
            return [int(word) for word in children.read_text().split()]

        return until(found, "the command has not started")[0]

    def poll(self):
        """Return the exit status; None while it runs."""
        return self._outer.poll()

    def send_signal(self, number):
        """Send it a signal, if it still runs."""
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGCONT:  # nsenter stops with its child
            self._outer.send_signal(number)

    def kill(self):
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout_s=WAIT_S):
        """Return the exit status; fail with the output if it does not end."""
        try:
            return self._outer.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"runs after {timeout_s:g} s:\n{self.text()}") from None

    def text(self):
        """Return what it has written so far."""
        return self.output.read_text(errors="replace")

    def until(self, text, timeout_s=WAIT_S):
        """Wait until it has written a text."""

        def found():
            ended = self.poll() is not None
            return text in self.text() or ended

        until(found, lambda: f"{text!r} in\n{self.text()}", timeout_s)
        assert text in self.text(), f"ended with {self.poll()} without {text!r}:\n{self.text()}"

    def close(self):
        """Kill it, if it runs, and collect it."""
        if self.poll() is None:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._outer.wait(5)
            self._outer.kill()
        self._outer.wait()


class Host:
    """One host of a laboratory.

    Attributes
    ----------
    name, address : str
    """

    def __init__(self, laboratory, index):
        self.laboratory = laboratory
        self.index = index
        self.name = f"h{index}"
        self.address = f"{NETWORK}.{index + 1}"
        self.environment = {**clean_environment(), "HOME": "/tmp/home", "PLATOON_NAMESPACE": ""}
        self._holder = None
        self._commands = []
        self._started = 0
        self.boot()

    def boot(self):
        """Start it; for the second time as a machine that has lost all but the shared folder."""
        kept = {path for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix), self.laboratory.folder)}
        words = [str(path) for path in sorted(kept) if path.is_relative_to("/tmp")]
        names = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._holder = _holder(["unshare", *names, "sh", "-c", _BECOME_HOST, "sh", self.name,
                                str(self.laboratory.hosts_file), *words])  # fmt: skip
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.init = int(children.read_text().split()[0])
        (self.laboratory.folder / "inits" / self.name).write_text(str(self.init))
        self.laboratory.connect(self)

    @property
    def alive(self):
        """Whether it has not been killed."""
        return self._holder.poll() is None

    def words(self, *command, folder="/"):
        """Return the words that run a command here."""
        enter = ["nsenter", "-t", str(self.init), "-n", "-m", "-u", "-i", "-p"]
        return [*enter, "sh", "-c", _IN_FOLDER, "sh", str(folder), *map(str, command)]

    def start(self, *command, environment=None, output=None, folder=None):
        """Start a command; returns a `Running`."""
        folder = self.laboratory.folder if folder is None else folder
        if output is None:
            self._started += 1
            output = self.laboratory.folder / f"{self.name}.{self._started}.out"
        running = Running(self.words(*command, folder=folder), output, {**self.environment, **(environment or {})})
        self._commands.append(running)
        return running

    def run(self, *command, timeout_s=WAIT_S, **kwargs):
        """Run a command to its end; returns what it wrote, and fails with it if the status is not 0."""
        running = self.start(*command, **kwargs)
        status = running.wait(timeout_s)
        assert status == 0, f"{command} ended with {status}:\n{running.text()}"
        return running.text()

    def outside(self, path):
        """Return the path by which this process reaches a file of the host."""
        return Path(f"/proc/{self.init}/root") / str(path).lstrip("/")

    def processes(self):
        """Return the pids and command lines of what runs here, by the pids that this process sees."""
        space = os.readlink(f"/proc/{self.init}/ns/pid")
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(entry.name) != self.init and os.readlink(entry / "ns" / "pid") == space:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if words:  # a zombie has none
                        found[int(entry.name)] = words
        return found

    def leftovers(self):
        """Return what jobs have left here: processes, shared memory, folders of jobs."""
        if not self.alive:
            return []
        jobs = [f"folder {path.name}/{job.name}" for path in self.outside("/tmp").glob("platoon-*")
                for job in path.iterdir()]  # fmt: skip
        memory = [f"memory {path.name}" for path in self.outside("/dev/shm").iterdir()]
        return [*jobs, *memory, *(f"process {words}" for words in self.processes().values())]

    def kill(self):
        """Kill all of it at once, as a power cut does."""
        os.kill(self.init, signal.SIGKILL)
        self._holder.wait()
        self._holder.stdout.close()
        for running in self._commands:
            running.wait()

    def close(self):
        if self.alive:
            self.kill()
        for running in self._commands:
            running.close()


class Laboratory:
    """Hosts h0, h1 and so on, at 10.77.0.1, 10.77.0.2 and so on, and a login node at 10.77.0.254.

    Parameters
    ----------
    hosts : int
    delay_ms : float
        How long each frame takes from a host to the switch, and back.

    Attributes
    ----------
    folder : Path
        Has the same path on all hosts.
    hosts : list of Host
    """

    def __init__(self, hosts=2, delay_ms=0.0):
        self._count = hosts
        self._delay_ms = delay_ms
        self._stack = contextlib.ExitStack()
        self._commands = []
        self.hosts = []

    def __enter__(self):
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info):
        self._stack.close()

    def _open(self):
        # The path of a socket has to be short.
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lab-")))
        (self.folder / "inits").mkdir()
        self.hosts_file = self.folder / "hosts"
        others = [f"{NETWORK}.{i + 1} h{i}" for i in range(self._count)]
        self.hosts_file.write_text("\n".join(["127.0.0.1 localhost", *others, f"{LOGIN} login", ""]))
        self.switch = _holder(["unshare", "--net", "sh", "-c", _HOLD])
        self._stack.callback(self._close_switch)
        self.on_switch(f"ip link add switch type bridge; ip link set switch up; ip addr add {LOGIN}/24 dev switch")
        for index in range(self._count):
            self.hosts.append(Host(self, index))
            self._stack.callback(self.hosts[-1].close)

    def _close_switch(self):
        for running in self._commands:
            running.close()
        self.switch.kill()
        self.switch.wait()
        self.switch.stdout.close()

    def on_switch(self, script):
        """Run lines of a shell where the ports of the switch are."""
        words = ["nsenter", "-t", str(self.switch.pid), "-n", "sh", "-ec", script]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}: {done.stderr}"

    def connect(self, host):
        """Join a host to the switch, by a wire that takes its time if there is a delay."""
        port, number = f"p{host.index}", host.index
        enter = f"nsenter -t {host.init} -n"
        self.on_switch(
            f"ip link add {port} type veth peer name eth0 netns {host.init}; ip link set {port} up; "
            f"{enter} ip addr add {host.address}/24 dev eth0; {enter} ip link set eth0 up"
        )
        if not self._delay_ms:
            self.on_switch(f"ip link set {port} master switch")
            return
        words = ["nsenter", "-t", str(self.switch.pid), "-n", sys.executable, str(WIRE), f"a{number}", f"b{number}",
                 str(self._delay_ms)]  # fmt: skip
        wire = _holder(words)
        self._stack.callback(wire.wait)
        self._stack.callback(wire.kill)
        self._stack.callback(wire.stdout.close)
        joined = [(port, f"way{number}"), (f"a{number}", f"way{number}"), (f"b{number}", "switch")]
        self.on_switch(
            f"ip link add way{number} type bridge; ip link set way{number} up; "
            + "; ".join(f"ip link set {device} up; ip link set {device} master {bridge}" for device, bridge in joined)
        )

    def cut(self, *hosts):
        """Cut hosts off, silently: packets vanish, and no error reports it."""
        for host in hosts:
            self.on_switch(f"bridge link set dev p{host.index} state 0")

    def mend(self, *hosts):
        """Let packets of hosts pass again."""
        for host in hosts:
            self.on_switch(f"bridge link set dev p{host.index} state 3")

    def limit(self, rate):
        """Limit what each host sends to a rate, such as ``1gbit``."""
        for host in self.hosts:
            self.on_switch(
                f"nsenter -t {host.init} -n tc qdisc replace dev eth0 root tbf rate {rate} burst 256kb latency 50ms"
            )

    def at_login(self, *command):
        """Return the words that run a command on the login node, which sees the processes of this machine."""
        enter = ["nsenter", "-t", str(self.switch.pid), "-n", "unshare", "--uts", "--mount", "--fork", "--kill-child"]
        return [*enter, "sh", "-c", _BECOME_LOGIN, "sh", str(self.hosts_file), *map(str, command)]

    def start_at_login(self, *command, output=None, environment=None):
        """Start a command on the login node; returns a `Running`."""
        output = output or self.folder / f"login.{len(self._commands)}.out"
        environment = {**clean_environment(), "HOME": str(self.folder), **(environment or {})}
        running = Running(self.at_login(*command), output, environment)
        self._commands.append(running)
        return running

    def leftovers(self):
        """Return what jobs have left on the hosts, by host."""
        return {host.name: left for host in self.hosts if (left := host.leftovers())}


def _holder(command):
    """Start a process that holds namespaces or devices, and wait until it is ready."""
    holder = subprocess.Popen(
        [*DIES_WITH_US, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said = ""
    while (line := holder.stdout.readline()) != "ready\n":
        said += line
        if not line:
            holder.stdout.close()
            raise AssertionError(f"{command} ended with {holder.wait()}: {said}")
    return holder
