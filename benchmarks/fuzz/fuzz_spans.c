/* Arbitrary spans through the sweeps over sets of spans and nested spans, and through passes over columns, each array in a buffer of exactly its size, for
 * AddressSanitizer to watch; what comes out of `gs_union` and `gs_intersect` is checked against a count instant by instant.
 *
 * fuzz_spans SECONDS SEED: prints how many sets were tried.
 */
#include "../../gpuscope/native/columns.h"
#include "../../gpuscope/native/nested_spans.h"
#include "../../gpuscope/native/launched.h"
#include "../../gpuscope/native/spans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 40, END = 64 };

static uint64_t state;

static uint64_t any(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? state % below : 0;
}

static void *room(size_t count, size_t item)
{
    void *found = malloc(count * item ? count * item : 1);
    if (!found)
        abort();
    return found;
}

/* Times within [0, END), now and then as far off as an int64 goes. */
static int64_t instant(int wild)
{
    static const int64_t FAR[] = {INT64_MIN, INT64_MAX, INT64_MIN + 1, -1};
    return wild && !any(9) ? FAR[any(4)] : (int64_t)any(END);
}

static gs_spans_of spans_of(int ordered, int wild)
{
    gs_spans_of made = {NULL, NULL, any(MOST)};
    int64_t *start = room(made.count, 8), *end = room(made.count, 8), at = 0;
    for (size_t place = 0; place < made.count; place++) {
        start[place] = ordered ? at + (int64_t)any(3) : instant(wild);
        end[place] = ordered ? start[place] + (int64_t)any(4) : instant(wild);
        at = ordered ? start[place] : 0;
    }
    made.start = start, made.end = end;
    return made;
}

static void spans_free(gs_spans_of *spans)
{
    free((void *)(uintptr_t)spans->start), free((void *)(uintptr_t)spans->end);
}

static int covers(const gs_spans_of *spans, int64_t at)
{
    int count = 0;
    for (size_t place = 0; place < spans->count; place++)
        count += spans->start[place] <= at && at < spans->end[place];
    return count;
}

static gs_spans_of merged(const gs_spans_of *spans)
{
    int64_t count = gs_union(spans, NULL, NULL, 0);
    gs_spans_of made = {NULL, NULL, count < 0 ? 0 : (size_t)count};
    int64_t *start = room(made.count, 8), *end = room(made.count, 8);
    if (gs_union(spans, start, end, made.count) != count)
        abort();
    made.start = start, made.end = end;
    for (size_t place = 0; place < made.count; place++)
        if (start[place] >= end[place] || (place && start[place] <= end[place - 1]))
            abort();
    return made;
}

static void sets(void)
{
    gs_spans_of one = spans_of(1, 0), other = spans_of(1, 0), wild = spans_of(0, 1), a = merged(&one), b = merged(&other);
    size_t count = gs_intersect(&a, &b, NULL, NULL, 0), odd = gs_intersect(&wild, &b, NULL, NULL, 0);
    int64_t *start = room(count, 8), *end = room(count, 8), *from = room(odd / 2, 8), *to = room(odd / 2, 8);
    gs_spans_of both = {start, end, gs_intersect(&a, &b, start, end, count)}, none = merged(&wild);
    gs_intersect(&wild, &b, from, to, odd / 2);
    for (int64_t at = -1; at < 4 * MOST; at++)
        if (covers(&a, at) != !!covers(&one, at) || covers(&both, at) != (covers(&a, at) && covers(&b, at)))
            abort();
    free(start), free(end), free(from), free(to);
    spans_free(&one), spans_free(&other), spans_free(&wild), spans_free(&a), spans_free(&b), spans_free(&none);
}

static void nests(void)
{
    gs_spans_of wild = spans_of(0, 1);
    size_t count = wild.count, asked = any(MOST);
    int64_t *thread = room(count, 8), *of = room(asked, 8), *at = room(asked, 8), *found = room(asked, 8);
    int64_t *parents = room(count, 8);
    int32_t *narrow = room(count, 4), *of_narrow = room(asked, 4);
    uint8_t *wanted = room(count, 1), is_narrow = any(2) != 0;
    for (size_t place = 0; place < count; place++)
        thread[place] = any(9) ? (int64_t)any(3) : instant(1), wanted[place] = (uint8_t)any(2);
    for (size_t place = 0; place < count; place++)
        narrow[place] = (int32_t)thread[place];
    for (size_t place = 0; place < asked; place++)
        of[place] = any(9) ? (int64_t)any(3) : instant(1), at[place] = instant(1);
    for (size_t place = 0; place < asked; place++)
        of_narrow[place] = (int32_t)of[place];
    gs_threads by = {is_narrow ? NULL : thread, narrow}, asked_by = {is_narrow ? NULL : of, of_narrow};
    gs_nested spans = {wild.start, wild.end, by, wanted, count, (int64_t)any(4)};
    if (!gs_innermost(&spans, asked_by, at, asked, found) || !gs_parents(&spans, parents))
        abort();
    free(thread), free(of), free(at), free(found), free(parents), free(wanted), free(narrow), free(of_narrow);
    spans_free(&wild);
}

