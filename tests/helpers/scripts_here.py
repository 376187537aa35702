"""The scripts that tests run on workers or as programs of their own: files in tests/scripts."""

import textwrap
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "scripts"


def script_path(name):
    """Return the path of a script, by its name without ``.py``."""
    return FOLDER / f"{name}.py"


def written(script, path):
    """Return the path of a script: its own, or that to which its text is written here."""
    if isinstance(script, Path):
        return script
    path.write_text(textwrap.dedent(script))
    return path


def behind(preamble, script):
    """Give a short text the names of a preamble, a module in tests/helpers; a script imports them itself."""
    if isinstance(script, Path):
        return script
    return f"from {preamble} import *\n" + textwrap.dedent(script)
