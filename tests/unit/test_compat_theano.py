"""The repairs of Theano's start-up: nothing is compiled twice, nobody waits for the dead, no result changes."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.theano

WAIT_S = 400
WITH_FIXES = "from platoon_base import compat; compat.apply()\n"

# A layer and a softmax: it holds the Ops that unrepaired Theano never keeps (Dot22, softmax), and one whose C code is
# versioned by a salted hash (DimShuffle).
NETWORK = script_path("compat_theano_network").read_text()


# Those that `make test` compiles with, or as fast ones.
OUTER_FLAGS = os.environ.get("THEANO_FLAGS", "").split(",")
CXXFLAGS = next((flag for flag in OUTER_FLAGS if flag.startswith("gcc.cxxflags=")), "gcc.cxxflags=-O0 -g0")


def environment(folder):
    flags = f"{CXXFLAGS},floatX=float64,device=cpu,blas.ldflags=,cmodule.remove_gxx_opt=True,base_compiledir={folder}"
    base = {k: v for k, v in os.environ.items() if k not in ("THEANO_FLAGS", "THEANORC", "PYTHONHASHSEED")}
    return {**base, "THEANO_FLAGS": flags}


def start(text, folder):
    return subprocess.Popen(
        [sys.executable, *([text] if isinstance(text, Path) else ["-c", textwrap.dedent(text)])],
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    output, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    return output.splitlines()[-1] if output else ""


def network(process):
    return types.SimpleNamespace(**json.loads(finish(process)))


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A compile directory in which Theano was imported once, which compiles two modules of its own."""
    folder = tmp_path_factory.mktemp("theano")
    finish(start(WITH_FIXES + "import theano", folder))
    return folder


@pytest.fixture
def folder(imported, tmp_path):
    """A compile directory with nothing but Theano's own modules."""
    return shutil.copytree(imported, tmp_path / "compiled")


@pytest.mark.slow
@pytest.mark.timeout(1200)  # several processes compile
def test_two_processes_share_the_work_and_their_results_are_those_of_theano_as_it_is(folder, tmp_path):
    processes = [start(WITH_FIXES + NETWORK, folder) for _ in range(2)]
    without = network(start(NETWORK, shutil.copytree(folder, tmp_path / "without")))
    first, second = map(network, processes)
    assert first.compiled or second.compiled
    assert not set(first.compiled) & set(second.compiled), "compiled twice"
    assert len(set(first.compiled)) == len(first.compiled)
    later = network(start(WITH_FIXES + NETWORK, folder))
    assert later.compiled == []
    again = network(start(NETWORK, folder))  # what repaired processes keep does no harm to others
    for found in (first, second, later, again):
        assert (found.losses, found.w) == (without.losses, without.w)


def test_a_killed_holder_frees_the_lock(folder):
    hold = """
        from theano.gof.compilelock import get_lock
        print("ready", flush=True)
        input()
        get_lock()
        print("held", flush=True)
        input()
        """
    holder, waiter = (start(WITH_FIXES + textwrap.dedent(hold), folder) for _ in range(2))
    assert holder.stdout.readline() == waiter.stdout.readline() == "ready\n"
    print(file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "held\n"
    print(file=waiter.stdin, flush=True)
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=WAIT_S)
    assert waiter.stdout.readline() == "held\n"
    waiter.communicate(input="\n", timeout=WAIT_S)
    assert waiter.returncode == 0


@pytest.mark.slow
def test_a_compilation_that_fails_frees_the_lock(folder):
    assert finish(start(script_path("compat_theano_a_compilation_that_fails"), folder)) == "good"


def test_a_holder_that_never_lets_go_is_named_in_the_error(tmp_path):
    from platoon_base.compat.theano.compile_lock import CompileLockTimeoutError, FileLock

    holder, waiter = FileLock(tmp_path / "sub" / "lock"), FileLock(tmp_path / "sub" / "lock", timeout_s=0.05)
    holder.acquire()
    with pytest.raises(CompileLockTimeoutError, match=rf"process {os.getpid()} .*kill {os.getpid()}\)"):
        waiter.acquire()
    holder.release()
    waiter.acquire()
    waiter.release()
    waiter.release()


@pytest.mark.parametrize(("folder_mode", "mode"), [(0o755, 0o600), (0o777, 0o666)])
def test_other_users_can_open_the_lock_file_only_where_they_share_the_cache(tmp_path, folder_mode, mode):
    from platoon_base.compat.theano.compile_lock import FileLock

    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(folder_mode)
    before = os.umask(0)
    try:
        lock = FileLock(folder / "compiledir.flock")
        lock.acquire()
        lock.release()
    finally:
        os.umask(before)
    assert lock.path.stat().st_mode & 0o777 == mode


def test_a_lock_file_that_was_cleared_away_is_made_anew(tmp_path):
    from platoon_base.compat.theano.compile_lock import CompileLockTimeoutError, FileLock

    path = tmp_path / "lock"
    first, second, third = FileLock(path), FileLock(path), FileLock(path, timeout_s=0.05)
    first.acquire()
    path.unlink()
    second.acquire()
    with pytest.raises(CompileLockTimeoutError):
        third.acquire()
    first.release()
    second.release()
    third.acquire()
    third.release()


def test_a_half_written_key_is_never_seen(folder):
    assert finish(start(script_path("compat_theano_a_half_written_key"), folder)) == "{(1, 'key')}"


def test_a_directory_that_vanishes_during_the_listing_does_no_harm(folder):
    assert finish(start(script_path("compat_theano_a_directory_that_vanishes"), folder)) == "good"


def test_importing_the_base_leaves_theano_alone(folder):
    text = script_path("compat_theano_importing_the_base_leaves_theano_alone").read_text()
    assert finish(start(text, folder)) == "good"


def test_a_theano_without_what_a_repair_needs_is_left_whole(monkeypatch, caplog):
    from platoon_base import compat
    from platoon_base.compat import theano as theano_repairs

    compat.apply()
    import theano

    with caplog.at_level(logging.INFO):
        for name, repair in theano_repairs.REPAIRS.items():
            module = types.ModuleType(name)
            theano_repairs.guarded(name, repair)(module)
            assert not any(callable(value) for key, value in vars(module).items() if not key.startswith("__"))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * len(theano_repairs.REPAIRS)

    caplog.clear()
    monkeypatch.setattr(theano, "__version__", "1.1.2")
    with caplog.at_level(logging.INFO):
        theano_repairs.guarded("theano.gof.cc", lambda module: pytest.fail("applied"))(types.ModuleType("cc"))
    assert "1.1.2" in caplog.text
