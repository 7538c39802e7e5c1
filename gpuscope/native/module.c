/* The Python side of the native core: buffers in, bytearrays out, for numpy.frombuffer. Only the stable ABI of 3.11. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "columns.h"
#include "nested_spans.h"
#include "kineto_scan.h"
#include "launched.h"
#include "longest_path.h"
#include "note_end.h"
#include "note_issue.h"
#include "packet_scan.h"
#include "spans.h"
#include "sqlite_pages.h"

/* ---- helpers ---- */

static PyObject *copied(const void *data, size_t count, size_t item)
{
    return PyByteArray_FromStringAndSize(count ? data : "", (Py_ssize_t)(count * item));
}

#define COPIED(array, count) copied((array), (count), sizeof *(array))

/* Puts `value` (a new reference, perhaps NULL) into a dict; 0 where that fails. */
static int put(PyObject *dict, const char *name, PyObject *value)
{
    int done = value && PyDict_SetItemString(dict, name, value) == 0;
    Py_XDECREF(value);
    return done;
}

/* A contiguous buffer of `item`-byte items, read or written. */
static int get(PyObject *from, Py_buffer *view, Py_ssize_t item, int writable)
{
    if (PyObject_GetBuffer(from, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return 0;
    if (view->len % item) {
        PyBuffer_Release(view);
        PyErr_Format(PyExc_ValueError, "expected whole items of %zd bytes", item);
        return 0;
    }
    return 1;
}

static int inside(const gs_span *spans, size_t count, size_t size)
{
    for (size_t index = 0; index < count; index++)
        if (spans[index].at > size || spans[index].length > size - spans[index].at) {
            PyErr_SetString(PyExc_ValueError, "a span lies outside the text");
            return 0;
        }
    return 1;
}

/* ---- scan(text, categories) ---- */

static PyObject *rows_dict(const gs_rows *rows, int device)
{
    PyObject *dict = PyDict_New();
    size_t count = rows->count;
    if (!dict)
        return NULL;
    int good = put(dict, "start", COPIED(rows->start, count)) && put(dict, "end", COPIED(rows->end, count))
               && put(dict, "name", COPIED(rows->name, count)) && put(dict, "thread", COPIED(rows->thread, count))
               && put(dict, "route", COPIED(rows->route, count))
               && put(dict, "arguments", COPIED(rows->arguments, count))
               && put(dict, "correlation", COPIED(rows->correlation, count));
    if (good && device)
        good = put(dict, "stream", COPIED(rows->stream, count)) && put(dict, "device", COPIED(rows->device, count))
               && put(dict, "bytes", COPIED(rows->bytes, count)) && put(dict, "graph", COPIED(rows->graph, count))
               && put(dict, "context", COPIED(rows->context, count));
    if (good)
        return dict;
    Py_DECREF(dict);
    return NULL;
}

static PyObject *other_categories(const gs_block *block, const char *text)
{
    PyObject *list = PyList_New(0);
    for (size_t index = 0; list && index < block->category_count; index++) {
        const gs_category *one = &block->categories[index];
        if (one->route != GS_OTHER || !one->count)
            continue;
        PyObject *pair = Py_BuildValue("y#K", text + one->text.at, (Py_ssize_t)one->text.length,
                                       (unsigned long long)one->count);
        if (!pair || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *block_dict(const gs_block *block, const char *text)
{
    PyObject *dict = PyDict_New();
    if (dict && put(dict, "events", PyLong_FromUnsignedLongLong(block->events))
        && put(dict, "shaped", PyLong_FromUnsignedLongLong(block->shaped))
        && put(dict, "host", rows_dict(&block->host, 0)) && put(dict, "device", rows_dict(&block->device, 1))
        && put(dict, "sync", rows_dict(&block->sync, 0))
        && put(dict, "names", COPIED(block->names.items, block->names.count))
        && put(dict, "processes", COPIED(block->host_threads.items, block->host_threads.count))
        && put(dict, "threads", COPIED(block->host_threads.seconds, block->host_threads.count))
        && put(dict, "row_processes", COPIED(block->device_rows.items, block->device_rows.count))
        && put(dict, "row_threads", COPIED(block->device_rows.seconds, block->device_rows.count))
        && put(dict, "external_ids", COPIED(block->external_ids.items, block->external_ids.count))
        && put(dict, "sequences", COPIED(block->sequences.items, block->sequences.count))
        && put(dict, "records", COPIED(block->records.items, block->records.count))
        && put(dict, "metadata", COPIED(block->metadata.items, block->metadata.count))
        && put(dict, "memory", COPIED(block->memory.items, block->memory.count))
        && put(dict, "counters", COPIED(block->counters.items, block->counters.count))
        && put(dict, "other", other_categories(block, text)))
        return dict;
    Py_XDECREF(dict);
    return NULL;
}

/* The categories of a dict {bytes in lower case: route}; valid as long as the dict. */
static gs_known_category *known_categories(PyObject *dict, size_t *count)
{
    PyObject *name, *route;
    Py_ssize_t position = 0, length;
    gs_known_category *known = calloc((size_t)PyDict_Size(dict) + 1, sizeof *known);
    char *text;
    if (!known) {
        PyErr_NoMemory();
        return NULL;
    }
    while (PyDict_Next(dict, &position, &name, &route)) {
        long number = PyLong_AsLong(route);
        if (PyErr_Occurred() || PyBytes_AsStringAndSize(name, &text, &length) < 0) {
            free(known);
            return NULL;
        }
        known[*count].text = text, known[*count].length = (size_t)length, known[*count].route = (int8_t)number;
        ++*count;
    }
    return known;
}

static PyObject *py_scan(PyObject *self, PyObject *args)
{
    PyObject *text, *categories, *result = NULL;
    Py_buffer view;
    size_t count = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO!:scan", &text, &PyDict_Type, &categories) || !get(text, &view, 1, 0))
        return NULL;
    gs_known_category *known = known_categories(categories, &count);
    if (known) {
        gs_block block;
        enum gs_status status;
        Py_BEGIN_ALLOW_THREADS
        status = gs_scan(view.buf, (size_t)view.len, known, count, &block);
        Py_END_ALLOW_THREADS
        if (status == GS_OK)
            result = block_dict(&block, view.buf);
        else if (status == GS_UNUSUAL)
            result = Py_NewRef(Py_None);
        else
            PyErr_NoMemory();
        gs_block_free(&block);
        free(known);
    }
    PyBuffer_Release(&view);
    return result;
}

/* ---- shape_texts(text, arguments) ---- */

static PyObject *shape_texts(const Py_buffer *text, const gs_span *from, size_t count)
{
    gs_span *found = malloc((count + 1) * 4 * sizeof *found);
    PyObject *result = NULL;
    if (!found)
        return PyErr_NoMemory();
    for (size_t row = 0; row < count; row++) {
        gs_span own[4];
        if (gs_shape_texts(text->buf, (size_t)text->len, from[row], own) != GS_OK) {
            free(found);
            Py_RETURN_NONE;
        }
        for (size_t which = 0; which < 4; which++)
            found[which * count + row] = own[which];
    }
    PyObject *parts[4];
    for (size_t which = 0; which < 4; which++)
        parts[which] = COPIED(found + which * count, count);
    if (parts[0] && parts[1] && parts[2] && parts[3])
        result = PyTuple_Pack(4, parts[0], parts[1], parts[2], parts[3]);
    for (size_t which = 0; which < 4; which++)
        Py_XDECREF(parts[which]);
    free(found);
    return result;
}

static PyObject *py_shape_texts(PyObject *self, PyObject *args)
{
    PyObject *text, *spans, *result = NULL;
    Py_buffer view, from;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO:shape_texts", &text, &spans) || !get(text, &view, 1, 0))
        return NULL;
    if (get(spans, &from, sizeof(gs_span), 0)) {
        size_t count = (size_t)from.len / sizeof(gs_span);
        if (inside(from.buf, count, (size_t)view.len))
            result = shape_texts(&view, from.buf, count);
        PyBuffer_Release(&from);
    }
    PyBuffer_Release(&view);
    return result;
}

/* ---- Codes: texts as they stand in files, to integers ---- */

typedef struct {
    uint64_t hash;
    size_t at;
    uint32_t length;
    int32_t code;
} entry;

typedef struct {
    PyObject_HEAD
    entry *entries; /* length + 1 in `length`, so that 0 is free */
    size_t count, room;
    uint8_t *letters;
    size_t used, space;
} Codes;

static entry *codes_find(const Codes *self, uint64_t hash, const uint8_t *text, uint32_t length)
{
    size_t slot = (size_t)hash & (self->room - 1);
    for (;; slot = (slot + 1) & (self->room - 1)) {
        entry *one = &self->entries[slot];
        if (!one->length
            || (one->hash == hash && one->length == length + 1 && memcmp(self->letters + one->at, text, length) == 0))
            return one;
    }
}

static int codes_grow(Codes *self)
{
    if (self->room && self->count * 2 < self->room)
        return 1;
    size_t room = self->room ? self->room * 2 : 4096;
    entry *larger = calloc(room, sizeof *larger);
    if (!larger)
        return 0;
    for (size_t index = 0; index < self->room; index++) {
        if (!self->entries[index].length)
            continue;
        size_t slot = (size_t)self->entries[index].hash & (room - 1);
        while (larger[slot].length)
            slot = (slot + 1) & (room - 1);
        larger[slot] = self->entries[index];
    }
    free(self->entries);
    self->entries = larger, self->room = room;
    return 1;
}

static PyObject *codes_put(PyObject *object, PyObject *args)
{
    Codes *self = (Codes *)object;
    const char *text;
    Py_ssize_t length;
    int code;
    if (!PyArg_ParseTuple(args, "y#i:put", &text, &length, &code))
        return NULL;
    if ((uint64_t)length >= UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the text is too long");
        return NULL;
    }
    size_t size = (size_t)length;
    if (!codes_grow(self))
        return PyErr_NoMemory();
    if (self->space - self->used < size + 1) { /* one more, so that there is always an address */
        size_t space = (self->used + size + 1) * 2;
        uint8_t *larger = realloc(self->letters, space);
        if (!larger)
            return PyErr_NoMemory();
        self->letters = larger, self->space = space;
    }
    uint64_t hash = gs_hash((const uint8_t *)text, size);
    entry *one = codes_find(self, hash, (const uint8_t *)text, (uint32_t)size);
    if (!one->length) {
        memcpy(self->letters + self->used, text, size);
        one->hash = hash, one->at = self->used, one->length = (uint32_t)size + 1;
        self->used += size, self->count++;
    }
    one->code = code;
    Py_RETURN_NONE;
}

/* The rows whose text has no code yet, as a list; the others' codes are in `codes`. */
static PyObject *codes_look(const Codes *self, const uint8_t *text, const gs_span *spans, size_t count, int32_t *codes)
{
    PyObject *missing = PyList_New(0);
    for (size_t index = 0; missing && index < count; index++) {
        const uint8_t *own = text + spans[index].at;
        const entry *one = self->room ? codes_find(self, gs_hash(own, spans[index].length), own, spans[index].length) : NULL;
        if (one && one->length) {
            codes[index] = one->code;
            continue;
        }
        PyObject *number = PyLong_FromSize_t(index);
        if (!number || PyList_Append(missing, number) < 0)
            Py_CLEAR(missing);
        Py_XDECREF(number);
    }
    return missing;
}

static PyObject *codes_get(PyObject *object, PyObject *args)
{
    PyObject *text, *spans, *result = NULL;
    Py_buffer view, from;
    if (!PyArg_ParseTuple(args, "OO:get", &text, &spans) || !get(text, &view, 1, 0))
        return NULL;
    if (get(spans, &from, sizeof(gs_span), 0)) {
        size_t count = (size_t)from.len / sizeof(gs_span);
        PyObject *codes = NULL, *missing = NULL;
        if (inside(from.buf, count, (size_t)view.len))
            codes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(int32_t)));
        if (codes)
            missing = codes_look((Codes *)object, view.buf, from.buf, count, (int32_t *)(void *)PyByteArray_AsString(codes));
        if (missing)
            result = PyTuple_Pack(2, codes, missing);
        Py_XDECREF(codes);
        Py_XDECREF(missing);
        PyBuffer_Release(&from);
    }
    PyBuffer_Release(&view);
    return result;
}

static void codes_dealloc(PyObject *object)
{
    Codes *self = (Codes *)object;
    PyTypeObject *type = Py_TYPE(object);
    free(self->entries);
    free(self->letters);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef codes_methods[] = {
    {"put", codes_put, METH_VARARGS, "put(text, code): the code of a text."},
    {"get", codes_get, METH_VARARGS, "get(text, spans) -> (codes, rows without one)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot codes_slots[] = {
    {Py_tp_dealloc, codes_dealloc},
    {Py_tp_methods, codes_methods},
    {Py_tp_doc, "Texts as they stand in files, to integers."},
    {0, NULL},
};

static PyType_Spec codes_spec = {"gpuscope.native._core.Codes", sizeof(Codes), 0, Py_TPFLAGS_DEFAULT, codes_slots};

/* ---- nested spans ---- */

enum { MOST_THREADS = 1 << 24, MOST_COLUMNS = 20 };

typedef struct {
    Py_buffer views[MOST_COLUMNS];
    int taken;
} buffers;

static void *take_as(buffers *all, PyObject *from, Py_ssize_t item, size_t *count, int writable)
{
    Py_buffer *view = &all->views[all->taken];
    if (all->taken == MOST_COLUMNS || !get(from, view, item, writable))
        return NULL;
    all->taken++;
    size_t own = (size_t)(view->len / item);
    if (*count != SIZE_MAX && own != *count) {
        PyErr_SetString(PyExc_ValueError, "columns differ in length");
        return NULL;
    }
    *count = own;
    return view->buf ? view->buf : (void *)all;
}

static void *take(buffers *all, PyObject *from, Py_ssize_t item, size_t *count)
{
    return take_as(all, from, item, count, 0);
}

static void release(buffers *all)
{
    while (all->taken)
        PyBuffer_Release(&all->views[--all->taken]);
}

/* Numbers of threads, `count` of them, in 64 bits or in 32. */
static int take_threads(buffers *all, PyObject *from, size_t count, gs_threads *threads)
{
    Py_buffer *view = &all->views[all->taken];
    void *items = take(all, from, 4, &(size_t){SIZE_MAX});
    if (!items)
        return 0;
    int wide = (size_t)view->len != count * 4;
    threads->wide = wide ? items : NULL, threads->narrow = wide ? NULL : items;
    if (!wide || (size_t)view->len == count * 8)
        return 1;
    PyErr_SetString(PyExc_ValueError, "columns differ in length");
    return 0;
}

static int take_spans(buffers *all, PyObject *const columns[4], long long threads, gs_nested *spans)
{
    spans->count = SIZE_MAX;
    if (threads < 0 || threads > MOST_THREADS) {
        PyErr_SetString(PyExc_ValueError, "too many threads");
        return 0;
    }
    spans->threads = threads;
    return (spans->start = take(all, columns[0], 8, &spans->count)) && (spans->end = take(all, columns[1], 8, &spans->count))
           && take_threads(all, columns[2], spans->count, &spans->thread)
           && (spans->candidates = take(all, columns[3], 1, &spans->count));
}

static PyObject *py_innermost(PyObject *self, PyObject *args)
{
    PyObject *columns[4], *at_thread, *at, *result = NULL;
    long long threads;
    buffers all = {.taken = 0};
    gs_nested spans;
    size_t instants = SIZE_MAX;
    gs_threads thread_of;
    const int64_t *instant;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOLOO:innermost", &columns[0], &columns[1], &columns[2], &columns[3], &threads, &at_thread,
                          &at))
        return NULL;
    if (take_spans(&all, columns, threads, &spans) && (instant = take(&all, at, 8, &instants))
        && take_threads(&all, at_thread, instants, &thread_of)
        && (result = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(instants * 8)))) {
        int64_t *found = (int64_t *)(void *)PyByteArray_AsString(result);
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = gs_innermost(&spans, thread_of, instant, instants, found);
        Py_END_ALLOW_THREADS
        if (!done) {
            Py_CLEAR(result);
            PyErr_NoMemory();
        }
    }
    release(&all);
    return result;
}

static PyObject *py_parents(PyObject *self, PyObject *args)
{
    PyObject *columns[4], *result = NULL;
    long long threads;
    buffers all = {.taken = 0};
    gs_nested spans;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOL:parents", &columns[0], &columns[1], &columns[2], &columns[3], &threads))
        return NULL;
    if (take_spans(&all, columns, threads, &spans)
        && (result = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(spans.count * 8)))) {
        int64_t *found = (int64_t *)(void *)PyByteArray_AsString(result);
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = gs_parents(&spans, found);
        Py_END_ALLOW_THREADS
        if (!done) {
            Py_CLEAR(result);
            PyErr_NoMemory();
        }
    }
    release(&all);
    return result;
}

/* ---- passes over columns ---- */

static PyObject *py_places(PyObject *self, PyObject *args)
{
    PyObject *sorted, *values, *result = NULL;
    int right;
    buffers all = {.taken = 0};
    size_t count = SIZE_MAX, asked = SIZE_MAX;
    const int64_t *in, *of;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOp:places", &sorted, &values, &right))
        return NULL;
    if ((in = take(&all, sorted, 8, &count)) && (of = take(&all, values, 8, &asked))
        && (result = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(asked * 8)))) {
        int64_t *found = (int64_t *)(void *)PyByteArray_AsString(result);
        Py_BEGIN_ALLOW_THREADS
        gs_places(in, count, of, asked, right, found);
        Py_END_ALLOW_THREADS
    }
    release(&all);
    return result;
}

