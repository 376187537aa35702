/* Arrays of several ranks combined element by element: the arithmetic of _collectives.c.
 *
 * Compile without contraction and reordering: the results are the bits that NumPy gives, rank after rank.
 */

#ifndef PLATOON_REDUCTIONS_H
#define PLATOON_REDUCTIONS_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

enum { SUM, PROD, MAX, MIN, MEAN };
enum { FLOAT16, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8 };

static const int64_t ITEMSIZE[] = {2, 4, 8, 1, 4, 8, 1};

#define BLOCK 2048 /* elements combined at a time where the sum needs a place of its own */

typedef void (*pair)(const void *, const void *, void *, int64_t);

/* dst may be a or b. U wraps around where T must not overflow. */
#define DEFINE_PAIR(name, type, T, expression)                                                                   \
    CLONES static void name##_##type(const void *first, const void *second, void *to, int64_t n)                 \
    {                                                                                                            \
        const T *xs = first, *ys = second;                                                                       \
        T *dst = to;                                                                                             \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                     \
        {                                                                                                        \
            T x = xs[i], y = ys[i];                                                                              \
            dst[i] = (T)(expression);                                                                            \
        }                                                                                                        \
    }

#define DEFINE_TYPE(type, T, U, W)                                                                               \
    DEFINE_PAIR(sum, type, T, (U)x + (U)y)                                                                       \
    DEFINE_PAIR(prod, type, T, (U)x * (U)y)                                                                      \
    DEFINE_PAIR(max, type, T, ((x >= y) | (x != x)) ? x : y)                                                     \
    DEFINE_PAIR(min, type, T, ((x <= y) | (x != x)) ? x : y)                                                     \
    CLONES static void share_##type(void *values, int64_t n, int64_t size)                                       \
    {                                                                                                            \
        T *xs = values;                                                                                          \
        W by = (W)size;                                                                                          \
        for (int64_t i = 0; i < n; i++)                                                                          \
            xs[i] = (T)((W)xs[i] / by);                                                                          \
    }

DEFINE_TYPE(float32, float, float, float)
DEFINE_TYPE(float64, double, double, double)
DEFINE_TYPE(int8, int8_t, uint8_t, int64_t)
DEFINE_TYPE(int32, int32_t, uint32_t, int64_t)
DEFINE_TYPE(int64, int64_t, uint64_t, int64_t)
DEFINE_TYPE(uint8, uint8_t, uint8_t, int64_t)

#define PAIRS(type) {sum_##type, prod_##type, max_##type, min_##type, sum_##type}
static const pair pairs[][5] = {
    PAIRS(float32), /* float16 is computed in float32 */
    PAIRS(float32), PAIRS(float64), PAIRS(int8), PAIRS(int32), PAIRS(int64), PAIRS(uint8),
};
static void (*const shares[])(void *, int64_t, int64_t) = {
    share_float32, share_float32, share_float64, share_int8, share_int32, share_int64, share_uint8,
};

/* Exact. Of subnormal numbers only halves, so that it holds whatever the processor is told to do with those. */
CLONES static void widen(const void *from, void *to, int64_t n)
{
    const uint16_t *halves = from;
    float *dst = to;
    for (int64_t i = 0; i < n; i++) {
        uint32_t half = halves[i], exponent = half & 0x7c00, bits = (half & 0x7fff) << 13, small;
        uint32_t normal = bits + (UINT32_C(112) << 23), special = bits + (UINT32_C(224) << 23);
        float value;
        bits += UINT32_C(113) << 23;
        memcpy(&value, &bits, 4);
        value -= 0x1p-14f;
        memcpy(&small, &value, 4);
        bits = exponent == 0 ? small : normal;
        bits = exponent == 0x7c00 ? special : bits;
        bits |= (half & 0x8000) << 16;
        memcpy(dst + i, &bits, 4);
    }
}

/* To the nearest, ties to even; what is too large becomes infinite. */
CLONES static void narrow(const void *from, void *to, int64_t n)
{
    const float *values = from;
    uint16_t *dst = to;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits, small, normal;
        memcpy(&bits, values + i, 4);
        uint32_t sign = bits >> 16 & 0x8000;
        bits &= 0x7fffffff;
        float shifted;
        memcpy(&shifted, &bits, 4);
        shifted += 0.5f; /* rounds at 2**-24, the unit of subnormal numbers */
        memcpy(&small, &shifted, 4);
        small -= UINT32_C(0x3f000000);
        normal = (bits + UINT32_C(0xc8000fff) + (bits >> 13 & 1)) >> 13;
        uint32_t half = bits < UINT32_C(0x38800000) ? small : normal;
        half = bits >= UINT32_C(0x477ff000) ? 0x7c00 : half;
        half = bits > UINT32_C(0x7f800000) ? 0x7e00 : half;
        dst[i] = (uint16_t)(half | sign);
    }
}

/* Combine n elements of all sources, in their order, into `out` and, if not NULL, `copy`. `out` may be a source. */
static void combine(const char **sources, int64_t size, int op, int dtype, int64_t n, char *out, char *copy)
{
    int64_t item = ITEMSIZE[dtype], half = dtype == FLOAT16;
    pair add = pairs[dtype][op];
    if (size == 2 && !copy && !half && op != MEAN) {
        add(sources[0], sources[1], out, n);
        return;
    }
    double sum[BLOCK];
    float wide[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t count = n - start < BLOCK ? n - start : BLOCK, from = start * item;
        char *to = copy ? copy + from : out + from;
        void *total = half || (size > 2 && !copy) ? (void *)sum : (void *)to; /* not yet where a source may lie */
        if (half)
            widen(sources[0] + from, sum, count);
        else if (size == 1)
            memmove(total, sources[0] + from, count * item);
        for (int64_t q = 1; q < size; q++) {
            const void *next = sources[q] + from;
            if (half)
                widen(next, wide, count);
            add(q == 1 && !half ? sources[0] + from : total, half ? wide : next, total, count);
        }
        if (op == MEAN)
            shares[dtype](total, count, size);
        if (half)
            narrow(sum, to, count);
        else if (total != to)
            memcpy(to, total, count * item);
        if (copy)
            memcpy(out + from, to, count * item);
    }
}

#endif
