#include "note_end.h"

#include <time.h>

static PyObject *completed_ns, *value_of;
static _Thread_local int known;

/* Python keeps its state of this thread from now on: for each of gloo's collectives it would be made and freed twice.
   A thread that has ended leaves it behind, some hundred bytes. */
static int keep_thread(void)
{
    if (!completed_ns)
        completed_ns = PyUnicode_InternFromString("completed_ns");
    if (!value_of)
        value_of = PyUnicode_InternFromString("value");
    if (!completed_ns || !value_of)
        return 0;
    PyGILState_Ensure();
    known = 1;
    return 1;
}

/* Tells of the error that is set; 0 where telling fails. */
static int told(PyObject *failed, PyObject *entry)
{
    PyObject *type, *error, *trace, *done = NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (error)
        done = PyObject_CallFunctionObjArgs(failed, entry, error, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_XDECREF(done);
    return done != NULL;
}

/* The future's callback: `self` is (entry, failed, future). */
static PyObject *note_end(PyObject *self, PyObject *future)
{
    struct timespec now;
    PyObject *entry = PyTuple_GetItem(self, 0), *before, *value, *ns;
    int done;
    (void)future;
    timespec_get(&now, TIME_UTC);
    if (!known && !keep_thread())
        return NULL;
    before = PyObject_GetAttr(entry, completed_ns);
    Py_XDECREF(before);
    if (!before)
        return NULL;
    if (before != Py_None)
        Py_RETURN_NONE;
    value = PyObject_CallMethodObjArgs(PyTuple_GetItem(self, 2), value_of, NULL);
    if (!value && !told(PyTuple_GetItem(self, 1), entry))
        return NULL;
    Py_XDECREF(value);
    ns = PyLong_FromLongLong((long long)now.tv_sec * 1000000000 + now.tv_nsec);
    done = ns ? PyObject_SetAttr(entry, completed_ns, ns) : -1;
    Py_XDECREF(ns);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef at_end = {"note_end", note_end, METH_O, NULL};

PyObject *gs_note_end(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *held, *callback, *done = NULL;
    (void)self;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "note_end takes an entry, a function and a future");
    held = PyTuple_Pack(3, given[0], given[1], given[2]);
    callback = held ? PyCFunction_New(&at_end, held) : NULL;
    if (callback)
        done = PyObject_CallMethod(given[2], "add_done_callback", "O", callback);
    Py_XDECREF(held);
    Py_XDECREF(callback);
    return done;
}
