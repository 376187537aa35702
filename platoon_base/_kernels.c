/* One-pass forms of the synchronization rules, for float32 and float64: what all rules need; _rules.h has the loops.
 *
 * A table of 64-bit rows, one for each piece of memory, has the addresses of x, c, the rule's local states and its
 * center states, and the number of elements n. An element whose new center value, or center state, would not be finite
 * is left as it is on all sides. The steps of rounds have rows (t, c, states..., n), with the total t of the
 * contributions, which is overwritten. While a job has one worker, adopt takes (x, c, states..., n).
 * Compile without contraction of a * b + c: the results are the bits that NumPy gives.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
/* Measured: AVX-512 makes loops over two arrays faster within the caches, and those over three slower everywhere. */
#define FEW_ARRAYS __attribute__((target_clones("avx512f", "avx2", "default")))
#define MANY_ARRAYS __attribute__((target_clones("avx2", "default")))
#else
#define FEW_ARRAYS
#define MANY_ARRAYS
#endif

/* All exponent bits are set in NaN and infinity, and in nothing else. */
#define EXPONENT_float UINT32_C(0x7f800000)
#define EXPONENT_double UINT64_C(0x7ff0000000000000)
#define BITS_float uint32_t
#define BITS_double uint64_t

#define DEFINE_BITS(T)                                                                                           \
    static inline BITS_##T bits_##T(T value)                                                                     \
    {                                                                                                            \
        BITS_##T bits;                                                                                           \
        memcpy(&bits, &value, sizeof bits);                                                                      \
        return bits;                                                                                             \
    }                                                                                                            \
                                                                                                                 \
    static inline int finite_##T(T value)                                                                        \
    {                                                                                                            \
        return (bits_##T(value) & EXPONENT_##T) != EXPONENT_##T;                                                 \
    }                                                                                                            \
                                                                                                                 \
    /* a where the mask is all ones, b where it is all zeros. Compilers vectorize this, and not always `?:`. */  \
    static inline T select_##T(BITS_##T mask, T a, T b)                                                          \
    {                                                                                                            \
        BITS_##T bits = (bits_##T(a) & mask) | (bits_##T(b) & ~mask);                                            \
        T value;                                                                                                 \
        memcpy(&value, &bits, sizeof value);                                                                     \
        return value;                                                                                            \
    }

/* A step's elements that were left out still have their totals: tell the first, and clear them. */
#define DEFINE_ROUNDS(T)                                                                                         \
    MANY_ARRAYS static int progress_piece_##T(const T *restrict x, const T *restrict c, T *restrict to,          \
                                              int64_t n)                                                         \
    {                                                                                                            \
        BITS_##T refused = 0;                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                        \
            T value = x[i] - c[i];                                                                               \
            BITS_##T keep = -(BITS_##T)finite_##T(value);                                                        \
            refused |= ~keep;                                                                                    \
            to[i] = select_##T(keep, value, 0);                                                                  \
        }                                                                                                        \
        return refused != 0;                                                                                     \
    }                                                                                                            \
                                                                                                                 \
    static int64_t clear_##T(T *t, int64_t n)                                                                    \
    {                                                                                                            \
        int64_t first = 0;                                                                                       \
        while (first < n - 1 && t[first] == 0)                                                                   \
            first++;                                                                                             \
        memset(t, 0, (size_t)n * sizeof *t);                                                                     \
        return first;                                                                                            \
    }

DEFINE_BITS(float)
DEFINE_BITS(double)
DEFINE_ROUNDS(float)
DEFINE_ROUNDS(double)

#define CHUNK 1024 /* elements that stay in the first cache */
#define STREAM_BYTES (1 << 20) /* what is larger than the caches is written past them: no line is read to be overwritten */

#if defined(__SSE2__)
#include <emmintrin.h>

static void copy_past_caches(void *to, const void *from, size_t size)
{
    __m128i *target = to;
    const __m128i *source = from;
    size_t vectors = size / sizeof *target;

    for (size_t i = 0; i < vectors; i++)
        _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
    memcpy(target + vectors, source + vectors, size % sizeof *target);
}

