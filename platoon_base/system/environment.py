"""The environment variables of this package, set by the launcher or by users."""

from __future__ import annotations

__all__ = [
    "DETERMINISTIC",
    "DEVICE",
    "DEVICES",
    "ERROR_FILE",
    "EVERY_N_BATCHES",
    "FRAMEWORK_RANK",
    "HOSTS",
    "HOSTS_COMPRESSION",
    "HOSTS_EVERY_S",
    "HOSTS_RULE",
    "JOB",
    "KEY_FILE",
    "LAUNCHER",
    "MAX_WORKERS",
    "NAMESPACE",
    "NO_FORK_SERVER",
    "NO_KERNELS",
    "PREFIX",
    "RANK",
    "RC_FILES",
    "REPORTS_AT_ONCE",
    "RULE",
    "STRICT",
    "TERMINAL",
    "TIMEOUTS",
    "TIMEOUT_S",
    "TORCH_ERROR_FILE",
    "TRACE",
    "WORKERS",
]

PREFIX = "PLATOON_"

# Set by the launcher.
JOB, RANK, DEVICE = "PLATOON_JOB", "PLATOON_RANK", "PLATOON_DEVICE"
WORKERS = "PLATOON_WORKERS"  # number of launched workers
LAUNCHER = "PLATOON_LAUNCHER_PID"  # This process ends with that one.
REPORTS_AT_ONCE = "PLATOON_REPORTS_AT_ONCE"  # send every reported value, for `platoon tune`
ERROR_FILE = "PLATOON_ERROR_FILE"  # A worker writes the exception that ends it there.
TERMINAL = "PLATOON_TERMINAL"  # for a debugger of rank 0
DETERMINISTIC = "PLATOON_DETERMINISTIC"  # the seed of a reproducible run
TRACE = "PLATOON_TRACE"  # folder for the times of the workers' phases
TORCH_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # used under torchrun
FRAMEWORK_RANK = "KERAS_DISTRIBUTION_PROCESS_ID"  # for the framework's own group

# Set by users.
HOSTS, DEVICES = "PLATOON_HOSTS", "PLATOON_DEVICES"  # defaults of the command line
RC_FILES = "PLATOONRC"  # more files like .platoonrc
TIMEOUTS, TIMEOUT_S = "PLATOON_TIMEOUTS", "PLATOON_TIMEOUT_S"  # see `platoon_base.timeouts`
RULE, EVERY_N_BATCHES = "PLATOON_RULE", "PLATOON_EVERY_N_BATCHES"  # defaults for scripts
KEY_FILE = "PLATOON_KEY_FILE"  # key of this user's jobs on several hosts
# How the hosts' centers are exchanged.
HOSTS_RULE, HOSTS_EVERY_S = "PLATOON_HOSTS_RULE", "PLATOON_HOSTS_EVERY_S"
HOSTS_COMPRESSION = "PLATOON_HOSTS_COMPRESSION"  # default of the option
NAMESPACE = "PLATOON_NAMESPACE"  # separates the jobs of tests from others
NO_KERNELS, NO_FORK_SERVER = "PLATOON_NO_KERNELS", "PLATOON_NO_PREFORK"
STRICT = "PLATOON_STRICT"  # for tests: raise at an unknown change of phase

MAX_WORKERS = 1024  # A job's state has a row for each.
