#include "packet_scan.h"

#include <stdlib.h>
#include <string.h>

#include "kineto_scan.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, DEEPEST = 16, DIGITS = 18 };

/* One field of a message: its number, and a number or a text as its wire type says. */
typedef struct {
    uint64_t number, value;
    int wire;
    const uint8_t *text;
    size_t size;
} field;

typedef struct {
    const uint8_t *at, *end;
} message;

static const uint8_t *varint(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
    uint64_t found = 0;
    for (int shift = 0; shift < 64 && at < end; shift += 7) {
        uint64_t part = *at++;
        if (shift == 63 && part > 1)
            return NULL;
        found |= (part & 0x7f) << shift;
        if (part < 0x80) {
            *value = found;
            return at;
        }
    }
    return NULL;
}

/* 1 with a field, 0 at the end, -1 where there is none. */
static int next_field(message *of, field *found)
{
    uint64_t tag;
    if (of->at == of->end)
        return 0;
    if (!(of->at = varint(of->at, of->end, &tag)) || tag >> 3 == 0 || tag > UINT32_MAX)
        return -1;
    found->number = tag >> 3;
    found->wire = (int)(tag & 7);
    if (found->wire == VARINT)
        return (of->at = varint(of->at, of->end, &found->value)) ? 1 : -1;
    uint64_t length = found->wire == FIXED64 ? 8 : 4;
    if (found->wire == BYTES) {
        if (!(of->at = varint(of->at, of->end, &length)))
            return -1;
    } else if (found->wire != FIXED64 && found->wire != FIXED32)
        return -1;
    if (length > (uint64_t)(of->end - of->at))
        return -1;
    found->text = of->at;
    found->size = (size_t)length;
    of->at += length;
    return 1;
}

static message inside(const field *own) { return (message){own->text, own->text + own->size}; }

/* Notes that a field is there; 0 the second time: the runtime would merge the two. */
static int first(unsigned *seen, unsigned bit)
{
    int new = !(*seen & bit);
    *seen |= bit;
    return new;
}

static int is(const field *own, const char *name) { return own->size == strlen(name) && !memcmp(own->text, name, own->size); }

/* What one annotation holds. */
typedef struct {
    field name, number;
    int named, numbered;
} annotation;

static int read_annotation(message of, int depth, annotation *found)
{
    field own;
    unsigned seen = 0;
    int more;
    *found = (annotation){0};
    while ((more = next_field(&of, &own)) > 0) {
        annotation part;
        switch (own.number) {
        case 10:
            if (own.wire != BYTES || !first(&seen, 1))
                return 0;
            found->name = own, found->named = 1;
            break;
        case 2: case 3: case 4: /* a bool, an unsigned and a signed number */
            if (own.wire != VARINT || !first(&seen, 2))
                return 0;
            found->number = own, found->numbered = own.number > 2;
            break;
        case 5:
            if (own.wire != FIXED64 || !first(&seen, 2))
                return 0;
            break;
        case 6:
            if (own.wire != BYTES || !first(&seen, 2))
                return 0;
            break;
        case 11: case 12: /* annotations by name, and in a list */
            if (own.wire != BYTES || depth == DEEPEST || !read_annotation(inside(&own), depth + 1, &part))
                return 0;
            break;
        default:
            break;
        }
    }
    return more == 0;
}

static int64_t number_of(const annotation *own)
{
    uint64_t value = own->number.value;
    int64_t signed_value = (int64_t)value;
    if (own->number.number == 3)
        return value < (uint64_t)GS_PACKET_LIMIT ? signed_value : GS_NA;
    return signed_value < GS_PACKET_LIMIT && signed_value > -GS_PACKET_LIMIT ? signed_value : GS_NA;
}

static int take_annotation(const uint8_t *text, const field *own, unsigned *seen, int64_t *row)
{
    static const struct {
        const char *name;
        unsigned bit;
        int column, is_number;
    } known[] = {
        {"correlation", 1, GS_PACKET_CORRELATION, 1}, {"External id", 2, GS_SLICE_EXTERNAL, 1},
        {"Input Dims", 4, GS_SLICE_DIMS, 0},          {"Input type", 8, GS_SLICE_TYPES, 0},
        {"Concrete Inputs", 16, GS_SLICE_CONCRETE, 0}, {"Input Strides", 32, GS_SLICE_STRIDES, 0},
    };
    annotation found;
    if (!read_annotation(inside(own), 0, &found) || !found.named)
        return 0;
    if (is(&found.name, "cuda_sync_kind"))
        row[GS_PACKET_FLAGS] |= GS_SYNC_SLICE;
    for (size_t one = 0; one < sizeof known / sizeof *known; one++) {
        if (!is(&found.name, known[one].name))
            continue;
        if (!first(seen, known[one].bit) || (known[one].is_number && !found.numbered))
            return 0;
        row[known[one].column] = known[one].is_number ? number_of(&found) : (int64_t)((uint64_t)(own->text - text) << 32 | own->size);
    }
    return 1;
}

