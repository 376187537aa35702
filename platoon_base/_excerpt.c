/* Excerpting rows of an array by a list of row numbers, without the GIL and on several threads.
 *
 * out[i] := rows[indices[i]] for 0 <= i < count, where a row is `row_bytes` long, and a negative index counts from the
 * end. All indices are looked at before the first byte is written, so a wrong one changes nothing.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define MOST_THREADS 64
#define NO_THREAD ((unsigned long)-1) /* PYTHREAD_INVALID_THREAD_ID, which is not in the limited API of all versions */

/* From here on a result is not looked for in the cache, where it would drive out everything else. Written past the
 * cache, its memory is not read before: two thirds of the traffic remain. */
#define STREAM_BYTES (INT64_C(1) << 24)

struct part {
    const char *rows;
    char *out;
    const int64_t *indices;
    int64_t length, row_bytes, from, until; /* the bytes of `out` that a thread writes */
    int stream;
    PyThread_type_lock running; /* held until the thread has written its bytes */
};

#if defined(__SSE2__)
#define PAGE 4096
#define PAGES 4 /* copied side by side: one after the other they keep the memory half as busy */
#define LINE 64

static inline void copy_line(char *to, const char *from)
{
    const __m128i *source = (const __m128i *)from;
    __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    __m128i *target = (__m128i *)to;
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
}

static void copy_past_cache(char *to, const char *from, size_t n)
{
    size_t head = (size_t)(-(uintptr_t)to & (LINE - 1));
    if (head > n)
        head = n;
    memcpy(to, from, head);
    to += head, from += head, n -= head;
    for (; n >= PAGES * PAGE; n -= PAGES * PAGE, to += PAGES * PAGE, from += PAGES * PAGE)
        for (size_t i = 0; i < PAGE; i += LINE)
            for (size_t page = 0; page < PAGES * PAGE; page += PAGE) {
                _mm_prefetch(from + page + i + 2 * LINE, _MM_HINT_T0); /* no fault, wherever it points */
                copy_line(to + page + i, from + page + i);
            }
    for (; n >= LINE; n -= LINE, to += LINE, from += LINE)
        copy_line(to, from);
    memcpy(to, from, n);
}
#define FENCE() _mm_sfence() /* so that others who are told see the result */
#else
#define copy_past_cache memcpy
#define FENCE() (void)0
#endif

/* Threads divide the bytes of the result, not its rows: a few long rows keep all of them busy. */
static void copy_part(void *argument)
{
    const struct part *p = argument;
    int64_t at = p->from;
    while (at < p->until) {
        int64_t i = at / p->row_bytes, offset = at % p->row_bytes, n = p->row_bytes - offset;
        int64_t index = p->indices[i] < 0 ? p->indices[i] + p->length : p->indices[i];
        if (n > p->until - at)
            n = p->until - at;
        const char *from = p->rows + index * p->row_bytes + offset;
        if (p->stream)
            copy_past_cache(p->out + at, from, (size_t)n);
        else
            memcpy(p->out + at, from, (size_t)n);
        at += n;
    }
    FENCE();
}

static void copy_part_on_thread(void *argument)
{
    PyThread_type_lock running = ((struct part *)argument)->running;
    copy_part(argument);
    PyThread_release_lock(running);
}

/* Python's own threads, as it has them on every libc: those of glibc 2.34 would keep a wheel from older systems. */
static int start_thread(struct part *part)
{
    part->running = PyThread_allocate_lock();
    if (part->running == NULL)
        return 0;
    PyThread_acquire_lock(part->running, WAIT_LOCK);
    if (PyThread_start_new_thread(copy_part_on_thread, part) != NO_THREAD)
        return 1;
    PyThread_release_lock(part->running);
    PyThread_free_lock(part->running);
    return 0;
}

static void wait_for_thread(struct part *part)
{
    PyThread_acquire_lock(part->running, WAIT_LOCK);
    PyThread_release_lock(part->running);
    PyThread_free_lock(part->running);
}

static int64_t first_outside(const int64_t *indices, int64_t count, int64_t length)
{
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < -length || indices[i] >= length)
            return i;
    return -1;
}

static void copy_all(const struct part *whole, int64_t threads)
{
    struct part parts[MOST_THREADS];
    int64_t bytes = whole->until, started = 0, from = 0;
    if (threads < 1)
        threads = 1;
    for (int64_t t = 0; t < threads; t++) {
        parts[t] = *whole;
        /* Whole cache lines, so that no two threads write into one. */
        parts[t].from = from;
        parts[t].until = from = t == threads - 1 ? bytes : (bytes / threads * (t + 1)) & ~INT64_C(63);
    }
    /* This thread takes the first part, and those for which the system gives no thread. */
    for (int64_t t = 1; t < threads; t++) {
        if (!start_thread(&parts[t]))
            break;
        started = t;
    }
    copy_part(&parts[0]);
    for (int64_t t = started + 1; t < threads; t++)
        copy_part(&parts[t]);
    for (int64_t t = 1; t <= started; t++)
        wait_for_thread(&parts[t]);
}

static PyObject *excerpt(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long out, rows, indices;
    long long count, length, row_bytes, threads;
    if (!PyArg_ParseTuple(args, "KKKLLLL:excerpt", &out, &rows, &indices, &count, &length, &row_bytes, &threads))
        return NULL;
    if (count < 0 || length < 0 || row_bytes < 0 || threads < 1) {
        PyErr_Format(PyExc_ValueError, "got %lld indices, %lld rows of %lld bytes and %lld threads: none can be negative",
                     count, length, row_bytes, threads);
        return NULL;
    }
    struct part whole = {
        (const char *)(uintptr_t)rows, (char *)(uintptr_t)out, (const int64_t *)(uintptr_t)indices, length, row_bytes, 0,
        (int64_t)count * row_bytes, (int64_t)count * row_bytes >= STREAM_BYTES,
    };
    int64_t wrong;
    Py_BEGIN_ALLOW_THREADS
    wrong = first_outside(whole.indices, count, length);
    if (wrong < 0 && whole.until)
        copy_all(&whole, threads < MOST_THREADS ? threads : MOST_THREADS);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(wrong);
}

static PyMethodDef methods[] = {
    {"excerpt", excerpt, METH_VARARGS,
     "excerpt(out, rows, indices, count, length, row_bytes, threads): the position of a wrong index, or -1"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_excerpt", "Rows by their numbers; see platoon_base.data.excerpt.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__excerpt(void)
{
    return PyModule_Create(&module);
}
