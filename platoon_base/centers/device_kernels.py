"""The rules as CUDA kernels: one launch for all tiles of a synchronization, whichever device each lies on.

A kernel gets a table with one row a tile, the addresses of the parameters, and the parameters themselves once more,
unused, so that libgpuarray orders them against other work. Products are rounded before they are added, as on the
host: the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pygpu.gpuarray import GpuArray, GpuKernel

from platoon_base.centers.device_tiles import ELEMENT

__all__ = ["KERNELS", "MOST_PARAMETERS", "compile_kernel"]

MOST_PARAMETERS = 400  # of one launch: CUDA passes 4 KB of arguments

_ADOPTING = ("adopt", "adopt_remembering")
KERNELS = ("easgd", "easgd_atomic", "asgd", "asgd_atomic", *_ADOPTING, "pull", "push", "remember")

_SOURCE = r"""
typedef unsigned long long u64;
struct Tile { u64 center, lock, state, where; unsigned index, size; };  /* as device_tiles.tile_table says */

__device__ __forceinline__ bool finite_bits(float v) { return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u; }
__device__ __forceinline__ bool finite_bits(double v)
{ return (__double_as_longlong(v) & 0x7ff0000000000000ll) != 0x7ff0000000000000ll; }
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ u64 now_ns() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }

struct alignas(sizeof(T) * VECTOR) Vec { T v[VECTOR]; };

__device__ __forceinline__ Vec load(const Vec *p)
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

__device__ __forceinline__ void store(Vec *p, const Vec &r)
{
#if VECTOR == 4
    __stcg((float4 *)p, make_float4(r.v[0], r.v[1], r.v[2], r.v[3]));
#else
    __stcg((double2 *)p, make_double2(r.v[0], r.v[1]));
#endif
}

__device__ __forceinline__ void add(T *p, const Vec &d)
{
#if VECTOR == 4 && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "f"(d.v[0]), "f"(d.v[1]), "f"(d.v[2]), "f"(d.v[3]) : "memory");
#else
    for (int k = 0; k < VECTOR; k++) atomicAdd_system(p + k, d.v[k]);
#endif
}

/* A lock lost with its holder is taken over: nobody keeps one for longer than a millisecond. */
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

__device__ void refuse(u64 *refused, u64 flag, const Tile &t, u64 i)
{
    atomicMin(refused, t.where + i);
    *(volatile unsigned *)flag = 1u;
}

