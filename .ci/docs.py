"""Build the site of the docs into build/site, with warnings as errors; the environment .venv-docs is made first.

Usage: .venv/bin/python .ci/docs.py    (pip needs an index the first time; later nothing is fetched)
"""

from __future__ import annotations

import ast
import platform
import re
import subprocess
import sys

sys.dont_write_bytecode = True

import venvs
from common import CI, ROOT, STAMP, SetupError, fail, fingerprint, only_one, read_stamp, say, succeeds

VENV = ROOT / ".venv-docs"
CONSTRAINTS = CI / "constraints-docs.txt"
PACKAGES = ("sphinx", "furo", "myst-parser", "numpydoc", "sphinx-mathjax-offline")
# Imported by the API reference; frameworks are mocked.
RUNTIME = ("numpy", "pyzmq", "posix_ipc", "msgspec", "rich", "click", "setproctitle")
SITE = ROOT / "build" / "site"
FACES = (
    "platoon_base",
    "platoon_base.data",
    "platoon_plugins.keras",
    "platoon_plugins.lasagne",
    "platoon_plugins.blocks",
)


def prepare() -> None:
    stamp = fingerprint(
        [CI / "docs.py", CI / "venvs.py", CONSTRAINTS], f"{sys.base_prefix} {platform.python_version()}"
    )
    if read_stamp(VENV) == stamp and succeeds(VENV / "bin" / "python", venvs.HAS_ITS_FILES):
        return
    venvs.create(VENV)
    (VENV / STAMP).unlink(missing_ok=True)
    say(f"installing Sphinx into {VENV.name}")
    options = ["-q", "--prefer-binary", "-c", CONSTRAINTS]
    venvs.pip(VENV, "install", *options, *PACKAGES, *RUNTIME, what=f"installing packages into {VENV.name}")
    (VENV / STAMP).write_text(stamp, encoding="utf-8")


def undocumented() -> set[str]:
    """Name the public functions and classes of the faces that the pages on the API have not."""
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted((SITE / "api").glob("*.html")))
    found = set(re.findall(r'id="(platoon_[\w.]+)"', pages))
    # An adapter's rules are described with the base, and what it imports late in the module that has it.
    last = {(name.split(".")[0], name.rpartition(".")[2]) for name in found}
    return {
        f"{face}.{name}"
        for face in FACES
        for name in public_names(face)
        if not {(face.split(".")[0], name), ("platoon_base", name)} & last
    }


def public_names(face: str) -> set[str]:
    """Return the texts of ``__all__`` that name functions and classes, and of the mapping that it is made of."""
    tree = ast.parse((ROOT / face.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    lists = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("__all__", "_MODULES")
    ]
    texts = [
        each.value
        for value in lists
        for each in (value.keys if isinstance(value, ast.Dict) else value.elts)
        if isinstance(each, ast.Constant)
    ]
    return {
        name
        for name in texts
        if (not name.startswith("__") and not name.isupper()) or name in ("EASGD", "ASGD", "EAMSGD")
    }


def main() -> int:
    try:
        with only_one():
            prepare()
    except SetupError as error:
        return fail(error)
    command = [
        VENV / "bin" / "python",
        "-m",
        "sphinx",
        "-E",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        ROOT / "docs",
        SITE,
    ]
    status = subprocess.run(command, cwd=ROOT).returncode
    if status == 0 and (missing := undocumented()):
        return fail(SetupError(f"docs/api/ has no description of {', '.join(sorted(missing))}"))
    if status == 0:
        say(f"the site is in {SITE.relative_to(ROOT)}: open index.html there")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