static PyObject *py_group(PyObject *self, PyObject *args)
{
    PyObject *values, *group, *into;
    buffers all = {.taken = 0};
    size_t count = SIZE_MAX, items = SIZE_MAX;
    const int64_t *of, *in;
    int64_t *first;
    int done = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO:group", &values, &group, &into))
        return NULL;
    if ((of = take(&all, values, 8, &count)) && (in = take(&all, group, 8, &count))
        && (first = take_as(&all, into, 8, &items, 1))) {
        size_t groups = items / 5;
        gs_grouped found = {first, first + groups, first + 2 * groups, first + 3 * groups, first + 4 * groups};
        Py_BEGIN_ALLOW_THREADS
        done = gs_group(of, in, count, groups, &found);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
        if (done < 0)
            PyErr_SetString(PyExc_ValueError, "a group is not there");
    }
    release(&all);
    return done == 1 ? Py_NewRef(Py_None) : NULL;
}

static int take_launched(buffers *all, PyObject *columns, gs_launched *launched)
{
    PyObject *own[4];
    size_t sums = SIZE_MAX;
    launched->count = SIZE_MAX;
    if (!PyArg_ParseTuple(columns, "OOOO", &own[0], &own[1], &own[2], &own[3]))
        return 0;
    if (!(launched->at = take(all, own[0], 8, &launched->count)) || !(launched->start = take(all, own[1], 8, &launched->count))
        || !(launched->end = take(all, own[2], 8, &launched->count)) || !(launched->sums = take(all, own[3], 8, &sums)))
        return 0;
    if (sums / 4 == launched->count + 1 && sums % 4 == 0)
        return 1;
    PyErr_SetString(PyExc_ValueError, "expected four rows of sums");
    return 0;
}

