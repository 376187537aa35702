"""A worker started from a notebook: it calls the function that the kernel has sent."""

from __future__ import annotations

import linecache
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.system.environment import RANK


def code_of_file(name: str, make: Callable[..., CodeType], arguments: Sequence[Any]) -> CodeType:
    return make(*arguments).replace(co_filename=name)


def main(call_file: str, returned_file: str) -> None:
    """Read the call, make it, and on rank 0 write the returned value."""
    import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]

    path, cells, call = pickle.loads(Path(call_file).read_bytes())
    sys.path[:] = path
    linecache.cache.update(cells)
    function, args = pickle.loads(call)
    returned = function(*args)
    if os.environ[RANK] != "0":
        return
    try:
        data = cloudpickle.dumps(returned)
    except Exception as exc:
        raise ConfigurationError(
            f"the function returned {type(returned).__name__}, which cannot be sent back to the "
            f"notebook ({type(exc).__name__}: {exc}): return numbers, arrays or a path, and save "
            "the rest in the function"
        ) from exc
    Path(returned_file).write_bytes(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
