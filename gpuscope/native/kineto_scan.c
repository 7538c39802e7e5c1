#include "kineto_scan.h"

#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef const uint8_t *place;

#define ONES 0x0101010101010101u
#define HIGHS 0x8080808080808080u
enum { MAX_DEPTH = 48, HIGH_BYTES = 1, ESCAPES = 2, MAX_DIGITS = 18 };

/* ---- growing arrays ---- */

static int grow(void **array, size_t room, size_t item)
{
    void *larger = realloc(*array, room * item);
    if (!larger)
        return 0;
    *array = larger;
    return 1;
}

#define GROW(array, room) grow((void **)&(array), (room), sizeof *(array))

static int rows_room(gs_rows *rows, int device)
{
    if (rows->count < rows->room)
        return 1;
    size_t room = rows->room ? rows->room * 2 : 1024;
    if (!GROW(rows->start, room) || !GROW(rows->end, room) || !GROW(rows->name, room) || !GROW(rows->thread, room)
        || !GROW(rows->route, room) || !GROW(rows->arguments, room) || !GROW(rows->correlation, room))
        return 0;
    if (device && (!GROW(rows->stream, room) || !GROW(rows->device, room) || !GROW(rows->bytes, room)
                   || !GROW(rows->graph, room) || !GROW(rows->context, room)))
        return 0;
    rows->room = room;
    return 1;
}

static int spans_add(gs_spans *spans, gs_span item)
{
    if (spans->count == spans->room) {
        size_t room = spans->room ? spans->room * 2 : 64;
        if (!GROW(spans->items, room))
            return 0;
        spans->room = room;
    }
    spans->items[spans->count++] = item;
    return 1;
}

static void rows_free(gs_rows *rows)
{
    free(rows->start), free(rows->end), free(rows->name), free(rows->thread), free(rows->route);
    free(rows->arguments), free(rows->correlation), free(rows->stream), free(rows->device), free(rows->bytes);
    free(rows->graph), free(rows->context);
}

static void distinct_free(gs_distinct *found)
{
    free(found->items), free(found->seconds), free(found->hashes), free(found->slots);
}

void gs_block_free(gs_block *block)
{
    rows_free(&block->host), rows_free(&block->device), rows_free(&block->sync);
    distinct_free(&block->names), distinct_free(&block->host_threads), distinct_free(&block->device_rows);
    free(block->external_ids.items), free(block->sequences.items), free(block->records.items), free(block->metadata.items), free(block->memory.items), free(block->counters.items);
    memset(block, 0, sizeof *block);
}

/* ---- distinct values ---- */

uint64_t gs_hash(const uint8_t *text, size_t length)
{
    uint64_t hash = 0x9e3779b97f4a7c15u ^ length, word;
    while (length >= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
        text += 8, length -= 8;
    }
    word = 0;
    memcpy(&word, text, length);
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53u;
    return hash ^ hash >> 29;
}

static int distinct_room(gs_distinct *found, int pairs)
{
    if (found->count < found->room)
        return 1;
    uint32_t room = found->room ? found->room * 2 : 256;
    if (!GROW(found->items, room) || !GROW(found->hashes, room) || (pairs && !GROW(found->seconds, room)))
        return 0;
    uint32_t *slots = calloc((size_t)room * 2, sizeof *slots);
    if (!slots)
        return 0;
    free(found->slots);
    found->slots = slots, found->room = room, found->mask = room * 2 - 1;
    for (uint32_t index = 0; index < found->count; index++) {
        uint32_t slot = (uint32_t)found->hashes[index] & found->mask;
        while (slots[slot])
            slot = (slot + 1) & found->mask;
        slots[slot] = index + 1;
    }
    return 1;
}

static int same(place text, gs_span a, gs_span b)
{
    return a.length == b.length && memcmp(text + a.at, text + b.at, a.length) == 0;
}

