"""Models that fits of several workers have trained in this process, and workers whose fit goes on."""

from __future__ import annotations

import weakref
from typing import Any

from platoon_base import Worker

__all__ = ["models", "sharing"]

# Models that a fit with `distribute` has trained on several workers.
models: weakref.WeakSet[Any] = weakref.WeakSet()
# Workers whose parameters a fit shares at the moment.
sharing: weakref.WeakSet[Worker] = weakref.WeakSet()
