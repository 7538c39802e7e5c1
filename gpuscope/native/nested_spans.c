#include "nested_spans.h"

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

/* Sorts rows by their key, equal ones as they stood: sixteen bits at a time, of few rows eight, only those in which keys
 * differ. */
static int order(const int64_t *keys, size_t *rows, size_t count)
{
    if (is_sorted(keys, rows, count))
        return 1;
    int bits = count < 8192 ? 8 : 16;
    size_t digits = (size_t)1 << bits, *other = malloc(count * sizeof *other), *counts = malloc(digits * sizeof *counts);
    size_t *from = rows, *to = other;
    uint64_t least = UINT64_MAX, most = 0;
    if (!other || !counts) {
        free(other), free(counts);
        return 0;
    }
    for (size_t place = 0; place < count; place++) {
        uint64_t key = (uint64_t)keys[rows[place]] ^ (1ull << 63);
        least = key < least ? key : least, most = key > most ? key : most;
    }
    for (int shift = 0; shift < 64 && (most - least) >> shift; shift += bits) {
        memset(counts, 0, digits * sizeof *counts);
        for (size_t place = 0; place < count; place++)
            counts[((((uint64_t)keys[from[place]] ^ (1ull << 63)) - least) >> shift) & (digits - 1)]++;
        for (size_t digit = 0, sum = 0; digit < digits; digit++) {
            size_t own = counts[digit];
            counts[digit] = sum, sum += own;
        }
        for (size_t place = 0; place < count; place++)
            to[counts[((((uint64_t)keys[from[place]] ^ (1ull << 63)) - least) >> shift) & (digits - 1)]++] = from[place];
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

static inline uint64_t thread_of(gs_threads threads, size_t row)
{
    return threads.wide ? (uint64_t)threads.wide[row] : (uint64_t)(int64_t)threads.narrow[row];
}

/* Of the rows [from, to). `asked`, of `threads` + 1 items, says which threads matter; NULL where all do. */
static int by_thread(gs_threads thread, const uint8_t *wanted, const int64_t *keys, size_t from, size_t to,
                     int64_t threads, const uint8_t *asked, groups *of)
{
    size_t total = 0, *found;
    of->rows = NULL;
    if (!(of->bounds = calloc((size_t)threads + 2, sizeof *of->bounds)))
        return 0;
    size_t *bounds = of->bounds + 1; /* one on, so that filling moves each bound to where it belongs */
    for (size_t row = from; row < to; row++)
        total += !wanted || wanted[row];
    if (!(found = malloc((total + 1) * sizeof *found)))
        return 0;
    total = 0;
    for (size_t row = from; row < to; row++) { /* without a branch: what is wanted follows no pattern */
        uint64_t own = thread_of(thread, row);
        own = own < (uint64_t)threads ? own : (uint64_t)threads;
        found[total] = row;
        total += (!wanted || wanted[row]) & (own < (uint64_t)threads) & (!asked || asked[own]);
    }
    for (size_t place = 0; place < total; place++)
        bounds[thread_of(thread, found[place])]++;
    size_t most = 0;
    for (size_t which = 0, sum = 0; which <= (size_t)threads; which++) {
        size_t own = bounds[which];
        most = own > most ? own : most;
        bounds[which] = sum, sum += own;
    }
    if (most == total) { /* all are of one thread: in order already */
        for (size_t place = 0; place < total; place++)
            bounds[thread_of(thread, found[place])]++;
        of->rows = found;
    } else {
        of->rows = malloc((total + 1) * sizeof *of->rows);
        for (size_t place = 0; of->rows && place < total; place++)
            of->rows[bounds[thread_of(thread, found[place])]++] = found[place];
        free(found);
        if (!of->rows)
            return 0;
    }
    for (size_t which = 0; which < (size_t)threads; which++)
        if (!order(keys, of->rows + of->bounds[which], of->bounds[which + 1] - of->bounds[which]))
            return 0;
    return 1;
}

/* ---- open spans ---- */

/* Ends of the spans that are open, the least last: spans nest, so most open and close there. Where they don't, as a heap,
 * the least first. And per depth the last span that began at it. */
typedef struct {
    int64_t *ends;
    size_t open, room;
    int is_heap;
    int64_t *last;
    size_t depths;
    size_t begun, ended;
} sweep;

enum { MOST_MOVED = 32 };

static void close_least(sweep *state)
{
    int64_t *heap = state->ends, moved = heap[--state->open];
    size_t place = 0;
    for (size_t child; (child = 2 * place + 1) < state->open; place = child) {
        if (child + 1 < state->open && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= moved)
            break;
        heap[place] = heap[child];
    }
    heap[place] = moved;
}

static inline void close_until(sweep *state, int64_t at)
{
    if (state->is_heap)
        for (; state->open && state->ends[0] <= at; state->ended++)
            close_least(state);
    else
        for (; state->open && state->ends[state->open - 1] <= at; state->ended++)
            state->open--;
}

/* The other way round, the ends are a heap. */
static void turn(sweep *state)
{
    for (size_t low = 0, high = state->open; low + 1 < high; low++) {
        int64_t swapped = state->ends[low];
        state->ends[low] = state->ends[--high], state->ends[high] = swapped;
    }
    state->is_heap = 1;
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
    if (!state->is_heap && state->open > MOST_MOVED && state->ends[state->open - MOST_MOVED] < end)
        turn(state);
    size_t place = state->open++;
    if (state->is_heap)
        for (size_t parent; place && state->ends[parent = (place - 1) / 2] > end; place = parent)
            state->ends[place] = state->ends[parent];
    else
        for (; place && state->ends[place - 1] < end; place--)
            state->ends[place] = state->ends[place - 1];
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

/* ---- a sweep over all rows ---- */

/* The sweep of one thread, and its instants that are still to answer: places in the groups of instants. */
typedef struct {
    sweep state;
    int has_begun;
    int64_t last_start;
    size_t asked, behind;
} lane;

/* What a sweep is to find: the innermost span at instants or, without any, the parents of the spans themselves. */
typedef struct {
    const groups *instants;
    const int64_t *at;
    int64_t *found;
} question;

enum { NO_MEMORY, DONE, UNORDERED, PIECE = 1 << 13 };

/* Answers the instants before `until`. */
static void answer(lane *own, const gs_nested *spans, const question *of, int64_t until, int all)
{
    for (; own->asked < own->behind; own->asked++) {
        size_t which = of->instants->rows[own->asked];
        int64_t at = of->at[which];
        if (at >= until && !all)
            return;
        close_until(&own->state, at);
        if (own->state.begun <= own->state.ended)
            continue;
        size_t depth = own->state.begun - own->state.ended;
        int64_t row = depth < own->state.depths ? own->state.last[depth] : -1;
        if (row >= 0 && spans->end[row] >= at)
            of->found[which] = row;
    }
}

static int sweep_thread(lane *own, const gs_nested *spans, const question *of, size_t *rows, size_t low, size_t high)
{
    if (low < high && own->has_begun && spans->start[rows[low]] <= own->last_start)
        return UNORDERED;
    for (size_t behind; low < high; low = behind) {
        int64_t start = spans->start[rows[low]];
        behind = same_start(spans->start, rows, low, high);
        if (of->instants)
            answer(own, spans, of, start, 0);
        if (!begin(&own->state, spans, rows, low, behind, of->instants ? NULL : of->found))
            return NO_MEMORY;
        own->has_begun = 1, own->last_start = start;
    }
    return DONE;
}

static int sweep_piece(lane *lanes, const gs_nested *spans, const question *of, uint8_t *matters, size_t from, size_t to)
{
    groups own = {NULL, NULL};
    int done = by_thread(spans->thread, spans->candidates, spans->start, from, to, spans->threads, matters, &own);
    for (size_t thread = 0; done == DONE && thread < (size_t)spans->threads; thread++) {
        done = sweep_thread(&lanes[thread], spans, of, own.rows, own.bounds[thread], own.bounds[thread + 1]);
        if (of->instants)
            matters[thread] = lanes[thread].asked < lanes[thread].behind;
    }
    groups_free(&own);
    return done;
}

/* The last row not after the first instant before which no candidate is open that began in a row before it, of rows in
 * order of start: what lies before it can't matter. */
static size_t first_that_matters(const gs_nested *spans, const question *of)
{
    int64_t least = INT64_MAX, reach = INT64_MIN;
    size_t found = 0;
    for (size_t thread = 0; thread < (size_t)spans->threads; thread++) {
        size_t first = of->instants->bounds[thread];
        if (first < of->instants->bounds[thread + 1] && of->at[of->instants->rows[first]] < least)
            least = of->at[of->instants->rows[first]];
    }
    for (size_t row = 0; row < spans->count && spans->start[row] <= least; row++) {
        if (row && spans->start[row] < spans->start[row - 1])
            break;
        if (row && spans->start[row] > spans->start[row - 1] && reach <= spans->start[row])
            found = row;
        if ((!spans->candidates || spans->candidates[row]) && spans->end[row] > reach)
            reach = spans->end[row];
    }
    return found;
}

/* In pieces of the table, whose rows of a thread mostly stand in order of start: what is made of one fits caches.
 * UNORDERED where they don't; never in one piece. */
static int sweep_pieces(const gs_nested *spans, const question *of, uint8_t *matters, size_t piece)
{
    lane *lanes = calloc((size_t)spans->threads + 1, sizeof *lanes);
    int done = lanes ? DONE : NO_MEMORY, any = 1;
    size_t begin = of->instants && piece < spans->count ? first_that_matters(spans, of) : 0;
    for (size_t thread = 0; done == DONE && thread < (size_t)spans->threads; thread++) {
        lanes[thread].has_begun = begin > 0, lanes[thread].last_start = begin ? spans->start[begin - 1] : 0;
        lanes[thread].asked = of->instants ? of->instants->bounds[thread] : 0;
        lanes[thread].behind = of->instants ? of->instants->bounds[thread + 1] : 0;
        matters[thread] = !of->instants || lanes[thread].asked < lanes[thread].behind;
    }
    for (size_t from = begin, to; done == DONE && any && from < spans->count; from = to) {
        to = piece < spans->count - from ? from + piece : spans->count;
        while (to < spans->count && spans->start[to] == spans->start[to - 1])
            to++;
        done = sweep_piece(lanes, spans, of, matters, from, to);
        any = memchr(matters, 1, (size_t)spans->threads) != NULL;
    }
    for (size_t thread = 0; lanes && thread < (size_t)spans->threads; thread++) {
        if (done == DONE && of->instants)
            answer(&lanes[thread], spans, of, 0, 1);
        free(lanes[thread].state.ends), free(lanes[thread].state.last);
    }
    free(lanes);
    return done;
}

static int sweep_spans(const gs_nested *spans, const question *of, size_t asked)
{
    uint8_t *matters = calloc((size_t)spans->threads + 1, 1);
    size_t piece = PIECE + 8 * (size_t)spans->threads;
    int done = matters ? UNORDERED : NO_MEMORY;
    for (; done == UNORDERED; piece = spans->count) {
        for (size_t place = 0; place < asked; place++)
            of->found[place] = INT64_MIN;
        done = sweep_pieces(spans, of, matters, piece);
    }
    free(matters);
    return done;
}

int gs_innermost(const gs_nested *spans, gs_threads at_thread, const int64_t *at, size_t instants, int64_t *found)
{
    groups asked = {NULL, NULL};
    question of = {&asked, at, found};
    int done = by_thread(at_thread, NULL, at, 0, instants, spans->threads, NULL, &asked)
               && sweep_spans(spans, &of, instants);
    groups_free(&asked);
    return done;
}

int gs_parents(const gs_nested *spans, int64_t *found)
{
    question of = {NULL, NULL, found};
    return sweep_spans(spans, &of, spans->count);
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
