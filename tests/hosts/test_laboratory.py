"""The laboratory itself: a cut between its hosts is one, and mends."""

import sys

from scripts_here import script_path

# Answers each datagram; and asks until there is an answer, which it writes with the time that it took.
ECHO = script_path("laboratory_echo")
ASK = script_path("laboratory_ask")


def answers(host, timeout_s):
    return host.run(sys.executable, ASK, "h1", timeout_s).split()[-1] != "none"


def test_a_cut_is_silent_and_mends(laboratory):
    first, second = laboratory.hosts
    echo = second.start(sys.executable, ECHO)
    try:
        echo.until("ready")
        assert answers(first, 10)
        laboratory.cut(second)
        assert not answers(first, 0.3)
        laboratory.mend(second)
        assert answers(first, 10)
    finally:
        echo.close()
