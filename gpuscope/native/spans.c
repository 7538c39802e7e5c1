#include "spans.h"

int64_t gs_union(const gs_spans_of *spans, int64_t *start, int64_t *end, size_t room)
{
    int64_t reach = 0, last = INT64_MIN;
    size_t found = 0;
    for (size_t place = 0; place < spans->count; place++) {
        int64_t from = spans->start[place], to = spans->end[place];
        if (to <= from)
            continue;
        if (from < last)
            return -1;
        last = from;
        if (!found || from > reach) {
            if (found < room)
                start[found] = from;
            found++, reach = to;
        }
        reach = to > reach ? to : reach;
        if (found <= room)
            end[found - 1] = reach;
    }
    return (int64_t)found;
}

/* The first of `count` ascending values that is above `least`. */
static size_t above(const int64_t *values, size_t count, int64_t least)
{
    size_t low = 0;
    while (low < count) {
        size_t middle = low + (count - low) / 2;
        if (values[middle] <= least)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

size_t gs_intersect(const gs_spans_of *a, const gs_spans_of *b, int64_t *start, int64_t *end, size_t room)
{
    size_t found = 0, first = 0;
    for (size_t place = 0; place < a->count; place++) {
        int64_t from = a->start[place], to = a->end[place];
        if (place && from < a->start[place - 1])
            first = above(b->end, b->count, from);
        while (first < b->count && b->end[first] <= from)
            first++;
        for (size_t other = first; other < b->count && b->start[other] < to; other++, found++) {
            if (found >= room)
                continue;
            start[found] = b->start[other] > from ? b->start[other] : from;
            end[found] = b->end[other] < to ? b->end[other] : to;
        }
    }
    return found;
}
