"""Build the site of the docs into build/site, with warnings as errors; the environment .venv-docs is made first.

Usage: .venv/bin/python .ci/docs.py    (pip needs an index the first time; later nothing is fetched)
"""

from __future__ import annotations

import platform
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
    if status == 0:
        say(f"the site is in {SITE.relative_to(ROOT)}: open index.html there")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
