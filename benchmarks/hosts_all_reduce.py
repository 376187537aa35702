"""All-reduce (float32, sum, in place) over two hosts: ours, encrypted and not, gloo, OpenMPI and one plain TCP stream.

Hosts are network namespaces of this machine, with 2 ranks each (plain TCP: 1), so it needs root. All methods' processes
live at the same time and take turns; the time of a call is that of its slowest rank.

    python benchmarks/hosts_all_reduce.py [--quick] [--torch .nox/keras3/bin/python]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import namespaces
import report

RANK = Path(__file__).parent / "scripts" / "hosts_all_reduce_rank.py"
ROOT = Path(__file__).parents[1]
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20)  # bytes
LINKS = {"unlimited": None, "1 Gbit/s": "1gbit"}
METHODS = {"platoon": 4, "platoon-plain": 4, "gloo": 4, "openmpi": 4, "tcp": 2}  # ranks
ROUND_S = 0.1  # that the calls of one method take in one round, about
START_S = 60


class Method:
    """The processes of one method.

    Parameters
    ----------
    name : one of `METHODS`
    hosts : namespaces.Hosts
    folder : Path
        For its socket.
    torch : str
        The interpreter that has torch.
    """

    def __init__(self, name: str, hosts: namespaces.Hosts, folder: Path, torch: str) -> None:
        self.name, self.ranks = name, METHODS[name]
        control = folder / name
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(control))
        server.listen(self.ranks)
        server.settimeout(START_S)
        self._processes = self._start(hosts, folder, str(control), torch)
        self._files = {}
        try:
            with server:
                for _ in range(self.ranks):
                    with server.accept()[0] as sock:
                        file = sock.makefile("rw")
                    self._files[json.loads(file.readline())["rank"]] = file
            self._send({})
            if name.startswith("platoon"):
                self._send([answer["address"] for answer in self._answers()])
            self._answers()
        except BaseException:
            self.close()
            raise

    def _start(self, hosts, folder, control, torch) -> list[subprocess.Popen]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "eth0"}
        first = hosts.all[0].address
        if self.name == "openmpi":
            # mpirun has a host of its own, from which it reaches the others; its own names are theirs.
            words = [sys.executable, str(RANK), self.name, control, "0", str(self.ranks), "-", first]
            network = "10.78.0.0/24"
            command = [*hosts.login(), "mpirun", "--allow-run-as-root", "--oversubscribe", "-H", "h0:2,h1:2",
                       "--mca", "plm_rsh_agent", str(hosts.agent(folder)), "--mca", "plm_rsh_no_tree_spawn", "1",
                       "--mca", "btl", "tcp,vader,self", "--mca", "btl_vader_single_copy_mechanism", "none",
                       "--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network,
                       "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none",
                       "-x", "PYTHONPATH", *words]  # fmt: skip
            return [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)]
        python = torch if self.name == "gloo" else sys.executable
        each = self.ranks // 2
        return [
            subprocess.Popen(
                [*hosts.all[rank // each].enter(), python, str(RANK), self.name, control, str(rank), str(self.ranks),
                 hosts.all[rank // each].address, first],
                env=environment,
            )
            for rank in range(self.ranks)
        ]  # fmt: skip

    def _send(self, message) -> None:
        for file in self._files.values():
            file.write(json.dumps(message) + "\n")
            file.flush()

    def _answers(self) -> list[dict]:
        lines = [self._files[rank].readline() for rank in sorted(self._files)]
        if not all(lines):
            sys.exit(f"a process of {self.name} has ended")
        return [json.loads(line) for line in lines]

    def measure(self, size: int, runs: int, repetitions: int, check: bool = False) -> list[float]:
        """Return seconds a call, one value a run."""
        self._send({"bytes": size, "runs": runs, "repetitions": repetitions, "check": check})
        return [max(times) for times in zip(*(answer["times"] for answer in self._answers()))]

    def close(self) -> None:
        """End the processes."""
        for file in self._files.values():
            file.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()


def measured(methods: list[Method], size: int, seconds: float) -> dict[str, list[float]]:
    """Measure one size; return seconds a call, for each method one value a round."""
    repetitions, a_round = {}, 0.0
    for method in methods:
        method.measure(size, 1, 1, check=True)
        took = min(method.measure(size, 2, 1 if size > 1 << 20 else 5))
        repetitions[method.name] = max(1, int(ROUND_S / took))
        a_round += took * repetitions[method.name]
    times: dict[str, list[float]] = {method.name: [] for method in methods}
    for _ in range(max(5, int(seconds / a_round))):
        for method in methods:
            times[method.name] += method.measure(size, 1, repetitions[method.name])
    return times


def run(sizes, links, names, seconds: float, torch: str) -> list[dict]:
    """Measure and print everything; return what is to be saved."""
    results = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(namespaces.Hosts(2))
        methods = [stack.enter_context(contextlib.closing(Method(name, hosts, folder, torch))) for name in names]
        for link in links:
            hosts.limit(LINKS[link])
            rows = []
            for size in sizes:
                times = measured(methods, size, seconds)
                middle = {name: report.median(values) * 1e3 for name, values in times.items()}
                # Each round's own ratio: what disturbs the machine disturbs all methods of a round alike.
                ratios = {
                    name: report.median([a / b for a, b in zip(times["platoon"], times[name])])
                    for name in names
                    if name != "platoon" and "platoon" in names
                }
                result = {"link": link, "bytes": size, "milliseconds": middle, "time_ratios": ratios}
                results.append({**result, "rounds": len(times[names[0]])})
                rows.append([_size(size), *middle.values(), *ratios.values()])
            headings = ["size", *(f"{name} ms" for name in names), *(f"/ {name}" for name in ratios)]
            report.table(
                f"All-reduce over two hosts, {link}; medians; platoon's time over that of others", headings, rows
            )
    return results


def _size(size: int) -> str:
    return f"{size >> 10} KB" if size < 1 << 20 else f"{size >> 20} MB"


def goals(results: list[dict]) -> list[dict]:
    """Compare with the goals."""
    of = {(r["link"], r["bytes"]): r["time_ratios"] for r in results}
    found = []

    def check(link: str, size: int, method: str, most: float) -> None:
        ratio = of.get((link, size), {}).get(method)
        if ratio is not None:
            found.append(report.goal(f"{link}, {_size(size)}, time over {method}'s", ratio, most, at_least=False))

    for size in (16 << 20, 128 << 20):
        check("1 Gbit/s", size, "tcp", 1.05)
        check("1 Gbit/s", size, "gloo", 1 / 1.4)
    check("unlimited", 128 << 20, "gloo", 1.0)
    check("unlimited", 128 << 20, "openmpi", 1.0)
    check("unlimited", 4 << 10, "openmpi", 1.3)
    return found


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved")
    parser.add_argument("--torch", default=str(ROOT / ".nox/keras3/bin/python"), help="an interpreter that has torch")
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--links", nargs="*", default=[*LINKS], choices=[*LINKS])
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="bytes")
    options = parser.parse_args()
    problem = namespaces.problem()
    if problem:
        print(f"skipped: {problem}")
        return
    names = list(options.methods)
    if shutil.which("mpirun") is None:
        print("without OpenMPI: there is no mpirun")
        names = [name for name in names if name != "openmpi"]
    if not Path(options.torch).exists():
        print(f"without gloo: there is no {options.torch}")
        names = [name for name in names if name != "gloo"]
    results = run(options.sizes, options.links, names, 2.0 if options.quick else 20.0, options.torch)
    reached = goals(results)
    if not options.quick:
        reference = {"openmpi": _version(["mpirun", "--version"]), "mpi4py": metadata.version("mpi4py")}
        if "gloo" in names:
            reference["torch"] = _version([options.torch, "-c", "import torch; print(torch.__version__)"])
        report.save("hosts_all_reduce", {"reference": reference, "results": results, "goals": reached})


def _version(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


if __name__ == "__main__":
    main()
