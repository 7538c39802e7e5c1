#include "columns.h"

#include <stdlib.h>
#include <string.h>

/* ---- places in a sorted column ---- */

static inline int before(int64_t item, int64_t value, int right)
{
    return right ? item <= value : item < value;
}

/* Doubles its steps away from `from`, the place found last, then halves what is left. */
static inline size_t place_from(const int64_t *sorted, size_t count, size_t from, int64_t value, int right)
{
    size_t low = from, high = from, step = 1;
    if (from < count && before(sorted[from], value, right)) {
        low = high = from + 1;
        while (high < count && before(sorted[high], value, right)) {
            low = high + 1;
            high = step < count - low ? low + step : count;
            step *= 2;
        }
    } else {
        while (low && !before(sorted[low - 1], value, right)) {
            high = low - 1;
            low = step < high ? high - step : 0;
            step *= 2;
        }
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (before(sorted[middle], value, right))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t gs_place_from(const int64_t *sorted, size_t count, size_t from, int64_t value)
{
    return place_from(sorted, count, from, value, 0);
}

void gs_places(const int64_t *sorted, size_t count, const int64_t *values, size_t asked, int right, int64_t *found)
{
    size_t place = 0;
    if (right)
        for (size_t which = 0; which < asked; which++)
            found[which] = (int64_t)(place = place_from(sorted, count, place, values[which], 1));
    else
        for (size_t which = 0; which < asked; which++)
            found[which] = (int64_t)(place = place_from(sorted, count, place, values[which], 0));
}

/* ---- groups ---- */

enum { FEW = 16, DIGIT = 8 };

static void sort_few(int64_t *values, size_t count)
{
    for (size_t place = 1; place < count; place++) {
        int64_t value = values[place];
        size_t to = place;
        for (; to && values[to - 1] > value; to--)
            values[to] = values[to - 1];
        values[to] = value;
    }
}

/* The value that stands at `place` of the values in order, and in `next` the one behind it (itself, where it is the last).
 * Each pass keeps the values that share their highest bits with the one sought; the rest of `values` is lost. */
static int64_t select_at(int64_t *values, size_t count, size_t place, int64_t *next)
{
    int64_t behind = INT64_MAX;
    size_t above = 0;
    while (count > FEW) {
        int64_t least = values[0], most = values[0];
        for (size_t index = 1; index < count; index++) {
            least = values[index] < least ? values[index] : least;
            most = values[index] > most ? values[index] : most;
        }
        if (least == most)
            break;
        int shift = 0;
        while (((uint64_t)most - (uint64_t)least) >> shift >> DIGIT)
            shift++;
        size_t counts[1 << DIGIT] = {0}, digit = 0, kept = 0;
        for (size_t index = 0; index < count; index++)
            counts[((uint64_t)values[index] - (uint64_t)least) >> shift]++;
        for (; place >= counts[digit]; digit++)
            place -= counts[digit];
        for (size_t index = 0; index < count; index++) {
            int64_t value = values[index];
            size_t own = (size_t)(((uint64_t)value - (uint64_t)least) >> shift);
            if (own == digit)
                values[kept++] = value;
            else if (own > digit)
                behind = value < behind ? value : behind, above++;
        }
        count = kept;
    }
    if (count <= FEW)
        sort_few(values, count);
    *next = place + 1 < count ? values[place + 1] : above ? behind : values[place];
    return values[place];
}

static void of_group(int64_t *own, size_t count, size_t which, const gs_grouped *into)
{
    if (!count)
        return;
    int64_t least = own[0], largest = own[0], next;
    for (size_t index = 1; index < count; index++) {
        least = own[index] < least ? own[index] : least;
        largest = own[index] > largest ? own[index] : largest;
    }
    into->least[which] = least, into->largest[which] = largest;
    int64_t lower = select_at(own, count, (count - 1) / 2, &next);
    /* For values that are not negative, the half of their sum. */
    into->median[which] = count % 2 ? lower : lower + (int64_t)(((uint64_t)next - (uint64_t)lower) / 2);
}

int gs_group(const int64_t *values, const int64_t *group, size_t count, size_t groups, const gs_grouped *into)
{
    int64_t *const all[] = {into->number, into->total, into->least, into->median, into->largest};
    for (size_t which = 0; which < sizeof all / sizeof *all; which++)
        memset(all[which], 0, groups * sizeof **all);
    for (size_t row = 0; row < count; row++) {
        if (group[row] < 0 || (uint64_t)group[row] >= groups)
            return -1;
        into->number[group[row]]++;
        into->total[group[row]] = (int64_t)((uint64_t)into->total[group[row]] + (uint64_t)values[row]);
    }
    int64_t *ordered = malloc((count + 1) * sizeof *ordered);
    size_t *ends = malloc((groups + 1) * sizeof *ends), sum = 0;
    if (!ordered || !ends) {
        free(ordered), free(ends);
        return 0;
    }
    for (size_t which = 0; which < groups; which++)
        ends[which] = sum, sum += (size_t)into->number[which];
    for (size_t row = 0; row < count; row++)
        ordered[ends[group[row]]++] = values[row];
    for (size_t which = 0; which < groups; which++)
        of_group(ordered + ends[which] - into->number[which], (size_t)into->number[which], which, into);
    free(ordered), free(ends);
    return 1;
}
