"""The durations of a job that users may change, in seconds, and the intervals of polls.

``PLATOON_TIMEOUTS="heartbeat=1,silence=8"`` or ``platoon launch --timeout heartbeat=1`` changes
them for all processes of a job. Read them when they are needed, not at import: a launcher parses
its options later.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

from platoon_base.errors import ConfigurationError
from platoon_base.system.environment import HOSTS_EVERY_S, TIMEOUT_S, TIMEOUTS
from platoon_base.system.text import did_you_mean

# Intervals of polls: for something that takes milliseconds, for other processes and hosts, and
# whether processes are alive.
SHORT_POLL_S, POLL_S, LIVENESS_S = 0.01, 0.1, 0.25


class Row(NamedTuple):
    """One duration; it must be at least ``least``, and ``times`` the duration ``of``."""

    default: float
    meaning: str
    least: float = 1e-3
    times: float = 0.0
    of: str = ""
    why: str = ""

    def at_least(self, times: float, of: str, why: str) -> Row:
        """Return this row, coupled to another one; ``why`` ends the error if both are changed."""
        return self._replace(times=times, of=of, why=why)


ROWS = {
    "wait": Row(300.0, "A worker without progress is given up if others wait for it this long."),
    "connect": Row(60.0, "The controller must answer the first request of a worker."),
    "appear": Row(10.0, "A job at a named port, or the lock of a worker that joins, must appear."),
    "answer": Row(5.0, "A launcher must answer `platoon stop`, `top` and `jobs`."),
    "grace": Row(10.0, "Workers may save after a signal, or the loss of their launcher.", 0.0),
    "end": Row(5.0, "A process, thread or host that has to end gets this time."),
    "orphan": Row(60.0, "A worker that notices the loss of its launcher may end by itself."),
    "query": Row(120.0, "A program that is asked for devices or versions must answer."),
    "preload": Row(120.0, "The fork server may import the frameworks."),
    "compile": Row(600.0, "A process may hold the lock of Theano's compiled functions."),
    "checkpoint": Row(300.0, "A checkpoint without progress is given up."),
    "mirror": Row(5.0, "A center on GPUs is copied to memory at this interval."),
    "stripe": Row(3.0, "A part of the center with a stalled holder is left out after this time."),
    "cause": Row(1.5, "After a failure, wait for the report of its cause."),
    "rendezvous": Row(600.0, "The hosts wait for each other at the start."),
    "handshake": Row(5.0, "A new connection must authenticate."),
    "heartbeat": Row(0.25, "An idle launcher sends a heartbeat at this interval.", POLL_S),
    "silence": Row(2.0, "A host without a heartbeat is reported as silent.").at_least(
        4.0, "heartbeat", "one late heartbeat would count as silence"
    ),
    "host": Row(10.0, "A host without a heartbeat is lost.").at_least(
        1.0, "silence", "a host would be lost before it is reported as silent"
    ),
    "progress": Row(0.1, "A launcher reports the progress of its workers at this interval."),
    "exchange": Row(0.2, "Minimum time between two exchanges of the hosts' centers.", 0.0),
    "stall": Row(2.5, "An exchange ends without a host whose link makes no progress."),
    "fetch": Row(5.0, "A center that another host does not send is requested after this time."),
    "link": Row(6.0, "A host is named in a warning if its link does not open, or carries nothing."),
    "unlinked": Row(25.0, "After that warning, a host that never had the link is lost."),
    "tracker": Row(60.0, "A tracker of experiments may begin its run, and end it."),
    "restart": Row(1.0, "A courier that failed is started again."),
}
_ALIASES = {TIMEOUT_S: "wait", HOSTS_EVERY_S: "exchange"}
_DEFAULTS = {name: row.default for name, row in ROWS.items()}


def timeout(name: str) -> float:
    """Return the duration ``name``, as this process's environment sets it."""
    return _current()[name]


@functools.cache
def _current() -> dict[str, float]:
    return require_coupled(os.environ)


def change(environment: MutableMapping[str, str], texts: Sequence[str], origin: str = "--timeout") -> None:
    """Change durations in an environment by texts like ``"heartbeat=1"``, which win over its own.

    Couplings are checked by `require_coupled`, after all changes.
    """
    adopt(environment, _text({**_given(environment), **_parsed(",".join(texts), origin)}))


def of_job(environment: Mapping[str, str]) -> str:
    """Return the changes that all hosts of a job need, as text."""
    found = _given(environment)
    return _text({name: value for name, value in found.items() if name != "rendezvous"})


def adopt_job(environment: MutableMapping[str, str], text: str) -> None:
    """Replace all changes of an environment by those of a job, but for the host's own ``rendezvous``."""
    own = {name: value for name, value in _given(environment).items() if name == "rendezvous"}
    adopt(environment, _text({**_parsed(text, TIMEOUTS), **own}))


def adopt(environment: MutableMapping[str, str], text: str) -> None:
    """Replace all changes of an environment by those of a text."""
    for name in (TIMEOUTS, *_ALIASES):
        environment.pop(name, None)
    if text:
        environment[TIMEOUTS] = text
    _current.cache_clear()


def _given(environment: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for variable, name in _ALIASES.items():
        if variable in environment:
            text = environment[variable]
            found[name] = _number(name, text, f"{variable}={text!r}")
    return {**found, **_parsed(environment.get(TIMEOUTS, ""), TIMEOUTS)}


def _parsed(text: str, origin: str) -> dict[str, float]:
    found = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, _, number = map(str.strip, word.partition("="))
        if name not in ROWS:
            hint = did_you_mean(name, ROWS) or f" The names are {', '.join(ROWS)}."
            raise ConfigurationError(f"got {origin} {word}: there is no timeout {name!r}.{hint}")
        found[name] = _number(name, number, f"{origin} {word}")
    return found


def _text(found: Mapping[str, float]) -> str:
    return ",".join(f"{name}={found[name]:.12g}" for name in ROWS if name in found)


def _number(name: str, text: str, got: str) -> float:
    least = ROWS[name].least
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found < math.inf:
        wanted = f"it must be a number of seconds, {least:g} or more"
        raise ConfigurationError(f"got {got}: {wanted}")
    return found


def require_coupled(environment: Mapping[str, str]) -> dict[str, float]:
    """Return all durations of an environment, or raise `ConfigurationError` if they do not fit together."""
    found = {**_DEFAULTS, **_given(environment)}
    for name, row in ROWS.items():
        if row.of and found[name] < row.times * found[row.of]:
            least, most = row.times * found[row.of], found[name] / row.times
            raise ConfigurationError(
                f"got the timeouts {name}={found[name]:g} and {row.of}={found[row.of]:g}: {row.why}. "
                f"Give {name} at least {least:g}, or {row.of} at most {most:g}"
            )
    return found


DEFAULT_TIMEOUT_S = {**_DEFAULTS, **_given(os.environ)}["wait"]  # Signatures use it as a default.
