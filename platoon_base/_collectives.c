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
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include "_reductions.h"
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

enum { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, BARRIER };
enum { ENDED, AGAIN, BROKEN, MISMATCH };
enum { ARRIVED, PUT, COMBINED, DONE }; /* the counters of a rank; a fifth is Python's */

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
    int64_t counters[5];
    uint64_t cores[11]; /* that this rank may run on, a bit each; so far two cache lines, as processors fetch pairs */
    int64_t headers[2][8]; /* of even and of odd calls */
};

/* Filled by Python once, except for `call` and what follows. */
struct state {
    int64_t segment, rank, size, chunk, buffers, direct, roomy_spins, crowded_spins, lines, slots;
    int64_t call, step; /* calls begun; steps of all calls that have ended */
    int64_t waiting_for, until; /* a counter, and the value that all must reach; 0: for nobody */
    int64_t header[8], array, out, spins;
    int64_t stage, turn, steps, width, parts;
};

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

/* How often to look before the core is given away: worth it only if the ranks have a core each, by their affinities. */
static int64_t find_spins(const struct state *s)
{
    int64_t cores = 0;
    for (size_t word = 0; word < sizeof line_of(s, 0)->cores / 8; word++) {
        uint64_t any = 0;
        for (int64_t q = 0; q < s->size; q++)
            any |= line_of(s, q)->cores[word];
        for (; any; any &= any - 1)
            cores++;
    }
    return cores >= s->size ? s->roomy_spins : s->crowded_spins;
}

/* Wait, but first put what there is room for: others may be without a core, and need it as soon as they have one. */
static int meet(struct state *s, int counter, int64_t value, int64_t patience_ns)
{
    const int64_t *put = &line_of(s, s->rank)->counters[PUT];
    while (*put < s->step + s->steps && !all_reached(s, counter, value) && all_reached(s, DONE, *put + 1 - s->buffers))
        put_and_announce(s, *put - s->step);
    return wait_for(s, counter, value, patience_ns);
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
    if (s->call == 1) /* all were there in the call before */
        s->spins = find_spins(s);
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
            if ((status = meet(s, PUT, s->step + combined + 1, patience_ns)) != ENDED)
                return status;
            combine_step(s, combined, sources);
            announce(s, three ? COMBINED : DONE, s->step + combined + 1);
        }
        s->stage = 3;
        if (three && taken >= 0) {
            if ((status = meet(s, COMBINED, s->step + taken + 1, patience_ns)) != ENDED)
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

/* What NumPy tells about an array in C, the same in all of its versions; the buffer protocol came to the limited API
 * with Python 3.11 only. */
struct array_interface {
    int two, dimensions;
    char kind;
    int itemsize, flags;
    intptr_t *shape, *strides;
    void *data;
};

/* The array's memory stays where it is while the caller keeps the array. */
static int find_data(PyObject *array, void **data)
{
    PyObject *capsule = PyObject_GetAttrString(array, "__array_struct__");
    if (capsule == NULL)
        return 0;
    const struct array_interface *found = PyCapsule_GetPointer(capsule, NULL);
    if (found != NULL)
        *data = found->data;
    Py_DECREF(capsule);
    return found != NULL;
}

static int run(struct state *s, int64_t patience_ns, const char **sources, int fresh)
{
    if (__atomic_load_n(&board_of(s)->broken, __ATOMIC_ACQUIRE))
        return BROKEN;
    if (fresh)
        begin(s);
    return advance(s, patience_ns, sources);
}

/* Without the interpreter's lock: the ranks may be threads of one process. */
static PyObject *py_run(PyObject *self, PyObject *args)
{
    unsigned long long state_address;
    PyObject *header, *array, *out;
    void *header_data = NULL, *array_data, *out_data;
    double patience_s;
    int status;
    (void)self;
    if (!PyArg_ParseTuple(args, "KOOOd:run", &state_address, &header, &array, &out, &patience_s))
        return NULL;
    struct state *s = (struct state *)(uintptr_t)state_address;
    if (header != Py_None) {
        if (!find_data(header, &header_data) || !find_data(array, &array_data) || !find_data(out, &out_data))
            return NULL;
        memcpy(s->header, header_data, sizeof s->header);
        s->array = (intptr_t)array_data;
        s->out = (intptr_t)out_data;
    }
    const char **sources = PyMem_Malloc((size_t)s->size * sizeof *sources);
    if (sources == NULL)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    status = run(s, (int64_t)(patience_s * 1e9), sources, header_data != NULL);
    Py_END_ALLOW_THREADS
    PyMem_Free(sources);
    return PyLong_FromLong(status);
}

static PyMethodDef methods[] = {
    {"run", py_run, METH_VARARGS, "run(state_address, header, array, out, patience_s)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_collectives", "Collectives over shared memory; see platoon_base.collectives.host_exchange.", -1,
    methods, NULL, NULL, NULL, NULL,
};

/* Where Python finds what both use: the declarations in host_exchange.py must say the same. */
static PyObject *offsets(void)
{
#define AT(of, field) #of "." #field, (Py_ssize_t)offsetof(struct of, field)
    return Py_BuildValue("{snsnsnsnsnsnsnsnsnsnsnsnsnsnsnsnsnsnsnsnsnsn}", AT(board, broken), AT(board, bell),
        AT(board, sleepers), AT(line, counters), AT(line, cores), AT(line, headers), AT(state, segment), AT(state, rank),
        AT(state, size), AT(state, chunk), AT(state, buffers), AT(state, direct), AT(state, roomy_spins),
        AT(state, crowded_spins), AT(state, lines), AT(state, slots), AT(state, call), AT(state, step),
        AT(state, waiting_for), AT(state, until), "line", (Py_ssize_t)sizeof(struct line), "state",
        (Py_ssize_t)sizeof(struct state));
#undef AT
}

PyMODINIT_FUNC PyInit__collectives(void)
{
    PyObject *found = PyModule_Create(&module);
    if (found != NULL && PyModule_AddObject(found, "OFFSETS", offsets()) < 0) {
        Py_DECREF(found);
        return NULL;
    }
    return found;
}
