"""The real coordinator of a job of 8, 64 and 1,024 workers, 8 on each host, driven by simulated workers and deputies.

    python benchmarks/hosts_simulation.py [--hosts 1 8 128] [--rounds 21] [--seconds 10] [--quick] [--out FOLDER]

The first host's launcher is real and a process of its own, see `scripts/simulated_coordinator.py`; all other hosts are
links of this process to it, over the loopback and encrypted. So a time has the work of all deputies in it, one after
the other, and real ones would have a machine each: it is an upper bound. The coordinator's own time is that of its
main thread and, beside it, of ZeroMQ's (encryption and sending).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import report
import zmq
from simulated_hosts import WORKERS, Deputy, FirstHost, SimulatedHost

from platoon_base.channels.keys import keys_of_secret
from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import encode
from platoon_base.multihost.secret import find_key

COORDINATOR = Path(__file__).parent / "scripts" / "simulated_coordinator.py"
LIMIT_S = 120.0  # for anything
REPORT_EVERY_S, VALIDATE_EVERY_S = 1.0, 5.0  # of each worker in training
BARRIER_GOAL_S, REPORT_GOAL_S, STOP_GOAL_S, JOIN_GOAL_S, CPU_GOAL = 0.050, 0.010, 0.5, 2.0, 0.5
PAIRS = {f"metric {i}": (1.0, 2.0) for i in range(4)}
CALLS = {
    "barrier": msg.Barrier(name="b", timeout_s=60),
    "totals": msg.Sum(name="s", pairs=PAIRS, timeout_s=60),
    "round": msg.Round(timeout_s=60),
}


class Simulation:
    """A job: the coordinator's process, and all of its hosts."""

    def __init__(self, hosts: int, folder: Path, profile: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        key = folder / "key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        os.environ["PLATOON_KEY_FILE"] = str(key)
        os.mkfifo(folder / "pipe")
        self._pipe = os.open(folder / "pipe", os.O_RDWR)
        words = ["-m", "cProfile", "-o", profile] if profile else []
        self._process = subprocess.Popen(
            [sys.executable, *words, str(COORDINATOR), str(hosts), endpoint, str(folder / "pipe")],
            stdout=subprocess.PIPE,
            text=True,
        )
        began = time.perf_counter()
        self.hosts: list[SimulatedHost] = []
        self._poller, self._owner = zmq.Poller(), {}
        keys = keys_of_secret(find_key())[1]
        self.deputies = [Deputy(host, hosts, endpoint, keys) for host in range(1, hosts)]
        for deputy in self.deputies:
            self._add(deputy)
        self.until(lambda: all(deputy.welcome for deputy in self.deputies))
        self.meet_s = time.perf_counter() - began
        self.first = FirstHost(self._process.stdout.readline().strip())
        self._add(self.first)

    def _add(self, host: SimulatedHost) -> None:
        self.hosts.append(host)
        for each in host.sockets:
            self._poller.register(each, zmq.POLLIN)
            self._owner[each] = host

    @property
    def size(self) -> int:
        """The number of workers."""
        return WORKERS * len(self.hosts)

    def turn(self) -> None:
        """Let all hosts receive what has come, and send what is due."""
        for host in {self._owner[found] for found, _ in self._poller.poll(5)}:
            host.receive()
        now = time.monotonic()
        for host in self.hosts:
            host.tick(now)

    def until(self, done: Callable[[], bool], ends: bool = False) -> None:
        """Take turns until something holds; ``ends`` if the coordinator may end meanwhile."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            if time.monotonic() > deadline or (self._process.poll() is not None and not ends):
                sys.exit(f"the job FAILED: it did not come so far within {LIMIT_S:g} s")
            self.turn()

    def cpu_s(self) -> tuple[float, float]:
        """Return the processor time of the coordinator's main thread, and of all its threads."""
        threads = {}
        for path in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                threads[path.name] = int((path / "schedstat").read_text().split()[0]) / 1e9
        return threads[str(self._process.pid)], sum(threads.values())

    def ask_all(self, data: bytes | Callable[[int], bytes], together: bool = False) -> float:
        """Let each worker make a request; returns the seconds until all have their answers."""
        began = time.perf_counter()
        for host in self.hosts:
            requests = {i: data(rank) if callable(data) else data for i, rank in enumerate(host.ranks)}
            host.send(requests, together)
        self.until(lambda: all(len(host.answered) == WORKERS for host in self.hosts))
        took = time.perf_counter() - began
        for host in self.hosts:
            host.take()
        return took

    def join(self) -> float:
        """Let all workers join; returns the seconds until all have."""
        for host in self.hosts:
            host.join()
        return self.ask_all(
            lambda rank: encode(
                msg.Hello(protocol=msg.PROTOCOL, pid=rank + 2, host=f"h{rank // WORKERS}", device="cpu", rank=rank)
            )
        )

    def share(self) -> float:
        """Let all workers share parameters; returns the seconds until they do, and all couriers are known."""
        began = time.perf_counter()
        call = encode(msg.InitCenter(specs=[("w", (1000,), "float32")], rule="LocalSGD", settings="LocalSGD()"))
        ready, waiting = encode(msg.CenterReady()), self.size
        for host in self.hosts:
            host.send(dict.fromkeys(range(WORKERS), call), True)
        while waiting:
            self.until(lambda: any(host.answered for host in self.hosts))
            for host in self.hosts:
                for worker, reply in host.take():
                    if isinstance(reply, msg.CenterRole) and reply.create:
                        host.send({worker: ready}, True)
                    else:
                        waiting -= 1
        self.until(lambda: all(deputy.couriers == len(self.hosts) for deputy in self.deputies))
        return time.perf_counter() - began

    def rounds(self, call: msg.CollectiveCall, count: int, together: bool) -> dict[str, float]:
        """Make a collective call many times; returns seconds, and the coordinator's."""
        data, taken, before = encode(call), [], self.cpu_s()
        for _ in range(count):
            began = time.perf_counter()
            combined = max((deputy.combined for deputy in self.deputies), default=0)
            self.ask_all(data, together)
            if isinstance(call, msg.Round):
                self.until(lambda: all(deputy.combined > combined for deputy in self.deputies))  # noqa: B023
            taken.append(time.perf_counter() - began)
        after = self.cpu_s()
        return {
            "median_s": report.median(taken),
            "p95_s": sorted(taken)[int(0.95 * len(taken))],
            "coordinator_s": (after[0] - before[0]) / count,
            "with_zeromq_s": (after[1] - before[1]) / count,
        }

    def train(self, seconds: float) -> dict[str, float]:
        """Let all workers make steps, report a value once a second, and add up totals every five."""
        data, totals = encode(msg.Report(metrics={"loss": 0.5})), encode(CALLS["totals"])
        workers = [(host, worker) for host in self.hosts for worker in range(WORKERS)]
        began, before, received = time.monotonic(), self.cpu_s(), sum(deputy.bytes for deputy in self.deputies)
        due = deque((began + i / len(workers) * REPORT_EVERY_S, *each) for i, each in enumerate(workers))
        sent: dict[tuple[int, int], float] = {}
        latencies, asked, requests, next_totals = [], 0, 0, began + VALIDATE_EVERY_S / 2
        for host in self.hosts:
            host.training = True
        while (now := time.monotonic()) < began + seconds:
            while due[0][0] <= now:
                at, host, worker = due.popleft()
                due.append((at + REPORT_EVERY_S, host, worker))
                if (host.host, worker) not in sent:
                    sent[host.host, worker] = now
                    host.send({worker: data}, True)
                    asked += 1
            if now >= next_totals:
                next_totals += VALIDATE_EVERY_S
                asked += self.size
                for host in self.hosts:
                    host.send(dict.fromkeys(range(WORKERS), totals), True)
            self.turn()
            for host in self.hosts:
                for worker, reply in host.take():
                    requests += 1
                    if isinstance(reply, msg.Done):
                        latencies.append(time.monotonic() - sent.pop((host.host, worker)))
        after, took = self.cpu_s(), time.monotonic() - began
        mirrored = sum(deputy.bytes for deputy in self.deputies) - received
        for host in self.hosts:
            host.training = False
        self.until(lambda: sum(len(host.answered) for host in self.hosts) == asked - requests)
        for host in self.hosts:
            host.take()
        return {
            "requests_per_s": requests / took,
            "coordinator_share": (after[0] - before[0]) / took,
            "with_zeromq_share": (after[1] - before[1]) / took,
            "report_median_s": report.median(latencies),
            "report_p95_s": sorted(latencies)[int(0.95 * len(latencies))],
            "to_others_mb_per_s": mirrored / took / 1e6,
        }

    def most_requests(self, count: int) -> float:
        """Let each worker report again as soon as it has its answer; returns answers per second."""
        data, taken = encode(msg.Report(metrics={"loss": 0.5})), time.perf_counter()
        for _ in range(count):
            self.ask_all(data)
        return self.size * count / (time.perf_counter() - taken)

    def stop(self) -> float:
        """Let the last worker vote to stop; returns the seconds until all hosts have heard of it."""
        began = time.perf_counter()
        self.hosts[-2 if len(self.hosts) > 1 else -1].send({0: encode(msg.StopVote(reason="enough"))}, True)
        self.until(lambda: all(host.stopped for host in self.hosts))
        took = time.perf_counter() - began
        self.until(lambda: any(host.answered for host in self.hosts))
        for host in self.hosts:
            host.take()
        return took

    def end(self) -> float:
        """Let all workers leave and end; returns the seconds until the coordinator has ended."""
        began = time.perf_counter()
        self.ask_all(encode(msg.Leave()), together=True)
        for host in self.hosts:
            host.leave()
        os.close(self._pipe)
        self.hosts.remove(self.first)
        for each in self.first.sockets:
            self._poller.unregister(each)
        self.until(lambda: all(deputy.over for deputy in self.deputies), ends=True)
        if self._process.wait(LIMIT_S):
            sys.exit("the job FAILED")
        return time.perf_counter() - began

    def close(self) -> None:
        """Close all links, and end the coordinator if it still runs."""
        for deputy in self.deputies:
            deputy.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def measure(hosts: int, options: argparse.Namespace) -> dict:
    """Run one job, and return what was measured."""
    profile = str(options.profile.with_suffix(f".{hosts}")) if options.profile else ""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Simulation(hosts, Path(folder), profile)) as job:
        found = {"workers": job.size, "meet_s": job.meet_s, "join_s": job.join(), "share_s": job.share()}
        found["training"] = job.train(options.seconds)
        for name, call in CALLS.items():
            found[name] = job.rounds(call, options.rounds, together=True)
        found["barrier, a message each"] = job.rounds(CALLS["barrier"], options.rounds, together=False)
        found["most_requests_per_s"] = job.most_requests(options.rounds)
        found["stop_s"] = job.stop()
        found["end_s"] = job.end()
    return found


