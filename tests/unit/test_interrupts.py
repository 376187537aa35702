"""SIGINT and SIGTERM of a worker that has inherited them ignored, or blocked."""

import signal

import pytest
from programs import run_python

pytestmark = pytest.mark.base

SCRIPT = """
import os, signal, time
signal.{how}
from platoon_base.system.process import accept_interrupts
accept_interrupts()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
BOTH = "(signal.SIGINT, signal.SIGTERM)"


BLOCKED = f"pthread_sigmask(signal.SIG_BLOCK, {BOTH})"
IGNORED = f"SIG_IGN; [signal.signal(number, signal.SIG_IGN) for number in {BOTH}]"


@pytest.mark.parametrize("how", [BLOCKED, IGNORED])
def test_both_are_taken(how):
    assert run_python("-c", SCRIPT.format(how=how), status=-signal.SIGTERM).stdout == "interrupted\n"


def test_handlers_of_the_script_stay():
    how = "signal(signal.SIGINT, lambda *_: (print('mine', flush=True), signal.alarm(1)))"
    assert run_python("-c", SCRIPT.format(how=how), status=-signal.SIGALRM).stdout == "mine\n"
