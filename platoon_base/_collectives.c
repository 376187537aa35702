/* Collective operations between processes over one segment of shared memory; exchange.py describes the segment, and
 * does the same in NumPy, step by step. Whoever changes one form changes the other.
 *
 * A call is cut into steps, each of at most one slot. In a step every rank does up to three things:
 *   put      copy what others need into its own slot, once all are done with what lay there `buffers` steps ago;
 *   combine  once all have put: compute or copy what is its own;
 *   take     once all have combined: copy what the others combined.
 * Each is announced by a counter that only grows, in a cache line of its rank. `combine` lags behind `put` by one step,
 * `take` by two, so that a rank seldom waits for one that is as fast as itself.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

enum { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, BARRIER };
enum { SUM, PROD, MAX, MIN, MEAN };
enum { FLOAT16, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8 };
enum { ENDED, AGAIN, BROKEN, MISMATCH };
enum { ARRIVED, PUT, COMBINED, DONE }; /* the counters of a rank */

static const int64_t ITEMSIZE[] = {2, 4, 8, 1, 4, 8, 1};

#define BLOCK 2048         /* elements combined at a time where the sum needs a place of its own */
#define COMBINE_LAG 1      /* steps */
#define TAKE_LAG 2         /* steps; the segment has at least two buffers more */
#define YIELD_NS 300000    /* how long a wait yields before it sleeps */
#define NAP_NS 2000000     /* the longest sleep: ranks that run the NumPy form wake nobody */
#define LONGEST_NS 100000000 /* of a call that goes on, before signals get their chance */

/* The first page of the segment; what is not named here is Python's. */
struct board {
    char identity[64];
    int64_t broken, pad1[7];
    uint32_t bell, pad2[15]; /* the futex */
    int64_t sleepers, pad3[7];
};

struct line {
    int64_t counters[16]; /* the first four; two cache lines, because processors fetch them in pairs */
    int64_t headers[2][8]; /* of even and of odd calls */
};

/* Filled by Python once, except for `call` and what follows. */
struct state {
    int64_t segment, rank, size, chunk, buffers, direct, spins, lines, slots;
    int64_t call, step; /* calls begun; steps of all calls that have ended */
    int64_t waiting_for, until; /* a counter, and the value that all must reach; 0: for nobody */
    int64_t header[8], array, out;
    int64_t stage, turn, steps, width, parts;
};

/* ---- Arithmetic ------------------------------------------------------------------------------------------------- */

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

/* ---- Waiting ---------------------------------------------------------------------------------------------------- */

static struct line *line_of(const struct state *s, int64_t rank)
{
    return (struct line *)(intptr_t)(s->segment + s->lines) + rank;
}

