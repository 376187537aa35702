"""Hosts on one machine for benchmarks: network namespaces joined by a switch. Needs root, iproute2 and util-linux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["Host", "Hosts", "problem"]

_DIES = ["setpriv", "--pdeathsig", "KILL"]  # when this process does
_HOLDER = [*_DIES, "unshare"]
_WIRE = Path(__file__).parents[1] / "tests" / "helpers" / "wire.py"
_STAY = "echo ready; exec sleep infinity"


def problem() -> str:
    """Return why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [
        name
        for name in ("ip", "bridge", "tc", "nsenter", "unshare", "setpriv", "taskset")
        if shutil.which(name) is None
    ]
    return f"there is no {', '.join(missing)}: install iproute2 and util-linux" if missing else ""


class Host:
    """A host: its own network, name, System V IPC, /dev/shm and share of the cores; the rest is the machine's.

    Attributes
    ----------
    name, address : str
    """

    def __init__(self, number: int, switch: int, cores: list[int]) -> None:
        self._cores = cores
        self.name, self.address = f"h{number}", f"10.78.0.{number + 1}"
        shell = f"hostname {self.name}; mount --make-rprivate /; mount -t tmpfs -o size=4g tmpfs /dev/shm; "
        command = [*_HOLDER, "--net", "--mount", "--uts", "--ipc", "sh", "-c", f"{shell} ip link set lo up; {_STAY}"]
        self._holder = _ready(command)
        inside, outside = f"ve{os.getpid() % 100000}x{number}", f"p{number}"
        run = subprocess.check_call
        run(["ip", "link", "add", outside, "netns", str(switch), "type", "veth", "peer", "name", inside, "netns",
             str(self.pid)])  # fmt: skip
        run([*self.enter(), "ip", "addr", "add", f"{self.address}/24", "dev", inside])
        run([*self.enter(), "ip", "link", "set", inside, "name", "eth0"])
        run([*self.enter(), "ip", "link", "set", "eth0", "up"])
        run(["nsenter", "-t", str(switch), "-n", "ip", "link", "set", outside, "master", "br0", "up"])

    @property
    def pid(self) -> int:
        """The process that keeps the namespaces."""
        return self._holder.pid

    def enter(self) -> list[str]:
        """Return the beginning of a command that runs on this host."""
        inside = ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "-i", f"--wd={os.getcwd()}"]
        return [*inside, "taskset", "-c", ",".join(map(str, self._cores))]

    def close(self) -> None:
        """Remove the host."""
        _end(self._holder)


class Hosts:
    """Some hosts and the switch between them; a context manager.

    Parameters
    ----------
    count : int
    delay_ms : float
        How long a frame takes from a host to the switch, and back.
    """

    def __init__(self, count: int, delay_ms: float = 0.0) -> None:
        self._count, self._delay_ms = count, delay_ms
        self._wires: list[subprocess.Popen[str]] = []
        self.all: list[Host] = []

    def __enter__(self) -> Hosts:
        shell = "hostname login; ip link set lo up; ip link add br0 type bridge; ip link set br0 up; "
        command = [*_HOLDER, "--net", "--uts", "sh", "-c", f"{shell} ip addr add 10.78.0.254/24 dev br0; {_STAY}"]
        self._switch = _ready(command)
        try:
            cores = sorted(os.sched_getaffinity(0))
            each = max(1, len(cores) // self._count)
            parts = [cores[number * each % len(cores) :][:each] for number in range(self._count)]
            self.all = [Host(number, self._switch.pid, part) for number, part in enumerate(parts)]
            if self._delay_ms:
                for number in range(self._count):
                    self._delay(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _delay(self, number: int) -> None:
        """Put a wire that takes its time between a host and the switch."""
        inside = ["nsenter", "-t", str(self._switch.pid), "-n"]
        names = [f"a{number}", f"b{number}"]
        wire = _ready([*inside, *_DIES, sys.executable, str(_WIRE), *names, str(self._delay_ms)])
        self._wires.append(wire)
        way = f"way{number}"
        lines = [f"ip link add {way} type bridge", f"ip link set {way} up", f"ip link set p{number} master {way}"]
        for name, bridge in zip(names, [way, "br0"]):
            lines += [f"ip link set {name} up", f"ip link set {name} master {bridge}"]
        subprocess.check_call([*inside, "sh", "-ec", "; ".join(lines)])

    def __exit__(self, *exc_info: object) -> None:
        for host in self.all:
            host.close()
        for wire in self._wires:
            _end(wire)
        _end(self._switch)

    def login(self) -> list[str]:
        """Return the beginning of a command that runs at the switch, with an address in the hosts' network."""
        return ["nsenter", "-t", str(self._switch.pid), "-n", "-u"]

    def limit(self, rate: str | None) -> None:
        """Let each host send so much, such as ``"1gbit"``; None for as much as it can."""
        for host in self.all:
            command = [*host.enter(), "tc", "qdisc"]
            if rate is None:
                subprocess.run([*command, "del", "dev", "eth0", "root"], stderr=subprocess.DEVNULL, check=False)
            else:
                subprocess.check_call(
                    [
                        *command,
                        "replace",
                        "dev",
                        "eth0",
                        "root",
                        "tbf",
                        "rate",
                        rate,
                        "burst",
                        "512kb",
                        "latency",
                        "50ms",
                    ]
                )

    def cut(self, number: int, whole: bool = False) -> None:
        """Cut a host off, silently, or let it back in (``whole``)."""
        state = "3" if whole else "0"
        subprocess.check_call(
            ["nsenter", "-t", str(self._switch.pid), "-n", "bridge", "link", "set", "dev", f"p{number}", "state", state]
        )

    def agent(self, folder: Path) -> Path:
        """Write a program by which mpirun starts processes on these hosts, by their names."""
        path = folder / "agent"
        cases = "\n".join(f'{host.name}) exec {" ".join(host.enter())} sh -c "$*" ;;' for host in self.all)
        path.write_text(f"#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}\nesac\nexit 1\n")
        path.chmod(0o755)
        return path


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
