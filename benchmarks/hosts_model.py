"""How long averaging over hosts takes by a model of the links, beside what was measured. Needs root.

    python benchmarks/hosts_model.py [--hosts 2 3] [--links ...] [--calls 15] [--out FOLDER]

Hosts are network namespaces of this machine with two workers each, started by `platoon launch`; a delay is that of a
program between the hosts and the switch. Constants of the model are the rate of a link, its delay (half of the time of
a byte there and back, measured before the rows), and what was measured on a link without a limit between two hosts, for
one size: these rows are no check, and are marked so.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import namespaces
import report

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[1]
WORKERS = 2
EFFICIENCY = 1448 / 1514  # of a frame of Ethernet, what is left behind the headers of IP and TCP
SMALL = 1 << 16
LIMIT_S = 150


class Link(NamedTuple):
    """A link of each host to the switch: bits per second, infinite without a limit, and seconds from host to host."""

    bits_per_s: float
    delay_s: float


LINKS = {
    "unlimited": Link(float("inf"), 0.0),
    "1 Gbit/s": Link(1e9, 0.0),
    "100 Mbit/s, 20 ms": Link(1e8, 0.010),
}
# Kind, bytes; the first size of a kind that is not small is measured without a limit to have its constants.
ROWS = (("reduce", 4 << 10), ("reduce", 1 << 20), ("reduce", 10_000_000), ("round", 10_000_000),
        ("courier", 10_000_000))  # fmt: skip


class Model(NamedTuple):
    """Seconds and seconds per byte that a call takes on hosts with a link without a limit, by kind."""

    base_s: float
    per_byte_s: dict[str, float]

    def seconds(self, kind: str, size: int, hosts: int, link: Link) -> float:
        """Return how long a call takes; the equations of docs/hosts_costs.md.

        The processor's work and the link's go on at the same time, but in a round, where one follows the other. Ways
        between hosts that follow each other: 1 of a small all-reduce and of an exchange of centers, 2 of a large
        all-reduce, 5 of a round.
        """
        ways = {"reduce": 1 if size <= SMALL else 2, "courier": 1, "round": 5}[kind]
        sent = (hosts - 1) * size
        if kind == "reduce" and size > SMALL:
            sent = 2 * sent / hosts
        here = self.per_byte_s.get(kind, 0.0) * size * self.more_hosts(hosts)
        there = sent * 8 / (link.bits_per_s * EFFICIENCY)
        return self.base_s + ways * link.delay_s + (here + there if kind == "round" else max(here, there))

    @staticmethod
    def more_hosts(hosts: int) -> float:
        """Return by what the processor's work grows: here all hosts share one machine."""
        return hosts / 2


PONG = """
import socket, sys, time
if sys.argv[1] == "0":
    with socket.create_server((sys.argv[2], 29700)) as server, server.accept()[0] as sock:
        while data := sock.recv(1):
            sock.sendall(data)
    sys.exit()
until = time.monotonic() + 20
while True:
    try:
        sock = socket.create_connection((sys.argv[2], 29700), 5)
        break
    except OSError:
        if time.monotonic() > until:
            raise
        time.sleep(0.05)
taken = []
for _ in range(51):
    began = time.perf_counter()
    sock.sendall(b"x")
    sock.recv(1)
    taken.append(time.perf_counter() - began)
print(sorted(taken)[25])
"""


def delay_of(hosts: namespaces.Hosts) -> float:
    """Return half the median time of a byte from one host to another and back, as the machine is now."""
    words = [sys.executable, "-c", PONG]
    first = hosts.all[0].address
    with subprocess.Popen([*hosts.all[0].enter(), *words, "0", first]) as server:
        try:
            return float(subprocess.check_output([*hosts.all[1].enter(), *words, "1", first], timeout=60)) / 2
        finally:
            server.terminate()


def commands(hosts: namespaces.Hosts, kind: str, size: int, calls: int, folder: str) -> list[list[str]]:
    """Return the command of each host."""
    found = []
    for number, host in enumerate(hosts.all):
        if kind == "courier":
            words = [SCRIPTS / "hosts_model_courier.py", folder, number, len(hosts.all), host.address, size, 10]
        else:
            words = ["-m", "platoon_base", "launch", "--nnodes", len(hosts.all), "--node-rank", number,
                     "--rdzv-endpoint", hosts.all[0].address, "-n", WORKERS, "-D", "cpu",
                     "--log-dir", f"{folder}/logs{number}",
                     SCRIPTS / "hosts_model_worker.py", folder, kind, size, calls]  # fmt: skip
        found.append([*host.enter(), sys.executable, *map(str, words)])
    return found


