"""Jobs on the hosts of a laboratory, and scripts of their workers."""

import json
import os
import signal
import sys
import time

from laboratory import until
from scripts_here import behind, script_path, written

PYTHON = sys.executable
PORT = 29400
KEY = "5e" * 32

# Workers that meet again and again; says the rank, the step, and how long it took.
MEETS = script_path("hosts_meets").read_text()

# Workers that do not wait for each other.
GOES_ON = script_path("hosts_goes_on").read_text()


def script(text):
    return behind("hosts_preamble", text)


def launch_words(*options):
    return [PYTHON, "-m", "platoon_base", "launch", *map(str, options)]


def said_in(log):
    """Return the lists that a worker has written into its log as lines of JSON."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.startswith("[")]


def until_said(logs, running, word, ranks=(0, 1), timeout_s=60):
    """Wait until workers whose logs are in a folder have said a word, while what has started them runs."""

    def found():
        assert running.poll() is None, running.text()
        return all(any(line[0] == word for line in said_in(logs / f"rank{rank}.log")) for rank in ranks)

    until(found, running.text, timeout_s)


def kill_launchers(host):
    """Kill the launchers that an engine has started on a host."""
    for pid, words in host.processes().items():
        if "platoon_base launch" in words or "launch --nnodes" in words:  # Ray starts the latter
            os.kill(pid, signal.SIGKILL)


class Job:
    """The launchers of one job, started by hand on each host of a laboratory.

    Parameters
    ----------
    laboratory : Laboratory
    code : Path or str
        The script.
    workers : sequence of int
        Workers per host.

    Attributes
    ----------
    launchers : list of Running
    """

    def __init__(self, laboratory, code, workers):
        self.laboratory = laboratory
        self.workers = list(workers)
        self.launchers = []
        self.script = written(code, laboratory.folder / "script.py")

    def write_key(self, *hosts, key=KEY):
        """Write the key of the jobs on hosts, as the user does once."""
        for host in hosts:
            folder = host.outside("/tmp/home/.platoon")
            folder.mkdir(mode=0o700, exist_ok=True)
            path = folder / "key"
            path.write_text(key + "\n")
            path.chmod(0o600)

    def start(self, *options, args=(), environment=None):
        self.write_key(*self.laboratory.hosts)
        hosts = range(len(self.workers))
        self.launchers = [self.launch(host, *options, args=args, environment=environment) for host in hosts]

    def launch(self, host, *options, args=(), environment=None, endpoint=None, script=None, rank=None):
        """Start the launcher of one host."""
        folder = self.laboratory.folder
        words = ["--nnodes", len(self.workers), "--node-rank", host if rank is None else rank]
        if "-D" not in options:
            words += ["-n", self.workers[host], "-D", "cpu"]
        words += ["--rdzv-endpoint", endpoint or self.laboratory.hosts[0].address]
        words += ["--log-dir", folder / f"logs{host}", *options, script or self.script, *args]
        return self.laboratory.hosts[host].start(
            *launch_words(*words), output=folder / f"h{host}.out", environment=environment
        )

    def rank_on(self, host):
        """Return the first rank of a host."""
        return sum(self.workers[:host])

    def log(self, rank):
        """Return the path of the log of a worker."""
        host = next(host for host in range(len(self.workers)) if rank < self.rank_on(host + 1))
        return self.laboratory.folder / f"logs{host}" / f"rank{rank}.log"

    def said(self, rank):
        """Return what a worker has said."""
        return said_in(self.log(rank))

    def until_said(self, word, ranks=None, timeout_s=60):
        """Wait until workers have said a word; fails at once if all launchers have ended."""
        ranks = range(sum(self.workers)) if ranks is None else ranks
        deadline = time.monotonic() + timeout_s
        while not all(any(line[0] == word for line in self.said(rank)) for rank in ranks):
            ended = all(launcher.poll() is not None for launcher in self.launchers)
            assert not ended, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def wait(self, timeout_s=60):
        """Return the exit status of each launcher; fail if one does not end."""
        deadline = time.monotonic() + timeout_s
        return [launcher.wait(max(0.01, deadline - time.monotonic())) for launcher in self.launchers]

    def output(self, host):
        """Return what a launcher has written, in one line."""
        return " ".join(self.launchers[host].text().split())

    def until_output(self, host, text, timeout_s=20):
        """Wait until a launcher has written a text, its lines joined."""
        until(lambda: text in self.output(host), self.text, timeout_s)

    def text(self):
        """Return all outputs and logs, for messages of failed tests."""
        parts = [f"--- host {host}\n{launcher.text()}" for host, launcher in enumerate(self.launchers)]
        parts += [f"--- {log}\n{log.read_text()}" for log in map(self.log, range(sum(self.workers))) if log.exists()]
        return "\n".join(parts)

    def close(self):
        for launcher in self.launchers:
            launcher.close()