/* Whether a text is a message of whole numbers in field 1: `GpuCorrelation`. */
static int of_numbers(message of)
{
    field own;
    int more;
    while ((more = next_field(&of, &own)) > 0)
        if (own.number == 1 && own.wire != VARINT)
            return 0;
    return more == 0;
}

static int read_slice(const uint8_t *text, message of, int64_t *row)
{
    field own;
    unsigned seen = 0, annotated = 0;
    int more;
    while ((more = next_field(&of, &own)) > 0) {
        switch (own.number) {
        case 9:
            if (own.wire != VARINT || !first(&seen, 1) || (own.value != GS_SLICE_BEGIN && own.value != GS_SLICE_END))
                return 0;
            row[GS_PACKET_KIND] = (int64_t)own.value;
            break;
        case 11:
            if (own.wire != VARINT || !first(&seen, 2))
                return 0;
            row[GS_SLICE_TRACK] = (int64_t)own.value;
            break;
        case 10:
            if (own.wire != VARINT || !first(&seen, 4))
                return 0;
            row[GS_PACKET_NAME] = (int64_t)own.value;
            break;
        case 3: /* of several the first counts */
            if (own.wire != VARINT)
                return 0;
            if (first(&seen, 8))
                row[GS_SLICE_CATEGORY] = (int64_t)own.value;
            break;
        case 4:
            if (own.wire != BYTES || !take_annotation(text, &own, &annotated, row))
                return 0;
            break;
        case 22: case 23: /* names in full */
            return 0;
        case 47: case 48:
            if (own.wire != FIXED64)
                return 0;
            break;
        case 3000:
            if (own.wire != BYTES || !of_numbers(inside(&own)))
                return 0;
            break;
        default:
            break;
        }
    }
    return more == 0 && (seen & 1);
}

/* A number in digits; GS_NA for any other text. */
static int64_t in_digits(const field *own)
{
    size_t at = own->size && own->text[0] == '-';
    int64_t value = 0;
    if (own->size == at || own->size - at > DIGITS)
        return GS_NA;
    for (size_t place = at; place < own->size; place++) {
        if (own->text[place] < '0' || own->text[place] > '9')
            return GS_NA;
        value = value * 10 + (own->text[place] - '0');
    }
    return at ? -value : value;
}

static int take_extra(message of, int64_t *row)
{
    static const struct {
        const char *name;
        int column;
    } known[] = {{"correlation", GS_PACKET_CORRELATION}, {"stream id", GS_STAGE_STREAM}, {"device id", GS_STAGE_DEVICE},
                 {"bytes", GS_STAGE_BYTES}, {"graph id", GS_STAGE_GRAPH}};
    field own, name = {0}, value = {0};
    unsigned seen = 0;
    int more;
    while ((more = next_field(&of, &own)) > 0) {
        if (own.number > 2)
            continue;
        if (own.wire != BYTES || !first(&seen, (unsigned)own.number))
            return 0;
        *(own.number == 1 ? &name : &value) = own;
    }
    for (size_t one = 0; one < sizeof known / sizeof *known && seen & 1; one++)
        if (is(&name, known[one].name))
            row[known[one].column] = in_digits(&value);
    return more == 0;
}

static int add_wait(gs_packets *found, uint64_t waited_for)
{
    if (found->wait_count + 2 > found->wait_room) {
        size_t room = found->wait_room ? found->wait_room * 2 : 64;
        int64_t *waits = realloc(found->waits, room * sizeof *waits);
        if (!waits)
            return 0;
        found->waits = waits, found->wait_room = room;
    }
    found->waits[found->wait_count] = (int64_t)waited_for;
    found->wait_count += 2; /* the second is filled in when the event is known */
    return 1;
}

