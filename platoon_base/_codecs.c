/* Codecs for float32 between hosts, bit by bit those of platoon_base/compression/codecs.py, which has the formats.
 *
 * Compile without contraction of a * b + c: the results are the bits that NumPy gives.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

enum { MOST_OF_A_BLOCK = 256, BLOCK_K = 4096 };

#define INFINITE UINT32_C(0x7f800000)
#define MAGNITUDE UINT32_C(0x7fffffff)
#define ROUNDER 12582912.0f /* 1.5 * 2 ** 23: a small number added to it is rounded to a whole one, ties to even */

static inline uint32_t magnitude_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & MAGNITUDE;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float quiet_nan(void) { return float_of(UINT32_C(0x7fc00000)); }

/* The scale of a block with this largest finite magnitude: 0 if that is too small for one. */
static float scale_of(uint32_t largest, int levels)
{
    float scale = float_of(largest) / (float)levels, most = FLT_MAX / (float)(levels + 1);
    if (scale > most)
        scale = most;
    return scale < FLT_MIN ? 0.0f : scale;
}

CLONES static uint32_t largest_of(const float *values, int64_t n)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = magnitude_of(values[i]);
        magnitude = magnitude < INFINITE ? magnitude : 0;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* The whole number of scales nearest to a value. */
static inline int32_t level_of(float value, float inverse, int32_t levels, int32_t not_finite)
{
    int32_t finite = -(int32_t)(magnitude_of(value) < INFINITE);
    float number = value * inverse;
    number = float_of((uint32_t)finite & (magnitude_of(number) | (number < 0.0f ? UINT32_C(0x80000000) : 0)));
    int32_t level = (int32_t)((number + ROUNDER) - ROUNDER);
    level = level > levels ? levels : level < -levels ? -levels : level;
    return (level & finite) | (not_finite & ~finite);
}

CLONES static void levels_of(const float *values, int64_t n, float scale, int32_t levels, int32_t not_finite, int8_t *out)
{
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int64_t i = 0; i < n; i++)
        out[i] = (int8_t)level_of(values[i], inverse, levels, not_finite);
}

CLONES static void values_of(const int8_t *codes, int64_t n, float scale, int32_t not_finite, float *out)
{
    float nan = quiet_nan();
    for (int64_t i = 0; i < n; i++)
        out[i] = codes[i] == not_finite ? nan : (float)codes[i] * scale;
}

static int64_t at_most(int64_t most, int64_t n) { return n < most ? n : most; }

CLONES static void join_pairs(const int8_t *codes, int64_t pairs, uint8_t *out)
{
    for (int64_t i = 0; i < pairs; i++)
        out[i] = (uint8_t)((codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4);
}

CLONES static void split_pairs(const uint8_t *data, int64_t pairs, int8_t *codes)
{
    for (int64_t i = 0; i < pairs; i++) {
        codes[2 * i] = (int8_t)((data[i] & 15) - ((data[i] & 8) << 1));
        codes[2 * i + 1] = (int8_t)((data[i] >> 4) - ((data[i] & 128) >> 3));
    }
}

CLONES static void join_fours(const int8_t *codes, int64_t fours, uint8_t *out)
{
    for (int64_t i = 0; i < fours; i++, codes += 4)
        out[i] = (uint8_t)((codes[0] & 3) | (codes[1] & 3) << 2 | (codes[2] & 3) << 4 | (codes[3] & 3) << 6);
}

CLONES static void split_fours(const uint8_t *data, int64_t fours, int8_t *codes)
{
    for (int64_t i = 0; i < fours; i++)
        for (int place = 0; place < 4; place++) {
            int code = data[i] >> 2 * place & 3;
            codes[4 * i + place] = (int8_t)(code - ((code & 2) << 1));
        }
}

static int64_t block_of(int bits) { return bits == 8 ? 256 : 128; }

/* Whole numbers of 8, 4 or 2 bits: the scales of all blocks, then the numbers. */
static void encode_blocks(const float *values, int64_t n, int bits, uint8_t *data)
{
    int64_t block = block_of(bits), in_a_byte = 8 / bits;
    int32_t levels = (1 << (bits - 1)) - 1;
    int8_t codes[MOST_OF_A_BLOCK];
    uint8_t *out = data + 4 * ((n + block - 1) / block);
    for (int64_t i = 0; i < n; i += block, data += 4) {
        int64_t count = at_most(block, n - i), bytes = (count + in_a_byte - 1) / in_a_byte;
        float scale = scale_of(largest_of(values + i, count), levels > 2 ? levels : 2);
        memcpy(data, &scale, sizeof scale);
        levels_of(values + i, count, scale, levels, -levels - 1, codes);
        memset(codes + count, 0, (size_t)(bytes * in_a_byte - count));
        if (bits == 8)
            memcpy(out, codes, (size_t)bytes);
        else if (bits == 4)
            join_pairs(codes, bytes, out);
        else
            join_fours(codes, bytes, out);
        out += bytes;
    }
}

static void decode_blocks(const uint8_t *data, int64_t n, int bits, float *out)
{
    int64_t block = block_of(bits), in_a_byte = 8 / bits;
    int32_t not_finite = -(1 << (bits - 1));
    int8_t codes[MOST_OF_A_BLOCK];
    const uint8_t *numbers = data + 4 * ((n + block - 1) / block);
    for (int64_t i = 0; i < n; i += block, data += 4) {
        int64_t count = at_most(block, n - i), bytes = (count + in_a_byte - 1) / in_a_byte;
        float scale;
        memcpy(&scale, data, sizeof scale);
        if (bits == 8)
            memcpy(codes, numbers, (size_t)bytes);
        else if (bits == 4)
            split_pairs(numbers, bytes, codes);
        else
            split_fours(numbers, bytes, codes);
        values_of(codes, count, scale, not_finite, out + i);
        numbers += bytes;
    }
}

CLONES static void keys_of(const float *values, int64_t n, uint32_t *keys)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = magnitude_of(values[i]);
        keys[i] = magnitude < INFINITE ? magnitude : INFINITE;
    }
}

