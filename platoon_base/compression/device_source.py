"""The source of the CUDA kernels that average encoded float32; the bytes are those of `codecs`."""

from __future__ import annotations

from platoon_base.compression.codecs import Blocks, Codec, Float16, Truncated

_BLOCK_16 = 64  # Numbers that a thread encodes in 16 bits each.
KERNELS = {  # Types of arguments for `DeviceRuntime.compile`.
    "encode_shares": [None, None] + ["uint64"] * 8 + ["uint32"] * 4,
    "encode_result": [None, None] + ["uint64"] * 5 + ["uint32"] * 2 + ["float32"],
    "decode_all": [None] + ["uint64"] * 5,
}

# Device functions that the kernels call.
CUDA = r"""
__device__ __forceinline__ u32 bits_of(float v) { return __float_as_uint(v); }
__device__ __forceinline__ float float_of(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float over(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ int nearest(float v) { return __float2int_rn(v); }
"""

_TYPES = r"""
typedef unsigned long long u64;
typedef unsigned int u32;
#define INFINITE 0x7f800000u
#define MAGNITUDE 0x7fffffffu
#define MOST 3.402823466e38f
#define TINY 1.175494351e-38f
#define PER (32 / BITS) /* numbers in a word */
#define EACH(at, count) for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < (count); \
                             at += (u64)gridDim.x * blockDim.x)
"""

_SCALED = r"""
__device__ __forceinline__ float scale_of(float largest)
{
    float scale = over(largest, (float)STEPS), most = over(MOST, (float)(STEPS + 1));
    scale = scale > most ? most : scale;
    return scale < TINY ? 0.0f : scale;
}

__device__ __forceinline__ u32 code_of(float value, float inverse)
{
    if ((bits_of(value) & MAGNITUDE) >= INFINITE)
        return NOT_FINITE;
    int level = nearest(times(value, inverse));
    return (u32)(level > LEVELS ? LEVELS : level < -LEVELS ? -LEVELS : level) & MASK;
}

__device__ __forceinline__ float value_of(u32 code, float scale)
{
    int level = (int)(code << (32 - BITS)) >> (32 - BITS);
    return code == NOT_FINITE ? float_of(0x7fc00000u) : times((float)level, scale);
}
"""

_FLOAT16 = r"""
__device__ __forceinline__ u32 code_of(float value, float inverse)
{
    u32 sign = bits_of(value) >> 16 & 0x8000u, m = bits_of(value) & MAGNITUDE;
    if (m >= INFINITE)
        return sign | (m > INFINITE ? 0x7e00u : 0x7c00u);
    if (m >= 0x477ff000u) /* what would be rounded to infinity */
        return sign | 0x7bffu;
    if (m < 0x38800000u) /* subnormal: one half has the last digit of these */
        return sign | (bits_of(float_of(m) + 0.5f) - 0x3f000000u);
    return sign | (m + 0xc8000fffu + (m >> 13 & 1u)) >> 13;
}

__device__ __forceinline__ float value_of(u32 code, float scale)
{
    u32 sign = (code & 0x8000u) << 16, exponent = code >> 10 & 31u, fraction = code & 0x3ffu;
    if (exponent == 0)
        return float_of(sign | bits_of(times((float)fraction, 5.9604644775390625e-8f)));
    return float_of(sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13);
}
"""

_BFLOAT16 = r"""
__device__ __forceinline__ u32 code_of(float value, float inverse)
{
    u32 bits = bits_of(value), sign = bits >> 16 & 0x8000u, m = bits & MAGNITUDE;
    if (m > INFINITE)
        return sign | 0x7fc0u;
    if (m < INFINITE && m >= 0x7f7f8000u) /* what would be rounded to infinity */
        return sign | 0x7f7fu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

__device__ __forceinline__ float value_of(u32 code, float scale) { return float_of(code << 16); }
"""

