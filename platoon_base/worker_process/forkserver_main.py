"""The fork server: a process that imports a script's modules once and forks the workers.

It reads its task as JSON from standard input. To the file descriptor ``report`` it writes the
process id of each worker, one on a line, and then ``done``, and ends. Workers run the script only
after that: a fork server that fails leaves no worker running. Each worker is then like ``python
script.py``, except that the modules are imported already.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import logging
import os
import signal
import sys
import threading
import warnings
from typing import Any

from platoon_base import compat
from platoon_base.system.own_files import open_log
from platoon_base.system.process import die_with, readable
from platoon_base.worker_process import child
from platoon_base.worker_process.forkserver import DONE
from platoon_base.worker_process.program import Program

log = logging.getLogger(__name__)


def main() -> None:
    """Fork the workers; return only in a worker, at the end of its script."""
    # Until the fork: imports make many objects and little garbage.
    gc.disable()
    spec = json.load(sys.stdin)
    os.set_inheritable(spec["report"], False)
    die_with(spec["parent"], signal.SIGKILL)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    # The default action ends the process in any state; forked processes do not inherit the timer.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, spec["timeout_s"])
    child.set_up_logging()
    compat.apply()
    program, args = Program.of(spec["program"])
    child.show(program, "fork server")
    sys.argv = spec["program"]
    program.put_first_on_path()
    for name in spec["preload"]:
        importlib.import_module(name)
    _warm_up()
    _require_forkable()
    worker = _fork(spec["workers"], spec["report"])
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    _become_worker(worker, handlers)
    child.show(program)
    child.run(program, args)


def _warm_up() -> None:
    # Theano calls this for each variable; the first call scans all modules.
    inspect.getframeinfo(sys._getframe())
    theano = sys.modules.get("theano")
    if theano is None:
        return
    from theano.gof import cc, cmodule

    if theano.config.cxx:
        cmodule.GCC_compiler.compile_args()  # This runs g++ three times.
        cmodule.std_lib_dirs_and_libs()
    cc.get_module_cache()  # This reads all keys on disk.


def _require_forkable() -> None:
    if threading.active_count() > 1:
        raise RuntimeError(f"cannot fork beside threads: {', '.join(t.name for t in threading.enumerate())}")
    theano = sys.modules.get("theano")
    if theano is None:
        return
    from theano.gof import compilelock

    if getattr(compilelock.get_lock, "n_lock", 0):
        raise RuntimeError("cannot fork while Theano's compile lock is held")
    config = theano.config
    if config.device != "cpu" or config.init_gpu_device or config.contexts:
        raise RuntimeError("cannot fork with a GPU in use; for workers on GPUs name them with -D")


def _fork(workers: list[dict[str, Any]], report: int) -> dict[str, Any]:
    """Fork the workers; the parent reports and ends, a child returns its entry of ``workers``."""
    # The workers' garbage collections neither scan nor copy the present objects.
    gc.freeze()
    waiting, go = os.pipe()
    me = os.pidfd_open(os.getpid())
    sys.stdout.flush()
    sys.stderr.flush()
    for worker in workers:
        with warnings.catch_warnings():
            # Python 3.12 warns about threads; those of OpenBLAS and MKL are prepared for a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(report)
            os.close(go)
            if not os.read(waiting, 1):
                os._exit(1)  # The fork server died.
            readable(me, None)  # Wait until the launcher is the parent.
            os.close(waiting)
            os.close(me)
            return worker
        os.write(report, b"%d\n" % pid)
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.write(report, DONE)
    os.write(go, b"." * len(workers))
    os._exit(0)


def _become_worker(worker: dict[str, Any], handlers: dict[signal.Signals, Any]) -> None:
    gc.enable()
    if worker["log"] is not None:
        _redirect(open_log(worker["log"]), 1, 2)
    _redirect(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(worker["environment"])
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # The module `random` reseeds itself.
    child.set_up_logging()


def _redirect(opened: int, *descriptors: int) -> None:
    for descriptor in descriptors:
        os.dup2(opened, descriptor)
    os.close(opened)


if __name__ == "__main__":
    main()