static PyObject *py_add_launched(PyObject *self, PyObject *args)
{
    PyObject *columns[4], *rows, *parent, *by, *of_ranges, *number, *longest, *figures;
    long operators, ranges;
    buffers all = {.taken = 0};
    gs_host host = {.count = SIZE_MAX};
    gs_launched own, others;
    gs_sums into = {.keys = SIZE_MAX};
    size_t count = SIZE_MAX, sums = SIZE_MAX;
    const int64_t *of, *above;
    int done = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "(OOOO)OOllO!O!(OOO):add_launched", &columns[0], &columns[1], &columns[2], &columns[3], &rows,
                          &parent, &operators, &ranges, &PyTuple_Type, &by, &PyTuple_Type, &of_ranges, &number, &longest,
                          &figures))
        return NULL;
    if ((host.start = take(&all, columns[0], 8, &host.count)) && (host.end = take(&all, columns[1], 8, &host.count))
        && (host.name = take(&all, columns[2], 4, &host.count)) && (host.category = take(&all, columns[3], 1, &host.count))
        && (of = take(&all, rows, 8, &count)) && (above = take(&all, parent, 8, &host.count)) && take_launched(&all, by, &own)
        && take_launched(&all, of_ranges, &others) && (into.number = take_as(&all, number, 8, &into.keys, 1))
        && (into.longest = take_as(&all, longest, 8, &into.keys, 1)) && (into.figures = take_as(&all, figures, 8, &sums, 1))) {
        if (sums / GS_FIGURES == into.keys && sums % GS_FIGURES == 0) {
            Py_BEGIN_ALLOW_THREADS
            done = gs_add_launched(&host, of, above, count, (int8_t)operators, (int8_t)ranges, &own,
                                   of_ranges == by ? &own : &others, &into);
            Py_END_ALLOW_THREADS
        }
        if (!done)
            PyErr_SetString(PyExc_ValueError, "an event or its name is not there");
    }
    release(&all);
    return done ? Py_NewRef(Py_None) : NULL;
}