static void end_stream(void)
{
    _mm_sfence();
}
#else
static void copy_past_caches(void *to, const void *from, size_t size)
{
    memcpy(to, from, size);
}

static void end_stream(void) {}
#endif

static void copy(void *to, const void *from, size_t size, int stream)
{
    if (stream && (uintptr_t)to % 16 == 0)
        copy_past_caches(to, from, size);
    else
        memcpy(to, from, size);
}

#define DEFINE_PROGRESS(T)                                                                                       \
    /* Rows (x, c, to, n): to := x - c, or 0 where that is not finite. */                                        \
    static int64_t progress_##T(const int64_t *row, const double *unused)                                        \
    {                                                                                                            \
        const T *x = (const T *)(intptr_t)row[0], *c = (const T *)(intptr_t)row[1];                              \
        T *to = (T *)(intptr_t)row[2], part[CHUNK];                                                              \
        int64_t n = row[3], first = -1;                                                                          \
        int stream = n * (int64_t)sizeof(T) >= 4 * STREAM_BYTES && row[2] % 16 == 0;                             \
        (void)unused;                                                                                            \
        for (int64_t start = 0; start < n; start += CHUNK) {                                                     \
            int64_t size = n - start < CHUNK ? n - start : CHUNK;                                                \
            T *out = stream ? part : to + start;                                                                 \
            if (progress_piece_##T(x + start, c + start, out, size) && first < 0)                                \
                for (first = start; finite_##T(x[first] - c[first]);)                                            \
                    first++;                                                                                     \
            if (stream)                                                                                          \
                copy_past_caches(to + start, part, (size_t)size * sizeof(T));                                    \
        }                                                                                                        \
        if (stream)                                                                                              \
            end_stream();                                                                                        \
        return first;                                                                                            \
    }

DEFINE_PROGRESS(float)
DEFINE_PROGRESS(double)

/* What adopt does with the states of a rule, of which the first `locals` are the worker's: bit j stands for state j. */
struct adoption {
    int states, locals;
    uint64_t remembering, momenta;
};

#define IS_IN(set, j) (((set) >> (j)) & 1)

#define DEFINE_ADOPT(T)                                                                                          \
    MANY_ARRAYS static int all_finite_##T(const T *values, int64_t n)                                            \
    {                                                                                                            \
        BITS_##T refused = 0;                                                                                    \
        for (int64_t i = 0; i < n; i++)                                                                          \
            refused |= -(BITS_##T)!finite_##T(values[i]);                                                        \
        return !refused;                                                                                         \
    }                                                                                                            \
                                                                                                                 \
    /* Whether m would be finite where c == x, and m := 0 elsewhere. */                                          \
    MANY_ARRAYS static int momentum_finite_##T(const T *x, const T *c, const T *m, int64_t n)                    \
    {                                                                                                            \
        BITS_##T refused = 0;                                                                                    \
        for (int64_t i = 0; i < n; i++)                                                                          \
            refused |= -(BITS_##T)(!(c[i] != x[i]) & !finite_##T(m[i]));                                         \
        return !refused;                                                                                         \
    }                                                                                                            \
                                                                                                                 \
    MANY_ARRAYS static void end_momentum_##T(const T *restrict x, const T *restrict c, T *restrict m, int64_t n) \
    {                                                                                                            \
        for (int64_t i = 0; i < n; i++)                                                                          \
            m[i] = select_##T(-(BITS_##T)(c[i] != x[i]), 0, m[i]);                                               \
    }                                                                                                            \
                                                                                                                 \
    static int adoptable_##T(const int64_t *row, const struct adoption *how, int64_t start, int64_t n)           \
    {                                                                                                            \
        const T *x = (const T *)(intptr_t)row[0] + start, *c = (const T *)(intptr_t)row[1] + start;              \
        if (!all_finite_##T(x, n))                                                                               \
            return 0;                                                                                            \
        for (int j = how->locals; j < how->states; j++) {                                                        \
            const T *state = (const T *)(intptr_t)row[2 + j] + start;                                            \
            if (!(IS_IN(how->momenta, j) ? momentum_finite_##T(x, c, state, n) : all_finite_##T(state, n)))      \
                return 0;                                                                                        \
        }                                                                                                        \
        return 1;                                                                                                \
    }                                                                                                            \
                                                                                                                 \
    static void adopt_part_##T(const int64_t *row, const struct adoption *how, int64_t start, int64_t n, int stream)\
    {                                                                                                            \
        const T *x = (const T *)(intptr_t)row[0] + start;                                                        \
        T *c = (T *)(intptr_t)row[1] + start;                                                                    \
        for (int j = 0; j < how->states; j++) {                                                                  \
            T *state = (T *)(intptr_t)row[2 + j] + start;                                                        \
            if (IS_IN(how->momenta, j))                                                                          \
                end_momentum_##T(x, c, state, n);                                                                \
            if (IS_IN(how->remembering, j))                                                                      \
                copy(state, x, (size_t)n * sizeof *x, stream);                                                   \
        }                                                                                                        \
        copy(c, x, (size_t)n * sizeof *x, stream);                                                               \
    }                                                                                                            \
                                                                                                                 \
    static int64_t adopt_##T(const int64_t *row, const struct adoption *how)                                     \
    {                                                                                                            \
        int64_t n = row[2 + how->states], first = -1;                                                            \
        int stream = n * (int64_t)sizeof(T) >= STREAM_BYTES;                                                     \
        for (int64_t start = 0; start < n; start += CHUNK) {                                                     \
            int64_t size = n - start < CHUNK ? n - start : CHUNK;                                                \
            if (adoptable_##T(row, how, start, size)) {                                                          \
                adopt_part_##T(row, how, start, size, stream);                                                   \
                continue;                                                                                        \
            }                                                                                                    \
            for (int64_t i = start; i < start + size; i++) {                                                     \
                if (adoptable_##T(row, how, i, 1))                                                               \
                    adopt_part_##T(row, how, i, 1, 0);                                                           \
                else if (first < 0)                                                                              \
                    first = i;                                                                                   \
            }                                                                                                    \
        }                                                                                                        \
        if (stream)                                                                                              \
            end_stream();                                                                                        \
        return first;                                                                                            \
    }

DEFINE_ADOPT(float)
DEFINE_ADOPT(double)

#define MAX_SCALARS 9 /* of a form, and the number of contributions */

typedef int64_t (*kernel)(const int64_t *row, const double *scalars);

/* Raise for a table that cannot be; returns whether it is one. */
static int is_table(const int64_t *table, Py_ssize_t pieces, int columns)
{
    if (pieces < 0) {
        PyErr_Format(PyExc_ValueError, "got %zd pieces: must be 0 or more", pieces);
        return 0;
    }
    for (Py_ssize_t i = 0; i < pieces; i++) {
        long long n = table[i * columns + columns - 1];
        if (n < 0) {
            PyErr_Format(PyExc_ValueError, "got %lld elements in row %zd: must be 0 or more", n, i);
            return 0;
        }
    }
    return 1;
}

/* Run one kernel over all rows of the table, without the interpreter's lock. */
static PyObject *run(PyObject *args, const char *format, kernel update, int columns)
{
    unsigned long long address;
    Py_ssize_t pieces;
    double scalars[MAX_SCALARS] = {0.0};
    int64_t piece = -1, element = -1;

    /* A format that asks for fewer scalars leaves the last pointers alone. */
    if (!PyArg_ParseTuple(args, format, &address, &pieces, &scalars[0], &scalars[1], &scalars[2], &scalars[3],
                          &scalars[4], &scalars[5], &scalars[6], &scalars[7], &scalars[8]))
        return NULL;
    const int64_t *row = (const int64_t *)(uintptr_t)address;
    if (!is_table(row, pieces, columns))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < pieces; i++, row += columns) {
        int64_t refused = update(row, scalars);
        if (refused >= 0 && piece < 0) {
            piece = i;
            element = refused;
        }
    }
    Py_END_ALLOW_THREADS
    if (piece < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(LL)", (long long)piece, (long long)element);
}

typedef int64_t (*adopting)(const int64_t *row, const struct adoption *how);

/* The same for adopt, whose rows have as many columns as the rule that it stands in for has states. */
static PyObject *run_adopt(PyObject *args, const char *format, adopting adopt)
{
    unsigned long long address, remembering, momenta;
    Py_ssize_t pieces;
    struct adoption how;
    int64_t piece = -1, element = -1;

    if (!PyArg_ParseTuple(args, format, &address, &pieces, &how.states, &how.locals, &remembering, &momenta))
        return NULL;
    if (how.locals < 0 || how.states < how.locals || how.states > 64) {
        PyErr_Format(PyExc_ValueError, "got %d states, %d of them local: must be 0 to 64", how.states, how.locals);
        return NULL;
    }
    how.remembering = remembering;
    how.momenta = momenta;
    const int64_t *row = (const int64_t *)(uintptr_t)address;
    if (!is_table(row, pieces, how.states + 3))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < pieces; i++, row += how.states + 3) {
        int64_t refused = adopt(row, &how);
        if (refused >= 0 && piece < 0) {
            piece = i;
            element = refused;
        }
    }
    Py_END_ALLOW_THREADS
    if (piece < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(LL)", (long long)piece, (long long)element);
}

#define ADOPT_ENTRY(T)                                                                             \
    static PyObject *py_adopt_##T(PyObject *self, PyObject *args)                                  \
    {                                                                                              \
        (void)self;                                                                                \
        return run_adopt(args, "KniiKK:adopt", adopt_##T);                                         \
    }

ADOPT_ENTRY(float)
ADOPT_ENTRY(double)

#define ENTRY(name, T, columns, format)                                                            \
    static PyObject *py_##name##_##T(PyObject *self, PyObject *args)                               \
    {                                                                                              \
        (void)self;                                                                                \
        return run(args, format, name##_##T, columns);                                             \
    }

ENTRY(progress, float, 4, "Kn:progress_float32")
ENTRY(progress, double, 4, "Kn:progress_float64")

/* The sum of a hash of each 32-bit word and its place; worker/agreed_state.py has the same for CUDA and NumPy. */
static PyObject *py_checksum(PyObject *self, PyObject *args)
{
    unsigned long long address, size;
    uint64_t sum = 0;

    (void)self;
    if (!PyArg_ParseTuple(args, "KK:checksum", &address, &size))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)address;
    for (uint64_t i = 0; 4 * i < size; i++) {
        uint32_t word = 0;
        memcpy(&word, bytes + 4 * i, size - 4 * i < 4 ? size - 4 * i : 4);
        uint64_t hash = (word + i * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xBF58476D1CE4E5B9);
        sum += (hash ^ hash >> 32) * UINT64_C(0x94D049BB133111EB);
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(sum);
}

#include "_rules.h"

static PyMethodDef methods[] = {
    {"adopt_float32", py_adopt_float, METH_VARARGS,
     "adopt_float32(table_address, pieces, states, local states, set of remembering, set of momenta)"},
    {"adopt_float64", py_adopt_double, METH_VARARGS,
     "adopt_float64(table_address, pieces, states, local states, set of remembering, set of momenta)"},
    {"checksum", py_checksum, METH_VARARGS, "checksum(address, size in bytes)"},
    {"progress_float32", py_progress_float, METH_VARARGS, "progress_float32(table_address, pieces)"},
    {"progress_float64", py_progress_double, METH_VARARGS, "progress_float64(table_address, pieces)"},
    RULE_METHODS
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernels", "Fused synchronization rules; see platoon_base.centers.host_kernels.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    return PyModule_Create(&module);
}