/* The place of a value, or of a pair of them, among the distinct ones; -1 without memory. */
static int64_t distinct_place(gs_distinct *found, place text, gs_span item, const gs_span *second)
{
    if (!distinct_room(found, second != NULL))
        return -1;
    uint64_t hash = gs_hash(text + item.at, item.length);
    if (second)
        hash ^= gs_hash(text + second->at, second->length) * 3;
    uint32_t slot = (uint32_t)hash & found->mask;
    for (uint32_t index; (index = found->slots[slot]) != 0; slot = (slot + 1) & found->mask)
        if (found->hashes[index - 1] == hash && same(text, found->items[index - 1], item)
            && (!second || same(text, found->seconds[index - 1], *second)))
            return index - 1;
    found->items[found->count] = item;
    if (second)
        found->seconds[found->count] = *second;
    found->hashes[found->count] = hash;
    found->slots[slot] = ++found->count;
    return found->count - 1;
}

/* ---- JSON: each function takes the place of a value and returns the one behind it, or NULL ---- */

static inline place space(place at, place end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

static int hex(uint8_t digit)
{
    return digit >= '0' && digit <= '9'   ? digit - '0'
           : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
           : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                          : -1;
}

/* `at` is a backslash. Surrogates are left to the Python reader. */
static place escape(place at, place end)
{
    if (end - at < 2)
        return NULL;
    if (at[1] != 'u')
        return at[1] && strchr("\"\\/bfnrt", at[1]) ? at + 2 : NULL;
    if (end - at < 6)
        return NULL;
    int code = 0;
    for (int digit = 2; digit < 6; digit++) {
        int value = hex(at[digit]);
        if (value < 0)
            return NULL;
        code = code << 4 | value;
    }
    return code >= 0xd800 && code < 0xe000 ? NULL : at + 6;
}

static inline int ends_run(uint8_t letter)
{
    return letter == '"' || letter == '\\' || letter < 0x20;
}

/* Past the letters of a string up to its quote, a backslash or a control character; `end` where there is none. */
static inline place run(place at, place end, uint64_t *high)
{
#if defined(__SSE2__) && defined(__GNUC__)
    const __m128i quotes = _mm_set1_epi8('"'), backs = _mm_set1_epi8('\\'), controls = _mm_set1_epi8(0x1f);
    while (end - at >= 16) {
        __m128i word = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i ends = _mm_or_si128(_mm_cmpeq_epi8(word, quotes), _mm_cmpeq_epi8(word, backs));
        ends = _mm_or_si128(ends, _mm_cmpeq_epi8(_mm_min_epu8(word, controls), word));
        unsigned stop = (unsigned)_mm_movemask_epi8(ends), above = (unsigned)_mm_movemask_epi8(word);
        if (stop) {
            int letters = __builtin_ctz(stop);
            *high |= above & ((1u << letters) - 1);
            return at + letters;
        }
        *high |= above;
        at += 16;
    }
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && defined(__GNUC__)
    while (end - at >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        uint64_t quote = word ^ (ONES * '"'), back = word ^ (ONES * '\\');
        /* Carries make false hits only above a true one, and the lowest is taken. */
        uint64_t stop = (((quote - ONES) & ~quote) | ((back - ONES) & ~back) | ((word - ONES * 0x20) & ~word)) & HIGHS;
        if (stop) {
            int letters = __builtin_ctzll(stop) / 8;
            *high |= word & HIGHS & ((1ull << (8 * letters)) - 1);
            return at + letters;
        }
        *high |= word & HIGHS;
        at += 8;
    }
#endif
    for (; at < end && !ends_run(*at); at++)
        *high |= *at & 0x80u;
    return at;
}

/* `at` is the opening quote. */
static inline place string(place at, place end, unsigned *seen)
{
    uint64_t high = 0;
    at++;
    for (;;) {
        at = run(at, end, &high);
        if (at == end)
            return NULL;
        if (*at == '"') {
            *seen |= high ? HIGH_BYTES : 0u;
            return at + 1;
        }
        if (*at != '\\' || !(at = escape(at, end)))
            return NULL;
        *seen |= ESCAPES;
    }
}

static inline place digits(place at, place end)
{
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

static inline place number(place at, place end)
{
    if (*at == '-')
        at++;
    place whole = at;
    at = digits(at, end);
    if (at == whole || (*whole == '0' && at - whole > 1))
        return NULL;
    if (at < end && *at == '.') {
        place fraction = ++at;
        if ((at = digits(at, end)) == fraction)
            return NULL;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        if (++at < end && (*at == '+' || *at == '-'))
            at++;
        place exponent = at;
        if ((at = digits(at, end)) == exponent)
            return NULL;
    }
    return at;
}

static place literal(place at, place end, const char *text, ptrdiff_t length)
{
    return end - at >= length && memcmp(at, text, (size_t)length) == 0 ? at + length : NULL;
}

static place value(place at, place end, int depth);

static place array(place at, place end, int depth)
{
    at = space(at + 1, end);
    if (at < end && *at == ']')
        return at + 1;
    for (;;) {
        at = at < end ? value(at, end, depth) : NULL;
        if (!at)
            return NULL;
        at = space(at, end);
        if (at == end)
            return NULL;
        if (*at == ']')
            return at + 1;
        if (*at != ',')
            return NULL;
        at = space(at + 1, end);
    }
}

/* The next key of an object: `at` stands at its quote. Returns the place of its value. */
static inline place key(place at, place end, gs_span *found, place text, unsigned *seen)
{
    if (at >= end || *at != '"')
        return NULL;
    place start = at + 1;
    if (!(at = string(at, end, seen)))
        return NULL;
    found->at = (uint32_t)(start - text), found->length = (uint32_t)(at - 1 - start);
    at = space(at, end);
    if (at == end || *at != ':')
        return NULL;
    at = space(at + 1, end);
    return at < end ? at : NULL;
}

/* Behind a value of an object: at the next key's quote, or behind the closing brace (then `*closed`). */
static inline place next(place at, place end, int *closed)
{
    at = space(at, end);
    if (at == end)
        return NULL;
    if (*at == '}') {
        *closed = 1;
        return at + 1;
    }
    return *at == ',' ? space(at + 1, end) : NULL;
}

/* `at` is the opening brace. Returns the first key's quote, or the place behind an empty object. */
static inline place first(place at, place end, int *closed)
{
    at = space(at + 1, end);
    if (at < end && *at == '}') {
        *closed = 1;
        return at + 1;
    }
    return at;
}

static place object(place at, place end, int depth)
{
    int closed = 0;
    at = first(at, end, &closed);
    while (!closed) {
        unsigned seen = 0;
        gs_span ignored;
        if (!(at = key(at, end, &ignored, at, &seen)) || !(at = value(at, end, depth)) || !(at = next(at, end, &closed)))
            return NULL;
    }
    return at;
}

/* Any value; `at` is before `end`. */
static place value(place at, place end, int depth)
{
    unsigned seen = 0;
    switch (*at) {
    case '"':
        return string(at, end, &seen);
    case '{':
        return depth < MAX_DEPTH ? object(at, end, depth + 1) : NULL;
    case '[':
        return depth < MAX_DEPTH ? array(at, end, depth + 1) : NULL;
    case 't':
        return literal(at, end, "true", 4);
    case 'f':
        return literal(at, end, "false", 5);
    case 'n':
        return literal(at, end, "null", 4);
    default:
        return *at == '-' || (*at >= '0' && *at <= '9') ? number(at, end) : NULL;
    }
}

/* As CPython's strict decoder: no overlong forms, no surrogates, nothing above U+10FFFF. */
static int is_utf8(place at, size_t length)
{
    place end = at + length;
    while (at < end) {
        uint8_t lead = *at++;
        if (lead < 0x80)
            continue;
        int more = lead >= 0xc2 && lead <= 0xdf ? 1 : (lead & 0xf0) == 0xe0 ? 2 : lead >= 0xf0 && lead <= 0xf4 ? 3 : 0;
        if (!more || end - at < more)
            return 0;
        uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (*at < low || *at > high)
            return 0;
        for (at++; --more; at++)
            if ((*at & 0xc0) != 0x80)
                return 0;
    }
    return 1;
}

/* ---- numbers that are wanted ---- */

/* Up to 18 digits, perhaps after a minus. Returns the place behind. */
static inline place integer(place at, place end, int64_t *found)
{
    int minus = at < end && *at == '-';
    at += minus;
    place start = at;
    uint64_t total = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - start < MAX_DIGITS)
        total = total * 10 + (uint64_t)(*at++ - '0');
    if (at == start)
        return NULL;
    *found = minus ? -(int64_t)total : (int64_t)total;
    return at;
}

/* An argument: an integer without leading zeros; where `loose`, also one in quotes, or null. */
static place argument(place at, place end, int loose, int64_t *found)
{
    if (*at == '"' || *at == 'n') {
        if (!loose)
            return NULL;
        if (*at == 'n') {
            *found = GS_NA;
            return literal(at, end, "null", 4);
        }
        at = integer(at + 1, end, found);
        return at && at < end && *at == '"' ? at + 1 : NULL;
    }
    place start = at + (*at == '-');
    at = integer(at, end, found);
    if (!at || (*start == '0' && at - start > 1))
        return NULL;
    /* A fraction, an exponent or a nineteenth digit follows: not for here. */
    return at < end && (*at == '.' || *at == 'e' || *at == 'E' || (*at >= '0' && *at <= '9')) ? NULL : at;
}

/* Microseconds in decimal, perhaps in quotes, as ns, rounded half to even. `usual` is 0 where it is anything else;
 * then it is skipped. */
static inline place stamp(place at, place end, int64_t *ns, int *usual)
{
    place start = at;
    int quoted = *at == '"';
    at += quoted;
    int minus = at < end && *at == '-';
    at += minus;
    place whole = at;
    uint64_t total = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - whole < 16)
        total = total * 10 + (uint64_t)(*at++ - '0');
    ptrdiff_t count = at - whole;
    if (!count || (count > 1 && *whole == '0') || total >= 4000000000000000u)
        goto unusual;
    unsigned thousandths = 0, rest = 0, odd_rest = 0;
    int places = 0;
    if (at < end && *at == '.') {
        for (at++; at < end && *at >= '0' && *at <= '9'; at++, places++) {
            unsigned digit = (unsigned)(*at - '0');
            if (places < 3)
                thousandths = thousandths * 10 + digit;
            else if (places == 3)
                rest = digit;
            else
                odd_rest |= digit;
        }
        if (!places || places > 9)
            goto unusual;
    }
    for (int scale = places; scale < 3; scale++)
        thousandths *= 10;
    total = total * 1000 + thousandths;
    total += rest > 5 || (rest == 5 && (odd_rest || (total & 1)));
    if (quoted && (at == end || *at++ != '"'))
        goto unusual;
    if (at < end && *at != ',' && *at != '}' && *at != ' ' && *at != '\n' && *at != '\r' && *at != '\t')
        goto unusual;
    *ns = minus ? -(int64_t)total : (int64_t)total, *usual = 1;
    return at;
unusual:
    *usual = 0;
    return value(start, end, 0);
}