/* ---- sets of spans ---- */

static int take_set(buffers *all, PyObject *start, PyObject *end, gs_spans_of *spans)
{
    spans->count = SIZE_MAX;
    return (spans->start = take(all, start, 8, &spans->count)) && (spans->end = take(all, end, 8, &spans->count));
}

/* Room for so many spans: two bytearrays, or NULL. */
static PyObject *set_of(size_t count, int64_t *columns[2])
{
    PyObject *start = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * 8));
    PyObject *end = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * 8));
    PyObject *pair = start && end ? PyTuple_Pack(2, start, end) : NULL;
    if (pair) {
        columns[0] = (int64_t *)(void *)PyByteArray_AsString(start);
        columns[1] = (int64_t *)(void *)PyByteArray_AsString(end);
    }
    Py_XDECREF(start);
    Py_XDECREF(end);
    return pair;
}

static PyObject *py_union(PyObject *self, PyObject *args)
{
    PyObject *start, *end, *result = NULL;
    buffers all = {.taken = 0};
    gs_spans_of spans;
    int64_t *into[2], count;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO:union", &start, &end))
        return NULL;
    if (take_set(&all, start, end, &spans)) {
        Py_BEGIN_ALLOW_THREADS
        count = gs_union(&spans, NULL, NULL, 0);
        Py_END_ALLOW_THREADS
        if (count < 0)
            result = Py_NewRef(Py_None);
        else if ((result = set_of((size_t)count, into)))
            gs_union(&spans, into[0], into[1], (size_t)count);
    }
    release(&all);
    return result;
}

