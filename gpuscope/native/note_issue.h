/* The call of a collective, logged on the thread that makes it. */
#ifndef GPUSCOPE_NOTE_ISSUE_H
#define GPUSCOPE_NOTE_ISSUE_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* note_issue((kinds, entries, type of an entry, page or None, list of issues or None), op, group, inputs, outputs):
   the entry, added to the entries; None, and nothing done, unless it is of a kind that is known, and one tensor is
   both input and output or one goes in and one comes out. `CollectiveLog.issue` does the same. */
PyObject *gs_note_issue(PyObject *self, PyObject *const *given, Py_ssize_t count);

#endif
