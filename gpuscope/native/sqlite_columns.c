#include "sqlite_columns.h"

enum { OK = 0, ROW = 100, DONE = 101, INTEGER = 1, READ_ONLY = 0x1, URI = 0x40, ONE_THREAD = 0x8000 };

int64_t gs_sqlite_columns(const gs_sqlite *sqlite, const char *uri, const char *query, int64_t *out, size_t stride,
                          size_t most, size_t width)
{
    void *database = NULL, *statement = NULL;
    size_t rows = 0;
    int step = OK, done = 0;
    /* A connection that is one thread's own: SQLite need not lock it. */
    if (sqlite->open(uri, &database, READ_ONLY | URI | ONE_THREAD, NULL) != OK)
        goto out;
    sqlite->busy_timeout(database, 500);
    if (sqlite->prepare(database, query, -1, &statement, NULL) != OK || !statement
        || (size_t)sqlite->column_count(statement) != width)
        goto out;
    for (; (step = sqlite->step(statement)) == ROW && rows < most; rows++)
        for (size_t column = 0; column < width; column++)
            out[column * stride + rows] = sqlite->column_type(statement, (int)column) == INTEGER
                                              ? sqlite->column_int64(statement, (int)column)
                                              : INT64_MIN;
    done = step == DONE;
out:
    if (statement)
        sqlite->finalize(statement);
    if (database)
        sqlite->close(database);
    return done ? (int64_t)rows : -1;
}
