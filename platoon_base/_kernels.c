/* Fused one-pass forms of the synchronization rules, for float32 and float64; the equations stand in rules.py.
 *
 * A table of 64-bit rows, one for each piece of memory, names the addresses: (x, c, n) or (x, c, x_old, n), with n in
 * elements. An element whose new center value would not be finite is left as it is on all sides.
 * Compile without contraction of a * b + c: the results are the bits that NumPy gives.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MULTIVERSION
#endif

/* All exponent bits are set in NaN and infinity, and in nothing else. */
#define EXPONENT_float UINT32_C(0x7f800000)
#define EXPONENT_double UINT64_C(0x7ff0000000000000)
#define BITS_float uint32_t
#define BITS_double uint64_t

#define DEFINE_KERNELS(T)                                                                          \
    static inline int finite_##T(T value)                                                          \
    {                                                                                              \
        BITS_##T bits;                                                                             \
        memcpy(&bits, &value, sizeof bits);                                                        \
        return (bits & EXPONENT_##T) != EXPONENT_##T;                                              \
    }                                                                                              \
                                                                                                   \
    /* Each tells whether an element was left out. Selecting instead of branching keeps the loops vectorized. */ \
    MULTIVERSION static int easgd_piece_##T(T *restrict x, T *restrict c, int64_t n, T alpha)      \
    {                                                                                              \
        BITS_##T refused = 0;                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T d = alpha * (x[i] - c[i]), value = c[i] + d;                                         \
            int keep = finite_##T(value);                                                          \
            refused |= (BITS_##T)!keep;                                                            \
            x[i] = keep ? x[i] - d : x[i];                                                         \
            c[i] = keep ? value : c[i];                                                            \
        }                                                                                          \
        return refused != 0;                                                                       \
    }                                                                                              \
                                                                                                   \
    MULTIVERSION static int asgd_piece_##T(T *restrict x, T *restrict c, T *restrict x_old,        \
                                           int64_t n)                                              \
    {                                                                                              \
        BITS_##T refused = 0;                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T value = c[i] + (x[i] - x_old[i]);                                                    \
            int keep = finite_##T(value);                                                          \
            refused |= (BITS_##T)!keep;                                                            \
            c[i] = keep ? value : c[i];                                                            \
            x[i] = keep ? value : x[i];                                                            \
            x_old[i] = keep ? value : x_old[i];                                                    \
        }                                                                                          \
        return refused != 0;                                                                       \
    }                                                                                              \
                                                                                                   \
    /* Return the index of the first element left out, or -1: such an element is still as it was. */ \
    static int64_t easgd_##T(const int64_t *row, double scalar)                                    \
    {                                                                                              \
        T *x = (T *)(intptr_t)row[0], *c = (T *)(intptr_t)row[1], alpha = (T)scalar;               \
        int64_t n = row[2];                                                                        \
        if (easgd_piece_##T(x, c, n, alpha))                                                       \
            for (int64_t i = 0; i < n; i++)                                                        \
                if (!finite_##T(c[i] + alpha * (x[i] - c[i])))                                     \
                    return i;                                                                      \
        return -1;                                                                                 \
    }                                                                                              \
                                                                                                   \
    static int64_t asgd_##T(const int64_t *row, double unused)                                     \
    {                                                                                              \
        T *x = (T *)(intptr_t)row[0], *c = (T *)(intptr_t)row[1], *x_old = (T *)(intptr_t)row[2];  \
        int64_t n = row[3];                                                                        \
        (void)unused;                                                                              \
        if (asgd_piece_##T(x, c, x_old, n))                                                        \
            for (int64_t i = 0; i < n; i++)                                                        \
                if (!finite_##T(c[i] + (x[i] - x_old[i])))                                         \
                    return i;                                                                      \
        return -1;                                                                                 \
    }

DEFINE_KERNELS(float)
DEFINE_KERNELS(double)

typedef int64_t (*kernel)(const int64_t *row, double scalar);

/* Run one kernel over all rows of the table, without the interpreter's lock. */
static PyObject *run(PyObject *args, kernel update, int columns)
{
    unsigned long long address;
    Py_ssize_t pieces;
    double scalar = 0.0;
    int64_t piece = -1, element = -1;

    if (!PyArg_ParseTuple(args, "Kn|d", &address, &pieces, &scalar))
        return NULL;
    if (pieces < 0) {
        PyErr_Format(PyExc_ValueError, "got %zd pieces: must be 0 or more", pieces);
        return NULL;
    }
    const int64_t *row = (const int64_t *)(uintptr_t)address;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < pieces; i++, row += columns) {
        int64_t refused = update(row, scalar);
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

#define ENTRY(name, T, columns)                                                                    \
    static PyObject *py_##name##_##T(PyObject *self, PyObject *args)                               \
    {                                                                                              \
        (void)self;                                                                                \
        return run(args, name##_##T, columns);                                                     \
    }

ENTRY(easgd, float, 3)
ENTRY(easgd, double, 3)
ENTRY(asgd, float, 4)
ENTRY(asgd, double, 4)

static PyMethodDef methods[] = {
    {"easgd_float32", py_easgd_float, METH_VARARGS, "easgd_float32(table_address, pieces, alpha)"},
    {"easgd_float64", py_easgd_double, METH_VARARGS, "easgd_float64(table_address, pieces, alpha)"},
    {"asgd_float32", py_asgd_float, METH_VARARGS, "asgd_float32(table_address, pieces)"},
    {"asgd_float64", py_asgd_double, METH_VARARGS, "asgd_float64(table_address, pieces)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernels", "Fused synchronization rules; see platoon_base.kernels.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    return PyModule_Create(&module);
}
