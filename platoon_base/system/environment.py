"""The environment variables of a job, and what deterministic runs read from them."""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIX = "PLATOON_"

# Set by the launcher.
JOB, RANK, DEVICE = "PLATOON_JOB", "PLATOON_RANK", "PLATOON_DEVICE"
WORKERS = "PLATOON_WORKERS"  # Number of launched workers.
LAUNCHER = "PLATOON_LAUNCHER_PID"  # This process ends with that one.
REPORTS_AT_ONCE = "PLATOON_REPORTS_AT_ONCE"  # Each reported value is sent, as `platoon tune` needs.
ERROR_FILE = "PLATOON_ERROR_FILE"  # A worker writes the exception that ends it there.
TERMINAL = "PLATOON_TERMINAL"  # A debugger of rank 0 uses this terminal.
DETERMINISTIC = "PLATOON_DETERMINISTIC"  # The seed of a reproducible run.
TRACE = "PLATOON_TRACE"  # Folder for the times of the workers' phases.
TORCH_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torchrun sets it too.
FRAMEWORK_RANK = "KERAS_DISTRIBUTION_PROCESS_ID"  # The framework's own group reads it.

# Set by users.
HOSTS, DEVICES = "PLATOON_HOSTS", "PLATOON_DEVICES"  # Defaults of the command line.
RC_FILES = "PLATOONRC"  # More files like .platoonrc.
TIMEOUTS, TIMEOUT_S = "PLATOON_TIMEOUTS", "PLATOON_TIMEOUT_S"  # See `platoon_base.timeouts`.
RULE, EVERY_N_BATCHES = "PLATOON_RULE", "PLATOON_EVERY_N_BATCHES"  # Defaults of scripts.
KEY_FILE = "PLATOON_KEY_FILE"  # Key of this user's jobs on several hosts.
# How the hosts' centers are exchanged.
HOSTS_RULE, HOSTS_EVERY_S = "PLATOON_HOSTS_RULE", "PLATOON_HOSTS_EVERY_S"
HOSTS_COMPRESSION = "PLATOON_HOSTS_COMPRESSION"  # Default of the option.
NAMESPACE = "PLATOON_NAMESPACE"  # It separates the jobs of tests from others.
NO_KERNELS, NO_FORK_SERVER = "PLATOON_NO_KERNELS", "PLATOON_NO_PREFORK"
STRICT = "PLATOON_STRICT"  # Tests set it: an unknown change of phase then raises.

MAX_WORKERS = 1024  # The state of a job has a row for each worker.


LIMITED_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
THREAD_VARIABLES = (*LIMITED_THREADS, "GOTO_NUM_THREADS", "BLIS_NUM_THREADS")

# This keeps the seed apart from those that a script draws from the job's seed.
_ROOT = 41


def deterministic_seed() -> int | None:
    """Return the common seed for generators without one; None unless runs must be reproducible."""
    text = os.environ.get(DETERMINISTIC)
    if not text:
        return None
    import numpy as np  # Workers start without NumPy.

    return int(np.random.SeedSequence([int(text), _ROOT]).generate_state(1)[0])


def threads_of(environment: Mapping[str, str]) -> str:
    """Return the thread variables that are set: they change the order, and the bits, of sums."""
    return " ".join(f"{name}={environment[name]}" for name in THREAD_VARIABLES if environment.get(name))


def seed_generators() -> None:
    """Seed the generators of Python and NumPy; frameworks follow when they are imported."""
    seed = deterministic_seed()
    if seed is not None:
        import random

        import numpy as np

        random.seed(seed)
        np.random.seed(seed)
