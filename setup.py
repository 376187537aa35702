"""The C extensions, and what pyproject.toml cannot say. Without the extensions platoon_base works through NumPy."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

OTHER_SYSTEMS = "PLATOON_OTHER_SYSTEMS"


def require_linux():
    """End the installation where no job can run, unless the user knows."""
    if sys.platform.startswith("linux") or os.environ.get(OTHER_SYSTEMS) == "1":
        return
    raise SystemExit(
        f"platoon-plugins runs its workers on Linux, and this is {sys.platform}: they share memory, locks and process "
        "descriptors that only Linux has. Install it on Linux, in a container or in WSL 2. Or set "
        f"{OTHER_SYSTEMS}=1 and install again: then scripts that import platoon_plugins.keras run here as one process, "
        "without the command platoon."
    )


def extensions():
    # One build in place serves all Pythons from 3.9; environments that share a source tree need not repeat it.
    if os.environ.get("PLATOON_BUILD_EXTENSION") == "0" or not sys.platform.startswith("linux"):
        return []
    # A free-threaded CPython has no limited API yet.
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return []
    # No contraction and no reordering: the results stay the bits that NumPy gives.
    flags = ["-O3", "-ffp-contract=off", "-fno-math-errno"]
    # Comparisons vectorize only where nobody asks which of them met a NaN.
    return [
        _extension("_kernels", flags, "_rules.h"),
        _extension("_collectives", [*flags, "-fno-trapping-math"], "_reductions.h"),
        _extension("_codecs", flags),
        _extension("_excerpt", flags),
        _extension("_guard", flags),
        _extension("_gates", flags),
    ]


def _extension(name, flags, *headers):
    return Extension(
        f"platoon_base.{name}",
        [f"platoon_base/{name}.c"],
        depends=[f"platoon_base/{header}" for header in headers],
        define_macros=[("Py_LIMITED_API", "0x03090000")],
        py_limited_api=True,
        optional=True,
        extra_compile_args=flags,
    )


def wheel_options(modules):
    """One wheel with the extensions serves all Pythons from 3.9; one without them is for the Python that built it."""
    return {"bdist_wheel": {"py_limited_api": "cp39"}} if modules else {}


def remove_earlier_builds(folder, arguments):
    """Remove what an earlier wheel was built from, since setuptools would add modules that are gone to the next one."""
    if "bdist_wheel" in arguments:
        for built in Path(folder).glob("build/lib*"):
            shutil.rmtree(built, ignore_errors=True)


if __name__ == "__main__":
    require_linux()
    remove_earlier_builds(Path(__file__).parent, sys.argv)
    ext_modules = extensions()
    # As an SPDX expression in pyproject.toml the license would need setuptools 77; Theano is built with 65.
    setup(license="MIT", ext_modules=ext_modules, options=wheel_options(ext_modules))
