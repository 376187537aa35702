"""Repair of two races in the files of Theano's module cache: between starting processes, and after one was killed.

The faults. 1. ``gof/cmodule.py:540`` writes ``key.pkl`` in place. A process that reads half a file
(``gof/cmodule.py:827``), at the same moment or after the writer was killed, deletes the whole compiled module.
2. ``ModuleCache.refresh`` (``gof/cmodule.py:776-799``) lists directories without the lock. If another process removes
one in between, FileNotFoundError ends the program.

The cure. 1. The file is written beside its place and renamed. 2. The listing is repeated; it skips the modules that it
has found already.
"""

from __future__ import annotations

import os
import pickle
from types import ModuleType
from typing import Any

__all__ = ["install"]

_ATTEMPTS = 10  # each fails only if yet another directory vanished during it


def install(cmodule: ModuleType) -> None:
    """Repair ``theano.gof.cmodule``."""
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
                pass  # somebody removed what was just listed
        return refresh(self, *args, **kwargs)

    # Looked up before anything is replaced, so that a Theano without it is left whole.
    key_data = cmodule.KeyData
    key_data.save_pkl  # noqa: B018
    key_data.save_pkl = save_pkl
    cmodule.ModuleCache.refresh = refresh_again
