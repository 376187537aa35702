"""Repairs of Theano's module cache: two races in its files, and keys that differ by process.

``gof/cmodule.py:540`` writes ``key.pkl`` in place, and a process that reads half of it deletes the
module. ``ModuleCache.refresh`` (``:776-799``) fails if another process removes a directory.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from types import ModuleType
from typing import Any

# Each attempt fails only if another directory was removed meanwhile.
_ATTEMPTS = 10


def repair_files(cmodule: ModuleType) -> None:
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


# 1. ``gof/cc.py:1453`` adds ``op.__props__`` to the versions, and ``:1492`` does not cache an empty
#    entry, so Ops without parameters (Dot22, softmax) are never cached. Repair: add the class name.
#    An Op or type that itself declares no version stays uncached.
# 2. ``gof/op.py:1425`` versions C code in files by ``hash()`` of strings, which Python salts in each
#    process. Repair: SHA-256. Aesara made the same repair in #1108.


def repair_keys(cc: ModuleType) -> None:
    from theano.gof import op

    key_of = cc.CLinker.cmodule_key_
    salted_version = op.COp.c_code_cache_version

    def cmodule_key_(self: Any, fgraph: Any, no_recycling: Any, *args: Any, **kwargs: Any) -> Any:
        key = key_of(self, fgraph, no_recycling, *args, **kwargs)
        if key is None or key[0]:
            return key
        versions = _versions(self.schedule(fgraph))
        return (versions, key[1]) if versions else key

    def c_code_cache_version(self: Any) -> tuple[Any, ...]:
        code = hashlib.sha256("\0".join(self.func_codes).encode()).hexdigest()
        return (code, *salted_version(self)[1:])

    cc.CLinker.cmodule_key_ = cmodule_key_
    op.COp.c_code_cache_version = c_code_cache_version


def _versions(nodes: Any) -> tuple[Any, ...]:
    """Return the versions of all Ops and types, or nothing if one of them has none."""
    versions: list[Any] = []
    for node in nodes:
        found = [variable.type.c_code_cache_version() for variable in (*node.inputs, *node.outputs)]
        if hasattr(node.op, "c_code_cache_version_apply"):
            found.append(node.op.c_code_cache_version_apply(node))
        if not all(found):
            return ()
        versions += [*found, (type(node.op).__name__, *getattr(node.op, "__props__", ()))]
    return tuple(versions)
