#include "kernels.h"

#include <stdlib.h>
#include <string.h>

/* ---- order ---- */

static int is_sorted(const int64_t *keys, const size_t *rows, size_t count)
{
    for (size_t place = 1; place < count; place++)
        if (keys[rows[place]] < keys[rows[place - 1]])
            return 0;
    return 1;
}

/* Sorts rows by their key, equal ones as they stood: sixteen bits at a time, only those in which keys differ. */
static int order(const int64_t *keys, size_t *rows, size_t count)
{
    if (is_sorted(keys, rows, count))
        return 1;
    size_t *other = malloc(count * sizeof *other), *counts = malloc(65536 * sizeof *counts), *from = rows, *to = other;
    uint64_t least = UINT64_MAX, most = 0;
    if (!other || !counts) {
        free(other), free(counts);
        return 0;
    }
    for (size_t place = 0; place < count; place++) {
        uint64_t key = (uint64_t)keys[rows[place]] ^ (1ull << 63);
        least = key < least ? key : least, most = key > most ? key : most;
    }
    for (int shift = 0; shift < 64 && (most - least) >> shift; shift += 16) {
        memset(counts, 0, 65536 * sizeof *counts);
        for (size_t place = 0; place < count; place++)
            counts[((((uint64_t)keys[from[place]] ^ (1ull << 63)) - least) >> shift) & 0xffff]++;
        for (size_t digit = 0, sum = 0; digit < 65536; digit++) {
            size_t own = counts[digit];
            counts[digit] = sum, sum += own;
        }
        for (size_t place = 0; place < count; place++)
            to[counts[((((uint64_t)keys[from[place]] ^ (1ull << 63)) - least) >> shift) & 0xffff]++] = from[place];
        size_t *swapped = from;
        from = to, to = swapped;
    }
    if (from != rows)
        memcpy(rows, from, count * sizeof *rows);
    free(other), free(counts);
    return 1;
}

/* Rows that are wanted, by thread: those of thread t are rows[bounds[t]] … rows[bounds[t + 1] - 1], in order of key. */
typedef struct {
    size_t *rows, *bounds;
} groups;

static void groups_free(groups *of)
{
    free(of->rows), free(of->bounds);
}

static int is_wanted(const int64_t *thread, const uint8_t *wanted, int64_t threads, size_t row)
{
    return (!wanted || wanted[row]) && thread[row] >= 0 && thread[row] < threads;
}

static int by_thread(const int64_t *thread, const uint8_t *wanted, const int64_t *keys, size_t count, int64_t threads,
                     groups *of)
{
    size_t total = 0;
    of->rows = NULL;
    if (!(of->bounds = calloc((size_t)threads + 2, sizeof *of->bounds)))
        return 0;
    size_t *bounds = of->bounds + 1; /* one on, so that filling moves each bound to where it belongs */
    for (size_t row = 0; row < count; row++)
        if (is_wanted(thread, wanted, threads, row))
            bounds[thread[row]]++, total++;
    for (size_t which = 0, sum = 0; which <= (size_t)threads; which++) {
        size_t own = bounds[which];
        bounds[which] = sum, sum += own;
    }
    if (!(of->rows = malloc((total + 1) * sizeof *of->rows)))
        return 0;
    for (size_t row = 0; row < count; row++)
        if (is_wanted(thread, wanted, threads, row))
            of->rows[bounds[thread[row]]++] = row;
    for (size_t which = 0; which < (size_t)threads; which++)
        if (!order(keys, of->rows + of->bounds[which], of->bounds[which + 1] - of->bounds[which]))
            return 0;
    return 1;
}

/* ---- open spans ---- */

/* Ends of the spans that are open, the least first; and per depth the last span that began at it. */
typedef struct {
    int64_t *ends;
    size_t open, room;
    int64_t *last;
    size_t depths;
    size_t begun, ended;
} sweep;

static void close_until(sweep *state, int64_t at)
{
    int64_t *heap = state->ends;
    while (state->open && heap[0] <= at) {
        int64_t moved = heap[--state->open];
        size_t place = 0;
        for (size_t child; (child = 2 * place + 1) < state->open; place = child) {
            if (child + 1 < state->open && heap[child + 1] < heap[child])
                child++;
            if (heap[child] >= moved)
                break;
            heap[place] = heap[child];
        }
        heap[place] = moved;
        state->ended++;
    }
}

static int open_span(sweep *state, int64_t end)
{
    if (state->open == state->room) {
        size_t room = state->room ? state->room * 2 : 64;
        int64_t *larger = realloc(state->ends, room * sizeof *larger);
        if (!larger)
            return 0;
        state->ends = larger, state->room = room;
    }
    size_t place = state->open++;
    for (size_t parent; place && state->ends[parent = (place - 1) / 2] > end; place = parent)
        state->ends[place] = state->ends[parent];
    state->ends[place] = end;
    return 1;
}

/* The last span of a depth, or NULL; depths count from 1. */
static int64_t *at_depth(sweep *state, size_t depth)
{
    if (depth >= state->depths) {
        size_t depths = depth * 2 + 64;
        int64_t *larger = realloc(state->last, depths * sizeof *larger);
        if (!larger)
            return NULL;
        for (size_t place = state->depths; place < depths; place++)
            larger[place] = -1;
        state->last = larger, state->depths = depths;
    }
    return &state->last[depth];
}