/* ---- events ---- */

typedef struct {
    int64_t correlation, stream, device, bytes, graph, context, now, before, sequence, record;
    int shaped;
} arguments;

typedef struct {
    uint8_t phase;
    gs_span name, process, thread, arguments;
    int category, timed; /* place in the block's categories, or -1; bit 0: ts, bit 1: dur */
    int64_t start, duration;
} event;

static const arguments NO_ARGUMENTS = {GS_NA, GS_NA, GS_NA, GS_NA, GS_NA, GS_NA, GS_NA, GS_NA, GS_NA, GS_NA, 0};

#define IS(word) (found.length == sizeof(word) - 1 && memcmp(letters, word, sizeof(word) - 1) == 0)

static place arguments_of(place at, place end, place text, int8_t route, arguments *into)
{
    int closed = 0, device = route >= GS_KERNEL && route <= GS_SET;
    if (at >= end || *at != '{')
        return NULL;
    *into = NO_ARGUMENTS;
    at = first(at, end, &closed);
    while (!closed) {
        unsigned seen = 0;
        gs_span found;
        if (!(at = key(at, end, &found, text, &seen)) || seen & ESCAPES)
            return NULL;
        place letters = text + found.at;
        int64_t *target = NULL;
        if (route == GS_OP) {
            target = IS("External id") ? &into->now : IS("external id") ? &into->before
                     : IS("Sequence number") ? &into->sequence
                     : IS("Record function id") ? &into->record : NULL;
            into->shaped |= IS("Input Dims");
        }
        else if (IS("correlation"))
            target = &into->correlation;
        else if (device)
            target = IS("stream") ? &into->stream : IS("device") ? &into->device : IS("bytes") ? &into->bytes
                     : IS("graph id") ? &into->graph : IS("context") ? &into->context : NULL;
        at = target ? argument(at, end, route != GS_RUNTIME, target) : value(at, end, 1);
        if (!at || !(at = next(at, end, &closed)))
            return NULL;
    }
    return at;
}

