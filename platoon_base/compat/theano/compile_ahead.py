"""Repair that compiles the missing C modules of a function in parallel, one g++ for each core.

``VM_Linker.make_all`` (``gof/vm.py:1081-1091``) compiles one module after the other. Before it, all
missing modules are compiled under one compile lock and entered into the cache. Theano itself
compiles those that need more than generated code, and reports errors of modules that failed here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple

from platoon_base.system.limits import available_cores

log = logging.getLogger(__name__)


class Missing(NamedTuple):
    linker: Any
    key: Any


def install(vm: ModuleType, jobs: int | None = None) -> None:
    """Repair ``theano.gof.vm``; ``jobs`` compilers run at a time, by default one for each core."""
    make_all = vm.VM_Linker.make_all
    jobs = jobs or available_cores()

    def make_all_ahead(self: Any, *args: Any, **kwargs: Any) -> Any:
        if vm.config.cxx and self.c_thunks is not False:
            try:
                missing = missing_modules(self.schedule(self.fgraph))
                if len(missing) > 1:
                    compile_missing(missing, jobs)
            except TimeoutError:
                # The wait for the compile lock has timed out; Theano would only wait for it again.
                raise
            except Exception:
                log.info("compiling ahead failed; Theano compiles one module at a time", exc_info=True)
        return make_all(self, *args, **kwargs)

    vm.VM_Linker.make_all = make_all_ahead


def missing_modules(nodes: Iterable[Any]) -> dict[str, Missing]:
    """Return, by source hash, every module that the nodes need and the cache lacks."""
    from theano.gof import cc, cmodule, fg, utils

    cache = cc.get_module_cache()
    missing: dict[str, Missing] = {}
    for node in nodes:
        if not _only_generates_code(node):
            continue
        try:
            linker = cc.CLinker().accept(fg.FunctionGraph(node.inputs, node.outputs), no_recycling=[])
            key = linker.cmodule_key()
            if key is None or not key[0] or key in cache.entry_from_key:
                continue
            module_hash = cmodule.get_module_hash(linker.get_src_code(), key)
        except (NotImplementedError, utils.MethodNotDefined):
            # Theano runs an Op without C code in Python.
            continue
        if module_hash not in cache.module_hash_to_key_data:
            missing.setdefault(module_hash, Missing(linker, key))
    return missing


def _only_generates_code(node: Any) -> bool:
    """Return whether Theano makes this node's module from the node alone."""
    from theano.gof.op import Op
    from theano.tensor.elemwise import Elemwise

    kind = type(node.op)
    if getattr(kind, "make_thunk", None) is not Op.make_thunk or kind.make_c_thunk is not Op.make_c_thunk:
        return False
    # Elemwise's preparation is for Python only.
    if kind.prepare_node not in (Op.prepare_node, Elemwise.prepare_node):
        return False
    variables = (*node.inputs, *node.outputs)
    return getattr(node.op, "_f16_ok", False) or all(getattr(v.type, "dtype", "") != "float16" for v in variables)


def compile_missing(missing: dict[str, Missing], jobs: int) -> None:
    """Compile modules, ``jobs`` at a time, unless another process entered them into the cache."""
    from concurrent.futures import ThreadPoolExecutor

    from theano.gof import cc, cmodule, compilelock

    cache = cc.get_module_cache()
    with compilelock.lock_ctx():
        cache.refresh(cleanup=False)
        todo = {
            module_hash: (module, cmodule.dlimport_workdir(cache.dirname))
            for module_hash, module in missing.items()
            if module_hash not in cache.module_hash_to_key_data and module.key not in cache.entry_from_key
        }
        compiled: set[str] = set()
        try:
            # The threads only wait for g++.
            with ThreadPoolExecutor(jobs) as pool:
                futures = {h: pool.submit(_compiler(m.linker, folder)) for h, (m, folder) in todo.items()}
            for module_hash, (module, folder) in todo.items():
                if futures[module_hash].exception() is None:
                    _enter(cache, module_hash, module.key, folder, module.linker.get_dynamic_module().code_hash)
                    compiled.add(module_hash)
        finally:
            for module_hash, (_, folder) in todo.items():
                if module_hash not in compiled:
                    cmodule._rmtree(folder, ignore_if_missing=True)


def _compiler(linker: Any, folder: str) -> Any:
    """Return a function that runs g++; all steps that are not thread-safe are done here."""
    module = linker.get_dynamic_module()
    source = module.code()
    arguments = {
        "module_name": module.code_hash,
        "src_code": source,
        "location": folder,
        "include_dirs": linker.header_dirs(),
        "lib_dirs": linker.lib_dirs(),
        "libs": linker.libraries(),
        "preargs": linker.compile_args(),
        # The main thread imports the module later.
        "py_module": False,
    }
    compiler = linker.c_compiler()
    return lambda: compiler.compile_str(**arguments)


def _enter(cache: Any, module_hash: str, key: Any, folder: str, name: str) -> None:
    from theano.gof import cmodule

    with open(os.path.join(folder, "__init__.py"), "w"):
        pass
    module = cmodule.dlimport(os.path.join(folder, f"{name}.{cmodule.get_lib_extension()}"))
    cache.module_from_name[module.__file__] = module
    cache.module_hash_to_key_data[module_hash] = cache._add_to_cache(module, key, module_hash)
    # The number of compiled modules.
    cache.stats[2] += 1
