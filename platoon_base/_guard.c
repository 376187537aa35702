/* Ends a device's wait for ranks that are gone while this process cannot run Python: a framework may wait for the device
 * with the interpreter's lock held, such as torch for a number that it needs on the host. Then no thread of Python can
 * end that wait, and it would last for ever.
 *
 * A thread looks ten times a second for what device_faults.py looks for: a rank that died; one that is behind, and has
 * left, or is late; one whose call of this number is another. If it lasts, the thread leaves `grace_s` to Python, which
 * knows the reason, and then calls the function that was given, such as ncclCommAbort. Only the first of this thread and
 * `end` calls it. A guard's memory stays, as somebody may still have its address.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* fcntl() itself: with 64-bit offsets, as Python.h asks for, the C library's needs glibc 2.28. */
static int control(int fd, int command, void *argument)
{
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

#define LOOK_NS 100000000
#define STOP_S 5.0 /* the longest wait for the thread, which may be within the function */
#define SIGNATURE_BITS 24 /* of a call's word, below its number; as in calls.py */
#define NO_THREAD ((unsigned long)-1)

struct rank {
    const volatile int64_t *call; /* the word of its latest call */
    const volatile int64_t *left; /* not 0 once it has left in good order */
    int64_t lock;                 /* the byte that it locks while it takes part */
};

struct guard {
    volatile double deadline_s; /* of the latest call, by the monotonic clock; written by Python, so it comes first */
    const volatile int64_t *call;
    int fd, count, ended, stopped, finished; /* the last three are atomic */
    double grace_s;
    int (*end)(void *);
    void *argument;
    struct rank others[];
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int locked(int fd, int64_t byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    return control(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Whether the latest call of this rank will never complete, as far as can be seen from here. */
static int is_lost(const struct guard *g, double now)
{
    int64_t mine = *g->call;
    if (mine >> SIGNATURE_BITS == 0)
        return 0;
    for (int i = 0; i < g->count; ++i) {
        const struct rank *r = &g->others[i];
        int gone = !locked(g->fd, r->lock); /* asked first: a rank says that it leaves, and what it calls, before */
        int64_t theirs = *r->call;
        int behind = theirs >> SIGNATURE_BITS < mine >> SIGNATURE_BITS;
        int stranger = theirs >> SIGNATURE_BITS == mine >> SIGNATURE_BITS && theirs != mine;
        if (stranger || (gone && (behind || !*r->left)) || (behind && now > g->deadline_s))
            return 1;
    }
    return 0;
}

static int end_once(struct guard *g)
{
    if (__atomic_load_n(&g->stopped, __ATOMIC_SEQ_CST) || __atomic_exchange_n(&g->ended, 1, __ATOMIC_SEQ_CST))
        return 0;
    g->end(g->argument);
    return 1;
}

static void watch(void *argument)
{
    struct guard *g = argument;
    double since = 0;
    const struct timespec nap = {0, LOOK_NS};
    while (!__atomic_load_n(&g->stopped, __ATOMIC_SEQ_CST) && !__atomic_load_n(&g->ended, __ATOMIC_SEQ_CST)) {
        double now = now_s();
        if (!is_lost(g, now))
            since = 0;
        else if (since == 0)
            since = now;
        else if (now - since > g->grace_s)
            end_once(g);
        nanosleep(&nap, NULL);
    }
    __atomic_store_n(&g->finished, 1, __ATOMIC_SEQ_CST);
}

static PyObject *py_start(PyObject *self, PyObject *args)
{
    unsigned long long call, table, end, argument;
    int fd, count;
    double grace_s;
    (void)self;
    if (!PyArg_ParseTuple(args, "iKKiKKd:start", &fd, &call, &table, &count, &end, &argument, &grace_s))
        return NULL;
    struct guard *g = calloc(1, sizeof *g + (size_t)count * sizeof *g->others);
    if (g == NULL)
        return PyErr_NoMemory();
    g->fd = control(fd, F_DUPFD_CLOEXEC, NULL);
    if (g->fd < 0) {
        free(g);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    g->deadline_s = 1.0 / 0.0;
    g->call = (const volatile int64_t *)(uintptr_t)call;
    g->count = count;
    g->grace_s = grace_s;
    g->end = (int (*)(void *))(uintptr_t)end;
    g->argument = (void *)(uintptr_t)argument;
    const uint64_t *rows = (const uint64_t *)(uintptr_t)table;
    for (int i = 0; i < count; ++i, rows += 3)
        g->others[i] = (struct rank){(const volatile int64_t *)(uintptr_t)rows[0],
                                     (const volatile int64_t *)(uintptr_t)rows[1], (int64_t)rows[2]};
    if (PyThread_start_new_thread(watch, g) == NO_THREAD) {
        close(g->fd);
        free(g);
        PyErr_SetString(PyExc_RuntimeError, "can't start new thread");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong((uintptr_t)g);
}

static PyObject *py_end(PyObject *self, PyObject *args)
{
    unsigned long long address;
    int first;
    (void)self;
    if (!PyArg_ParseTuple(args, "K:end", &address))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    first = end_once((struct guard *)(uintptr_t)address);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(first);
}

static PyObject *py_ended(PyObject *self, PyObject *args)
{
    unsigned long long address;
    (void)self;
    if (!PyArg_ParseTuple(args, "K:ended", &address))
        return NULL;
    return PyBool_FromLong(__atomic_load_n(&((struct guard *)(uintptr_t)address)->ended, __ATOMIC_SEQ_CST));
}

static PyObject *py_stop(PyObject *self, PyObject *args)
{
    unsigned long long address;
    int finished;
    (void)self;
    if (!PyArg_ParseTuple(args, "K:stop", &address))
        return NULL;
    struct guard *g = (struct guard *)(uintptr_t)address;
    Py_BEGIN_ALLOW_THREADS
    const struct timespec nap = {0, LOOK_NS / 20};
    const double until = now_s() + STOP_S;
    __atomic_store_n(&g->stopped, 1, __ATOMIC_SEQ_CST);
    while (!(finished = __atomic_load_n(&g->finished, __ATOMIC_SEQ_CST)) && now_s() < until)
        nanosleep(&nap, NULL);
    Py_END_ALLOW_THREADS
    if (finished)
        close(g->fd);
    return PyBool_FromLong(finished);
}

static PyMethodDef methods[] = {
    {"start", py_start, METH_VARARGS,
     "start(fd, call, table, count, end, argument, grace_s) -> address, at which the deadline lies"},
    {"end", py_end, METH_VARARGS, "end(address) -> whether this call did it"},
    {"ended", py_ended, METH_VARARGS, "ended(address) -> whether anybody did it"},
    {"stop", py_stop, METH_VARARGS, "stop(address) -> whether the thread has ended; nobody does it any more"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_guard", "Ends a device's wait; see platoon_base.collectives.device_faults.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__guard(void)
{
    return PyModule_Create(&module);
}
