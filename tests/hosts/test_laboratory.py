"""The laboratory itself: hosts that are apart, links that are cut, slow or limited, and nothing left of any."""

import contextlib
import sys

from scripts_here import script_path

# Answers each datagram; and asks until there is an answer, which it writes with the time that it took.
ECHO = script_path("laboratory_echo")
ASK = script_path("laboratory_ask")


def ask(host, name="h1", timeout_s=0.3):
    answer = host.run(sys.executable, ASK, name, timeout_s).split()[-1]
    return None if answer == "none" else float(answer)


@contextlib.contextmanager
def answering(host):
    echo = host.start(sys.executable, ECHO)
    try:
        echo.until("ready")
        yield
    finally:
        echo.close()


def test_a_cut_is_silent_and_mends(laboratory):
    first, second = laboratory.hosts
    with answering(second):
        assert ask(first) < 0.1
        laboratory.cut(second)
        assert ask(first) is None
        laboratory.mend(second)
        assert ask(first, timeout_s=5) is not None
