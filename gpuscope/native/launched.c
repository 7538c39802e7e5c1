#include "launched.h"

#include "columns.h"

enum { HOST, HOST_SELF, DEVICE_SELF, COMPUTE, COMMUNICATION, MEMORY, KERNELS, REACH };

/* What was launched in a span: the places [low, high). */
typedef struct {
    size_t low, high;
} places;

static places within(const gs_launched *launched, int64_t start, int64_t end, places near)
{
    near.low = gs_place_from(launched->at, launched->count, near.low, start);
    near.high = gs_place_from(launched->at, launched->count, near.low, end);
    return near;
}

static int64_t sum(const gs_launched *launched, places of, size_t row)
{
    const int64_t *sums = launched->sums + row * (launched->count + 1);
    return of.high > of.low ? (int64_t)((uint64_t)sums[of.high] - (uint64_t)sums[of.low]) : 0;
}

static int64_t busy_in(const gs_launched *launched, places of)
{
    uint64_t total = 0;
    for (size_t row = 0; row < 3; row++)
        total += (uint64_t)sum(launched, of, row);
    return (int64_t)total;
}

/* From the first start to the last end. */
static int64_t reach(const gs_launched *launched, places of)
{
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (size_t place = of.low; place < of.high; place++) {
        first = launched->start[place] < first ? launched->start[place] : first;
        last = launched->end[place] > last ? launched->end[place] : last;
    }
    return of.high > of.low ? (int64_t)((uint64_t)last - (uint64_t)first) : 0;
}

/* The key of an event, or the number of keys where it has none. */
static size_t key_of(const gs_host *host, int64_t row, int8_t operators, size_t keys)
{
    if (row < 0 || (uint64_t)row >= host->count || host->name[row] < 0)
        return keys;
    size_t key = (size_t)host->name[row] * 2 + (host->category[row] == operators);
    return key < keys ? key : keys;
}

static void add(const gs_sums *into, size_t figure, size_t key, int64_t value)
{
    int64_t *sum = &into->figures[figure * into->keys + key];
    *sum = (int64_t)((uint64_t)*sum + (uint64_t)value);
}

int gs_add_launched(const gs_host *host, const int64_t *rows, const int64_t *parent, size_t count, int8_t operators,
                    int8_t ranges, const gs_launched *by, const gs_launched *of_ranges, const gs_sums *into)
{
    places own = {0, 0}, others = {0, 0};
    for (size_t which = 0; which < count; which++) {
        int64_t row = rows[which];
        size_t key = key_of(host, row, operators, into->keys);
        if (key == into->keys)
            return 0;
        int64_t start = host->start[row], end = host->end[row], spent = (int64_t)((uint64_t)end - (uint64_t)start);
        own = within(by, start, end, own);
        int64_t busy = busy_in(by, own);
        into->number[key]++;
        into->longest[key] = spent > into->longest[key] ? spent : into->longest[key];
        add(into, HOST, key, spent), add(into, HOST_SELF, key, spent), add(into, DEVICE_SELF, key, busy);
        if (parent[row] != INT64_MIN) {
            size_t above = key_of(host, parent[row], operators, into->keys);
            if (above == into->keys)
                return 0;
            add(into, HOST_SELF, above, (int64_t)(0 - (uint64_t)spent));
            add(into, DEVICE_SELF, above, (int64_t)(0 - (uint64_t)busy));
        }
        const gs_launched *from = host->category[row] == ranges ? of_ranges : by;
        places of = from == by ? own : (others = within(from, start, end, others));
        for (size_t figure = 0; figure < 4; figure++)
            add(into, COMPUTE + figure, key, sum(from, of, figure));
        add(into, REACH, key, reach(from, of));
    }
    return 1;
}