def show(results: list[dict]) -> None:
    """Print the results as a table, a row per quantity."""
    rows = []

    def row(title: str, value: Callable[[dict], float], scale: float = 1e3) -> None:
        rows.append([title, *(value(each) * scale for each in results)])

    for title in ("meet_s", "join_s", "share_s", "stop_s", "end_s"):
        row(f"{title[:-2]}, ms", lambda each: each[title])  # noqa: B023
    for title in (*CALLS, "barrier, a message each"):
        row(f"{title}: median, ms", lambda each: each[title]["median_s"])  # noqa: B023
        row("  p95", lambda each: each[title]["p95_s"])  # noqa: B023
        row("  of the coordinator", lambda each: each[title]["coordinator_s"])  # noqa: B023
    row("training: a report, median, ms", lambda each: each["training"]["report_median_s"])
    row("  p95", lambda each: each["training"]["report_p95_s"])
    row("  requests/s", lambda each: each["training"]["requests_per_s"], 1)
    row("  coordinator, % of a core", lambda each: each["training"]["coordinator_share"], 100)
    row("  with ZeroMQ's threads, %", lambda each: each["training"]["with_zeromq_share"], 100)
    row("  to the other hosts, MB/s", lambda each: each["training"]["to_others_mb_per_s"], 1)
    row("most requests/s", lambda each: each["most_requests_per_s"], 1)
    headings = ["", *(f"{each['workers']:,} workers" for each in results)]
    report.table("The coordinator of simulated hosts of 8 workers", headings, rows)


