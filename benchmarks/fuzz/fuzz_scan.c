/* Mutated Kineto JSON through the scanner, each piece in a buffer of exactly its size, for AddressSanitizer to watch.
 *
 * fuzz_scan SECONDS SEED FILE...: prints how many pieces were scanned and how many were taken as usual.
 */
#include "../../gpuscope/native/kineto_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t state;

static uint64_t any(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? state % below : 0;
}

static const char *const WORDS[] = {
    "\"", "\\", "\\u", "\\ud83d", "{", "}", "[", "]", ",", ":", "null", "true", "-", "0", "1e9", ".", "\xff", "\xed\xa0\x80",
    "\xf0\x9f\x98\x80", "\"ph\"", "\"X\"", "\"M\"", "\"i\"", "\"args\"", "\"cat\"", "\"cpu_op\"", "\"kernel\"", "\"dur\"",
    "\"correlation\"", "\"External id\"", "\"Input Dims\"", "\"[memory]\"", "999999999999999999", "4000000000000000.9999",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "\n   ", "\0",
};

static const gs_known_category KNOWN[] = {
    {"cpu_op", 6, GS_OP}, {"cuda_runtime", 12, GS_RUNTIME}, {"kernel", 6, GS_KERNEL}, {"gpu_memset", 10, GS_SET},
    {"cuda_sync", 9, GS_SYNC}, {"user_annotation", 15, 2},
};

/* A part of the seed, most often from an event's start to another's end, changed in a few places. */
static uint8_t *piece(const uint8_t *seed, size_t size, size_t *length)
{
    size_t from = any(size), want = 1 + any(6000);
    if (any(8)) {
        while (from < size && !(seed[from] == '{' && from && (seed[from - 1] == ' ' || seed[from - 1] == ',')))
            from++;
        if (from == size)
            from = 0;
    }
    size_t most = size - from < want ? size - from : want;
    if (any(4)) {
        while (most > 1 && seed[from + most - 1] != '}')
            most--;
    }
    uint8_t *text = malloc(most * 2 + 4096);
    if (!text)
        abort();
    memcpy(text, seed + from, most);
    for (uint64_t changes = any(5); changes; changes--) {
        const char *word = WORDS[any(sizeof WORDS / sizeof *WORDS)];
        size_t letters = strlen(word) ? strlen(word) : 1, at = any(most + 1), cut = any(3) ? 0 : any(most - at + 1);
        if (cut > 40)
            cut = any(40);
        memmove(text + at + letters, text + at + cut, most - at - cut);
        memcpy(text + at, word, letters);
        most += letters - cut;
    }
    *length = most;
    return text;
}

static int one(const uint8_t *seed, size_t size)
{
    size_t length;
    uint8_t *roomy = piece(seed, size, &length), *text = malloc(length ? length : 1);
    if (!text)
        abort();
    memcpy(text, roomy, length);
    free(roomy);
    gs_block block;
    int usual = gs_scan(text, length, KNOWN, sizeof KNOWN / sizeof *KNOWN, &block) == GS_OK;
    for (size_t row = 0; usual && row < block.host.count; row++) {
        gs_span found[3];
        gs_shape_texts(text, length, block.host.arguments[row], found);
        gs_hash(text + found[0].at, found[0].length);
    }
    gs_span wild = {(uint32_t)any(length + 9), (uint32_t)any(length + 9)}, found[3];
    gs_shape_texts(text, length, wild, found);
    gs_block_free(&block);
    free(text);
    return usual;
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    time_t stop = time(NULL) + atol(arguments[1]);
    state = strtoull(arguments[2], NULL, 10) * 2654435761u + 1;
    unsigned long long scanned = 0, usual = 0;
    for (int index = 3; index < count; index = index + 1 < count ? index + 1 : 3) {
        FILE *file = fopen(arguments[index], "rb");
        if (!file)
            return 2;
        static uint8_t seed[1 << 22];
        size_t size = fread(seed, 1, sizeof seed, file);
        fclose(file);
        for (int again = 0; size && again < 2000; again++, scanned++)
            usual += (unsigned)one(seed, size);
        if (time(NULL) >= stop)
            break;
    }
    printf("%llu pieces scanned, %llu of them usual\n", scanned, usual);
    return 0;
}
