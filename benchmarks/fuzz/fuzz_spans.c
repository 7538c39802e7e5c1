/* Arbitrary spans through the sweeps over sets of spans and nested spans, each array in a buffer of exactly its size, for
 * AddressSanitizer to watch; what comes out of `gs_union` and `gs_intersect` is checked against a count instant by instant.
 *
 * fuzz_spans SECONDS SEED: prints how many sets were tried.
 */
#include "../../gpuscope/native/kernels.h"
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
    uint8_t *wanted = room(count, 1);
    for (size_t place = 0; place < count; place++)
        thread[place] = any(9) ? (int64_t)any(3) : instant(1), wanted[place] = (uint8_t)any(2);
    for (size_t place = 0; place < asked; place++)
        of[place] = any(9) ? (int64_t)any(3) : instant(1), at[place] = instant(1);
    gs_nested spans = {wild.start, wild.end, thread, wanted, count, (int64_t)any(4)};
    if (!gs_innermost(&spans, of, at, asked, found) || !gs_parents(&spans, parents))
        abort();
    free(thread), free(of), free(at), free(found), free(parents), free(wanted);
    spans_free(&wild);
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
            sets(), nests();
    while (time(NULL) < stop);
    printf("%llu sets of spans tried\n", tried);
    return 0;
}
