"""CUDA's compiler in a library, NVRTC: cuda-bindings finds it, and it needs no device."""

from __future__ import annotations

import functools
from typing import Any

from platoon_base.errors import BackendUnavailableError

__all__ = ["compile_source", "nvrtc_version"]

_REMEDY = "pip install 'platoon-plugins[cuda]', or launch with --center host"


def nvrtc_version() -> str:
    """Return the version of NVRTC, such as ``"13.0"``.

    Raises
    ------
    BackendUnavailableError
        If there is none.
    """
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def compile_source(source: str, machine: str) -> bytes:
    """Compile CUDA's C++ to machine code, by NVRTC.

    Parameters
    ----------
    source : str
    machine : str
        Such as ``"sm_90"``.

    Raises
    ------
    BackendUnavailableError
        If there is no NVRTC, or it does not know this machine.
    """
    nvrtc = _nvrtc()
    options = [f"--gpu-architecture={machine}".encode()]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"center.cu", 0, [], [])
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(code):
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            said = b" " * (size + 1)  # never one byte, which all of Python shares: it is written to
            nvrtc.nvrtcGetProgramLog(program, said)
            text = said.decode(errors="replace").strip("\0 \n") or str(code)
            raise BackendUnavailableError(
                f"NVRTC could not compile the center's kernels for {machine}: {text[:500]}; install the newest "
                f"nvidia-cuda-nvrtc that your driver takes, or launch with --center host"
            )
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        machine_code: bytes = b" " * (size + 1)
        nvrtc.nvrtcGetCUBIN(program, machine_code)
        return machine_code[:size]
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        code, *_ = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as exc:  # of cuda-bindings, or of the library that it looks for
        reason = (str(exc).splitlines() or [type(exc).__name__])[0]
        raise BackendUnavailableError(
            f"the center's kernels cannot be compiled, as cuda-bindings with NVRTC is not there ({reason}): {_REMEDY}"
        ) from exc
    if int(code):
        raise BackendUnavailableError(f"the center's kernels cannot be compiled: NVRTC answers {code}; {_REMEDY}")
    return nvrtc
