/* When everything in a dependency graph happens. Knows nothing of Python. */
#ifndef GPUSCOPE_LONGEST_PATH_H
#define GPUSCOPE_LONGEST_PATH_H

#include <stddef.h>
#include <stdint.h>

/* A graph of `nodes` and `edges`; every src and dst is below `nodes`. */
typedef struct {
    size_t nodes, edges;
    const int64_t *src, *dst, *lag; /* per edge: dst starts `lag` ns after src ends at the earliest */
    const int64_t *dur;             /* per node, ns */
} gs_graph;

/* Sets `start` (given: the earliest there can be) and `end` of every node, ns. `done` counts the nodes reached: fewer than
   all where nodes wait for each other in a circle. 0 where memory is short. */
int gs_longest_path(const gs_graph *graph, int64_t *start, int64_t *end, size_t *done);

#endif
