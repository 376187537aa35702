"""Hosts on one machine for benchmarks: network namespaces joined by a switch. Needs root, iproute2 and util-linux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_DIES = ["setpriv", "--pdeathsig", "KILL"]  # when this process does
_WIRE = Path(__file__).parents[1] / "tests" / "helpers" / "wire.py"
_STAY = "echo ready; exec sleep infinity"
_TOOLS = ("ip", "bridge", "tc", "nsenter", "unshare", "setpriv", "taskset")


def problem() -> str:
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = ", ".join(name for name in _TOOLS if shutil.which(name) is None)
    return f"there is no {missing}: install iproute2 and util-linux" if missing else ""


class Host:
    """A host: its own network, name, System V IPC, /dev/shm and share of the cores; the rest is the machine's."""

    def __init__(self, number: int, switch: int, cores: list[int]) -> None:
        self._cores = cores
        self.name, self.address = f"h{number}", f"10.78.0.{number + 1}"
        shell = f"hostname {self.name}; mount --make-rprivate /; mount -t tmpfs -o size=4g tmpfs /dev/shm; "
        kinds = ["--net", "--mount", "--uts", "--ipc"]
        self._holder = _ready([*_DIES, "unshare", *kinds, "sh", "-c", f"{shell} ip link set lo up; {_STAY}"])
        inside, outside, pid = f"ve{os.getpid() % 100000}x{number}", f"p{number}", self._holder.pid
        _run(f"ip link add {outside} netns {switch} type veth peer name {inside} netns {pid}")
        for words in (f"addr add {self.address}/24 dev {inside}", f"link set {inside} name eth0", "link set eth0 up"):
            _run(f"ip {words}", self.enter())
        _run(f"nsenter -t {switch} -n ip link set {outside} master br0 up")

    def enter(self) -> list[str]:
        inside = ["nsenter", "-t", str(self._holder.pid), "-n", "-m", "-u", "-i", f"--wd={os.getcwd()}"]
        return [*inside, "taskset", "-c", ",".join(map(str, self._cores))]

    def close(self) -> None:
        _end(self._holder)


class Hosts:
    """Some hosts and the switch between them; a context manager. A frame takes ``delay_ms`` to the switch, and back."""

    def __init__(self, count: int, delay_ms: float = 0.0) -> None:
        self._count, self._delay_ms = count, delay_ms
        self._wires: list[subprocess.Popen[str]] = []
        self.all: list[Host] = []

    def __enter__(self) -> Hosts:
        shell = "hostname login; ip link set lo up; ip link add br0 type bridge; ip link set br0 up; "
        shell += f"ip addr add 10.78.0.254/24 dev br0; {_STAY}"
        self._switch = _ready([*_DIES, "unshare", "--net", "--uts", "sh", "-c", shell])
        try:
            cores = sorted(os.sched_getaffinity(0))
            each = max(1, len(cores) // self._count)
            parts = [cores[number * each % len(cores) :][:each] for number in range(self._count)]
            self.all = [Host(number, self._switch.pid, part) for number, part in enumerate(parts)]
            for number in range(self._count if self._delay_ms else 0):
                self._delay(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _delay(self, number: int) -> None:
        inside, names = ["nsenter", "-t", str(self._switch.pid), "-n"], [f"a{number}", f"b{number}"]
        self._wires.append(_ready([*inside, *_DIES, sys.executable, str(_WIRE), *names, str(self._delay_ms)]))
        way = f"way{number}"
        lines = [f"ip link add {way} type bridge", f"ip link set {way} up", f"ip link set p{number} master {way}"]
        for name, bridge in zip(names, [way, "br0"]):
            lines += [f"ip link set {name} up", f"ip link set {name} master {bridge}"]
        subprocess.check_call([*inside, "sh", "-ec", "; ".join(lines)])

    def __exit__(self, *exc_info: object) -> None:
        for host in self.all:
            host.close()
        for process in (*self._wires, self._switch):
            _end(process)

    def login(self) -> list[str]:
        """Return the beginning of a command that runs at the switch, with an address in the hosts' network."""
        return ["nsenter", "-t", str(self._switch.pid), "-n", "-u"]

    def limit(self, rate: str | None) -> None:
        """Let each host send so much, such as ``"1gbit"``; None for as much as it can."""
        for host in self.all:
            if rate is None:
                command = [*host.enter(), "tc", "qdisc", "del", "dev", "eth0", "root"]
                subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
            else:
                bucket = f"tbf rate {rate} burst 512kb latency 50ms"
                _run(f"tc qdisc replace dev eth0 root {bucket}", host.enter())

    def cut(self, number: int, whole: bool = False) -> None:
        """Cut a host off, silently, or let it back in (``whole``)."""
        state = 3 if whole else 0
        _run(f"nsenter -t {self._switch.pid} -n bridge link set dev p{number} state {state}")

    def agent(self, folder: Path) -> Path:
        path = folder / "agent"
        cases = "\n".join(f'{host.name}) exec {" ".join(host.enter())} sh -c "$*" ;;' for host in self.all)
        path.write_text(f"#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}\nesac\nexit 1\n")
        path.chmod(0o755)
        return path


def _run(words: str, begin: list[str] | None = None) -> None:
    subprocess.check_call([*(begin or []), *words.split()])


def _ready(command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if process.stdout is None or process.stdout.readline() != "ready\n":
        sys.exit(f"cannot make namespaces: {' '.join(command)}")
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
