/* Integer columns of an SQLite query, through the library that Python itself has loaded. Knows nothing of Python. */
#ifndef GPUSCOPE_SQLITE_COLUMNS_H
#define GPUSCOPE_SQLITE_COLUMNS_H

#include <stddef.h>
#include <stdint.h>

/* Functions of SQLite's C interface (sqlite.org/c3ref), whose binary interface is stable. */
typedef struct {
    int (*open)(const char *, void **, int, const char *);
    int (*close)(void *);
    int (*busy_timeout)(void *, int);
    int (*prepare)(void *, const char *, int, void **, const char **);
    int (*step)(void *);
    int (*column_type)(void *, int);
    int64_t (*column_int64)(void *, int);
    int (*column_count)(void *);
    int (*finalize)(void *);
} gs_sqlite;

enum { GS_SQLITE_FUNCTIONS = 9 };

/* Runs a query on the database `uri` and writes row r of column c to out[c * stride + r], r < `most`; INT64_MIN for what is
 * no integer. Returns the number of rows; -1 where SQLite fails or there are more than `most`. */
int64_t gs_sqlite_columns(const gs_sqlite *sqlite, const char *uri, const char *query, int64_t *out, size_t stride,
                          size_t most, size_t width);

#endif
