"""Models that fits of several workers have trained in this process, and workers whose fit is in progress."""

from __future__ import annotations

import weakref
from typing import Any

from platoon_base import Worker

__all__ = ["in_loops", "models", "prepared", "sharing"]

# Models that a fit with `distribute` has trained on several workers.
models: weakref.WeakSet[Any] = weakref.WeakSet()
# Models that `prepare` has prepared, with its arguments.
prepared: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# Workers with a fit in progress that shares parameters.
sharing: weakref.WeakSet[Worker] = weakref.WeakSet()
# Models that a loop of Keras 2 is training, which may make its steps by `train_on_batch`.
in_loops: weakref.WeakSet[Any] = weakref.WeakSet()
