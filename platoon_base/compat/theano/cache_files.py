"""Repair of two races in the files of Theano's module cache; see docs/compat.md.

``gof/cmodule.py:540`` writes ``key.pkl`` in place, and a process that reads half of it deletes the
module. ``ModuleCache.refresh`` (``:776-799``) fails if another process removes a directory.
"""

from __future__ import annotations

import os
import pickle
from types import ModuleType
from typing import Any

__all__ = ["install"]

# Each attempt fails only if another directory was removed meanwhile.
_ATTEMPTS = 10


def install(cmodule: ModuleType) -> None:
    refresh = cmodule.ModuleCache.refresh
    log = cmodule._logger

    def save_pkl(self: Any) -> None:
        part = f"{self.key_pkl}.{os.getpid()}"
        try:
            with open(part, "wb") as file:
                pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)
            os.replace(part, self.key_pkl)
        except pickle.PicklingError:
            log.warning("Cache leak due to unpickle-able key data %s", self.keys)
            os.remove(part)
            raise

    def refresh_again(self: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(_ATTEMPTS - 1):
            try:
                return refresh(self, *args, **kwargs)
            except FileNotFoundError:
                # Another process removed a listed directory.
                pass
        return refresh(self, *args, **kwargs)

    # Looked up before any change: a Theano without the name stays unchanged.
    key_data = cmodule.KeyData
    key_data.save_pkl  # noqa: B018
    key_data.save_pkl = save_pkl
    cmodule.ModuleCache.refresh = refresh_again
