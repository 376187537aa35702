"""Have Theano compile faster in the tests: without optimization, and with a precompiled header.

To read the headers of Python, NumPy and the standard library is most of a compilation of Theano's small modules. A
header that does not fit the compiler's other flags is passed over by it: then the tests only take longer.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from common import CACHE, fingerprint

FOLDER = CACHE / "theano-header"
HEADER = """\
#include <Python.h>
#include <iostream>
#include "theano_mod_helper.h"
#include <math.h>
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>
#include <vector>
#include <algorithm>
"""
# With the flags that Theano compiles a module with; they count for the header's validity.
PRECOMPILE = """
import os, subprocess, sys
from platoon_base import compat
compat.apply()
import theano
from theano.gof import CLinker, FunctionGraph
from theano.gof.cmodule import std_include_dirs

x = theano.tensor.fscalar()
linker = CLinker().accept(FunctionGraph([x], [x + 1]))
folders = dict.fromkeys([*std_include_dirs(), *linker.header_dirs()])
unfinished = f"{sys.argv[1]}.{os.getpid()}"
command = [theano.config.cxx, *linker.compile_args(), "-fvisibility=hidden", *(f"-I{folder}" for folder in folders)]
subprocess.run([*command, "-x", "c++-header", sys.argv[1], "-o", unfinished], check=True)
os.replace(unfinished, f"{sys.argv[1]}.gch")
"""


def faster_flags(python: Path) -> str:
    """Return ``THEANO_FLAGS`` to add for the tests, with the header made if it can be."""
    name = fingerprint([Path(__file__), CACHE.parent / ".ci" / "constraints-py311.txt"])[:12]
    header = FOLDER / f"{name}.h"
    flags = f"gcc.cxxflags=-O0 -g0 -include {header}"
    precompiled = header.with_suffix(".h.gch")
    if precompiled.exists():
        return flags
    FOLDER.mkdir(parents=True, exist_ok=True)
    header.write_text(HEADER, encoding="utf-8")
    environment = {**os.environ, "THEANO_FLAGS": f"{os.environ.get('THEANO_FLAGS', '')},{flags}"}
    made = subprocess.run([python, "-c", PRECOMPILE, header], env=environment, capture_output=True, text=True)
    if made.returncode:
        print(f"Theano compiles without a precompiled header: {made.stderr.strip().splitlines()[-1:]}", flush=True)
        return "gcc.cxxflags=-O0 -g0"
    return flags
