/* Calls of Python from XLA's compiled programs. Gates keep most of them out: most training steps synchronize
 * nothing, and a call of Python takes as long as a tenth of a small step.
 *
 * The structures are those of `xla/ffi/api/c_api.h`, version 0.1 and later: they only grow at their ends and contain
 * their sizes.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define EXECUTE 3
#define METADATA 1
#define INTERNAL 13
#define GATES 4096 /* Calls with larger numbers always reach Python. */

struct version {
    size_t size;
    void *extension;
    int major, minor;
};

struct metadata {
    size_t size;
    struct version version;
};

struct extension {
    size_t size;
    int type;
    struct extension *next;
    struct metadata *metadata;
};

struct buffer {
    size_t size;
    void *extension;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
};

struct buffers {
    size_t size;
    void *extension;
    int64_t count;
    void *types;
    struct buffer **buffers;
};

struct scalar {
    int dtype;
    int64_t *value;
};

struct attributes {
    size_t size;
    void *extension;
    int64_t count;
    void *types, *names;
    struct scalar **values;
};

struct error_arguments {
    size_t size;
    void *extension;
    const char *message;
    int code;
};

struct stream_arguments {
    size_t size;
    void *extension, *context, *stream;
};

struct api {
    size_t size;
    void *extension;
    struct version version;
    void *internal;
    void *(*make_error)(struct error_arguments *);
    void *others[3];
    void *(*get_stream)(struct stream_arguments *);
};

struct frame {
    size_t size;
    struct extension *extension;
    struct api *api;
    void *context;
    int stage;
    struct buffers arguments, results;
    struct attributes attributes;
};

static PyObject *answer; /* The function of Python that gets the calls. */
static int gates[GATES];
static uint64_t came[GATES]; /* Number of calls made. */

/* Return whether Python gets this call: a call of the program, and an admitted one. */
static int is_admitted(struct frame *f)
{
    if (f->extension && f->extension->type == METADATA) {
        f->extension->metadata->version.major = 0;
        f->extension->metadata->version.minor = 1;
        return 0;
    }
    if (f->stage != EXECUTE)
        return 0;
    uint64_t number = (uint64_t)*f->attributes.values[0]->value;
    if (number >= GATES)
        return 1;
    int wanted = __atomic_exchange_n(&gates[number], 0, __ATOMIC_ACQ_REL);
    __atomic_add_fetch(&came[number], 1, __ATOMIC_ACQ_REL);
    return wanted;
}

static PyObject *dims_of(const struct buffer *each)
{
    PyObject *dims = PyTuple_New(each->rank);
    for (int64_t k = 0; dims && k < each->rank; ++k)
        if (PyTuple_SetItem(dims, k, PyLong_FromLongLong(each->dims[k])))
            Py_CLEAR(dims);
    return dims;
}

/* Return the address, the number of elements, and the code of the dtype of each buffer, and its shape if asked to. */
static PyObject *described(const struct buffers *all, int with_dims)
{
    PyObject *found = PyList_New(all->count);
    for (int64_t i = 0; found && i < all->count; ++i) {
        const struct buffer *each = all->buffers[i];
        unsigned long long address = (unsigned long long)(uintptr_t)each->data;
        long long size = 1;
        for (int64_t k = 0; k < each->rank; ++k)
            size *= each->dims[k];
        PyObject *one = with_dims ? Py_BuildValue("KLiN", address, size, each->dtype, dims_of(each))
                                  : Py_BuildValue("KLi", address, size, each->dtype);
        if (!one || PyList_SetItem(found, i, one))
            Py_CLEAR(found);
    }
    return found;
}

/* Call Python; return an error of XLA, or NULL. */
static void *ask(struct frame *f, int in_place, void *stream)
{
    PyGILState_STATE state = PyGILState_Ensure();
    unsigned long long number = (unsigned long long)*f->attributes.values[0]->value;
    PyObject *results = described(&f->results, in_place), *text = NULL;
    PyObject *arguments = in_place ? described(&f->arguments, 1) : PyList_New(0);
    if (results && arguments)
        text = PyObject_CallFunction(answer, "KOOK", number, results, arguments, (unsigned long long)(uintptr_t)stream);
    void *error = NULL;
    if (text != Py_None) {
        const char *message = text ? PyBytes_AsString(text) : NULL;
        PyErr_Clear();
        struct error_arguments made = {sizeof made, NULL, message ? message : "the call failed", INTERNAL};
        error = f->api->make_error(&made);
    }
    Py_XDECREF(text);
    Py_XDECREF(arguments);
    Py_XDECREF(results);
    PyGILState_Release(state);
    return error;
}

static void *in_place(struct frame *f)
{
    return is_admitted(f) ? ask(f, 1, NULL) : NULL;
}

static void *on_cpu(struct frame *f)
{
    return is_admitted(f) ? ask(f, 0, NULL) : NULL;
}

static void *on_cuda(struct frame *f)
{
    if (!is_admitted(f))
        return NULL;
    struct stream_arguments asked = {sizeof asked, NULL, f->context, NULL};
    void *error = f->api->get_stream(&asked);
    return error ? error : ask(f, 0, asked.stream);
}

static PyObject *targets(PyObject *self, PyObject *function)
{
    Py_INCREF(function);
    Py_XDECREF(answer);
    answer = function;
    return Py_BuildValue("NNN", PyCapsule_New((void *)in_place, NULL, NULL), PyCapsule_New((void *)on_cpu, NULL, NULL),
                         PyCapsule_New((void *)on_cuda, NULL, NULL));
}

static PyObject *set_gate(PyObject *self, PyObject *args)
{
    unsigned long long number;
    int state;
    if (!PyArg_ParseTuple(args, "Ki", &number, &state))
        return NULL;
    if (number < GATES)
        __atomic_store_n(&gates[number], state, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

static PyObject *calls_of(PyObject *self, PyObject *args)
{
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "K", &number))
        return NULL;
    return PyLong_FromUnsignedLongLong(number < GATES ? __atomic_load_n(&came[number], __ATOMIC_ACQUIRE) : 0);
}

static PyMethodDef methods[] = {
    {"targets", targets, METH_O, "Return functions for XLA, in capsules, that call a function of Python."},
    {"set_gate", set_gate, METH_VARARGS, "Let no call of a number pass (0), or one (1)."},
    {"calls_of", calls_of, METH_VARARGS, "Return how many calls of a number have been made, let in or not."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_gates", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__gates(void)
{
    PyObject *found = PyModule_Create(&module);
    if (found && PyModule_AddIntConstant(found, "GATES", GATES)) {
        Py_DECREF(found);
        return NULL;
    }
    return found;
}
