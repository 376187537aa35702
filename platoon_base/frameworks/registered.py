"""The frameworks that adapters have registered, by entry points."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from platoon_base.system.entry_points import entry_points

if TYPE_CHECKING:
    from platoon_base.frameworks.checks import Check

__all__ = ["GROUP", "Framework", "Registrations", "registered", "such_as_parameters"]

log = logging.getLogger(__name__)

GROUP = "platoon.frameworks"
_SOURCE = Path(__file__).parents[2]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _no_checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    return iter(())


def _no_export(source: Path, target: Path) -> str:
    return ""


class Framework(NamedTuple):
    """The facts about a framework that the base needs, or about several that go together.

    The module that holds it is imported in every launcher and worker, so it imports no framework, and nor do the
    packages around it. Functions import what they need.

    Attributes
    ----------
    preload : tuple of str
        Modules that may be imported once, before the workers are forked: the import starts no thread, opens nothing
        that forked processes may not share, and needs the same environment in every worker. The same holds for all
        that it imports.
    worth_preloading : tuple of str
        Those of ``preload`` whose import takes long enough to make up for the process that forks.
    after_import : mapping of str to callable
        Repairs: ``repair(module)`` is called once, right after the module of this name was imported.
    keep_to_gpu : mapping of str to callable
        ``keep(module, gpu)`` is called right after the import, in a worker with a GPU; ``gpu`` is a
        `platoon_base.devices.WorkerGpu`.
    checks : callable
        ``checks(earlier)`` yields the lines of `platoon doctor`; ``earlier`` are the checks made before, by their
        names. They may take seconds.
    distributions : tuple of str
        Whose versions `platoon env` shows.
    variables : tuple of str
        The beginnings of the environment variables that decide how it runs, such as ``"KERAS"`` for ``KERAS_*``.
    parameters : str
        An expression for the parameters of a model, for error messages.
    rule_goes_to : str
        Where a script passes ``rule=``, for messages.
    reports_by : str
        What of the adapter calls `Worker.report` by itself, for messages.
    export : callable
        ``export(source, target)`` writes a model file of an older version for newer ones, and returns a line about it;
        it returns an empty text if the file is of another kind.
    center_on_gpu : str
        What has its center in the memory of GPUs by kernels that NVRTC compiles, for messages.
    trains : callable
        ``trains(frame)`` returns whether a frame of the stack changes a model: a step of training.
    one_model_by : str
        How a script makes the workers train one model, a sentence for messages.
    has_group : callable
        Returns whether the script has made a process group of the framework's own, by which it may average.
    """

    preload: tuple[str, ...] = ()
    worth_preloading: tuple[str, ...] = ()
    after_import: Mapping[str, Callable[[ModuleType], None]] = _NOTHING
    keep_to_gpu: Mapping[str, Callable[[Any, Any], None]] = _NOTHING
    checks: Callable[[Mapping[str, Check]], Iterator[Check]] = _no_checks
    distributions: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    parameters: str = ""
    rule_goes_to: str = ""
    reports_by: str = ""
    export: Callable[[Path, Path], str] = _no_export
    center_on_gpu: str = ""
    trains: Callable[[FrameType], bool] = lambda frame: False
    one_model_by: str = ""
    has_group: Callable[[], bool] = lambda: False


class Registrations(NamedTuple):
    """All that is registered.

    Attributes
    ----------
    frameworks : mapping of str to Framework
        By the names of the entry points.
    packages : tuple of str
        The top-level packages that registered something.
    broken : mapping of str to str
        Why a registration cannot be used, by the name of the entry point.
    """

    frameworks: Mapping[str, Framework]
    packages: tuple[str, ...]
    broken: Mapping[str, str]

    def texts(self, field: str) -> list[str]:
        """Return what the frameworks say in a field, without those that say nothing."""
        return [text for framework in self.frameworks.values() if (text := getattr(framework, field))]


def such_as_parameters() -> str:
    """Return the end of a message that asks for a model's parameters: how scripts of the frameworks write them."""
    texts = registered().texts("parameters")
    return f", such as {', or '.join(texts)}" if texts else ""


def _order(entry_point: tuple[str, str]) -> tuple[bool, str]:
    """Put those of the base first: adapters' checks build on theirs."""
    name, value = entry_point
    return not value.startswith("platoon_base."), name


@functools.lru_cache(maxsize=1)
def registered() -> Registrations:
    """Return what is registered; a registration that cannot be used is logged and left out.

    The first call in a process takes about 3 ms.
    """
    frameworks: dict[str, Framework] = {}
    packages: dict[str, None] = {}  # used as an ordered set
    broken = {}
    found = entry_points(GROUP, _SOURCE)
    for name, value in sorted(found.items(), key=_order):
        module, _, attribute = value.partition(":")
        packages[module.partition(".")[0]] = None
        try:
            framework = getattr(importlib.import_module(module), attribute)
        except Exception as exc:  # of another project: it must not end this process
            broken[name] = f"{value} cannot be imported: {type(exc).__name__}: {exc}"
            continue
        if isinstance(framework, Framework):
            frameworks[name] = framework
        else:
            broken[name] = f"{value} is {type(framework).__name__}, not a platoon_base.frameworks.Framework"
    for name, why in broken.items():
        log.warning("the entry point %r in the group %s is left out: %s", name, GROUP, why)
    if not found:
        log.warning(
            "no framework is registered, so that none is kept to the GPU of its worker, or repaired: install "
            "platoon-plugins again, by pip install"
        )
    return Registrations(frameworks, tuple(packages), broken)
