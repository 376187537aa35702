"""Stalls of 1 to 8 s at random moments: afterwards the center has to hold every step exactly once.

A courier, a launcher or a worker is stopped, or as root one direction of all connections to a courier is cut.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

__all__ = ["stalls"]

_SCRIPT = Path(__file__).parent / "scripts" / "soak_stalls.py"
_BEGIN_S, _PAUSE_S = 120.0, 1.0


def _processes(launchers: list[subprocess.Popen[bytes]], what: str) -> list[psutil.Process]:
    """Return the launchers, the workers or the couriers."""
    found = [psutil.Process(each.pid) for each in launchers]
    if what == "launcher":
        return found
    children = [child for each in found for child in each.children()]
    named = "platoon_base.courier.process" if what == "courier" else "platoon: soak_stalls.py"
    return [child for child in children if named in " ".join(child.cmdline())]


def _stall(process: psutil.Process, seconds: float) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)


def _cut(courier: psutil.Process, seconds: float) -> None:
    """Drop what arrives at the ports of a courier, and let pass what it sends."""
    ports = {each.laddr.port for each in courier.net_connections("tcp") if each.raddr}
    rules = [["INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP"] for port in ports]
    try:
        for rule in rules:
            subprocess.check_call(["iptables", "-I", *rule])
        time.sleep(seconds)
    finally:
        for rule in rules:
            subprocess.call(["iptables", "-D", *rule], stderr=subprocess.DEVNULL)


def stalls(count: int, hosts: int, seed: int, longest_s: float = 8.0) -> dict[str, Any]:
    """Stall something ``count`` times; return the steps that the center holds, and those of all workers by hosts.

    Both are equal if nothing was lost or counted twice.
    """
    chance = random.Random(seed)
    with socket.socket() as sock, tempfile.TemporaryDirectory() as name:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.close()
        folder = Path(name)
        launchers = []
        for host in range(hosts):
            words = ["--nnodes", str(hosts), "--node-rank", str(host), "--rdzv-endpoint", f"127.0.0.1:{port}"]
            words += ["-n", "1", "-D", "cpu", "--log-dir", str(folder / f"logs{host}"), str(_SCRIPT)]
            command = [sys.executable, "-m", "platoon_base", "launch", *words, str(folder / "end"), str(hosts)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PLATOON_KEY_FILE": str(folder / "key")}
            with open(folder / f"out{host}", "wb") as output:
                launchers.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder))
        log = folder / "logs0" / "rank0.log"
        began = time.monotonic()
        while not log.exists() or "begins" not in log.read_text():
            if time.monotonic() > began + _BEGIN_S:
                raise TimeoutError((folder / "out0").read_text())
            time.sleep(0.1)
        stalled_s = 0.0
        kinds = ["courier", "launcher", "worker"]
        if os.geteuid() == 0 and shutil.which("iptables"):
            kinds.append("cut")
        first = chance.randrange(len(kinds))
        try:
            for number in range(count):
                time.sleep(_PAUSE_S * chance.random())
                kind = kinds[(first + number) % len(kinds)]
                process = chance.choice(_processes(launchers, "courier" if kind == "cut" else kind))
                # A launcher that is silent for --host-timeout (10 s) is lost.
                seconds = chance.uniform(1.0, min(longest_s, 5.0) if kind == "launcher" else longest_s)
                stalled_s += seconds
                (_cut if kind == "cut" else _stall)(process, seconds)
        finally:
            (folder / "end").touch()
            statuses = [launcher.wait(_BEGIN_S) for launcher in launchers]
        text = (folder / f"logs{hosts - 1}" / f"rank{hosts - 1}.log").read_text()
        (end,) = (line.split() for line in text.splitlines() if line.startswith("END"))
        center, expected = float(end[1]), float(end[2])
        return {
            "hosts": hosts,
            "stalls": count,
            "stalled_s": round(stalled_s, 1),
            "statuses": statuses,
            "center": center,
            "steps": expected,
            "right": not any(statuses) and abs(center - expected) <= 1e-9 * expected,
        }


if __name__ == "__main__":
    print(stalls(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
