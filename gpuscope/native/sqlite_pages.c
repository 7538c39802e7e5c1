#define _POSIX_C_SOURCE 200809L /* pread */
#define _FILE_OFFSET_BITS 64
#include "sqlite_pages.h"

#include <stdlib.h>
#include <string.h>
#ifndef _WIN32
#include <unistd.h>
#endif

enum { INTERIOR = 5, LEAF = 13, DEEPEST = 32, AT_ONCE = 1 << 18 };

static int read_at(const gs_database *database, uint64_t page, uint8_t *into, size_t bytes)
{
#ifdef _WIN32
    (void)database, (void)page, (void)into, (void)bytes;
    return 0;
#else
    return page && pread(database->file, into, bytes, (off_t)((page - 1) * database->size)) == (ssize_t)bytes;
#endif
}

static uint32_t two(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

static uint32_t four(const uint8_t *at) { return two(at) << 16 | two(at + 2); }

/* A number of one to nine bytes; NULL where it does not end before `end`. */
static inline const uint8_t *varint(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
    uint64_t found = 0;
    for (int byte = 0; byte < 9 && at < end; byte++, at++) {
        if (byte == 8) {
            *value = found << 8 | *at;
            return at + 1;
        }
        found = found << 7 | (*at & 0x7f);
        if (*at < 0x80) {
            *value = found;
            return at + 1;
        }
    }
    return NULL;
}

typedef struct {
    const gs_database *database;
    uint32_t *pages, *rows;
    size_t most, count, visited;
} walk;

static int add_pages(walk *own, uint32_t page, int depth)
{
    uint8_t *text;
    int done = 0;
    if (depth > DEEPEST || own->visited++ > own->most || !(text = malloc(own->database->size)))
        return 0;
    /* Of a page with rows its head is enough. */
    if (!read_at(own->database, page, text, 8))
        goto out;
    uint32_t cells = two(text + 3);
    if (text[0] == LEAF && own->count < own->most) {
        own->pages[own->count] = page;
        own->rows[own->count++] = cells;
        done = 1;
    } else if (text[0] == INTERIOR && 12 + 2 * cells <= own->database->used
               && read_at(own->database, page, text, own->database->size)) {
        done = 1;
        for (uint32_t cell = 0; done && cell < cells; cell++) {
            uint32_t at = two(text + 12 + 2 * cell);
            done = at + 4 <= own->database->used && add_pages(own, four(text + at), depth + 1);
        }
        done = done && add_pages(own, four(text + 8), depth + 1);
    }
out:
    free(text);
    return done;
}

int64_t gs_table_pages(const gs_database *database, uint32_t root, uint32_t *pages, uint32_t *rows, size_t most)
{
    walk own = {database, pages, rows, most, 0, 0};
    return add_pages(&own, root, 0) ? (int64_t)own.count : -1;
}

/* A value of a row by its type, of which `bytes` are known to be there. */
static inline int64_t integer(uint64_t type, const uint8_t *at, uint32_t bytes)
{
    if (type == 8 || type == 9)
        return (int64_t)type - 8;
    if (type == 0 || type > 6)
        return INT64_MIN;
    uint64_t value = at[0] & 0x80 ? UINT64_MAX : 0;
    for (uint32_t byte = 0; byte < bytes; byte++)
        value = value << 8 | at[byte];
    return (int64_t)value;
}

static const uint8_t BYTES[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};

/* The columns of one row, which lies at `at`; its part in this page ends before `end`. */
static int row(const uint8_t *at, const uint8_t *end, uint32_t used, const int32_t *columns, size_t width, int64_t *out,
               size_t stride)
{
    uint64_t length, id, head, type;
    if (!(at = varint(at, end, &length)) || !(at = varint(at, end, &id)))
        return 0;
    uint64_t local = length;
    if (length > used - 35) { /* the rest lies in other pages */
        uint64_t least = (used - 12) * 32 / 255 - 23, most = least + (length - least) % (used - 4);
        local = most <= used - 35 ? most : least;
    }
    const uint8_t *types = local <= (uint64_t)(end - at) ? varint(at, at + local, &head) : NULL;
    if (!types || head > local)
        return 0;
    const uint8_t *value = at + head, *types_end = value, *last = at + local;
    size_t found = 0;
    if (columns[0] == GS_ROWID)
        out[stride * found++] = (int64_t)id;
    for (int32_t column = 0; found < width; column++) {
        if (types < types_end && *types < 0x80)
            type = *types++;
        else if (!(types = varint(types, types_end, &type)))
            return 0;
        uint64_t bytes = type < 12 ? BYTES[type] : (type - 12) / 2;
        if (column == columns[found]) {
            if (type < 12 && bytes > (uint64_t)(last - value))
                return 0;
            out[stride * found++] = integer(type, value, (uint32_t)bytes);
        }
        /* What is longer than the page has is behind all that is asked for, or else some column lies elsewhere. */
        if (found < width && bytes > (uint64_t)(last - value))
            return 0;
        value += found < width ? bytes : 0;
    }
    return 1;
}

int gs_table_columns(const gs_database *database, const uint32_t *pages, const uint32_t *rows, size_t count,
                     const int32_t *columns, size_t width, int64_t *out, size_t stride)
{
    size_t at_once = AT_ONCE / database->size ? AT_ONCE / database->size : 1, done = 0;
    uint8_t *text = malloc(at_once * database->size);
    int good = text != NULL;
    while (good && done < count) {
        /* Pages of a table mostly follow each other. */
        size_t run = 1;
        while (run < at_once && done + run < count && pages[done + run] == pages[done] + run)
            run++;
        good = read_at(database, pages[done], text, run * database->size);
        for (const uint8_t *page = text; good && run; run--, done++, page += database->size) {
            const uint8_t *end = page + database->used;
            good = page[0] == LEAF && two(page + 3) == rows[done] && 8 + 2 * rows[done] <= database->used;
            for (uint32_t cell = 0; good && cell < rows[done]; cell++) {
                uint32_t at = two(page + 8 + 2 * cell);
                good = at < database->used && row(page + at, end, database->used, columns, width, out++, stride);
            }
        }
    }
    free(text);
    return good;
}
