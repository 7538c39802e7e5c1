/* The end of a collective, noted on the thread that ends it. */
#ifndef GPUSCOPE_NOTE_END_H
#define GPUSCOPE_NOTE_END_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* note_end(entry, failed, future), as plain.py has it. */
PyObject *gs_note_end(PyObject *self, PyObject *const *given, Py_ssize_t count);

#endif