_KERNELS = r"""
/* Encodes a block of a piece, whose values become what is lost: 0 where that is not finite. */
__device__ __forceinline__ void encode(float *values, u64 blocks, u64 block, char *data)
{
    float scale = 1.0f, inverse = 1.0f;
#if SCALED
    u32 largest = 0;
    for (u32 i = 0; i < BLOCK; i++) {
        u32 m = bits_of(values[i]) & MAGNITUDE;
        largest = m < INFINITE && m > largest ? m : largest;
    }
    scale = scale_of(float_of(largest));
    inverse = scale > 0.0f ? over(1.0f, scale) : 0.0f;
    ((float *)data)[block] = scale;
    data += 4 * blocks;
#endif
    u32 *words = (u32 *)data + block * (BLOCK / PER);
    for (u32 w = 0; w < BLOCK / PER; w++) {
        u32 word = 0;
        for (u32 k = 0; k < PER; k++) {
            float value = values[w * PER + k];
            u32 code = code_of(value, inverse);
            float lost = value - value_of(code, scale);
            values[w * PER + k] = (bits_of(lost) & MAGNITUDE) < INFINITE ? lost : 0.0f;
            word |= code << (BITS * k);
        }
        words[w] = word;
    }
}

__device__ __forceinline__ float decoded(const char *data, u64 blocks, u64 i)
{
    float scale = 1.0f;
#if SCALED
    scale = ((const float *)data)[i / BLOCK];
    data += 4 * blocks;
#endif
    u32 word = ((const u32 *)data)[i / PER];
    return value_of(word >> (BITS * (u32)(i % PER)) & MASK, scale);
}

/* Adds the slices of a host's ranks, in their order, and encodes what other hosts combine, with the residuals of that.
   Slices, shares and codes lie in the memory at these offsets in bytes; `own` is an address. */
extern "C" __global__ void encode_shares(
    char *memory, float *kept, u64 own, u64 count, u64 slices, u64 share, u64 codes, u64 stride, u64 width, u64 row,
    u32 ranks, u32 mine, u32 hosts, u32 host)
{
    u64 blocks = width / BLOCK;
    EACH(at, blocks * hosts) {
        u64 piece = at / blocks, block = at % blocks, first = at * BLOCK;
        float *values = piece == host ? (float *)(memory + share) + block * BLOCK : kept + first;
        for (u32 k = 0; k < BLOCK; k++) {
            u64 i = first + k;
            float sum = 0.0f;
            for (u32 rank = 0; rank < ranks && i < count; rank++) {
                const float *slice = (const float *)(memory + slices) + (rank - (rank > mine)) * row;
                float value = rank == mine ? ((const float *)own)[i] : slice[i];
                sum = rank ? sum + value : value;
            }
            values[k] = piece == host ? sum : sum + values[k];
        }
        if (piece != host)
            encode(values, blocks, block, memory + codes + piece * stride);
    }
}

/* Combines the shares of all hosts, in their order, and encodes the result with this host's residual. */
extern "C" __global__ void encode_result(
    char *memory, float *kept, u64 share, u64 received, u64 stride, u64 code, u64 width,
    u32 hosts, u32 host, float divisor)
{
    u64 blocks = width / BLOCK;
    EACH(block, blocks) {
        float *values = kept + host * width + block * BLOCK;
        for (u32 k = 0; k < BLOCK; k++) {
            u64 i = block * BLOCK + k;
            float total = 0.0f;
            for (u32 h = 0; h < hosts; h++) {
                float value = h == host ? ((const float *)(memory + share))[i]
                                        : decoded(memory + received + h * stride, blocks, i);
                total = h ? total + value : value;
            }
            values[k] = over(total, divisor) + values[k];
        }
        encode(values, blocks, block, memory + code);
    }
}

extern "C" __global__ void decode_all(char *memory, u64 codes, u64 stride, u64 width, u64 out, u64 count)
{
    EACH(i, count)
        ((float *)out)[i] = decoded(memory + codes + i / width * stride, width / BLOCK, i % width);
}
"""


def block_of(codec: Codec) -> int:
    """Return the number of elements that a thread encodes; a piece is a multiple of it."""
    return codec.block if isinstance(codec, Blocks) else _BLOCK_16


def kernels_source(codec: Codec, device: str = CUDA) -> str:
    """Return the kernels for `Float16`, `Truncated` or `Blocks`."""
    # Tests pass other device functions to run the kernels without a GPU.
    bits = codec.bits if isinstance(codec, Blocks) else 16
    levels = (1 << bits - 1) - 1
    settings = {
        "BITS": bits,
        "BLOCK": block_of(codec),
        "SCALED": int(isinstance(codec, Blocks)),
        "LEVELS": levels,
        "STEPS": max(2, levels),  # Steps of the scale in the largest magnitude.
        "MASK": f"{(1 << bits) - 1:#x}u",
        "NOT_FINITE": f"{1 << bits - 1:#x}u",
    }
    forms = {Float16: _FLOAT16, Truncated: _BFLOAT16, Blocks: _SCALED}
    defines = "".join(f"#define {key} {value}\n" for key, value in settings.items())
    return defines + _TYPES + device + forms[type(codec)] + _KERNELS
