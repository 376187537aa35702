"""Source of the CUDA kernels: one launch covers all tiles of a synchronization.

A kernel receives a table with a row for each tile and the addresses of the parameters. The unused
parameters among its arguments let libgpuarray order the kernel against other work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.device_directory import ELEMENT
from platoon_base.dtypes import C_TYPES
from platoon_base.rules.center import Rule, average_of, form_of, local_sources, momenta
from platoon_base.rules.forms import Form

_TYPES = r"""
typedef unsigned long long u64;
struct Tile { u64 where; unsigned index, size; u64 lock, at[BUFFERS]; };  /* as device_tiles.tile_table says */
struct alignas(sizeof(T) * VECTOR) Vec { T v[VECTOR]; };
"""

# Device functions; tests replace them to run a kernel without a GPU.
CUDA = r"""
__device__ __forceinline__ bool finite_bits(float v) { return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u; }
__device__ __forceinline__ bool finite_bits(double v)
{ return (__double_as_longlong(v) & 0x7ff0000000000000ll) != 0x7ff0000000000000ll; }
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ u64 now_ns() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }

/* Other devices change the center too, so bypass the cache of a multiprocessor. */
__device__ __forceinline__ T load_shared(const T *p) { return __ldcg(p); }
__device__ __forceinline__ void store_shared(T *p, T v) { __stcg(p, v); }

__device__ __forceinline__ Vec load_shared(const Vec *p)
{
    Vec r;
#if VECTOR == 4
    float4 q = __ldcg((const float4 *)p);
    r.v[0] = q.x; r.v[1] = q.y; r.v[2] = q.z; r.v[3] = q.w;
#else
    double2 q = __ldcg((const double2 *)p);
    r.v[0] = q.x; r.v[1] = q.y;
#endif
    return r;
}

__device__ __forceinline__ void store_shared(Vec *p, const Vec &r)
{
#if VECTOR == 4
    __stcg((float4 *)p, make_float4(r.v[0], r.v[1], r.v[2], r.v[3]));
#else
    __stcg((double2 *)p, make_double2(r.v[0], r.v[1]));
#endif
}

__device__ __forceinline__ void add_shared(T *p, T d) { atomicAdd_system(p, d); }

__device__ __forceinline__ void add_shared(Vec *p, const Vec &d)
{
#if VECTOR == 4 && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "f"(d.v[0]), "f"(d.v[1]), "f"(d.v[2]), "f"(d.v[3]) : "memory");
#else
    for (int k = 0; k < VECTOR; k++) atomicAdd_system((T *)p + k, d.v[k]);
#endif
}

/* Breaks the lock of a holder that died: a live one holds it for less than a millisecond. */
__device__ void lock(unsigned *word, unsigned mine)
{
    if (threadIdx.x == 0) {
        u64 began = now_ns();
        while (atomicCAS_system(word, 0u, mine) != 0u) {
            if (now_ns() - began > LOCK_NS) break;
            __nanosleep(100);
        }
        __threadfence_system();
    }
    __syncthreads();
}

__device__ void unlock(unsigned *word)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        atomicExch_system(word, 0u);
    }
}

__device__ void refuse(u64 *refused, u64 flag, u64 element)
{
    atomicMin(refused, element);
    *(volatile unsigned *)flag = 1u;
}
"""

_KERNEL = Template(r"""
extern "C" __global__ void $name(const Tile *tiles, const u64 *bases, u64 count, u64 first, unsigned mine,
                                 u64 *refused, u64 flag$arguments)
{
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Tile tile = tiles[(number + first) % count];
        T *x_at = (T *)bases[tile.index] + (tile.where & ELEMENT);
        $pointers
        if ($locked) lock((unsigned *)tile.lock, mine);
        unsigned vectors = ((u64)x_at) % sizeof(Vec) ? 0 : tile.size / VECTOR;
        for (unsigned i = threadIdx.x; i < vectors; i += blockDim.x) {
            $load_vectors
            #pragma unroll
            for (int lane = 0; lane < VECTOR; lane++) {
                u64 at = (u64)i * VECTOR + lane;
                $name_elements
                $update
            }
            $store_vectors
        }
        for (u64 at = (u64)vectors * VECTOR + threadIdx.x; at < tile.size; at += blockDim.x) {
            $load_elements
            $update
            $store_elements
        }
        if ($locked) unlock((unsigned *)tile.lock);
    }
}
""")


def kernel_source(
    name: str, form: Form, operation: Operation, dtype: np.dtype[Any], parameters: int, lock_ns: int, device: str = CUDA
) -> str:
    """Write a kernel for parameters of a dtype; a lock is broken after ``lock_ns`` nanoseconds."""
    settings = {
        "T": C_TYPES[dtype.name],
        "VECTOR": 16 // dtype.itemsize,
        "BUFFERS": 1 + len(form.center) + len(form.local),
        "LOCK_NS": f"{lock_ns}ull",
        "ELEMENT": f"{ELEMENT:#x}ull",
    }
    arguments = [f"T {scalar}" for scalar in operation.scalars] + [f"T *p{i}" for i in range(parameters)]
    kernel = _KERNEL.substitute(
        name=name,
        arguments="".join(f", {argument}" for argument in arguments),
        locked=int(operation.locked),
        update=_update(form, operation),
        **_memory(form, operation),
    )
    defines = "".join(f"#define {key} {value}\n" for key, value in settings.items())
    return defines + _TYPES + device + kernel


def kernel_types(operation: Operation, dtype: np.dtype[Any]) -> list[str | None]:
    """List the types of a kernel's arguments for `DeviceRuntime.compile`."""
    fixed = [None, None, "uint64", "uint64", "uint32", None, "uint64"]
    return [*fixed, *[dtype.name] * len(operation.scalars)]