/* 1 when read, 0 where it is unusual, -1 without memory. */
static int read_stage(message of, int64_t *row, gs_packets *found)
{
    static const struct {
        uint64_t number;
        int column;
    } numbers[] = {{1, GS_STAGE_EVENT}, {2, GS_STAGE_DURATION}, {11, GS_STAGE_GPU}, {13, GS_STAGE_QUEUE},
                   {14, GS_STAGE_STAGE}, {20, GS_PACKET_NAME}};
    field own;
    unsigned seen = 0;
    int more;
    size_t first_wait = found->wait_count;
    row[GS_PACKET_KIND] = GS_STAGE;
    for (int column = GS_STAGE_STREAM; column <= GS_STAGE_GRAPH; column++)
        row[column] = GS_NA;
    while ((more = next_field(&of, &own)) > 0) {
        if (own.number == 6) {
            if (own.wire != BYTES || !take_extra(inside(&own), row))
                return 0;
        } else if (own.number == 18) {
            if (own.wire != VARINT)
                return 0;
            if (!add_wait(found, own.value))
                return -1;
        }
        for (unsigned one = 0; one < sizeof numbers / sizeof *numbers; one++) {
            if (own.number != numbers[one].number)
                continue;
            if (own.wire != VARINT || !first(&seen, 1u << one))
                return 0;
            row[numbers[one].column] = (int64_t)own.value;
        }
    }
    uint64_t lasts = (uint64_t)row[GS_STAGE_DURATION];
    row[GS_STAGE_DURATION] = lasts < (uint64_t)GS_PACKET_LIMIT ? (int64_t)lasts : GS_NA;
    for (size_t place = first_wait; place < found->wait_count; place += 2)
        found->waits[place + 1] = row[GS_STAGE_EVENT];
    return more == 0 && row[GS_STAGE_GPU] >= 0 && row[GS_STAGE_GPU] <= INT32_MAX;
}

static int read_packet(const uint8_t *text, message of, int64_t *row, gs_packets *found)
{
    field own, event = {0};
    unsigned seen = 0;
    int more;
    while ((more = next_field(&of, &own)) > 0) {
        switch (own.number) {
        case 8:
            if (own.wire != VARINT || !first(&seen, 1))
                return 0;
            row[GS_PACKET_TIME] = own.value < (uint64_t)GS_PACKET_LIMIT ? (int64_t)own.value : GS_NA;
            break;
        case 10: case 13:
            if (own.wire != VARINT || own.value > UINT32_MAX || !first(&seen, own.number == 10 ? 2 : 4))
                return 0;
            if (own.number == 10)
                row[GS_PACKET_SEQUENCE] = (int64_t)own.value;
            else
                row[GS_PACKET_FLAGS] |= (int64_t)(own.value & GS_STATE_CLEARED);
            break;
        case 11: case 53:
            if (own.wire != BYTES || !first(&seen, 8))
                return 0;
            event = own;
            break;
        case 58: /* which clock */
            if (own.wire != VARINT)
                return 0;
            break;
        default:
            return 0;
        }
    }
    if (more < 0 || !(seen & 8))
        return 0;
    return event.number == 11 ? read_slice(text, inside(&event), row) : read_stage(inside(&event), row, found);
}

static void clear(int64_t *row, size_t at, size_t size)
{
    for (int column = 0; column < GS_PACKET_COLUMNS; column++)
        row[column] = 0;
    row[GS_PACKET_CORRELATION] = row[GS_SLICE_EXTERNAL] = GS_NA;
    row[GS_PACKET_AT] = (int64_t)at;
    row[GS_PACKET_SIZE] = (int64_t)size;
}

static int add_packet(const uint8_t *text, message own, gs_packets *found)
{
    if (found->count == found->room) {
        size_t room = found->room ? found->room * 2 : 4096;
        int64_t *rows = realloc(found->rows, room * GS_PACKET_COLUMNS * sizeof *rows);
        if (!rows)
            return 0;
        found->rows = rows, found->room = room;
    }
    int64_t *row = found->rows + found->count * GS_PACKET_COLUMNS;
    size_t waits = found->wait_count, at = (size_t)(own.at - text), size = (size_t)(own.end - own.at);
    clear(row, at, size);
    int usual = read_packet(text, own, row, found);
    if (usual == 0) {
        clear(row, at, size);
        found->wait_count = waits;
    }
    found->count++;
    return usual >= 0;
}

int gs_scan_packets(const uint8_t *text, size_t size, size_t largest, gs_packets *found)
{
    const uint8_t *at = text, *end = text + size;
    while (at < end && *at == 0x0a) {
        uint64_t length;
        const uint8_t *start = varint(at + 1, end, &length);
        if (!start || length > largest || length > (uint64_t)(end - start))
            break;
        at = start + length;
        if (!add_packet(text, (message){start, at}, found))
            return 0;
        found->end = (size_t)(at - text);
    }
    return 1;
}