static void restart(sweep *state)
{
    for (size_t depth = 0; depth < state->depths; depth++)
        state->last[depth] = -1;
    state->open = state->begun = state->ended = 0;
}

/* Among rows of one start, the longer first; equal ones as they stood. */
static void longer_first(const int64_t *end, size_t *rows, size_t count)
{
    for (size_t place = 1; place < count; place++) {
        size_t row = rows[place], to = place;
        for (; to && end[rows[to - 1]] < end[row]; to--)
            rows[to] = rows[to - 1];
        rows[to] = row;
    }
}

static size_t same_start(const int64_t *start, const size_t *rows, size_t low, size_t high)
{
    size_t behind = low + 1;
    while (behind < high && start[rows[behind]] == start[rows[low]])
        behind++;
    return behind;
}

/* Begins the spans rows[low] … rows[high - 1], which have one start. Each that is not above depth 0 becomes the last of
 * its depth; `found`, where given, gets each one's parent. */
static int begin(sweep *state, const gs_nested *spans, size_t *rows, size_t low, size_t high, int64_t *found)
{
    int64_t start = spans->start[rows[low]];
    size_t empty = 0;
    longer_first(spans->end, rows + low, high - low);
    close_until(state, start);
    for (size_t place = low; place < high; place++)
        empty += spans->end[rows[place]] <= start;
    for (size_t place = low; place < high; place++) {
        size_t row = rows[place], ended = state->ended + empty;
        state->begun++;
        if (state->begun > ended) {
            size_t depth = state->begun - ended;
            int64_t *last = at_depth(state, depth);
            if (!last)
                return 0;
            if (found && depth > 1) {
                int64_t above = state->last[depth - 1];
                if (above >= 0 && spans->end[above] >= spans->end[row])
                    found[row] = above;
            }
            *last = (int64_t)row;
        }
        if (spans->end[row] > start && !open_span(state, spans->end[row]))
            return 0;
    }
    state->ended += empty;
    return 1;
}

int gs_innermost(const gs_nested *spans, const int64_t *at_thread, const int64_t *at, size_t instants, int64_t *found)
{
    groups own = {NULL, NULL}, asked = {NULL, NULL};
    sweep state = {0};
    int done = 0;
    for (size_t place = 0; place < instants; place++)
        found[place] = INT64_MIN;
    if (!by_thread(at_thread, NULL, at, instants, spans->threads, &asked)
        || !by_thread(spans->thread, spans->candidates, spans->start, spans->count, spans->threads, &own))
        goto out;
    for (size_t thread = 0; thread < (size_t)spans->threads; thread++) {
        size_t low = own.bounds[thread], high = own.bounds[thread + 1];
        restart(&state);
        for (size_t place = asked.bounds[thread]; place < asked.bounds[thread + 1]; place++) {
            size_t which = asked.rows[place];
            while (low < high && spans->start[own.rows[low]] <= at[which]) {
                size_t behind = same_start(spans->start, own.rows, low, high);
                if (!begin(&state, spans, own.rows, low, behind, NULL))
                    goto out;
                low = behind;
            }
            close_until(&state, at[which]);
            if (state.begun <= state.ended)
                continue;
            size_t depth = state.begun - state.ended;
            int64_t row = depth < state.depths ? state.last[depth] : -1;
            if (row >= 0 && spans->end[row] >= at[which])
                found[which] = row;
        }
    }
    done = 1;
out:
    groups_free(&own), groups_free(&asked);
    free(state.ends), free(state.last);
    return done;
}

int gs_parents(const gs_nested *spans, int64_t *found)
{
    groups own = {NULL, NULL};
    sweep state = {0};
    int done = 0;
    for (size_t row = 0; row < spans->count; row++)
        found[row] = INT64_MIN;
    if (!by_thread(spans->thread, spans->candidates, spans->start, spans->count, spans->threads, &own))
        goto out;
    for (size_t thread = 0; thread < (size_t)spans->threads; thread++) {
        restart(&state);
        for (size_t low = own.bounds[thread], behind; low < own.bounds[thread + 1]; low = behind) {
            behind = same_start(spans->start, own.rows, low, own.bounds[thread + 1]);
            if (!begin(&state, spans, own.rows, low, behind, found))
                goto out;
        }
    }
    done = 1;
out:
    groups_free(&own);
    free(state.ends), free(state.last);
    return done;
}

int gs_in_order(const int64_t *stream, const int64_t *issue, const int64_t *waits, const int64_t *lasts, size_t count,
                const int64_t *recorded_end, size_t low, int64_t *free, size_t streams, int64_t least, int64_t *start,
                int64_t *end)
{
    for (size_t place = 0; place < count; place++) {
        int64_t at = issue[place], wait = waits[place];
        if (stream[place] < 0 || (uint64_t)stream[place] >= streams)
            return 0;
        if (free[stream[place]] > at)
            at = free[stream[place]];
        if (wait != INT64_MIN) {
            if (wait < 0 || (uint64_t)wait >= low + place)
                return 0;
            int64_t until = (uint64_t)wait < low ? recorded_end[wait] : end[(uint64_t)wait - low];
            at = until > at ? until : at;
        }
        if (place == 0 && at < least)
            at = least;
        start[place] = at;
        end[place] = free[stream[place]] = at + lasts[place];
    }
    return 1;
}
