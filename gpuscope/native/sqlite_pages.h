/* Integer columns straight from the pages of an SQLite database (sqlite.org/fileformat2). Knows nothing of Python. */
#ifndef GPUSCOPE_SQLITE_PAGES_H
#define GPUSCOPE_SQLITE_PAGES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int file;
    /* Bytes of a page, and those of it that are used. */
    uint32_t size, used;
} gs_database;

enum { GS_ROWID = -1 };

/* Pages with the rows of the table whose tree begins at page `root`, in order, and how many rows each has. Returns how
 * many pages; -1 where there are more than `most` or the tree is not as it should be. */
int64_t gs_table_pages(const gs_database *database, uint32_t root, uint32_t *pages, uint32_t *rows, size_t most);

/* Writes columns (places in a row, ascending; GS_ROWID, which comes first, is the row's id) of the rows of some pages:
 * row r of the c-th to out[c * stride + r], INT64_MIN for what is no integer. Returns 0 where a page does not have the
 * `rows` that it should, or a row lacks a column or goes on in another page before it. */
int gs_table_columns(const gs_database *database, const uint32_t *pages, const uint32_t *rows, size_t count,
                     const int32_t *columns, size_t width, int64_t *out, size_t stride);

#endif
