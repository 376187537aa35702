"""Scripts as users of the original Platoon wrote them, but for their import lines, and how they are started by hand."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from scripts_here import script_path, written

WAIT_S = 100


def free_port():
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def terminals(folder):
    """Give a function that starts a script in a terminal of its own, so to speak; what runs at the end is ended."""
    processes = []

    def run(script, *args, before=(sys.executable,), **environment):
        script = written(script, folder / f"script{len(processes)}.py")
        process = subprocess.Popen(
            [*map(str, (*before, script, *args))],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    try:
        yield run
    finally:
        for process in reversed(processes):  # workers first
            process.terminate()
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def end(process, status=0):
    """Wait for the end of a process; returns its output."""
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == status, output
    return output


def until(process, text):
    """Read the output of a process until a line has this text; returns what was read."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"no {text!r} in:\n{''.join(lines)}")


def at(port):
    return f"--control-port={port}"


SERVE = script_path("by_hand_serve").read_text()

PREAMBLE = Path(__file__).with_name("by_hand_preamble.py").read_text()

CONTROLLER = script_path("by_hand_controller")

WORKER = script_path("by_hand_worker")
