"""Find the modules of a script that may be imported once, before the workers are forked.

The source is read, not run. Nothing is preloaded for a script that changes how modules are
imported, by environment variables or ``sys.path``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from platoon_base.frameworks.registered import registered
from platoon_base.worker_process.program import Program

__all__ = ["modules_to_preload"]

_ALWAYS = ("numpy", "platoon_base")

# Scripts use these names to prepare their imports.
_PREPARATIONS = {
    "os": frozenset({"environ", "putenv", "unsetenv"}),
    "sys": frozenset({"path", "path_hooks", "meta_path", "modules"}),
}
_READERS = frozenset({"get", "items", "keys", "values", "copy"})


def modules_to_preload(program: Program) -> list[str]:
    """Return the modules to import before the fork, in the script's order; may be empty."""
    scan = _Scan(Path(program.folder))
    try:
        for path in program.files():
            scan.read(path)
    except (OSError, SyntaxError, ValueError):
        return []  # Python reports the error later.
    if scan.prepares_imports:
        return []
    frameworks = registered().frameworks.values()
    worth_it = tuple(name for framework in frameworks for name in framework.worth_preloading)
    if not any(_is_under(name, worth_it) for name in scan.found):
        return []
    preloadable = (*_ALWAYS, *(name for framework in frameworks for name in framework.preload))
    return [name for name in scan.found if _is_under(name, preloadable)]


class _Scan:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[Path] = set()
        self.found: dict[str, None] = {}  # used as an ordered set
        self.prepares_imports = False

    def read(self, path: Path) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        tree = ast.parse(path.read_bytes(), str(path))
        self.prepares_imports |= _prepares_imports(tree)
        for statement in _executed(tree.body):
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    self._follow(self._folder, alias.name)
            elif isinstance(statement, ast.ImportFrom):
                folder = path.parents[statement.level - 1] if statement.level else self._folder
                self._follow(folder, statement.module or "", [alias.name for alias in statement.names])

    def _follow(self, folder: Path, name: str, children: Sequence[str] = ()) -> None:
        """Read the sources of a module that is beside the script; record any other module."""
        files = _source_files(folder, name)
        if name and not files:
            self.found[name] = None
        for child in children:  # `from package import module`
            files += _source_files(folder, f"{name}.{child}".strip("."))
        for file in files:
            self.read(file)


def _source_files(folder: Path, name: str) -> list[Path]:
    """Return the files under ``folder`` that the import of ``name`` runs."""
    parts = name.split(".") if name else []
    bases = [folder.joinpath(*parts[: i + 1]) for i in range(len(parts))]
    candidates = [file for base in bases for file in (base / "__init__.py", base.with_suffix(".py"))]
    return [file for file in candidates if file.is_file()]


def _is_under(name: str, roots: Sequence[str]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def _executed(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, without those in functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from _executed(getattr(statement, part, []))


def _prepares_imports(tree: ast.AST) -> bool:
    pairs = ((node, parent) for parent in ast.walk(tree) for node in ast.iter_child_nodes(parent))
    return any(_touches(node, parent) for node, parent in pairs)


def _touches(node: ast.AST, parent: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name in _PREPARATIONS and alias.asname for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in {"*", *_PREPARATIONS.get(node.module or "", ())} for alias in node.names) and (
            node.module in _PREPARATIONS
        )
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    if node.attr not in _PREPARATIONS.get(node.value.id, ()):
        return False
    return node.attr != "environ" or not _only_reads(parent)


def _only_reads(parent: ast.AST) -> bool:
    """Return whether the expression around ``os.environ`` does not change it."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in _READERS
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Load)
    return isinstance(parent, (ast.Compare, ast.Dict))
