"""Models that fits of several workers have trained here, and workers with a fit in progress."""

from __future__ import annotations

import weakref
from typing import Any

from platoon_base import Worker

__all__ = ["in_loops", "models", "prepared", "sharing"]

# Models that a fit with `distribute` has trained on several workers.
models: weakref.WeakSet[Any] = weakref.WeakSet()
# The settings of prepared models.
prepared: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# Workers with a fit in progress that shares parameters.
sharing: weakref.WeakSet[Worker] = weakref.WeakSet()
# Models in a training loop of Keras 2, which may call `train_on_batch`.
in_loops: weakref.WeakSet[Any] = weakref.WeakSet()
