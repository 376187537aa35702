"""Launchers of one job on several hosts, all on this machine: each has its own folders, as on a host of its own."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts_here import written

from platoon_base.cli.run_files import read_story


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Hosts:
    """The launchers of one job, by host.

    Attributes
    ----------
    launchers : list of subprocess.Popen
    folder : Path
        With ``h0.out``, ``logs0`` and so on.
    """

    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = environment
        self.port = free_port()
        self._short = tempfile.TemporaryDirectory(prefix="hosts-")  # the path of a socket has to be short
        self.launchers = []
        self.variables = {}  # by host, its environment

    def start(self, script, *options, host, hosts=2, workers=1, args=(), environment=None, descriptors=None):
        path = written(script, self.folder / "script.py")
        own = Path(tempfile.mkdtemp(dir=self._short.name))
        for name in ("home", "tmp"):
            (own / name).mkdir(parents=True)
        what = options if "-D" in options else ["-n", str(workers), "-D", "cpu", *options]
        variables = {
            **self.environment,
            "HOME": str(own / "home"),
            "TMPDIR": str(own / "tmp"),
            "PLATOON_KEY_FILE": str(self.folder / "key"),
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        self.variables[host] = variables
        words = ["--nnodes", str(hosts), "--node-rank", str(host), "--rdzv-endpoint", f"127.0.0.1:{self.port}"]
        limited = [] if descriptors is None else ["bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "bash"]
        with open(self.folder / f"h{host}.out", "ab") as output:
            launcher = subprocess.Popen(
                [
                    *limited,
                    *(sys.executable, "-m", "platoon_base", "launch", *words),
                    *("--log-dir", str(self.folder / f"logs{host}"), *what, str(path), *args),
                ],
                env=variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        self.launchers.append(launcher)
        return launcher

    def run(self, script, *options, workers=(2, 1), **kwargs):
        """Run a job to its end; returns the exit status of each host."""
        for host, count in enumerate(workers):
            self.start(script, *options, host=host, hosts=len(workers), workers=count, **kwargs)
        return self.wait()

    def wait(self, timeout_s=120):
        deadline = time.monotonic() + timeout_s
        return [launcher.wait(max(0.0, deadline - time.monotonic())) for launcher in self.launchers]

    def output(self, host):
        return (self.folder / f"h{host}.out").read_text()

    def story(self):
        """What the first host's launcher has written of the job's story, a line for each change, without times."""
        return [entry.line.split("  ", 1)[1] for entry in read_story(self.folder / "logs0")]

    def log(self, rank, host):
        return (self.folder / f"logs{host}" / f"rank{rank}.log").read_text()

    def said(self, rank, host):
        """Return the lists that a worker has written as lines of JSON."""
        return [json.loads(line) for line in self.log(rank, host).splitlines() if line.startswith("[")]

    def until(self, path, text, timeout_s=100):
        """Wait until a file has a text."""
        deadline = time.monotonic() + timeout_s
        while not (self.folder / path).exists() or text not in (self.folder / path).read_text():
            outputs = [path.read_text() for path in sorted(self.folder.glob("h*.out"))]
            assert time.monotonic() < deadline, outputs
            assert any(launcher.poll() is None for launcher in self.launchers), outputs
            time.sleep(0.01)

    def command(self, host, *words):
        """Run a command of `platoon` on a host; returns what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "platoon_base", *words],
            env=self.variables[host], cwd=self.folder, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stdout + done.stderr

    def close(self):
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
            launcher.wait()
        self._short.cleanup()


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(("PLATOON_", "SLURM_", "PET_"))}