static int category_of(gs_block *block, place text, gs_span found, const gs_known_category *known, size_t known_count)
{
    for (size_t index = 0; index < block->category_count; index++)
        if (same(text, block->categories[index].text, found))
            return (int)index;
    if (block->category_count == GS_CATEGORIES)
        return -1;
    int8_t route = GS_OTHER;
    for (size_t index = 0; index < known_count && route == GS_OTHER; index++) {
        size_t letter = 0;
        if (known[index].length != found.length)
            continue;
        for (; letter < found.length; letter++) {
            uint8_t own = text[found.at + letter];
            if ((own >= 'A' && own <= 'Z' ? own + 32 : own) != (uint8_t)known[index].text[letter])
                break;
        }
        if (letter == found.length)
            route = known[index].route;
    }
    gs_category *added = &block->categories[block->category_count];
    added->text = found, added->route = route, added->count = 0;
    return (int)block->category_count++;
}

/* The process or thread: an integer, a string or null, with its quotes. */
static place identity(place at, place end, place text, gs_span *found)
{
    place start = at;
    unsigned seen = 0;
    int64_t ignored;
    if (*at == '"') {
        at = string(at, end, &seen);
        if (!at || seen & ESCAPES || (seen & HIGH_BYTES && !is_utf8(start, (size_t)(at - start))))
            return NULL;
    } else {
        at = *at == 'n' ? literal(at, end, "null", 4) : argument(at, end, 0, &ignored);
        if (!at)
            return NULL;
    }
    found->at = (uint32_t)(start - text), found->length = (uint32_t)(at - start);
    return at;
}