static PyObject *py_intersect(PyObject *self, PyObject *args)
{
    PyObject *columns[4], *result = NULL;
    buffers all = {.taken = 0};
    gs_spans_of a, b;
    int64_t *into[2];
    size_t count;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO:intersect", &columns[0], &columns[1], &columns[2], &columns[3]))
        return NULL;
    if (take_set(&all, columns[0], columns[1], &a) && take_set(&all, columns[2], columns[3], &b)) {
        Py_BEGIN_ALLOW_THREADS
        count = gs_intersect(&a, &b, NULL, NULL, 0);
        Py_END_ALLOW_THREADS
        if ((result = set_of(count, into)))
            gs_intersect(&a, &b, into[0], into[1], count);
    }
    release(&all);
    return result;
}

/* ---- operations in order ---- */

static PyObject *py_in_order(PyObject *self, PyObject *args)
{
    PyObject *columns[6], *start = NULL, *end = NULL, *result = NULL;
    long long low, least;
    buffers all = {.taken = 0};
    size_t count = SIZE_MAX, recorded = SIZE_MAX, streams = SIZE_MAX;
    const int64_t *of[4], *recorded_end = NULL, *given;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOLL:in_order", &columns[0], &columns[1], &columns[2], &columns[3], &columns[4],
                          &columns[5], &low, &least))
        return NULL;
    for (int index = 0; index < 4; index++)
        if (!(of[index] = take(&all, columns[index], 8, &count)))
            goto out;
    if (!(recorded_end = take(&all, columns[4], 8, &recorded)) || !(given = take(&all, columns[5], 8, &streams)))
        goto out;
    int64_t *free_at = malloc((streams + 1) * sizeof *free_at);
    start = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * 8));
    end = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * 8));
    if (!free_at)
        PyErr_NoMemory();
    else if (start && end) {
        memcpy(free_at, given, streams * sizeof *free_at);
        if (low < 0 || (size_t)low > recorded
            || !gs_in_order(of[0], of[1], of[2], of[3], count, recorded_end, (size_t)low, free_at, streams, least,
                            (int64_t *)(void *)PyByteArray_AsString(start), (int64_t *)(void *)PyByteArray_AsString(end)))
            PyErr_SetString(PyExc_ValueError, "an operation waits for none before it, or is on no stream");
        else
            result = PyTuple_Pack(2, start, end);
    }
    free(free_at);
    Py_XDECREF(start);
    Py_XDECREF(end);
