/* Sweeps over nested spans that numpy can't do in one pass. Knows nothing of Python. */
#ifndef GPUSCOPE_NESTED_SPANS_H
#define GPUSCOPE_NESTED_SPANS_H

#include <stddef.h>
#include <stdint.h>

/* Threads' numbers, in 64 bits or in 32. */
typedef struct {
    const int64_t *wide;
    const int32_t *narrow;
} gs_threads;

/* Spans of all threads in any order; `thread` numbers them from 0 to `threads` - 1 (others are left out). */
typedef struct {
    const int64_t *start, *end;
    gs_threads thread;
    const uint8_t *candidates; /* which of them count; NULL for all */
    size_t count;
    int64_t threads;
} gs_nested;

/* For each instant on a thread the row of the innermost candidate that covers it, or INT64_MIN.
 * Ranges nest; the depth of an instant says which it is: gpuscope.trace.launch_links.innermost. 0 without memory. */
int gs_innermost(const gs_nested *spans, gs_threads at_thread, const int64_t *at, size_t instants, int64_t *found);

/* For each span the row of the innermost one of its thread that encloses it, or INT64_MIN; one without length has and is
 * none: gpuscope.analyzers.profile.call_tree.parents. 0 without memory. */
int gs_parents(const gs_nested *spans, int64_t *found);

/* Operations in order of start, each on a stream: begins at the latest of its issue, the end of its stream's work so far
 * (`free`, per stream, is kept up) and the end of the operation it waits for, and keeps its length:
 * gpuscope.analyzers.device_time.idleness.idle_replay. `waits` are places in the whole lane, of which these are
 * [low, low + count), or INT64_MIN; `recorded_end` (of all) serves for those before `low`. The first begins at `least` at
 * the earliest. 0 where a stream or a wait is no such place. */
int gs_in_order(const int64_t *stream, const int64_t *issue, const int64_t *waits, const int64_t *lasts, size_t count,
                const int64_t *recorded_end, size_t low, int64_t *free, size_t streams, int64_t least, int64_t *start,
                int64_t *end);

#endif
