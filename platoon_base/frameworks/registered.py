"""The frameworks that adapters have registered, by entry points."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from platoon_base.system.imports import entry_points

if TYPE_CHECKING:
    from platoon_base.frameworks.checks import Check

log = logging.getLogger(__name__)

GROUP = "platoon.frameworks"
_SOURCE = Path(__file__).parents[2]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _no_checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    return iter(())


def _no_export(source: Path, target: Path) -> str:
    return ""


class Framework(NamedTuple):
    """The facts about a framework, or several related ones, that the base needs.

    The module with it, and its packages, are imported in every launcher and worker, so they must
    not import a framework at import time.
    """

    # Modules to import before a fork. The import, with all it imports, starts no thread, opens
    # no resource that forked processes may not share, and needs the same environment everywhere.
    preload: tuple[str, ...] = ()
    # Those of `preload` that are slow enough to import to justify a process that forks.
    worth_preloading: tuple[str, ...] = ()
    # Repairs by module name: `repair(module)` is called once, right after the import.
    after_import: Mapping[str, Callable[[ModuleType], None]] = _NOTHING
    # By module name: `keep(module, gpu)` is called right after the import, in a worker with a GPU.
    # `gpu` is a `platoon_base.devices.WorkerGpu`.
    keep_to_gpu: Mapping[str, Callable[[Any, Any], None]] = _NOTHING
    # `checks(earlier)` yields lines of `platoon doctor`; `earlier` has the previous checks by name.
    checks: Callable[[Mapping[str, Check]], Iterator[Check]] = _no_checks
    # Distributions whose versions `platoon env` shows.
    distributions: tuple[str, ...] = ()
    # Prefixes of environment variables that configure it, such as "KERAS".
    variables: tuple[str, ...] = ()
    # Three texts for messages: an expression for a model's parameters, the call that takes `rule=`,
    # and the part of the adapter that calls `Worker.report` itself.
    parameters: str = ""
    rule_goes_to: str = ""
    reports_by: str = ""
    # `export(source, target)` writes an older model file for newer versions. It returns a line
    # about it, or an empty text for files of another kind.
    export: Callable[[Path, Path], str] = _no_export
    # For messages: the users of a center on GPUs with kernels that NVRTC compiles.
    center_on_gpu: str = ""
    # Returns whether a frame of the stack is a step of training.
    trains: Callable[[FrameType], bool] = lambda frame: False
    # For messages: a sentence that says how the workers train one model.
    one_model_by: str = ""
    # Returns whether the script has a process group of the framework, which may average.
    has_group: Callable[[], bool] = lambda: False


class Registrations(NamedTuple):
    """All frameworks by entry point, the top-level packages that registered them, and errors."""

    frameworks: Mapping[str, Framework]
    packages: tuple[str, ...]
    broken: Mapping[str, str]

    def texts(self, field: str) -> list[str]:
        return [text for framework in self.frameworks.values() if (text := getattr(framework, field))]


def such_as_parameters() -> str:
    """Return the end of a message that asks for a model's parameters, with examples."""
    texts = registered().texts("parameters")
    return f", such as {', or '.join(texts)}" if texts else ""


def _order(entry_point: tuple[str, str]) -> tuple[bool, str]:
    """Put the base's registrations first: adapters' checks build on theirs."""
    name, value = entry_point
    return not value.startswith("platoon_base."), name


@functools.lru_cache(maxsize=1)
def registered() -> Registrations:
    """Return the registrations; one that cannot be used is logged and left out."""
    frameworks: dict[str, Framework] = {}
    # Used as an ordered set.
    packages: dict[str, None] = {}
    broken = {}
    found = entry_points(GROUP, _SOURCE)
    for name, value in sorted(found.items(), key=_order):
        module, _, attribute = value.partition(":")
        packages[module.partition(".")[0]] = None
        try:
            framework = getattr(importlib.import_module(module), attribute)
        except Exception as exc:
            # An error in another project must not end this process.
            broken[name] = f"cannot import {value}: {type(exc).__name__}: {exc}"
            continue
        if isinstance(framework, Framework):
            frameworks[name] = framework
        else:
            broken[name] = f"{value} is {type(framework).__name__}, not a platoon_base.frameworks.Framework"
    for name, why in broken.items():
        log.warning("ignoring the entry point %r in the group %s: %s", name, GROUP, why)
    if not found:
        log.warning(
            "no framework is registered, so none is restricted to the GPU of its worker, or "
            "repaired: install platoon-plugins again, with pip install"
        )
    return Registrations(frameworks, tuple(packages), broken)