/* The kept-th largest key; *above becomes how many are larger. Counts digits of 11, 11 and 9 bits. */
static uint32_t threshold_of(const uint32_t *keys, int64_t n, int64_t kept, int64_t *above)
{
    static const struct { int shift, bits; } digits[3] = {{20, 11}, {9, 11}, {0, 9}};
    uint32_t known = 0, counts[1 << 11];
    *above = 0;
    for (int digit = 0; digit < 3; digit++) {
        int shift = digits[digit].shift, bits = digits[digit].bits, value = (1 << bits) - 1;
        memset(counts, 0, sizeof *counts << bits);
        for (int64_t i = 0; i < n; i++)
            if ((uint64_t)keys[i] >> (shift + bits) == (uint64_t)known >> (shift + bits))
                counts[keys[i] >> shift & (uint32_t)value]++;
        for (; value > 0 && *above + counts[value] < kept; value--)
            *above += counts[value];
        known |= (uint32_t)value << shift;
    }
    return known;
}

static int64_t size_of_k(int64_t kept) { return (4 + 3 * kept + 3) / 4 * 4; }

static void encode_block_k(const float *values, int64_t n, int64_t kept, uint8_t *data)
{
    uint32_t keys[BLOCK_K];
    float chosen[BLOCK_K], scale;
    uint16_t places[BLOCK_K];
    int64_t above, count = 0;

    memset(data, 0, (size_t)size_of_k(kept));
    keys_of(values, n, keys);
    uint32_t least = threshold_of(keys, n, kept, &above);
    int64_t room = kept - above;
    for (int64_t i = 0; i < n && count < kept; i++) {
        if (keys[i] > least || (keys[i] == least && room-- > 0)) {
            places[count] = (uint16_t)i;
            chosen[count++] = values[i];
        }
    }
    scale = scale_of(largest_of(chosen, kept), 127);
    memcpy(data, &scale, sizeof scale);
    memcpy(data + 4, places, (size_t)kept * sizeof *places);
    levels_of(chosen, kept, scale, 127, -128, (int8_t *)data + 4 + 2 * kept);
}

static void decode_block_k(const uint8_t *data, int64_t n, int64_t kept, float *out)
{
    float scale, found[BLOCK_K];
    memset(out, 0, (size_t)n * sizeof *out);
    memcpy(&scale, data, sizeof scale);
    values_of((const int8_t *)data + 4 + 2 * kept, kept, scale, -128, found);
    for (int64_t i = 0; i < kept; i++) {
        uint16_t place;
        memcpy(&place, data + 4 + 2 * i, sizeof place);
        out[at_most(n - 1, place)] = found[i];
    }
}

/* Kinds: 8, 4 and 2 bits; else blocks with so many elements kept of a whole one, and of the last if that is shorter. */
static PyObject *run(PyObject *args, int encodes)
{
    unsigned long long values_address, data_address;
    long long n, kind, whole, rest;
    if (!PyArg_ParseTuple(args, "LKLKLL", &kind, &values_address, &n, &data_address, &whole, &rest))
        return NULL;
    if (kind != 8 && kind != 4 && kind != 2 && (whole < 1 || whole > BLOCK_K || rest < 0 || rest > BLOCK_K)) {
        PyErr_SetString(PyExc_ValueError, "got numbers of kept elements that no block has");
        return NULL;
    }
    float *values = (float *)(uintptr_t)values_address;
    uint8_t *data = (uint8_t *)(uintptr_t)data_address;
    Py_BEGIN_ALLOW_THREADS
    if (kind == 8 || kind == 4 || kind == 2) {
        if (encodes)
            encode_blocks(values, n, (int)kind, data);
        else
            decode_blocks(data, n, (int)kind, values);
    } else {
        for (int64_t i = 0; i < n; i += BLOCK_K) {
            int64_t count = at_most(BLOCK_K, n - i), kept = count == BLOCK_K ? whole : rest;
            if (encodes)
                encode_block_k(values + i, count, kept, data);
            else
                decode_block_k(data, count, kept, values + i);
            data += size_of_k(kept);
        }
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_encode(PyObject *self, PyObject *args)
{
    (void)self;
    return run(args, 1);
}

static PyObject *py_decode(PyObject *self, PyObject *args)
{
    (void)self;
    return run(args, 0);
}

static PyMethodDef methods[] = {
    {"encode", py_encode, METH_VARARGS, "encode(kind, values_address, n, data_address, kept_of_a_block, kept_of_the_last)"},
    {"decode", py_decode, METH_VARARGS, "decode(kind, values_address, n, data_address, kept_of_a_block, kept_of_the_last)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_codecs", "Codecs for float32; see platoon_base.compression.codecs.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__codecs(void)
{
    return PyModule_Create(&module);
}