typedef struct {
    place text, end;
    const gs_known_category *known;
    size_t known_count;
    gs_block *block;
} scan;

static place text_field(const scan *in, place at, gs_span *found, unsigned *seen)
{
    if (*at != '"')
        return NULL;
    place start = at + 1;
    at = string(at, in->end, seen);
    if (!at)
        return NULL;
    found->at = (uint32_t)(start - in->text), found->length = (uint32_t)(at - 1 - start);
    return *seen & HIGH_BYTES && !is_utf8(start, found->length) ? NULL : at;
}

/* One field of an event; `at` is its value. */
static place field(const scan *in, place at, gs_span found, event *one)
{
    place letters = in->text + found.at, end = in->end;
    unsigned seen = 0;
    int usual = 0;
    gs_span text;
    switch (found.length) {
    case 2:
        if (IS("ts")) {
            at = stamp(at, end, &one->start, &usual);
            one->timed = usual ? one->timed | 1 : one->timed & ~1;
            return at;
        }
        if (IS("ph")) {
            /* Twice: which of them counts is not for here. */
            if (one->phase || end - at < 3 || at[0] != '"' || at[2] != '"')
                return NULL;
            one->phase = at[1];
            return at + 3;
        }
        break;
    case 3:
        if (IS("dur")) {
            at = stamp(at, end, &one->duration, &usual);
            one->timed = usual ? one->timed | 2 : one->timed & ~2;
            return at;
        }
        if (IS("pid"))
            return identity(at, end, in->text, &one->process);
        if (IS("tid"))
            return identity(at, end, in->text, &one->thread);
        if (IS("cat")) {
            at = text_field(in, at, &text, &seen);
            if (!at || seen)
                return NULL;
            one->category = category_of(in->block, in->text, text, in->known, in->known_count);
            return one->category < 0 ? NULL : at;
        }
        break;
    case 4:
        if (IS("name"))
            return text_field(in, at, &one->name, &seen);
        break;
    default:
        break;
    }
    return value(at, end, 0);
}