def goals(results: list[dict]) -> list[dict]:
    """Compare with the goals, for the largest job."""
    largest = max(results, key=lambda each: each["workers"])
    size = f"{largest['workers']:,} workers"
    found = []
    for title, value, most in (
        ("a barrier, median, s", largest["barrier"]["median_s"], BARRIER_GOAL_S),
        ("the coordinator's share of a core in training", largest["training"]["coordinator_share"], CPU_GOAL),
        ("a report in training, median, s", largest["training"]["report_median_s"], REPORT_GOAL_S),
        ("until a stop has reached all, s", largest["stop_s"], STOP_GOAL_S),
        ("until all have joined, s", largest["join_s"], JOIN_GOAL_S),
    ):
        found.append({**report.goal(f"{size}, {title}", value, most, at_least=False), "ratio": value / most})
    return found


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 8, 128])
    parser.add_argument("--rounds", type=int, default=21, help="of each collective call  [21]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of training  [10]")
    parser.add_argument("--quick", action="store_true", help="few rounds; nothing is saved")
    parser.add_argument("--profile", type=Path, help="write profiles of the coordinator to FILE.HOSTS")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 5, 3.0
    results = [measure(hosts, options) for hosts in options.hosts]
    show(results)
    reached = goals(results)
    if not options.quick:
        report.save("hosts_simulation", {"results": results, "goals": reached}, options.out)


if __name__ == "__main__":
    main()