out:
    release(&all);
    return result;
}

/* ---- table_pages(file, size, used, root, pages, rows) and table_columns(file, size, used, pages, rows, columns, out) ---- */

static int is_database(const gs_database *database)
{
    int good = database->size >= 512 && database->size <= 65536 && database->used >= 480 && database->used <= database->size;
    if (!good)
        PyErr_SetString(PyExc_ValueError, "no pages of SQLite are so large");
    return good;
}

static PyObject *py_table_pages(PyObject *self, PyObject *args)
{
    gs_database database;
    unsigned int root;
    PyObject *numbers, *counts, *result = NULL;
    Py_buffer pages, rows;
    (void)self;
    if (!PyArg_ParseTuple(args, "iIIIOO:table_pages", &database.file, &database.size, &database.used, &root, &numbers, &counts)
        || !is_database(&database) || !get(numbers, &pages, 4, 1))
        return NULL;
    if (get(counts, &rows, 4, 1)) {
        size_t most = (size_t)(pages.len < rows.len ? pages.len : rows.len) / 4;
        int64_t found;
        Py_BEGIN_ALLOW_THREADS
        found = gs_table_pages(&database, root, pages.buf, rows.buf, most);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLongLong(found);
        PyBuffer_Release(&rows);
    }
    PyBuffer_Release(&pages);
    return result;
}

