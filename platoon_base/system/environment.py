"""The environment variables of this package: those by which a process finds its job, and those that users set."""

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
    "LISTEN",
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
    "TIMEOUT_S",
    "TORCH_ERROR_FILE",
    "TRACE",
    "WORKERS",
]

PREFIX = "PLATOON_"  # of every name here

# Set by the launcher.
JOB, RANK, DEVICE = "PLATOON_JOB", "PLATOON_RANK", "PLATOON_DEVICE"
WORKERS = "PLATOON_WORKERS"  # The number of launched workers.
LAUNCHER = "PLATOON_LAUNCHER_PID"  # the process with which this one is to end
REPORTS_AT_ONCE = "PLATOON_REPORTS_AT_ONCE"  # every reported value is sent, as `platoon tune` needs it
ERROR_FILE = "PLATOON_ERROR_FILE"  # where a worker writes the exception that ends it
TERMINAL = "PLATOON_TERMINAL"  # which rank 0 may use for a debugger
DETERMINISTIC = "PLATOON_DETERMINISTIC"  # the seed of a run that is to have the same bits each time
TRACE = "PLATOON_TRACE"  # the folder to which workers write when each phase began and ended
TORCH_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # the same for processes under torchrun
FRAMEWORK_RANK = "KERAS_DISTRIBUTION_PROCESS_ID"  # read when a script asks for the framework's own group

# Set by users.
HOSTS, DEVICES = "PLATOON_HOSTS", "PLATOON_DEVICES"  # the device to run on, if no argument names one
RC_FILES = "PLATOONRC"  # files that say so too, beside .platoonrc
TIMEOUT_S = "PLATOON_TIMEOUT_S"
RULE, EVERY_N_BATCHES = "PLATOON_RULE", "PLATOON_EVERY_N_BATCHES"  # where the script names none
KEY_FILE = "PLATOON_KEY_FILE"  # the key of this user's jobs on several hosts
HOSTS_RULE, HOSTS_EVERY_S = "PLATOON_HOSTS_RULE", "PLATOON_HOSTS_EVERY_S"  # how hosts' centers come together
HOSTS_COMPRESSION = "PLATOON_HOSTS_COMPRESSION"  # of what couriers send, if no option names one
LISTEN = "PLATOON_LISTEN"  # the address at which controllers of platoon_api listen, if not on the loopback
NAMESPACE = "PLATOON_NAMESPACE"  # jobs of another one are neither seen nor removed: for tests beside real jobs
NO_KERNELS, NO_FORK_SERVER = "PLATOON_NO_KERNELS", "PLATOON_NO_PREFORK"
STRICT = "PLATOON_STRICT"  # a change of a rank's phase that is not in the table raises: for tests

MAX_WORKERS = 1024  # of one job; the memory of a job has a row for each