extern "C" __global__ void NAME(const Tile *tiles, const u64 *bases, u64 count, u64 first, T alpha, unsigned mine,
                                u64 *refused, u64 flag PARAMETERS)
{
    for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Tile t = tiles[(number + first) % count];
        T *x = (T *)bases[t.index] + (t.where & ELEMENT), *c = (T *)t.center, *s = (T *)t.state;
        if (LOCKED) lock((unsigned *)t.lock, mine);
        unsigned vectors = t.size / VECTOR;
        if (((u64)x) % sizeof(Vec)) vectors = 0;
        for (unsigned i = threadIdx.x; i < vectors; i += blockDim.x) {
            Vec a = ((Vec *)x)[i], b, o, d;
            if (NEEDS_CENTER) b = load((Vec *)c + i);
            if (NEEDS_STATE) o = ((Vec *)s)[i];
            #pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                u64 at = (u64)i * VECTOR + k;
                T &X = a.v[k], &C = b.v[k], &S = o.v[k], &D = d.v[k];
                UPDATE
            }
            if (ADDS) add(c + (u64)i * VECTOR, d);
            if (WRITES_CENTER) store((Vec *)c + i, b);
            if (WRITES_LOCAL) ((Vec *)x)[i] = a;
            if (WRITES_STATE) ((Vec *)s)[i] = o;
        }
        for (u64 at = (u64)vectors * VECTOR + threadIdx.x; at < t.size; at += blockDim.x) {
            T X = x[at], C = 0, S = 0, D = 0;
            if (NEEDS_CENTER) C = __ldcg(c + at);
            if (NEEDS_STATE) S = s[at];
            UPDATE
            if (ADDS) atomicAdd_system(c + at, D);
            if (WRITES_CENTER) __stcg(c + at, C);
            if (WRITES_LOCAL) x[at] = X;
            if (WRITES_STATE) s[at] = S;
        }
        if (LOCKED) unlock((unsigned *)t.lock);
    }
}
"""

# What happens to one element: X local, C center, S state, D what is added to the center atomically.
_EASGD = "D = times(alpha, X - C); T v = C + D; if (finite_bits(v)) {{ X -= D; {keep} }} else {{ D = 0; {refuse} }}"
_ASGD = "D = X - S; T v = C + D; if (finite_bits(v)) {{ {keep} X = v; S = v; }} else {{ D = 0; {refuse} }}"
_ADOPT = "if (finite_bits(X)) {{ C = X; {keep} }} else {{ {refuse} }}"
_REFUSE = "refuse(refused, flag, t, at);"
_UPDATES = {
    "easgd": _EASGD.format(keep="C = v;", refuse=_REFUSE),
    "easgd_atomic": _EASGD.format(keep="", refuse=_REFUSE),
    "asgd": _ASGD.format(keep="C = v;", refuse=_REFUSE),
    # What others add between the read and the addition, this worker sees the next time: x_old is what it has read.
    "asgd_atomic": _ASGD.format(keep="", refuse=_REFUSE),
    "adopt": _ADOPT.format(keep="", refuse=_REFUSE),
    "adopt_remembering": _ADOPT.format(keep="S = X;", refuse=_REFUSE),
    "pull": "X = C;",
    "push": "C = X;",
    "remember": "S = X;",
}
_LOCKED = {"easgd", "asgd", *_ADOPTING, "push"}
_ADDING = {"easgd_atomic", "asgd_atomic"}


def _flags(kernel: str) -> dict[str, int]:
    update = kernel in ("easgd", "asgd", *_ADDING)
    keeps = kernel in ("asgd", "asgd_atomic", "adopt_remembering")
    return {
        "LOCKED": kernel in _LOCKED,
        "NEEDS_CENTER": update or kernel in (*_ADOPTING, "pull"),
        "NEEDS_STATE": keeps,
        "ADDS": kernel in _ADDING,
        "WRITES_CENTER": kernel in _LOCKED,
        "WRITES_LOCAL": update or kernel == "pull",
        "WRITES_STATE": keeps or kernel == "remember",
    }


def compile_kernel(kernel: str, dtype: np.dtype[Any], parameters: int, context: Any, lock_ns: int) -> GpuKernel:
    """Compile one of `KERNELS` for parameters of a dtype, float32 or float64.

    Its arguments: table of tiles, addresses of the parameters, number of tiles, first tile, alpha, this worker's
    number for the locks, word of the first element refused, address of the flag for the host, the parameters.
    """
    settings = {
        "T": "float" if dtype == np.float32 else "double",
        "VECTOR": 4 if dtype == np.float32 else 2,
        "NAME": kernel,
        "LOCK_NS": f"{lock_ns}ull",
        "ELEMENT": f"{ELEMENT:#x}ull",
        "UPDATE": _UPDATES[kernel],
        "PARAMETERS": "".join(f", T *p{i}" for i in range(parameters)),
        **{name: int(value) for name, value in _flags(kernel).items()},
    }
    defines = "".join(f"#define {name} {value}\n" for name, value in settings.items())
    u64, u32 = np.dtype("uint64"), np.dtype("uint32")
    types = [GpuArray, GpuArray, u64, u64, dtype, u32, GpuArray, u64, *[GpuArray] * parameters]
    return GpuKernel(defines + _SOURCE, kernel, types, context=context, have_double=dtype == np.float64, cuda=True)
