/* Kineto events as columns: a strict scanner of blocks of Chrome-trace JSON. Knows nothing of Python.
 *
 * It takes what torch.profiler writes and gives up (GS_UNUSUAL) on anything else, which the Python reader then decodes:
 * so that what it accepts has one meaning only. Nothing outside [text, text + size) is ever read.
 */
#ifndef GPUSCOPE_KINETO_SCAN_H
#define GPUSCOPE_KINETO_SCAN_H

#include <stddef.h>
#include <stdint.h>

#define GS_NA INT64_MIN

enum gs_status { GS_OK, GS_UNUSUAL, GS_NO_MEMORY };

/* Where an event goes, by its category; below GS_KERNEL stand the host's (gpuscope.trace.schema.Category). */
enum gs_route { GS_OP = 0, GS_RUNTIME = 1, GS_KERNEL = 16, GS_SET = 18, GS_SYNC = 19, GS_OTHER = 20 };

/* A piece of the text. */
typedef struct {
    int64_t *items;
    size_t count, room;
} gs_numbers;

typedef struct {
    uint32_t at, length;
} gs_span;

/* The distinct values of a field, in the order they first occur. */
typedef struct {
    gs_span *items;
    gs_span *seconds; /* of pairs, the second half; else unused */
    uint64_t *hashes;
    uint32_t count, room;
    uint32_t *slots; /* index + 1 of an item, or 0 */
    uint32_t mask;
} gs_distinct;

/* Events of one table; every array has `count` items. */
typedef struct {
    size_t count, room;
    int64_t *start, *end;                              /* ns */
    uint32_t *name, *thread;                           /* places in `names`, in `threads` */
    int8_t *route;
    gs_span *arguments;                                /* length 0 where there are none */
    int64_t *correlation, *stream, *device, *bytes, *graph, *context; /* GS_NA where absent; the last five of devices only */
} gs_rows;

typedef struct {
    gs_span *items;
    size_t count, room;
} gs_spans;

typedef struct {
    gs_span text;
    int8_t route;
    uint64_t count;
} gs_category;

enum { GS_CATEGORIES = 64 };

typedef struct {
    uint64_t events;         /* of every phase */
    uint64_t shaped;         /* operators with recorded inputs */
    gs_rows host, device, sync;
    gs_distinct names, host_threads, device_rows;
    gs_numbers external_ids; /* of operators that have one */
    gs_numbers sequences;    /* row in host and autograd's sequence number, of operators that have one, in turn */
    gs_numbers records;      /* row in host and id of the record function, of operators that have one, in turn */
    gs_spans metadata, memory, counters; /* whole events */
    gs_category categories[GS_CATEGORIES];
    size_t category_count;
} gs_block;

/* The categories that are known, in lower case. */
typedef struct {
    const char *text;
    size_t length;
    int8_t route;
} gs_known_category;

void gs_block_free(gs_block *block);
enum gs_status gs_scan(const uint8_t *text, size_t size, const gs_known_category *known, size_t known_count,
                       gs_block *block);

/* Where `Input Dims`, `Input type`, `Concrete Inputs` and `Input Strides` stand in an object of arguments; length 0 where absent. */
enum gs_status gs_shape_texts(const uint8_t *text, size_t size, gs_span arguments, gs_span found[4]);

uint64_t gs_hash(const uint8_t *text, size_t length);

#endif
