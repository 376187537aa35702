"""Which modules a script imports that may be imported once, before the workers are forked.

Read from the script's source; nothing is run. A script that prepares how modules are imported (sets environment
variables, changes ``sys.path``) would find them imported too early, so for it the answer is: none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["PRELOADABLE", "modules_to_preload"]

# Each was tried: it starts no thread, opens nothing that forked processes may not share, and needs the same environment
# in every worker. To add one, see that the same holds for all it imports: Keras, for instance, imports a back end.
PRELOADABLE = ("numpy", "scipy", "theano", "lasagne", "platoon_base", "platoon_plugins.lasagne")
# Those that take long enough to make up for the nursery.
_WORTH_IT = ("theano", "lasagne", "platoon_plugins.lasagne")

_PREPARATIONS = frozenset({"environ", "putenv", "unsetenv", "path", "path_hooks", "meta_path", "modules"})


def modules_to_preload(script: str) -> list[str]:
    """Name the modules to import before the fork, in the order in which the script does.

    Modules beside the script that it imports are read like the script itself.

    Returns
    -------
    list of str
        Empty if it is not worth it, or not safe.
    """
    scan = _Scan(Path(script).resolve().parent)
    try:
        scan.read(Path(script))
    except (OSError, SyntaxError, ValueError):
        return []  # Python will say what is wrong
    worth_it = any(_is_under(name, _WORTH_IT) for name in scan.found)
    return list(scan.found) if worth_it and not scan.prepares_imports else []


class _Scan:
    """Reads a script and the modules beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[Path] = set()
        self.found: dict[str, None] = {}  # used as an ordered set
        self.prepares_imports = False

    def read(self, path: Path) -> None:
        """Take in one source file."""
        if path in self._seen:
            return
        self._seen.add(path)
        tree = ast.parse(path.read_bytes(), str(path))
        self.prepares_imports |= any(map(_prepares_imports, _outermost(tree)))
        for statement in _executed(tree.body):
            for name in _imported(statement):
                local = self._beside(name)
                for file in local:
                    self.read(file)
                if not local and _is_under(name, PRELOADABLE):
                    self.found[name] = None

    def _beside(self, name: str) -> list[Path]:
        """Return the files beside the script that the import of ``name`` runs."""
        parts = name.split(".")
        files = []
        for i in range(1, len(parts) + 1):
            base = self._folder.joinpath(*parts[:i])
            files += [file for file in (base / "__init__.py", base.with_suffix(".py")) if file.is_file()]
        return files


def _is_under(name: str, roots: Sequence[str]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def _executed(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that the import of a module runs, those in functions and classes left out."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from _executed(getattr(statement, part, []))


def _imported(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.module and statement.level == 0:
        return [statement.module]
    return []


def _outermost(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield every node with its parent."""
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            yield node, parent


def _prepares_imports(pair: tuple[ast.AST, ast.AST]) -> bool:
    """Whether a node may change what an import does; only looking at a variable of the environment does not."""
    node, parent = pair
    if isinstance(node, ast.ImportFrom) and node.module in ("os", "sys"):
        return any(alias.name in _PREPARATIONS - {"path"} for alias in node.names) or (
            node.module == "sys" and any(alias.name == "path" for alias in node.names)
        )
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    if node.value.id == "sys":
        return node.attr in ("path", "path_hooks", "meta_path", "modules")
    if node.value.id != "os" or node.attr not in ("environ", "putenv", "unsetenv"):
        return False
    if isinstance(parent, ast.Attribute):
        return parent.attr not in ("get", "items", "keys", "values", "copy")
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.ctx, ast.Load)
    return not isinstance(parent, (ast.Compare, ast.Call, ast.Dict)) or node.attr != "environ"
