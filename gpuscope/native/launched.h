/* Sums over nested operators and ranges, of themselves and of what was launched in each. Knows nothing of Python. */
#ifndef GPUSCOPE_LAUNCHED_H
#define GPUSCOPE_LAUNCHED_H

#include <stddef.h>
#include <stdint.h>

/* The host's events, `count` of them. */
typedef struct {
    const int64_t *start, *end;
    const int32_t *name;
    const int8_t *category;
    size_t count;
} gs_host;

/* Device events by the instant of their launch, ascending; sums before each and of all, four rows of `count` + 1:
 * gpuscope.analyzers.profile.call_tree.Launched. */
typedef struct {
    const int64_t *at, *start, *end, *sums;
    size_t count;
} gs_launched;

enum { GS_FIGURES = 8 };

/* By key, which is twice the code of an event's name, one more of an operator; `keys` items each. */
typedef struct {
    int64_t *number, *longest;
    int64_t *figures; /* GS_FIGURES rows: host, host_self, device_self, compute, communication, memory, kernels, reach */
    size_t keys;
} gs_sums;

/* Adds events of one thread, `rows`; `parent` has for each event of the host the row of what encloses it or INT64_MIN. What
 * was launched in those of category `ranges` is looked for in `of_ranges`, in others in `by`. 0 where a row or a name is not
 * there. */
int gs_add_launched(const gs_host *host, const int64_t *rows, const int64_t *parent, size_t count, int8_t operators,
                    int8_t ranges, const gs_launched *by, const gs_launched *of_ranges, const gs_sums *into);

#endif