static int number_add(gs_numbers *numbers, int64_t number)
{
    if (numbers->count == numbers->room) {
        size_t room = numbers->room ? numbers->room * 2 : 1024;
        if (!GROW(numbers->items, room))
            return 0;
        numbers->room = room;
    }
    numbers->items[numbers->count++] = number;
    return 1;
}

static int operator_add(gs_block *block, size_t row, const arguments *own)
{
    int64_t id = own->now != GS_NA ? own->now : own->before;
    gs_numbers *sequences = &block->sequences, *records = &block->records;
    return (id == GS_NA || number_add(&block->external_ids, id))
        && (own->sequence < 0 || (number_add(sequences, (int64_t)row) && number_add(sequences, own->sequence)))
        && (own->record <= 0 || (number_add(records, (int64_t)row) && number_add(records, own->record)));
}

/* A complete event into its table. */
static enum gs_status keep(const scan *in, const event *one, const arguments *own)
{
    gs_block *block = in->block;
    gs_category *category = &block->categories[one->category];
    int8_t route = category->route;
    if (route == GS_OTHER) {
        category->count++;
        return GS_OK;
    }
    if (one->timed != 3)
        return GS_UNUSUAL;
    int device = route >= GS_KERNEL && route <= GS_SET;
    gs_rows *rows = device ? &block->device : route == GS_SYNC ? &block->sync : &block->host;
    if (!rows_room(rows, device))
        return GS_NO_MEMORY;
    int64_t name = distinct_place(&block->names, in->text, one->name, NULL), thread = 0;
    if (route != GS_SYNC)
        thread = distinct_place(device ? &block->device_rows : &block->host_threads, in->text, one->process, &one->thread);
    if (name < 0 || thread < 0)
        return GS_NO_MEMORY;
    size_t row = rows->count++;
    rows->start[row] = one->start, rows->end[row] = one->start + one->duration;
    rows->name[row] = (uint32_t)name, rows->thread[row] = (uint32_t)thread, rows->route[row] = route;
    rows->arguments[row] = one->arguments, rows->correlation[row] = own->correlation;
    if (device) {
        rows->stream[row] = own->stream, rows->device[row] = own->device;
        rows->bytes[row] = own->bytes, rows->graph[row] = own->graph;
        rows->context[row] = own->context;
    }
    block->shaped += route == GS_OP && own->shaped;
    return route != GS_OP || operator_add(block, row, own) ? GS_OK : GS_NO_MEMORY;
}

static enum gs_status place_event(const scan *in, const event *one, const arguments *own, gs_span whole)
{
    gs_block *block = in->block;
    block->events++;
    switch (one->phase) {
    case 'X':
        return keep(in, one, own);
    case 'M':
        return spans_add(&block->metadata, whole) ? GS_OK : GS_NO_MEMORY;
    case 'i':
        if (one->name.length != 8 || memcmp(in->text + one->name.at, "[memory]", 8) != 0)
            return GS_OK;
        return spans_add(&block->memory, whole) ? GS_OK : GS_NO_MEMORY;
    case 'C':
        return spans_add(&block->counters, whole) ? GS_OK : GS_NO_MEMORY;
    default:
        return one->phase && strchr("sftebnIPpNODSTFRcvV()BE", one->phase) ? GS_OK : GS_UNUSUAL;
    }
}

