"""The program that the workers run: a script, folder or module, as for ``python``."""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from platoon_base.errors import ConfigurationError


class Program(NamedTuple):
    """A script, folder or zip archive (its path), or a module or package (its dotted name)."""

    name: str
    is_module: bool = False
    is_typed: bool = False  # The script came from the launcher's standard input (``-``), and ``name`` is a copy.

    @classmethod
    def of(cls, words: Sequence[str]) -> tuple[Program, list[str]]:
        """Split the words after ``python`` into the program and its arguments."""
        # The name of the copy follows "-", except for a controller on standard input.
        if words[0] == "-" and words[1:]:
            return cls(words[1], is_typed=True), list(words[2:])
        if words[0] == "-m":
            return cls(words[1], is_module=True), list(words[2:])
        return cls(words[0]), list(words[1:])

    @property
    def argv(self) -> list[str]:
        if self.is_typed:
            return ["-", self.name]
        return ["-m", self.name] if self.is_module else [self.name]

    @property
    def title(self) -> str:
        return self.shown if self.is_module or self.is_typed else Path(self.shown).stem

    @property
    def shown(self) -> str:
        """The name in `ps`: that of the file, or of the module."""
        if self.is_typed:
            return "stdin"
        return self.name if self.is_module else Path(self.name).name or Path(self.name).resolve().name

    @property
    def folder(self) -> str:
        """The folder or archive that Python puts first on the module search path."""
        if self.is_module or self.is_typed:
            return os.getcwd()
        path = Path(self.name).resolve()
        return str(path if self._spec_within() is not None else path.parent)

    def _spec_within(self) -> ModuleSpec | None:
        """Return the ``__main__`` of a folder or an archive; None for a script."""
        if self.is_module or self.is_typed:
            return None
        spec = PathFinder.find_spec("__main__", [os.path.abspath(self.name)])
        return None if spec is None or spec.loader is None else spec

    def files(self) -> list[Path]:
        """Return the source files that run, packages first; [] without one. Imports nothing."""
        if self.is_module:
            return _files_of_module(self.name, self.folder)
        path = Path(self.name)
        if path.is_dir():
            path /= "__main__.py"
        return [path] if path.is_file() else []

    def require(self) -> None:
        if self.files():
            return
        if self.is_module:
            raise ConfigurationError(
                f"there is no module {self.name!r} to run: pass its dotted name as for python -m, "
                f"from the folder that holds its package (this is {self.folder}); a package needs "
                "a __main__.py"
            )
        hint = "pass the path of the Python file to run"
        if Path(self.name).is_dir():
            hint = "this is a folder without a __main__.py"
        elif _files_of_module(self.name, os.getcwd()):
            hint = f"to run the module of this name pass -m {self.name}"
        elif Path(self.name).name.startswith("python"):
            hint = f"leave {self.name} out: workers run with {sys.executable}"
        raise ConfigurationError(f"there is no script {self.name!r}: {hint}")

    @property
    def hidden(self) -> str:
        """The installed package that the script's name hides, or ''."""
        stem = Path(self.name).stem
        if self.is_module or self.is_typed or not stem.isidentifier() or self._spec_within() is not None:
            return ""
        own = {Path(self.folder), *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))}
        found = PathFinder.find_spec(stem, [path for path in sys.path if Path(path).resolve() not in own])
        return stem if found is not None and found.origin is not None else ""

    def put_first_on_path(self) -> None:
        if sys.path[:1] != [self.folder]:
            sys.path.insert(0, self.folder)

    def run(self, args: Sequence[str]) -> None:
        """Run the program in this process as Python would; its exceptions propagate."""
        self.put_first_on_path()
        sys.argv = [*self.argv[:1], *args]
        spec = self._spec_within()
        if spec is not None:
            module, code = self._load(spec)
        else:
            module, code = self._load_module() if self.is_module else self._load_script()
        module.__dict__.update(__builtins__=builtins, __annotations__={})
        name = "-" if self.is_typed else self.name
        sys.argv = [module.__dict__["__file__"] if self.is_module else name, *args]
        # Unlike `runpy`: functions that run at exit may need the module.
        sys.modules["__main__"] = module
        exec(code, module.__dict__)

    def _load_script(self) -> tuple[ModuleType, Any]:
        path = os.path.abspath(self.name)
        loader = SourceFileLoader("__main__", path)
        module = ModuleType("__main__")
        module.__dict__.update(__file__=path, __loader__=loader, __package__=None, __cached__=None)
        return module, loader.source_to_code(loader.get_data(path), path)

    def _load_module(self) -> tuple[ModuleType, Any]:
        spec = importlib.util.find_spec(self.name)  # This imports the packages around it.
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{self.name}.__main__")
        if spec is None or spec.loader is None:
            raise ImportError(f"there is no module {self.name!r} to run", name=self.name)
        return self._load(spec)

    def _load(self, spec: ModuleSpec) -> tuple[ModuleType, Any]:
        module, loader = ModuleType("__main__"), spec.loader
        module.__dict__.update(
            __file__=spec.origin, __loader__=loader, __package__=spec.parent, __spec__=spec, __cached__=spec.cached
        )
        return module, loader.get_code(spec.name)  # type: ignore[union-attr]


class Start(NamedTuple):
    """How one worker is started; the environment is complete."""

    rank: int
    command: Sequence[str]  # It starts the worker alone.
    environment: Mapping[str, str]
    log_file: Path | None  # None for this process's own output


def python_main(module: str) -> list[str]:
    """Return the command that runs ``main()`` of a module; SIGINT always interrupts it."""
    # Unlike ``python -m``: a user's ``queue.py`` must not hide the standard library's.
    path = "import sys; sys.path[:1] == [''] and sys.path.pop(0)"
    interrupts = "from platoon_base.system.process import accept_interrupts as accept; accept()"
    return [sys.executable, "-c", f"{path}; {interrupts}; from {module} import main; main()"]


def _files_of_module(name: str, folder: str) -> list[Path]:
    parts = name.split(".")
    spec = _find_top(parts[0], folder) if all(parts) else None
    found = [spec]
    for i in range(1, len(parts)):
        spec = _find_within(spec, parts[i])
        found.append(spec)
    if spec is not None and spec.submodule_search_locations is not None:
        found.append(_find_within(spec, "__main__"))
    files = [Path(spec.origin) for spec in found if spec is not None and spec.has_location and spec.origin is not None]
    return files if found[-1] is not None and found[-1].has_location else []


def _find_top(name: str, folder: str) -> ModuleSpec | None:
    """Find a top-level module, first in the folder: this process may know another by that name."""
    found = PathFinder.find_spec(name, [folder, *sys.path])
    try:
        return found or importlib.util.find_spec(name)
    except ValueError:  # __main__ is an example.
        return None


def _find_within(package: ModuleSpec | None, name: str) -> ModuleSpec | None:
    if package is None or package.submodule_search_locations is None:
        return None
    # Only the last name: a full one would need the packages around it, which are not imported.
    return PathFinder.find_spec(name, list(package.submodule_search_locations))