static PyObject *table_columns(const gs_database *database, Py_buffer *views)
{
    const uint32_t *rows = views[1].buf;
    const int32_t *columns = views[2].buf;
    size_t count = (size_t)views[0].len / 4, width = (size_t)views[2].len / 4, total = 0;
    int good = views[1].len == views[0].len && width > 0;
    for (size_t index = 0; good && index < width; index++)
        good = columns[index] >= (index ? columns[index - 1] + 1 : GS_ROWID);
    for (size_t index = 0; good && index < count; index++)
        total += rows[index];
    size_t stride = good ? (size_t)views[3].len / 8 / width : 0;
    if (!good || total > stride) {
        PyErr_SetString(PyExc_ValueError, "the rows lie outside the array, or columns do not ascend");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    good = gs_table_columns(database, views[0].buf, rows, count, columns, width, views[3].buf, stride);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(good);
}

static PyObject *py_table_columns(PyObject *self, PyObject *args)
{
    gs_database database;
    PyObject *given[4], *result = NULL;
    Py_buffer views[4];
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "iIIOOOO:table_columns", &database.file, &database.size, &database.used, &given[0], &given[1],
                          &given[2], &given[3]) || !is_database(&database))
        return NULL;
    while (held < 4 && get(given[held], &views[held], held < 3 ? 4 : 8, held == 3))
        held++;
    if (held == 4)
        result = table_columns(&database, views);
    while (held)
        PyBuffer_Release(&views[--held]);
    return result;
}

/* ---- packets(text, largest) ---- */

static PyObject *py_packets(PyObject *self, PyObject *args)
{
    Py_buffer text;
    Py_ssize_t largest;
    gs_packets found = {0};
    PyObject *result = NULL;
    int done = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*n:packets", &text, &largest))
        return NULL;
    if ((uint64_t)text.len > UINT32_MAX || largest < 0)
        PyErr_SetString(PyExc_ValueError, "a text of 4 GiB at most");
    else {
        Py_BEGIN_ALLOW_THREADS
        done = gs_scan_packets(text.buf, (size_t)text.len, (size_t)largest, &found);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
    }
    if (done) {
        PyObject *rows = copied(found.rows, found.count, GS_PACKET_COLUMNS * sizeof *found.rows);
        PyObject *waits = COPIED(found.waits, found.wait_count);
        if (rows && waits)
            result = Py_BuildValue("nOO", (Py_ssize_t)found.end, rows, waits);
        Py_XDECREF(rows);
        Py_XDECREF(waits);
    }
    free(found.rows);
    free(found.waits);
    PyBuffer_Release(&text);
    return result;
}

/* ---- longest_path(src, dst, lag, dur, start, end) ---- */

static int below(const int64_t *places, size_t count, size_t limit)
{
    for (size_t index = 0; index < count; index++)
        if (places[index] < 0 || (uint64_t)places[index] >= limit)
            return 0;
    return 1;
}