def _update(form: Form, operation: Operation) -> str:
    # Compute all new values before the first old one is overwritten.
    values = " ".join(f"T new_{name} = {value};" for name, value in operation.new.items())
    keep = " ".join(f"{name} = new_{name};" for name in operation.new)
    guarded = _guarded(form, operation)
    if not guarded:
        return f"{{ {operation.compute} {values} {keep} }}"
    condition = " && ".join(f"finite_bits(new_{name})" for name in guarded)
    leave = "refuse(refused, flag, tile.where + at);"
    if operation.adds:
        keep, leave = f"added = {operation.adds}; {keep}", f"added = 0; {leave}"
    return f"{{ {operation.compute} {values} if ({condition}) {{ {keep} }} else {{ {leave} }} }}"


def _guarded(form: Form, operation: Operation) -> list[str]:
    """Name the values that must stay finite."""
    return [name for name in operation.new if name in ("c", *form.center)]


def _memory(form: Form, operation: Operation) -> dict[str, str]:
    """Write the loads and stores of one element, and of several as vectors."""
    shared = ("c", *form.center)
    columns = (*shared, *form.local)
    written = [name for name in ("x", *columns) if name in operation.new]
    read = set(re.findall(r"\w+", " ".join([operation.compute, *operation.new.values()])))
    if _guarded(form, operation):
        read |= set(written)  # A vector is written whole: refused elements are written back.
    used = [name for name in ("x", *columns) if name in read or name in written]
    added = ["added"] if operation.adds else []

    def declared(name: str, pointer: str) -> str:
        if name not in read:
            return ";"
        return f" = load_shared({pointer});" if name in shared else f" = *({pointer});"

    def stored(name: str, pointer: str, suffix: str) -> str:
        if name == "c" and added:
            return f"add_shared({pointer}, added{suffix});"
        return f"store_shared({pointer}, {name}{suffix});" if name in shared else f"*({pointer}) = {name}{suffix};"

    vectors = {name: f"(Vec *){name}_at + i" for name in used}
    elements = {name: f"{name}_at + at" for name in used}
    lines = {
        "pointers": [f"T *{name}_at = (T *)tile.at[{i}];" for i, name in enumerate(columns) if name in used],
        "load_vectors": [f"Vec {name}_vector{declared(name, vectors[name])}" for name in used]
        + [f"Vec {name}_vector;" for name in added],
        "name_elements": [f"T &{name} = {name}_vector.v[lane];" for name in (*used, *added)],
        "store_vectors": [stored(name, vectors[name], "_vector") for name in written],
        "load_elements": [f"T {name}{declared(name, elements[name])}" for name in used]
        + [f"T {name};" for name in added],
        "store_elements": [stored(name, elements[name], "") for name in written],
    }
    return {key: " ".join(value) for key, value in lines.items()}


class Operation(NamedTuple):
    """Element-wise operation with a kernel of its own; all values have the type ``T``."""

    # An element is unchanged, locally and in the center, if its center or a center state would not
    # be finite. ``times(a, b)`` in an expression is a product without a fused multiply-add.
    new: Mapping[str, str]  # Expression of each value that changes.
    compute: str = ""  # Declarations of common subexpressions.
    scalars: tuple[str, ...] = ()
    adds: str = ""
    locked: bool = False


def operations(rule: Rule) -> dict[str, Operation]:
    """Return the operations on the center of a rule with a form, by the names of their kernels."""
    form: Any = form_of(rule)
    lines, new = form.in_c("times")
    compute = " ".join(f"T {name} = {value};" for name, value in lines)
    sources = dict(zip(form.local, local_sources(rule)))
    followed = {name: form.center[source] for name, source in sources.items() if source is not None}
    remembered = [name for name, source in sources.items() if source is None]
    average = average_of(rule)
    averages = [] if average is None else [form.center[average]]
    adopt = {"c": "x", **{form.center[i]: f"x == c ? {form.center[i]} : 0" for i in momenta(rule)}}
    copies = dict.fromkeys([*remembered, *averages], "x")
    # ``overwrite`` and ``take_over`` reset the local states, ``pull`` does not. With an average of
    # the center, ``take_over_average`` and ``pull_average`` copy it to x.
    found = {
        form.name: Operation(new, compute, form.scalars, locked=True),
        "adopt": Operation(adopt, locked=True),
        "adopt_remembering": Operation({**adopt, **copies}, locked=True),
        "overwrite": Operation({**adopt, **copies, **followed}, locked=True),
        "take_over": Operation({"x": "c", **dict.fromkeys(remembered, "c"), **followed}, locked=bool(followed)),
        "pull": Operation({"x": "c"}),
    }
    for a in averages:
        found["take_over_average"] = Operation({"x": a, **dict.fromkeys(remembered, a), **followed}, locked=True)
        found["pull_average"] = Operation({"x": a})
    if form.adds:
        added = next(name for name, _ in reversed(lines) if name.rpartition("_")[0] == form.adds)
        found[f"{form.name}_atomic"] = Operation(new, compute, form.scalars, added)
    return found
