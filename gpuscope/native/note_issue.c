#define _POSIX_C_SOURCE 200809L /* the CPU time of a thread */
#include "note_issue.h"

#ifdef _WIN32

PyObject *gs_note_issue(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    (void)self, (void)given, (void)count;
    Py_RETURN_NONE;
}

#else

#include <stdint.h>
#include <string.h>
#include <time.h>

static PyObject *shape, *dtype, *name;

static int names(void)
{
    if (!name) {
        shape = PyUnicode_InternFromString("shape");
        dtype = PyUnicode_InternFromString("dtype");
        name = PyUnicode_InternFromString("name");
    }
    return shape && dtype && name;
}

/* What `_key` makes of the two usual forms; NULL without an error for others. */
static PyObject *key_of(PyObject *op, PyObject *group, PyObject *inputs, PyObject *outputs)
{
    int same = inputs == outputs && PyList_CheckExact(inputs) && PyList_Size(inputs) == 1;
    PyObject *one = same ? PyList_GetItem(inputs, 0) : inputs, *key = NULL;
    PyObject *called, *kind, *in = NULL, *out = NULL;
    if (!same && (PyList_Check(inputs) || PyTuple_Check(inputs) || PyList_Check(outputs) || PyTuple_Check(outputs)))
        return NULL;
    called = PyObject_GetAttr(group, name);
    kind = called ? PyObject_GetAttr(one, dtype) : NULL;
    in = kind ? PyObject_GetAttr(one, shape) : NULL;
    out = in && !same ? PyObject_GetAttr(outputs, shape) : NULL;
    if (in && (same || out))
        key = same ? PyTuple_Pack(4, op, called, kind, in) : PyTuple_Pack(5, op, called, kind, in, out);
    else if (PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    Py_XDECREF(called);
    Py_XDECREF(kind);
    Py_XDECREF(in);
    Py_XDECREF(out);
    return key;
}

static long long clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A Collective of these fields; `number` and `issued` are borrowed. */
static PyObject *made(PyObject *type, PyObject *op, PyObject *group, PyObject *number, PyObject *fields, PyObject *issued)
{
    Py_ssize_t many = PyTuple_Size(fields), at;
    PyObject *zero = PyLong_FromLong(0), *values = PyTuple_New(many + 7), *entry;
    PyObject *first[4] = {op, group, number, zero}, *last[3] = {Py_None, Py_None, issued};
    if (!zero || !values) {
        Py_XDECREF(zero);
        Py_XDECREF(values);
        return NULL;
    }
    for (at = 0; at < many + 7; at++) {
        PyObject *one = at < 4 ? first[at] : at < many + 4 ? PyTuple_GetItem(fields, at - 4) : last[at - many - 4];
        PyTuple_SetItem(values, at, Py_NewRef(one));
    }
    entry = PyObject_Call(type, values, NULL);
    Py_DECREF(values);
    Py_DECREF(zero);
    return entry;
}

/* Writes the call over the one before. */
static int keep(PyObject *page, PyObject *place, PyObject *number, long long issued)
{
    int64_t last[3] = {PyLong_AsLongLong(place), PyLong_AsLongLong(number), issued};
    Py_buffer into;
    if (PyObject_GetBuffer(page, &into, PyBUF_WRITABLE) < 0)
        return -1;
    if (into.len >= (Py_ssize_t)sizeof last)
        memcpy(into.buf, last, sizeof last);
    PyBuffer_Release(&into);
    return 0;
}

static int add_issue(PyObject *issues, long long issued)
{
    PyObject *one = Py_BuildValue("LLk", issued, clock_ns(CLOCK_THREAD_CPUTIME_ID), PyThread_get_thread_ident());
    int done = one ? PyList_Append(issues, one) : -1;
    Py_XDECREF(one);
    return done;
}

PyObject *gs_note_issue(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *log, *key, *kind, *numbers, *number, *page, *issues, *issued, *entry = NULL;
    long long now;
    (void)self;
    if (count != 5 || !PyTuple_Check(given[0]) || PyTuple_Size(given[0]) != 5)
        return PyErr_Format(PyExc_TypeError, "note_issue takes a log, an operation, a group, inputs and outputs");
    if (!names())
        return NULL;
    log = given[0];
    key = key_of(given[1], given[2], given[3], given[4]);
    kind = key ? PyDict_GetItemWithError(PyTuple_GetItem(log, 0), key) : NULL;
    Py_XDECREF(key);
    if (!kind) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    numbers = PyTuple_GetItem(kind, 1);
    if (!numbers)
        return NULL;
    if (numbers == Py_None)
        Py_RETURN_NONE;
    Py_INCREF(kind); /* another thread may forget it */
    now = clock_ns(CLOCK_REALTIME);
    number = PyIter_Next(numbers);
    issued = PyLong_FromLongLong(now);
    if (number && issued)
        entry = made(PyTuple_GetItem(log, 2), given[1], given[2], number, PyTuple_GetItem(kind, 0), issued);
    page = PyTuple_GetItem(log, 3);
    issues = PyTuple_GetItem(log, 4);
    if (entry && (PyList_Append(PyTuple_GetItem(log, 1), entry) < 0 || (issues != Py_None && add_issue(issues, now) < 0) ||
                  (page != Py_None && keep(page, PyTuple_GetItem(kind, 2), number, now) < 0)))
        Py_CLEAR(entry);
    Py_XDECREF(number);
    Py_XDECREF(issued);
    Py_DECREF(kind);
    return entry;
}

#endif