static PyObject *longest_path(Py_buffer *views)
{
    size_t edges = (size_t)views[0].len / sizeof(int64_t), nodes = (size_t)views[3].len / sizeof(int64_t), done = 0;
    int good = views[1].len == views[0].len && views[2].len == views[0].len && views[4].len == views[3].len
               && views[5].len == views[3].len && edges < UINT32_MAX;
    if (!good || !below(views[0].buf, edges, nodes) || !below(views[1].buf, edges, nodes)) {
        PyErr_SetString(PyExc_ValueError, "edges lead to nodes that are not there, or columns differ in length");
        return NULL;
    }
    gs_graph graph = {nodes, edges, views[0].buf, views[1].buf, views[2].buf, views[3].buf};
    Py_BEGIN_ALLOW_THREADS
    good = gs_longest_path(&graph, views[4].buf, views[5].buf, &done);
    Py_END_ALLOW_THREADS
    return good ? PyLong_FromSize_t(done) : PyErr_NoMemory();
}

static PyObject *py_longest_path(PyObject *self, PyObject *args)
{
    PyObject *columns[6], *result = NULL;
    Py_buffer views[6];
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOO:longest_path", &columns[0], &columns[1], &columns[2], &columns[3], &columns[4],
                          &columns[5]))
        return NULL;
    while (held < 6 && get(columns[held], &views[held], sizeof(int64_t), held > 3))
        held++;
    if (held == 6)
        result = longest_path(views);
    while (held)
        PyBuffer_Release(&views[--held]);
    return result;
}

/* ---- release_memory() ---- */

static PyObject *py_release_memory(PyObject *self, PyObject *args)
{
    (void)self, (void)args;
#ifdef __GLIBC__
    Py_BEGIN_ALLOW_THREADS
    malloc_trim(0);
    Py_END_ALLOW_THREADS
#endif
    Py_RETURN_NONE;
}

/* ---- the module ---- */

static PyMethodDef methods[] = {
    {"scan", py_scan, METH_VARARGS, "scan(text, categories) -> columns of the events in it, or None where it is unusual"},
    {"shape_texts", py_shape_texts, METH_VARARGS, "shape_texts(text, arguments) -> spans of dims, types, concrete inputs and strides, or None"},
    {"innermost", py_innermost, METH_VARARGS, "innermost(start, end, thread, candidates, threads, at_thread, at) -> rows"},
    {"in_order", py_in_order, METH_VARARGS, "in_order(stream, issue, waits, lasts, recorded_end, free, low, least) -> (start, end)"},
    {"table_pages", py_table_pages, METH_VARARGS, "table_pages(file, size, used, root, pages, rows) -> how many"},
    {"table_columns", py_table_columns, METH_VARARGS, "table_columns(file, size, used, pages, rows, columns, out) -> whether it could"},
    {"packets", py_packets, METH_VARARGS, "packets(text, largest) -> (where the last whole one ends, rows, waits)"},
    {"note_end", (PyCFunction)(void (*)(void))gs_note_end, METH_FASTCALL, "note_end(entry, failed, future), once that is there, on gloo's thread"},
    {"note_issue", (PyCFunction)(void (*)(void))gs_note_issue, METH_FASTCALL, "note_issue(log, op, group, inputs, outputs) -> entry or None"},
    {"release_memory", py_release_memory, METH_NOARGS, "release_memory(): freed memory goes back to the system"},
    {"union", py_union, METH_VARARGS, "union(start, end) -> (start, end), or None where they are not in order of start"},
    {"intersect", py_intersect, METH_VARARGS, "intersect(start, end, other_start, other_end) -> (start, end)"},
    {"places", py_places, METH_VARARGS, "places(sorted, values, right) -> places, as numpy.searchsorted"},
    {"group", py_group, METH_VARARGS, "group(values, group, into): into gets number, total, least, median, largest by group"},
    {"add_launched", py_add_launched, METH_VARARGS,
     "add_launched((start, end, name, category), rows, parent, operators, ranges, by, of_ranges, (number, longest, figures))"},
    {"parents", py_parents, METH_VARARGS, "parents(start, end, thread, candidates, threads) -> rows"},
    {"longest_path", py_longest_path, METH_VARARGS,
     "longest_path(src, dst, lag, dur, start, end): sets start and end, int64; how many nodes no circle holds back"},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&codes_spec);
    int done = type ? PyModule_AddObjectRef(module, "Codes", type) : -1;
    Py_XDECREF(type);
    return done < 0 ? done : PyModule_AddIntConstant(module, "INTERFACE", 9); /* as gpuscope.native has it */
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", "The native core; see gpuscope.native.", 0, methods, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
