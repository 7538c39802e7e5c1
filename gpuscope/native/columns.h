/* Passes over columns that numpy makes in several, or by sorting. Knows nothing of Python. */
#ifndef GPUSCOPE_COLUMNS_H
#define GPUSCOPE_COLUMNS_H

#include <stddef.h>
#include <stdint.h>

/* For each value the first place of `sorted` (ascending) whose item is not below it, with `right` the first whose item is
 * above it; `count` where there is none. Values that follow each other closely are found quickly, in any order. */
void gs_places(const int64_t *sorted, size_t count, const int64_t *values, size_t asked, int right, int64_t *found);

/* The same for one value, quickly where it is near the place `from`, which is at most `count`; not `right`. */
size_t gs_place_from(const int64_t *sorted, size_t count, size_t from, int64_t value);

/* Per group, `groups` items each; zeros for one without members. */
typedef struct {
    int64_t *number, *total, *least, *median, *largest;
} gs_grouped;

/* Statistics of values by their group: gpuscope.trace.columns.grouped_durations. 1 when done, 0 without memory, -1 where a
 * group is none of 0 to `groups` - 1. */
int gs_group(const int64_t *values, const int64_t *group, size_t count, size_t groups, const gs_grouped *into);

#endif
