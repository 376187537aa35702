"""Processes that have imported much once and fork the workers of one test after the other: imports are most of a job.

A worker that is forked is what ``platoon_base.worker_process.child`` would be, but for the modules that are there.
`zygote_for` answers None where that would make a difference; then the worker starts as usual.

As a program: ``python zygote.py MODULE ...`` imports the modules and writes a line, the number of its threads. Then it
reads requests as lines of JSON, and answers each with the process id of the worker that it has forked.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

# What a script may do that must come before its imports, or shows that they were there; to read a variable is neither.
PREPARES = re.compile(
    r"""\benviron(\s*\)|\[[^]]*\]\s*[|+]?=[^=]|\.(setdefault|update|pop|clear)\b|\s*\|?=)"""
    r"""|\bdel\s+os\.environ|import\s+environ|\bputenv|sys\.(path|modules|meta_path)|zygote"""
)
# What differs between the workers of a test, and from one test to the next: no import reads it.
OF_ONE_WORKER = ("PLATOON_JOB", "PLATOON_RANK", "PLATOON_ERROR_FILE", "PYTEST_CURRENT_TEST")
# What the preambles of tests read behind their imports.
OF_ONE_WORKER += ("PLATOON_TEST_TENSORS", "PLATOON_TEST_BUCKET_BYTES", "PLATOON_TEST_NO_NVRTC", "PROCESSOR_NCCL")
OF_ONE_WORKER += ("CENTER_ON_PROCESSOR", "XLA_PYTHON_CLIENT_PREALLOCATE")

# What the first calls of a worker import, which the package itself puts off.
OF_THE_BASE = ("numpy.random", "platoon_base.job.joining", "platoon_base.job.backends", "platoon_base.worker.handle")
OF_THE_BASE += ("platoon_base.rules", "platoon_base.centers.across_hosts", "platoon_base.centers.host_rounds")
OF_THE_BASE += ("platoon_base.channels.zmq", "platoon_base.collectives.groups")
OF_THE_BASE += ("platoon_base.collectives.host_exchange", "platoon_base.data", "platoon_base.worker_process.child")

_zygotes = {}
_asked = set()


def modules_for(text, environment):
    """Name what the workers of a script import, by the packages that its text names."""
    modules = list(OF_THE_BASE)
    if "keras" in text:
        modules += [environment.get("KERAS_BACKEND", "theano"), "platoon_plugins.keras", "keras"]
    elif "lasagne" in text:
        modules += ["platoon_plugins.lasagne", "lasagne", "platoon_base.theano_ops"]
    elif "blocks" in text:
        modules += ["platoon_plugins.blocks", "blocks.main_loop", "platoon_base.theano_ops"]
    elif "theano" in text:
        modules += ["platoon_base.compat", "theano"]
    elif "torch" in text:
        modules += ["torch", "platoon_base.torch_loops"]
    elif "array_loops" in text:
        packages = [name for name in ("optax", "flax.nnx", "equinox") if importlib.util.find_spec(name.split(".")[0])]
        modules += ["jax.numpy", "platoon_base.array_loops", *packages]
    return modules


def zygote_for(text, start, usual=True):
    """Return a zygote for the workers of a script, or None if they start as usual.

    The environment is not usual where the test adds to it: most of these come once.
    """
    environment = {k: v for k, v in start.environment.items() if k not in OF_ONE_WORKER}
    if environment.get("PLATOON_DEVICE", "cpu") != "cpu" or PREPARES.search(text):
        return None
    modules = modules_for(text, environment)
    key = (tuple(modules), tuple(sorted(environment.items())))
    if not usual and key not in _zygotes and key not in _asked:
        _asked.add(key)
        return None
    if key not in _zygotes:
        _zygotes[key] = Zygote(modules, environment)
    return _zygotes[key] if _zygotes[key].fit else None


def zygote_pids():
    """Return the process ids of all zygotes of this process."""
    return {zygote.pid for zygote in _zygotes.values()}


class Zygote:
    """A running zygote, seen from the tests."""

    def __init__(self, modules, environment):
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        atexit.register(self.close)
        # One with threads cannot fork.
        self.fit = self._process.stdout.readline().strip() == "1"

    def fork(self, start, words):
        """Fork a worker, which becomes a child of this process, and return its process id."""
        from platoon_base.worker_process.forkserver import PR_SET_CHILD_SUBREAPER, prctl

        request = {"words": words, "environment": dict(start.environment), "log": str(start.log_file)}
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an import that prints must not answer
    from platoon_base import compat

    compat.apply()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print(len(list(Path("/proc/self/task").iterdir())), file=answers, flush=True)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            answers.detach()
            os.setsid()  # before anybody knows of it: signals go to its process group
            os.write(writing, b"%d" % os.getpid())
            become_worker(request)
            return
        os.waitpid(between, 0)  # from now on the worker is a child of the tests' process
        os.close(writing)
        print(int(os.read(reading, 20)), file=answers, flush=True)
        os.close(reading)


def become_worker(request):
    """Make up for what differs from a process that was started by itself, and run the script."""
    os.closerange(3, 64)
    for path, flags, target in ((os.devnull, os.O_RDONLY, 0), (request["log"], os.O_WRONLY | os.O_APPEND, 1)):
        opened = os.open(path, flags | os.O_CREAT, 0o666)
        os.dup2(opened, target)
        os.close(opened)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.argv = ["-c", *request["words"]]
    from platoon_base.worker_process import child

    child.main()
    # End as Python does, but leave the modules: tearing them down would make the kernel copy all of their pages.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
