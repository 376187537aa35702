"""A warning in the first minute of a training in which the workers of a job do not cooperate.

A thread samples the stack of the main thread. Frameworks register which functions train.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from platoon_base.frameworks.registered import Registrations, registered
from platoon_base.system.environment import RANK, WORKERS

log = logging.getLogger(__name__)

AFTER_S = 30.0  # From the first observed step to the warning, without waits for others.
_LEAST_SAMPLES = 3
_LEAST_STEPS = 20  # Fewer counted steps do not show a training.
_QUICK_INTERVAL_S, _SLOW_INTERVAL_S, _QUICK_FOR_S = 0.05, 0.5, 120.0
_ANY_LOOP = "Worker.init_shared_params and sync_params in the loop make them train one model"

_intents: weakref.WeakSet[Intent] = weakref.WeakSet()


class Intent:
    """An object made to train one model, such as a `GradientAverage`; set ``used`` at its first
    use.

    ``unused`` is the predicate of the warning, such as ``"was never called: call ..."``.
    ``needed()`` returns whether a training runs that needs the object.
    """

    any_was_used = False  # In this process.

    def __init__(self, what: str, unused: str, needed: Callable[[], bool] | None = None) -> None:
        self._used = False
        self._text = f"{_call_of_script(what)} {unused}"
        self.needed = needed

    @property
    def used(self) -> bool:
        return self._used

    @used.setter
    def used(self, used: bool) -> None:
        self._used = used
        Intent.any_was_used |= used

    @property
    def text(self) -> str:
        return f"{self._text}. Until then each worker trains its own model"


class Cooperation(NamedTuple):
    """The part of a worker in its job, as far as the worker knows."""

    combined: bool = False  # Whether values of models were sent, or parameters are shared.
    synced: bool = False  # Whether parameters were synchronized with a center.
    steps: int = 0  # The script or an adapter counts them.
    joined: bool = True
    waits: bool = False  # Whether it waits for other workers now, as at the start of ``fit``.


_cooperation: Callable[[], Cooperation] = lambda: Cooperation(joined=False)  # noqa: E731 - replaced by `watch`


_watch: Watch | None = None


def watch(cooperation: Callable[[], Cooperation]) -> None:
    """Set the source of this worker's `Cooperation`."""
    global _cooperation
    _cooperation = cooperation


def intend(what: str, unused: str, needed: Callable[[], bool] | None = None) -> Intent:
    """Record an object made to train one model; see `Intent`. The owner must keep it."""
    intent = Intent(what, unused, needed)
    _intents.add(intent)
    return intent


def unused(known: Cooperation) -> list[Intent]:
    """Return the intents needed but never used; none before a training, or with a center."""
    if known.synced or (_watch is not None and not _watch.knows_of_training):
        return []
    return [each for each in list(_intents) if not each.used and each.needed is not None and each.needed()]


class Watch:
    """Decides when to warn. It has no clock and no threads."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._since: float | None = None
        self._latest = 0.0
        self._samples = 0
        self._seen: weakref.WeakKeyDictionary[Intent, float] = weakref.WeakKeyDictionary()
        self._first_steps: int | None = None
        self._latest_steps = 0
        self.has_counted_training = False

    @property
    def has_seen_training(self) -> bool:
        return self._samples >= _LEAST_SAMPLES

    @property
    def knows_of_training(self) -> bool:
        return self.has_seen_training or self.has_counted_training

    def sample(self, now: float, framework: str, known: Cooperation, remedy: str = "") -> str:
        """Return the warning if it is due, or ''; ``framework`` is the one that trains now."""
        waited = now - self._latest if known.waits else 0.0
        self._since = None if self._since is None else self._since + waited
        for intent in list(_intents):
            self._seen[intent] = self._seen.get(intent, now - waited) + waited
        self._latest = now
        if known.waits:
            return ""
        counted = known.steps - (self._first_steps or 0) if known.steps else 0
        self._first_steps = known.steps if self._first_steps is None and known.steps else self._first_steps
        self.has_counted_training = counted >= _LEAST_STEPS
        active = bool(framework) or known.steps != self._latest_steps
        self._latest_steps = known.steps
        if framework or (counted and self._since is None):
            self._since = now if self._since is None else self._since
            self._samples += bool(framework)
        if not active or self._since is None or now < self._since + AFTER_S:
            return ""
        if not self.knows_of_training:
            return ""
        needed = unused(known)
        late = [each for each in needed if now >= self._seen.get(each, now) + AFTER_S]
        if needed:  # A later training may be about to begin.
            return late[0].text if late else ""
        made = sorted(_intents, key=lambda each: each.used)
        if known.combined or (made and made[0].used):  # A fit may build its model first.
            return ""
        if made:
            return made[0].text
        alone = "combined no parameters and no gradients with the others" if known.joined else "not joined its job"
        if self.has_seen_training:
            done, condition = f"trained for {now - self._since:.0f} s", ""
        else:
            done, condition = f"counted {known.steps} steps", "if it trains in them, "
        return (
            f"this worker has {done} and {alone}: {condition}the {self._workers} workers train "
            f"{self._workers} separate models, which is correct only if intended, as in a search. "
            f"{remedy or _ANY_LOOP}"
        )


def begin() -> None:
    """Watch this process, if it is one of several workers."""
    workers = os.environ.get(WORKERS, "1")
    global _watch
    if workers.isdigit() and int(workers) > 1 and RANK in os.environ:
        _watch = Watch(int(workers))
        threading.Thread(target=_run, args=(_watch,), name="platoon-apart", daemon=True).start()


def _run(decision: Watch) -> None:
    found, began = registered(), time.monotonic()
    while True:
        now = time.monotonic()
        known = _cooperation()
        idle = known.combined and all(each.used for each in list(_intents))
        framework = "" if idle else trains(sys._current_frames().get(threading.main_thread().ident or 0))
        text = decision.sample(now, framework, known, _remedy(found, framework))
        if text and not any(frame.has_group() for frame in found.frameworks.values()):
            log.warning("%s", text)
            return
        time.sleep(_SLOW_INTERVAL_S if idle or now > began + _QUICK_FOR_S else _QUICK_INTERVAL_S)


def trains(frame: FrameType | None) -> str:
    """Return the framework that trains in a stack; '' if none, or in a call of this package."""
    found = registered().frameworks
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] != "platoon_base":
        for name, framework in found.items():
            if framework.trains(frame):
                return name
        frame = frame.f_back
    return ""


def _remedy(found: Registrations, name: str) -> str:
    """Return how to train one model with a framework, or with those that are imported."""
    if name and found.frameworks[name].one_model_by:
        return found.frameworks[name].one_model_by
    return ", or: ".join(
        each.one_model_by for other, each in found.frameworks.items() if each.one_model_by and other in sys.modules
    )


def _call_of_script(what: str) -> str:
    """Return how and where the script called this package, such as ``prepare (train.py:12)``."""
    packages = (*registered().packages, "platoon_base")
    frame, name = sys._getframe(1), what
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in packages:
        name = what if frame.f_code.co_name == "__init__" else frame.f_code.co_name
        frame = frame.f_back
    return f"{name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"
