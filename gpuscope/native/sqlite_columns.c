#include "sqlite_columns.h"

enum { OK = 0, ROW = 100, DONE = 101, INTEGER = 1, REAL = 2, ABSENT = 5, READ_ONLY = 0x1, URI = 0x40, ONE_THREAD = 0x8000 };

/* One row; 1, or the code to return. */
static int64_t take_row(const gs_sqlite *sqlite, void *statement, int strict, int64_t *out, size_t stride, size_t width)
{
    for (size_t column = 0; column < width; column++) {
        int64_t value = INT64_MIN;
        int type = sqlite->column_type(statement, (int)column);
        if (type == INTEGER) {
            value = sqlite->column_int64(statement, (int)column);
        } else if (type != ABSENT && !strict) {
            double real = type == REAL ? sqlite->column_double(statement, (int)column) : 0;
            if (type != REAL || !(real > -9.2e18 && real < 9.2e18))
                return -2;
            value = (int64_t)real;
        }
        out[column * stride] = value;
    }
    return 1;
}

int64_t gs_sqlite_columns(const gs_sqlite *sqlite, const char *uri, const char *query, int strict, int64_t *out,
                          size_t stride, size_t most, size_t width)
{
    void *database = NULL, *statement = NULL;
    int64_t rows = 0, code = -1;
    int step = OK;
    /* A connection that is one thread's own: SQLite need not lock it. */
    if (sqlite->open(uri, &database, READ_ONLY | URI | ONE_THREAD, NULL) != OK)
        goto out;
    sqlite->busy_timeout(database, 500);
    if (sqlite->prepare(database, query, -1, &statement, NULL) != OK || !statement
        || (size_t)sqlite->column_count(statement) != width)
        goto out;
    while ((step = sqlite->step(statement)) == ROW) {
        if ((size_t)rows == most)
            goto out;
        code = take_row(sqlite, statement, strict, out + rows, stride, width);
        if (code < 0)
            goto out;
        rows++;
    }
    code = step == DONE ? rows : -1;
out:
    if (statement)
        sqlite->finalize(statement);
    if (database)
        sqlite->close(database);
    return code;
}