static int64_t *times(size_t count, int wild)
{
    int64_t *made = room(count, 8);
    for (size_t place = 0; place < count; place++)
        made[place] = instant(wild);
    return made;
}

static int ascends(const void *one, const void *other)
{
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* Places and statistics are checked against counting and sorting. */
static void columns(void)
{
    size_t count = any(MOST), asked = any(MOST), groups = 1 + any(3);
    int64_t *values = times(count, 1), *wanted = times(asked, 1), *found = room(asked, 8), *group = room(count, 8);
    int64_t *into = room(5 * groups, 8), *own = room(count, 8);
    int right = (int)any(2);
    for (size_t place = 0; place < count; place++)
        group[place] = (int64_t)any(groups);
    gs_grouped statistics = {into, into + groups, into + 2 * groups, into + 3 * groups, into + 4 * groups};
    if (gs_group(values, group, count, groups, &statistics) != 1)
        abort();
    for (size_t which = 0; which < groups; which++) {
        size_t members = 0;
        for (size_t place = 0; place < count; place++)
            if (group[place] == (int64_t)which)
                own[members++] = values[place];
        qsort(own, members, 8, ascends);
        if ((size_t)statistics.number[which] != members)
            abort();
        if (members && (statistics.least[which] != own[0] || statistics.largest[which] != own[members - 1]))
            abort();
        if (members % 2 && statistics.median[which] != own[members / 2])
            abort();
    }
    if (count)
        group[any(count)] = any(2) ? -1 : (int64_t)groups;
    if (gs_group(values, group, count, groups, &statistics) != (count ? -1 : 1))
        abort();
    qsort(values, count, 8, ascends);
    gs_places(values, count, wanted, asked, right, found);
    for (size_t which = 0; which < asked; which++) {
        size_t before = 0;
        while (before < count && (right ? values[before] <= wanted[which] : values[before] < wanted[which]))
            before++;
        if ((size_t)found[which] != before)
            abort();
    }
    free(values), free(wanted), free(found), free(group), free(into), free(own);
}

/* Events, launches and keys that may lie anywhere: no place outside the columns is touched. */
static void launches(void)
{
    gs_spans_of events = spans_of(0, 1), work = spans_of(0, 1);
    size_t count = any(MOST), keys = 2 * any(4);
    int32_t *name = room(events.count, 4);
    int8_t *category = room(events.count, 1);
    int64_t *rows = room(count, 8), *parent = room(events.count, 8), *at = times(work.count, 1), *into = room(10 * keys, 8);
    int64_t *sums = times(4 * (work.count + 1), 1);
    memset(into, 0, 80 * keys);
    for (size_t place = 0; place < events.count; place++)
        name[place] = (int32_t)any(30) < 29 ? (int32_t)any(4) : -1, category[place] = (int8_t)any(3),
        parent[place] = any(3) ? (int64_t)any(events.count) : any(9) ? INT64_MIN : instant(1);
    for (size_t place = 0; place < count; place++)
        rows[place] = any(30) && events.count ? (int64_t)any(events.count) : instant(1);
    if (any(4))
        qsort(at, work.count, 8, ascends);
    gs_host host = {events.start, events.end, name, category, events.count};
    gs_launched launched = {at, work.start, work.end, sums, work.count};
    gs_sums found = {into, into + keys, into + 2 * keys, keys};
    gs_add_launched(&host, rows, parent, count, 0, 2, &launched, &launched, &found);
    free(name), free(category), free(rows), free(parent), free(at), free(into), free(sums);
    spans_free(&events), spans_free(&work);
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    time_t stop = time(NULL) + atol(arguments[1]);
    state = strtoull(arguments[2], NULL, 10) * 2654435761u + 1;
    unsigned long long tried = 0;
    do
        for (int again = 0; again < 2000; again++, tried++)
            sets(), nests(), columns(), launches();
    while (time(NULL) < stop);
    printf("%llu sets of spans tried\n", tried);
    return 0;
}
