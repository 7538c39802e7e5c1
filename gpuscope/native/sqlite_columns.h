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
    double (*column_double)(void *, int);
    int (*column_count)(void *);
    int (*finalize)(void *);
} gs_sqlite;

enum { GS_SQLITE_FUNCTIONS = 10 };

/* Runs a query on the database `uri` and writes row r of column c to out[c * stride + r], INT64_MIN for NULL; r < `most`.
 * Returns the number of rows; -1 where SQLite fails or a row has no room; -2 where a value is no number. With `strict`
 * whatever is no integer becomes INT64_MIN; else fractions are cut off. */
int64_t gs_sqlite_columns(const gs_sqlite *sqlite, const char *uri, const char *query, int strict, int64_t *out,
                          size_t stride, size_t most, size_t width);

#endif
