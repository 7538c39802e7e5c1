/* Sets of half-open spans, as gpuscope.trace.intervals has them. Knows nothing of Python. */
#ifndef GPUSCOPE_SPANS_H
#define GPUSCOPE_SPANS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const int64_t *start, *end;
    size_t count;
} gs_spans_of;

/* Any spans merged into a set: those that overlap or touch become one, empty ones none. Returns how many there are;
 * writes at most `room` of them. -1 where they are not in order of start; the empty ones may lie anywhere. */
int64_t gs_union(const gs_spans_of *spans, int64_t *start, int64_t *end, size_t room);

/* A ∩ B: for each span of A, in its order, what it has in common with each of B, which must be in order of start and of
 * end. Returns how many there are; writes at most `room` of them. */
size_t gs_intersect(const gs_spans_of *a, const gs_spans_of *b, int64_t *start, int64_t *end, size_t room);

#endif
