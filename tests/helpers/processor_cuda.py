"""A CUDA device that is the processor: the center's own driver calls and kernels run where there is no GPU.

Workers that compute on it need the driver of `processor_cuda.c` on LD_LIBRARY_PATH; see `build_driver`.
"""

import functools
import hashlib
import os
import re
import subprocess
from pathlib import Path

from platoon_base.centers import device_source
from platoon_base.compression import device_source as codecs_source
from platoon_base.device_arrays import CudaArray
from platoon_base.devices import nccl, runtime

__all__ = ["OnProcessor", "build_driver", "compiler", "use_processor"]

# One thread; others are those of other processes, which the locks and additions have to reckon with.
DEVICE = r"""
#include <sched.h>
#include <time.h>
#define __global__
struct Index { unsigned x; };
static Index blockIdx, gridDim = {1}, threadIdx = {0}, blockDim = {1};
static bool finite_bits(T v) { return __builtin_isfinite(v); }
static T times(T a, T b) { return a * b; }
static T load_shared(const T *p) { return *(const volatile T *)p; }
static Vec load_shared(const Vec *p) { return *p; }
static void store_shared(T *p, T v) { *(volatile T *)p = v; }
static void store_shared(Vec *p, const Vec &v) { *p = v; }
static void add_shared(T *p, T d)
{ T old = *(volatile T *)p, sum; do sum = old + d; while (!__atomic_compare_exchange(p, &old, &sum, 0, 5, 5)); }
static void add_shared(Vec *p, const Vec &d) { for (int k = 0; k < VECTOR; k++) add_shared((T *)p + k, d.v[k]); }
static u64 now_ns() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void lock(unsigned *word, unsigned mine)
{
    u64 began = now_ns();
    while (!__sync_bool_compare_and_swap(word, 0u, mine) && now_ns() - began < LOCK_NS) sched_yield();
}
static void unlock(unsigned *word) { __atomic_store_n(word, 0u, __ATOMIC_SEQ_CST); }
static void refuse(u64 *refused, u64 flag, u64 element)
{ if (element < *refused) *refused = element; *(volatile unsigned *)flag = 1; }
"""

# The same for the kernels that compress.
CODECS = r"""
#include <math.h>
#include <string.h>
#define __global__
#define __device__
#define __forceinline__ inline
struct Index { unsigned x; };
static Index blockIdx, gridDim = {1}, threadIdx = {0}, blockDim = {1};
static u32 bits_of(float v) { u32 bits; memcpy(&bits, &v, 4); return bits; }
static float float_of(u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
static float times(float a, float b) { return a * b; }
static float over(float a, float b) { return a / b; }
static int nearest(float v) { return (int)rintf(v); }
"""

# The same for the kernel of checksums.
CHECKSUMS = """
#define __global__
struct Index { unsigned x; };
static Index blockIdx, gridDim = {1}, threadIdx = {0}, blockDim = {1};
static unsigned long long __shfl_down_sync(unsigned, unsigned long long, int) { return 0; }
static void atomicAdd(unsigned long long *sum, unsigned long long more) { *sum += more; }
"""


class OnProcessor(CudaArray):
    """An array of NumPy as one of the device."""

    def __init__(self, array, ordinal=0):
        super().__init__(array.shape, array.dtype, ordinal, [stride // array.itemsize for stride in array.strides])
        self.array = array

    @staticmethod
    def change(arrays, queue):
        queue([array.array.ctypes.data for array in arrays], 0)

    def __array__(self, dtype=None, copy=None):
        return self.array.copy()

    def __setitem__(self, key, values):
        self.array[key] = values

    def __getitem__(self, key):
        return OnProcessor(self.array[key])

    def reshape(self, shape):
        return OnProcessor(self.array.reshape(shape))

    def copy(self):
        return OnProcessor(self.array.copy("K"))


def build_driver(folder):
    """Compile the driver, and an NCCL for it, into a folder, for LD_LIBRARY_PATH."""
    for source, library in (("processor_cuda.c", "libcuda.so.1"), ("processor_nccl.c", "libnccl.so.2")):
        files = [str(Path(__file__).with_name(source)), "-o", str(folder / library), "-ldl"]
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-w", *files], check=True, timeout=60)


def compiler(folder):
    """Make a compiler of kernels for the processor, which keeps what it has compiled."""

    def compile_for_processor(source, machine):
        entries = ""
        for name, listed in re.findall(r"__global__ void (\w+)\((.*?)\)", source, re.DOTALL):
            arguments = [argument.strip() for argument in listed.split(",") if argument.strip()]
            types = [re.sub(r"\w+$", "", argument) for argument in arguments]
            given = ", ".join(f"*({type_} *)given[{i}]" for i, type_ in enumerate(types))
            entries += f'\nextern "C" void {name}_entry(void **given) {{ {name}({given}); }}\n'
        plain = "" if "__device__" in source else "#define __global__\n"
        plain = CHECKSUMS if "__shfl_down_sync" in source else plain
        text = plain + source.replace(device_source.CUDA, DEVICE).replace(codecs_source.CUDA, CODECS) + entries
        library = Path(folder, f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so")
        if not library.exists():
            part = library.with_name(f"{library.stem}-{os.getpid()}")
            Path(f"{part}.cc").write_text(text)
            flags = ["-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
            subprocess.run(["g++", *flags, f"{part}.cc", "-o", f"{part}.so"], check=True, timeout=60)
            os.replace(f"{part}.so", library)
        return bytes(library) + b"\0"

    return compile_for_processor


def use_processor(folder):
    """Let this process's centers on CUDA devices compile for the processor, into the folder of `build_driver`."""
    # JAX has loaded another libnccl.so.2 where there are GPUs.
    nccl.LIBRARIES = (str(Path(folder, "libnccl.so.2")),)
    runtime.CudaRuntime = functools.partial(runtime.CudaRuntime, compiler=compiler(folder))
