"""The launcher's side of the fork server, and the modules that it imports first.

The source of a script is read for these, not run. Nothing is preloaded for a script that changes
how modules are imported, by environment variables or ``sys.path``.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from platoon_base.frameworks.registered import registered
from platoon_base.system.environment import FRAMEWORK_RANK, PREFIX
from platoon_base.system.own_files import open_log
from platoon_base.system.process import PR_SET_CHILD_SUBREAPER, is_subreaper, prctl
from platoon_base.timeouts import timeout
from platoon_base.worker_process.program import Program, Start, python_main

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
        self.found: dict[str, None] = {}  # The dict is used as an ordered set.
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


DONE = b"done\n"


class ForkServer:
    """A running fork server, and the reports that it sends.

    The environments of ``starts`` may differ only in PLATOON_ variables and FRAMEWORK_RANK; other
    differences raise ValueError. While the fork server runs, this process is a "child subreaper":
    when the fork server ends, its workers become children of this process, which can read their
    exit status.
    """

    def __init__(
        self,
        program: Program,
        args: Sequence[str],
        preload: Sequence[str],
        starts: Sequence[Start],
    ) -> None:
        self.starts = list(starts)
        common = set.intersection(*(set(start.environment.items()) for start in starts))
        spec = {
            "parent": os.getpid(),
            "timeout_s": timeout("preload"),
            "program": [*program.argv, *args],
            "preload": list(preload),
            "workers": [_spec_of(start, common) for start in starts],
        }
        self._fd, report = os.pipe()
        self._was_subreaper = is_subreaper()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.set_blocking(self._fd, False)
        self._report = b""
        self._complete = False
        try:
            with contextlib.ExitStack() as stack:
                stdin = stack.enter_context(tempfile.TemporaryFile("w+"))
                json.dump({**spec, "report": report}, stdin)
                stdin.seek(0)
                log = starts[0].log_file
                output = stack.enter_context(os.fdopen(open_log(log), "ab", 0)) if log is not None else None
                self._process = subprocess.Popen(
                    python_main("platoon_base.worker_process.forkserver_main"),
                    env=dict(common),
                    stdin=stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT if output is not None else None,
                    start_new_session=True,
                    pass_fds=[report],
                )
        except BaseException:
            os.close(self._fd)
            self._restore_subreaper()
            raise
        finally:
            os.close(report)

    @property
    def fd(self) -> int:
        """A file descriptor that is readable when the fork server has something to report."""
        return self._fd

    @property
    def ready(self) -> bool:
        """Whether the fork server has sent its whole report; then `finish` does not wait."""
        with contextlib.suppress(BlockingIOError):
            while not self._complete:
                data = os.read(self._fd, 1 << 16)
                self._report += data
                # At the end of the report all workers lead sessions, or the fork server is dead.
                self._complete = not data
        return self._complete

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def finish(self) -> tuple[int, list[int]]:
        """Collect the fork server; return its return code and the pids of the workers.

        The workers are children of this process and lead their sessions. A fork server that failed
        leaves none: the workers it had forked never ran the script.
        """
        os.close(self._fd)
        code = self._process.wait()
        self.signal(signal.SIGKILL)  # This ends its descendants too.
        self._restore_subreaper()
        pids = self._forked()
        if self._report.endswith(DONE):
            return 0, pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return code or 1, []

    def give_up(self) -> None:
        """Abandon a fork server that SIGKILL does not end; kill the workers it has forked."""
        os.close(self._fd)
        for pid in self._forked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.poll()
        self._restore_subreaper()

    def _forked(self) -> list[int]:
        lines = self._report.splitlines(keepends=True)
        return [int(line) for line in lines if line.endswith(b"\n") and line != DONE]

    def _restore_subreaper(self) -> None:
        if not self._was_subreaper:
            prctl(PR_SET_CHILD_SUBREAPER, 0)


def _spec_of(start: Start, common: set[tuple[str, str]]) -> dict[str, object]:
    own = {name: value for name, value in start.environment.items() if (name, value) not in common}
    if any(not name.startswith(PREFIX) and name != FRAMEWORK_RANK for name in own):
        raise ValueError(f"got workers with different {', '.join(sorted(own))}: start them one by one")
    log = None if start.log_file is None else str(start.log_file)
    return {"environment": own, "log": log}
