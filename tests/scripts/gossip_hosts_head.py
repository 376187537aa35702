"""A worker that fits least squares with GoSGD, on whichever host, and reports what all hosts have in the end."""

# ruff: noqa: F401 - for the scripts

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from hosts_preamble import rank, say, size, worker
from watching import slots_of

from platoon_base.rules import GoSGD

FOLDER, RULE = Path(sys.argv[1]), GoSGD(probability=0.3)
_random = np.random.default_rng(0)
TRUE, ROWS = _random.normal(size=(20, 3)), _random.normal(size=(400, 20))
TARGETS = ROWS @ TRUE
x = np.zeros((20, 3))


def loss():
    return float(np.square(ROWS @ x - TARGETS).mean())


def train(steps, seed=0):
    for step in range(steps):
        rows = np.random.default_rng([seed, rank, step]).integers(0, len(ROWS), 16)
        x[...] -= 0.1 * ROWS[rows].T @ (ROWS[rows] @ x - TARGETS[rows]) / len(rows)
        worker.progress(steps=1)
        worker.sync_params()


def train_until(name):
    deadline = time.monotonic() + 60
    seed = 0
    while not (FOLDER / name).exists():
        assert time.monotonic() < deadline
        seed += 1
        train(20, seed)


def end():
    """Train together to the end, and report the consensus, and the weight on this host in units.

    What a worker has sent early in a part may be merged by one that has ended it: so there are several.
    """
    met = worker.gather(rank, name="all meet")  # without one that came later, if that is elsewhere
    for part in range(5):
        worker.barrier(f"part {part}")
        train(60, 1000 + part)
    worker.barrier("trained")
    worker.average_hosts()
    with slots_of([x]) as center:
        assert not any(road.full for road in center.hosts.roads.values())
        weight = sum(int(slot.weights[0]) for slot in center.slots.every())
    worker.copy_to_local()
    say(x.tobytes().hex(), loss(), str(weight), met)
    worker.barrier("end")


def couriers():
    """The couriers that this worker's launcher has."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = open(f"/proc/{name}/cmdline").read()
            parent = int(open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if "platoon_base.courier.process" in command and parent == os.getppid():
            found.append(int(name))
    return found


def kill_courier():
    """Kill this host's courier, and wait for the next one."""
    deadline = time.monotonic() + 30
    while not couriers():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (old,) = couriers()
    os.kill(old, signal.SIGKILL)
    while not [pid for pid in couriers() if pid != old]:
        assert time.monotonic() < deadline
        train(1)