static struct board *board_of(const struct state *s)
{
    return (struct board *)(intptr_t)s->segment;
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Tell all that a counter of this rank has grown. */
static void announce(struct state *s, int counter, int64_t value)
{
    struct board *board = board_of(s);
    /* A full barrier: whoever goes to sleep either sees the new value or is seen here. */
    (void)__atomic_exchange_n(&line_of(s, s->rank)->counters[counter], value, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&board->sleepers, __ATOMIC_SEQ_CST)) {
        (void)__atomic_add_fetch(&board->bell, 1, __ATOMIC_SEQ_CST);
#ifdef __linux__
        syscall(SYS_futex, &board->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#endif
    }
}

static int all_reached(const struct state *s, int counter, int64_t value)
{
    for (int64_t q = 0; q < s->size; q++)
        if (q != s->rank && __atomic_load_n(&line_of(s, q)->counters[counter], __ATOMIC_ACQUIRE) < value)
            return 0;
    return 1;
}

static void nap(struct state *s, int counter, int64_t value)
{
    struct timespec longest = {0, NAP_NS};
#ifdef __linux__
    struct board *board = board_of(s);
    uint32_t bell = __atomic_load_n(&board->bell, __ATOMIC_SEQ_CST);
    (void)__atomic_add_fetch(&board->sleepers, 1, __ATOMIC_SEQ_CST);
    if (!all_reached(s, counter, value))
        syscall(SYS_futex, &board->bell, FUTEX_WAIT, bell, &longest, NULL, 0);
    (void)__atomic_sub_fetch(&board->sleepers, 1, __ATOMIC_SEQ_CST);
#else
    longest.tv_nsec /= 20;
    nanosleep(&longest, NULL);
#endif
}

/* Wait until a counter of all other ranks has reached a value: ENDED, AGAIN after `patience`, or BROKEN. */
static int wait_for(struct state *s, int counter, int64_t value, int64_t patience_ns)
{
    for (int64_t i = 0; i < s->spins; i++) {
        if (all_reached(s, counter, value))
            return ENDED;
        RELAX();
    }
    int64_t start = now_ns(), waited = 0;
    while (!all_reached(s, counter, value)) {
        if (__atomic_load_n(&board_of(s)->broken, __ATOMIC_ACQUIRE))
            return BROKEN;
        if (waited > patience_ns) {
            s->waiting_for = counter;
            s->until = value;
            return AGAIN;
        }
        if (waited < YIELD_NS)
            sched_yield();
        else
            nap(s, counter, value);
        waited = now_ns() - start;
    }
    return ENDED;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------ */

static int kind_of(const struct state *s) { return (int)(s->header[0] & 0xff); }
static int op_of(const struct state *s) { return (int)(s->header[0] >> 8 & 0xff); }
static int dtype_of(const struct state *s) { return (int)(s->header[0] >> 16 & 0xff); }
static int64_t root_of(const struct state *s) { return s->header[0] >> 32; }
static int64_t item_of(const struct state *s) { return ITEMSIZE[dtype_of(s)]; }
static char *array_of(const struct state *s) { return (char *)(intptr_t)s->array; }
static char *out_of(const struct state *s) { return (char *)(intptr_t)s->out; }
static int split(const struct state *s) { return kind_of(s) == ALL_REDUCE && s->parts > 1; }

static char *slot(const struct state *s, int64_t rank, int64_t turn)
{
    int64_t buffer = (s->step + turn) % s->buffers;
    return (char *)(intptr_t)(s->segment + s->slots + (rank * s->buffers + buffer) * s->chunk);
}

/* Elements of the call's last array dimension that a step begins at, and how many it has. */
static int64_t first_of(const struct state *s, int64_t turn) { return turn * s->width; }
static int64_t count_of(const struct state *s, int64_t turn)
{
    int64_t left = s->header[1] - first_of(s, turn);
    return left < s->width ? left : s->width;
}

/* Bytes of a step where the part of a rank begins, in an all-reduce that is split. */
static int64_t part_start(const struct state *s, int64_t turn, int64_t rank)
{
    int64_t count = count_of(s, turn), each = (count + s->size - 1) / s->size;
    int64_t start = (each + 63) / 64 * 64 * rank;
    return (start < count ? start : count) * item_of(s);
}

static void put(struct state *s, int64_t turn)
{
    int64_t item = item_of(s), bytes = count_of(s, turn) * item, from = first_of(s, turn) * item;
    char *to = slot(s, s->rank, turn), *array = array_of(s) + from;
    int kind = kind_of(s);
    if (kind == REDUCE_SCATTER) {
        for (int64_t q = 0; q < s->size; q++)
            if (q != s->rank)
                memcpy(to + q * s->width * item, array + q * s->header[1] * item, bytes);
    } else if (split(s)) {
        int64_t start = part_start(s, turn, s->rank), stop = part_start(s, turn, s->rank + 1);
        memcpy(to, array, start);
        memcpy(to + stop, array + stop, bytes - stop);
    } else if (kind != BROADCAST || s->rank == root_of(s)) {
        memcpy(to, array, bytes);
    }
}

/* The same place in the arrays of all ranks: this rank's own one, and the slots of the others. */
static void sources_at(const struct state *s, int64_t turn, const char *own, int64_t offset, const char **sources)
{
    for (int64_t q = 0; q < s->size; q++)
        sources[q] = q == s->rank ? own : slot(s, q, turn) + offset;
}

static void combine_step(struct state *s, int64_t turn, const char **sources)
{
    int64_t item = item_of(s), count = count_of(s, turn), from = first_of(s, turn) * item;
    char *array = array_of(s) + from, *out = out_of(s) + from;
    int kind = kind_of(s), op = op_of(s), dtype = dtype_of(s);
    if (kind == REDUCE_SCATTER) {
        sources_at(s, turn, array + s->rank * s->header[1] * item, s->rank * s->width * item, sources);
        combine(sources, s->size, op, dtype, count, out, NULL);
    } else if (split(s)) {
        int64_t start = part_start(s, turn, s->rank), stop = part_start(s, turn, s->rank + 1);
        sources_at(s, turn, array + start, start, sources);
        combine(sources, s->size, op, dtype, (stop - start) / item, out + start, slot(s, s->rank, turn) + start);
    } else if (kind == ALL_REDUCE) {
        sources_at(s, turn, array, 0, sources);
        combine(sources, s->size, op, dtype, count, out, NULL);
    } else if (kind == ALL_GATHER) {
        sources_at(s, turn, array, 0, sources);
        for (int64_t q = 0; q < s->size; q++)
            memmove(out + q * s->header[1] * item, sources[q], count * item);
    } else if (s->rank != root_of(s)) {
        memcpy(array, slot(s, root_of(s), turn), count * item);
    }
}

static void take(struct state *s, int64_t turn)
{
    char *out = out_of(s) + first_of(s, turn) * item_of(s);
    for (int64_t q = 0; q < s->size; q++) {
        int64_t start = part_start(s, turn, q), stop = part_start(s, turn, q + 1);
        if (q != s->rank)
            memcpy(out + start, slot(s, q, turn) + start, stop - start);
    }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------ */

static void put_and_announce(struct state *s, int64_t turn)
{
    put(s, turn);
    announce(s, PUT, s->step + turn + 1);
}

/* Cut the call into steps, tell the others what is called, and put the first step if there is room. */
static void begin(struct state *s)
{
    struct line *own = line_of(s, s->rank);
    int64_t n = s->header[1], item = item_of(s), kind = kind_of(s);
    int64_t most = (kind == REDUCE_SCATTER ? s->chunk / s->size / 64 * 64 : s->chunk) / item;
    s->steps = kind == BARRIER ? 0 : (n + most - 1) / most;
    s->width = s->steps ? ((n + s->steps - 1) / s->steps + 63) / 64 * 64 : 0;
    s->width = s->width < most ? s->width : most;
    s->parts = kind == ALL_REDUCE && n * item > s->direct ? s->size : 1;
    s->stage = 0;
    s->turn = 0;
    memcpy(own->headers[s->call & 1], s->header, sizeof s->header);
    if (s->steps && all_reached(s, DONE, s->step + 1 - s->buffers)) {
        put(s, 0);
        __atomic_store_n(&own->counters[PUT], s->step + 1, __ATOMIC_RELEASE);
    }
    s->call++;
    announce(s, ARRIVED, s->call);
}

static int same_call(const struct state *s)
{
    for (int64_t q = 0; q < s->size; q++)
        if (memcmp(line_of(s, q)->headers[(s->call - 1) & 1], s->header, sizeof s->header))
            return 0;
    return 1;
}

/* Go on with the turn and the stage where the last wait ended in vain. */
static int advance(struct state *s, int64_t patience_ns, const char **sources)
{
    int status = ENDED, three = split(s), last = three ? TAKE_LAG : COMBINE_LAG;
    int64_t started = now_ns(), *own = line_of(s, s->rank)->counters;
    if (s->stage == 0) {
        if ((status = wait_for(s, ARRIVED, s->call, patience_ns)) != ENDED)
            return status;
        if (!same_call(s))
            return MISMATCH;
        s->stage = 1;
    }
    for (; s->turn < s->steps + last; s->turn++, s->stage = 1) {
        int64_t turn = s->turn, combined = turn - COMBINE_LAG, taken = turn - TAKE_LAG;
        if (s->stage == 1 && turn < s->steps && own[PUT] <= s->step + turn) {
            if ((status = wait_for(s, DONE, s->step + turn + 1 - s->buffers, patience_ns)) != ENDED)
                return status;
            put_and_announce(s, turn);
        }
        s->stage = s->stage < 2 ? 2 : s->stage;
        if (s->stage == 2 && combined >= 0 && combined < s->steps) {
            if ((status = wait_for(s, PUT, s->step + combined + 1, patience_ns)) != ENDED)
                return status;
            combine_step(s, combined, sources);
            announce(s, three ? COMBINED : DONE, s->step + combined + 1);
        }
        s->stage = 3;
        if (three && taken >= 0) {
            if ((status = wait_for(s, COMBINED, s->step + taken + 1, patience_ns)) != ENDED)
                return status;
            take(s, taken);
            announce(s, DONE, s->step + taken + 1);
        }
        if (now_ns() - started > LONGEST_NS && turn + 1 < s->steps + last) {
            s->turn++;
            s->stage = 1;
            s->until = 0;
            return AGAIN;
        }
    }
    s->step += s->steps;
    __atomic_store_n(&own[COMBINED], s->step, __ATOMIC_RELEASE);
    return ENDED;
}

/* Without the interpreter's lock: the ranks may be threads of one process. */
static PyObject *py_run(PyObject *self, PyObject *args)
{
    unsigned long long state_address, header_address, array, out;
    double patience_s;
    int status;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKd:run", &state_address, &header_address, &array, &out, &patience_s))
        return NULL;
    struct state *s = (struct state *)(uintptr_t)state_address;
    const char **sources = PyMem_Malloc((size_t)s->size * sizeof *sources);
    if (sources == NULL)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    if (__atomic_load_n(&board_of(s)->broken, __ATOMIC_ACQUIRE)) {
        status = BROKEN;
    } else {
        if (header_address) {
            memcpy(s->header, (const void *)(uintptr_t)header_address, sizeof s->header);
            s->array = (int64_t)array;
            s->out = (int64_t)out;
            begin(s);
        }
        status = advance(s, (int64_t)(patience_s * 1e9), sources);
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(sources);
    return PyLong_FromLong(status);
}

static PyMethodDef methods[] = {
    {"run", py_run, METH_VARARGS, "run(state_address, header_address, array_address, out_address, patience_s)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_collectives", "Collectives over shared memory; see platoon_base.collectives.exchange.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__collectives(void)
{
    return PyModule_Create(&module);
}
