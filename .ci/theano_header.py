"""Print THEANO_FLAGS by which Theano compiles faster in tests: without optimization, and with a precompiled header.

To read the headers of Python, NumPy and the standard library is most of a compilation of Theano's small modules. A
header that does not fit the compiler's other flags is passed over by it: then the tests only take longer.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "theano-header"
FLAGS = "gcc.cxxflags=-O0 -g0"
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


def precompile(header: str) -> None:
    """Compile with the flags that Theano compiles a module with; they count for the header's validity."""
    from platoon_base import compat

    compat.apply()
    import theano
    from theano.gof import CLinker, FunctionGraph
    from theano.gof.cmodule import std_include_dirs

    x = theano.tensor.fscalar()
    linker = CLinker().accept(FunctionGraph([x], [x + 1]))
    folders = dict.fromkeys([*std_include_dirs(), *linker.header_dirs()])
    unfinished = f"{header}.{os.getpid()}"
    command = [theano.config.cxx, *linker.compile_args(), "-fvisibility=hidden", *(f"-I{folder}" for folder in folders)]
    subprocess.run([*command, "-x", "c++-header", header, "-o", unfinished], check=True)
    os.replace(unfinished, f"{header}.gch")


def main() -> None:
    pins = Path(__file__).with_name("constraints-py311.txt").read_bytes()
    header = FOLDER / f"{hashlib.sha256(pins + HEADER.encode()).hexdigest()[:12]}.h"
    flags = f"{FLAGS} -include {header}"
    if not header.with_suffix(".h.gch").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        header.write_text(HEADER)
        os.environ["THEANO_FLAGS"] = f"{os.environ.get('THEANO_FLAGS', '')},{flags}"
        try:
            precompile(str(header))
        except Exception as error:
            print(f"Theano compiles without a precompiled header: {error}", file=sys.stderr)
            flags = FLAGS
    print(flags)


if __name__ == "__main__":
    main()