def measure(hosts: namespaces.Hosts, kind: str, size: int, calls: int, every_s: float = 0.2) -> dict:
    """Run one job; returns what host 0 (its rank 0, or its courier) wrote, with the longest time of all."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "key")
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "PLATOON_KEY_FILE": str(key), "OMP_NUM_THREADS": "1",
            "PLATOON_HOSTS_EVERY_S": str(every_s),
        }  # fmt: skip
        processes = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command in commands(hosts, kind, size, calls, folder)
        ]
        try:
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.terminate()
        if any(process.returncode for process in processes):
            sys.exit(f"{kind} of {size} bytes FAILED:\n{''.join(outputs)}")
        name = "exchanges" if kind == "courier" else kind
        results = [json.loads(path.read_text()) for path in sorted(Path(folder).glob(f"{name}*.json"))]
        found = results[0]
        found["longest_s"] = max(max(each["calls"], default=0.0) for each in results)
        return found


def fitted(rows: list[dict]) -> Model:
    """Return the constants: of rows on a link without a limit, between two hosts."""
    of = {
        (row["kind"], row["bytes"]): row["seconds"] for row in rows if (row["link"], row["hosts"]) == ("unlimited", 2)
    }
    base = of["reduce", 4 << 10]
    return Model(base, {kind: (of[kind, 10_000_000] - base) / 10_000_000 for kind in ("reduce", "round", "courier")})


def without_waiting(hosts: namespaces.Hosts) -> dict:
    """Return the longest synchronization and step of an asynchronous rule, with exchanges and without."""
    found = {}
    for name, every_s in (("every 0.2 s", 0.2), ("never", 86400.0)):
        result = measure(hosts, "async", 10_000_000, 60, every_s)
        steps = sorted(result["steps"])
        found[name] = {
            "longest_sync_s": result["longest_s"],
            "median_sync_s": report.median(result["calls"]),
            "median_step_s": report.median(steps),
            "longest_step_s": steps[-1],
        }
        print(name, {key: round(value, 4) for key, value in found[name].items()}, flush=True)
    return found


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--links", nargs="+", default=[*LINKS], choices=[*LINKS])
    parser.add_argument("--calls", type=int, default=15)
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    options = parser.parse_args()
    problem = namespaces.problem()
    if problem:
        print(f"skipped: {problem}")
        return
    rows, waits, delays = [], {}, {}
    for count in options.hosts:
        for name in options.links:
            link = LINKS[name]
            with namespaces.Hosts(count, link.delay_s / 2 * 1e3) as hosts:
                if link.bits_per_s < float("inf"):
                    hosts.limit(f"{link.bits_per_s / 1e6:g}mbit")
                delays[count, name] = delay_of(hosts)
                for kind, size in ROWS:
                    found = measure(hosts, kind, size, options.calls)
                    seconds = report.median(found["calls"]) if found["calls"] else float("nan")
                    rows.append({"hosts": count, "link": name, "kind": kind, "bytes": size, "seconds": seconds})
                    print(rows[-1], flush=True)
                if link.delay_s and count == 2:
                    waits = without_waiting(hosts)
    model = fitted(rows)
    shown = []
    for row in rows:
        row["delay_s"] = delays[row["hosts"], row["link"]]
        link = LINKS[row["link"]]._replace(delay_s=row["delay_s"])
        row["model_s"] = model.seconds(row["kind"], row["bytes"], row["hosts"], link)
        row["error"] = row["model_s"] / row["seconds"] - 1
        row["fitted"] = (row["hosts"], row["link"]) == (2, "unlimited") and row["bytes"] != 1 << 20
        shown.append([row["hosts"], row["link"], row["kind"], row["bytes"], row["model_s"] * 1e3, row["seconds"] * 1e3,
                      "constant" if row["fitted"] else f"{row['error']:+.0%}"])  # fmt: skip
    report.table("Time of a call", ["hosts", "link", "call", "bytes", "model, ms", "measured, ms", "error"], shown)
    constants = {"base_s": model.base_s, "per_byte_s": model.per_byte_s}
    report.save("hosts_model", {"constants": constants, "rows": rows, "asynchronous": waits}, options.out)


if __name__ == "__main__":
    main()
