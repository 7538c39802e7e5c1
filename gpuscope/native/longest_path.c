/* The longest path through a graph, in topological order by Kahn's algorithm: O(nodes + edges). */
#include "longest_path.h"

#include <stdlib.h>

typedef struct {
    int64_t to, lag;
} edge;

/* Sums that stay defined whatever the numbers are. */
static int64_t plus(int64_t one, int64_t other)
{
    return (int64_t)((uint64_t)one + (uint64_t)other);
}

/* Edges by where they begin: those of node n stand from first[n] to first[n + 1]. */
static void by_source(const gs_graph *graph, size_t *first, edge *out)
{
    for (size_t index = 0; index < graph->edges; index++)
        first[graph->src[index] + 1]++;
    for (size_t node = 0; node < graph->nodes; node++)
        first[node + 1] += first[node];
    for (size_t index = graph->edges; index-- > 0;) {
        size_t place = --first[graph->src[index] + 1];
        out[place].to = graph->dst[index], out[place].lag = graph->lag[index];
    }
    /* Each first[n + 1] has moved down to where the edges of n begin. */
    for (size_t node = 0; node < graph->nodes; node++)
        first[node] = first[node + 1];
    first[graph->nodes] = graph->edges;
}

static size_t walk(const gs_graph *graph, const size_t *first, const edge *out, uint32_t *left, size_t *ready,
                   int64_t *start, int64_t *end)
{
    size_t waiting = 0, done = 0;
    for (size_t index = 0; index < graph->edges; index++)
        left[graph->dst[index]]++;
    for (size_t node = 0; node < graph->nodes; node++)
        if (!left[node])
            ready[waiting++] = node;
    while (waiting) {
        size_t node = ready[--waiting];
        int64_t at = end[node] = plus(start[node], graph->dur[node]);
        done++;
        for (size_t place = first[node]; place < first[node + 1]; place++) {
            size_t to = (size_t)out[place].to;
            int64_t since = plus(at, out[place].lag);
            if (since > start[to])
                start[to] = since;
            if (!--left[to])
                ready[waiting++] = to;
        }
    }
    return done;
}

int gs_longest_path(const gs_graph *graph, int64_t *start, int64_t *end, size_t *done)
{
    size_t *first = calloc(graph->nodes + 2, sizeof *first);
    edge *out = malloc((graph->edges + 1) * sizeof *out);
    uint32_t *left = calloc(graph->nodes + 1, sizeof *left);
    size_t *ready = malloc((graph->nodes + 1) * sizeof *ready);
    int good = first && out && left && ready;
    if (good) {
        by_source(graph, first, out);
        *done = walk(graph, first, out, left, ready, start, end);
    }
    free(first);
    free(out);
    free(left);
    free(ready);
    return good;
}
