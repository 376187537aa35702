"""Print the lines, code lines and files of each package of the library, beside those of an earlier commit.

A code line has something other than a docstring, a comment or a blank. The earlier figures are in lines.json;
`python .ci/lines.py --save` replaces them, at a release.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEFORE = ROOT / ".ci" / "lines.json"
KINDS = ("lines", "code", "files")
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def count_code(source: str) -> int:
    """Return the number of code lines in a module's source."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        owns_docstring = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if owns_docstring and ast.get_docstring(node, clean=False) is not None:
            code -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(code)


def measure() -> dict[str, Counter[str]]:
    """Return the counts of each package."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for top in ("platoon_base", "platoon_plugins"):
        for path in (ROOT / top).rglob("*.py"):
            package = "/".join(path.relative_to(ROOT).parts[:-1][:2])
            source = path.read_text()
            found[package].update(lines=source.count("\n"), code=count_code(source), files=1)
    return found


def main() -> None:
    found = measure()
    if "--save" in sys.argv:
        BEFORE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    before = defaultdict(Counter, json.loads(BEFORE.read_text()))
    rows = sorted(found, key=lambda name: -found[name]["lines"])
    total, was = Counter(), Counter()
    for package in {*found, *before}:
        total.update(found[package])
        was.update(before[package])
    print(f"{'package':<32}" + "".join(f"{kind:>8}{'before':>8}" for kind in KINDS))
    for name, now, then in [*((row, found[row], before[row]) for row in rows), ("all", total, was)]:
        print(f"{name:<32}" + "".join(f"{now[kind]:>8}{then.get(kind, 0):>8}" for kind in KINDS))


if __name__ == "__main__":
    main()
