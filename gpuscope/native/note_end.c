#include "note_end.h"

#include <time.h>

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

PyObject *gs_note_end(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    struct timespec now;
    PyObject *before, *value, *ns;
    int done;
    (void)self;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "note_end takes an entry, a function and a future");
    timespec_get(&now, TIME_UTC);
    before = PyObject_GetAttrString(given[0], "completed_ns");
    Py_XDECREF(before);
    if (!before)
        return NULL;
    if (before != Py_None)
        Py_RETURN_NONE;
    value = PyObject_CallMethod(given[2], "value", NULL);
    if (!value && !told(given[1], given[0]))
        return NULL;
    Py_XDECREF(value);
    ns = PyLong_FromLongLong((long long)now.tv_sec * 1000000000 + now.tv_nsec);
    done = ns ? PyObject_SetAttrString(given[0], "completed_ns", ns) : -1;
    Py_XDECREF(ns);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}