/* The arguments of a complete event, where its category wants any. */
static place own_arguments(const scan *in, place at, int8_t route, arguments *own)
{
    int wanted = route == GS_OP || route == GS_RUNTIME || (route >= GS_KERNEL && route <= GS_SET);
    return wanted ? arguments_of(at, in->end, in->text, route, own) : value(at, in->end, 0);
}

/* `*from` is the opening brace; afterwards the place behind the event. */
static enum gs_status scan_event(const scan *in, place *from)
{
    static const event EMPTY_EVENT = {.category = -1};
    event one = EMPTY_EVENT;
    arguments own = NO_ARGUMENTS;
    int closed = 0, parsed = 1;
    place start = *from, at = first(start, in->end, &closed);
    while (!closed) {
        unsigned seen = 0;
        gs_span found;
        if (!(at = key(at, in->end, &found, in->text, &seen)) || seen & ESCAPES)
            return GS_UNUSUAL;
        place letters = in->text + found.at;
        if (IS("args")) {
            place open = at;
            parsed = one.category >= 0;
            at = parsed ? own_arguments(in, at, in->block->categories[one.category].route, &own) : value(at, in->end, 0);
            if (!at)
                return GS_UNUSUAL;
            one.arguments.at = (uint32_t)(open - in->text), one.arguments.length = (uint32_t)(at - open);
        } else if (IS("cat") && one.category >= 0) {
            return GS_UNUSUAL; /* twice */
        } else if (!(at = field(in, at, found, &one))) {
            return GS_UNUSUAL;
        }
        if (!(at = next(at, in->end, &closed)))
            return GS_UNUSUAL;
    }
    *from = at;
    if (one.phase == 'X') {
        if (one.category < 0 || !one.process.length || !one.thread.length)
            return GS_UNUSUAL;
        if (!parsed
            && !own_arguments(in, in->text + one.arguments.at, in->block->categories[one.category].route, &own))
            return GS_UNUSUAL;
    }
    gs_span whole = {(uint32_t)(start - in->text), (uint32_t)(at - start)};
    return place_event(in, &one, &own, whole);
}

enum gs_status gs_scan(const uint8_t *text, size_t size, const gs_known_category *known, size_t known_count,
                       gs_block *block)
{
    memset(block, 0, sizeof *block);
    if (size >= UINT32_MAX)
        return GS_UNUSUAL;
    scan in = {text, text + size, known, known_count, block};
    place at = space(text, in.end);
    while (at < in.end) {
        if (*at != '{')
            return GS_UNUSUAL;
        enum gs_status status = scan_event(&in, &at);
        if (status != GS_OK)
            return status;
        at = space(at, in.end);
        if (at == in.end)
            break;
        if (*at != ',')
            return GS_UNUSUAL;
        at = space(at + 1, in.end); /* one behind the last event is let pass, as the Python reader does */
    }
    return GS_OK;
}

enum gs_status gs_shape_texts(const uint8_t *text, size_t size, gs_span within, gs_span into[4])
{
    memset(into, 0, 4 * sizeof *into);
    if (!within.length)
        return GS_OK;
    if (within.at > size || within.length > size - within.at)
        return GS_UNUSUAL;
    place at = text + within.at, end = at + within.length;
    int closed = 0;
    if (*at != '{')
        return GS_UNUSUAL;
    at = first(at, end, &closed);
    while (!closed) {
        unsigned seen = 0;
        gs_span found;
        if (!(at = key(at, end, &found, text, &seen)) || seen & ESCAPES)
            return GS_UNUSUAL;
        place letters = text + found.at, open = at;
        if (!(at = value(at, end, 1)))
            return GS_UNUSUAL;
        int which = IS("Input Dims") ? 0 : IS("Input type") ? 1 : IS("Concrete Inputs") ? 2 : IS("Input Strides") ? 3 : -1;
        if (which >= 0)
            into[which].at = (uint32_t)(open - text), into[which].length = (uint32_t)(at - open);
        if (!(at = next(at, end, &closed)))
            return GS_UNUSUAL;
    }
    return GS_OK;
}
