"""Keys of Theano's module cache that are the same in every process.

The fault. A compiled module is found by a key, (versions, signature). In two cases Theano 1.0.5 gives equal C code a
key that no later process can have. Then every process compiles it again: six modules of a small network.

1. ``gof/cc.py:1453`` adds ``op.__props__`` to the versions, and ``gof/cc.py:1492`` takes an empty entry for "do not
   cache". But ``__props__ = ()`` says only that an Op has no parameters: Dot22, the softmax and others are never kept.
2. ``gof/op.py:1425`` versions an Op whose C code is in files by ``hash()`` of strings, which Python salts again in each
   process unless ``PYTHONHASHSEED`` is set.

The cure. 1. A key that has no versions for that reason alone gets the name of the Op's class beside its empty
``__props__``; an Op or type that itself says "no version" stays uncached. 2. SHA-256 replaces ``hash()``. The
signature, by which different computations differ, stays as it was. Aesara repaired the same in #1108.
"""

from __future__ import annotations

import hashlib
from types import ModuleType
from typing import Any

__all__ = ["install"]


def install(cc: ModuleType) -> None:
    """Repair ``theano.gof.cc`` and the class ``COp``."""
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
