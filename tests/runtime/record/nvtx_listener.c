/* A minimal NVTX tool, for NVTX_INJECTION64_PATH: writes every range it gets to the file that
   NVTX_LISTENER_OUT names, or only listens where that is not set. The layouts are those of NVTX v3's
   nvtxTypes.h and nvToolsExtPayload.h: module 5 is CORE2, its entries 2, 3, 4, 5, 8, 10 and 12 are start,
   end, push, pop, name a category, register a string and create a domain; extension 2 is payloads, whose entries 0 and 7
   register a schema and report whether a domain is enabled. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef struct { uint16_t version, size; uint32_t category; int32_t colorType; uint32_t color;
  int32_t payloadType, reserved; union { uint64_t u; int64_t i; double d; } payload;
  int32_t messageType; union { const char *ascii; const void *registered; } message; } Attributes;
typedef struct { uint64_t schema; size_t size; const void *payload; } Blob;
typedef struct { size_t size; int (*table)(uint32_t, Function ***, unsigned *); } Callbacks;
typedef struct { size_t id, count; intptr_t *slots; } Segment;
typedef struct { uint16_t version, size, module, compatible; size_t count; Segment *segments;
  const void *get, *info; } Extension;

static FILE *out;
static FILE *file(void) {
  if (!out && getenv("NVTX_LISTENER_OUT")) {
    out = fopen(getenv("NVTX_LISTENER_OUT"), "w");
    setvbuf(out, NULL, _IOLBF, 0);
  }
  return out;
}

static const void *create(const char *name) { return strdup(name); }
static const void *intern(const void *domain, const char *text) { (void)domain; return strdup(text); }
static void name_category(const void *domain, uint32_t id, const char *name) {
  if (file()) fprintf(out, "category %s %u %s\n", (const char *)domain, id, name);
}
static void describe(const char *what, const void *domain, const Attributes *a) {
  if (!file()) return;
  fprintf(out, "%s %s %s category=%u color=%08x", what, (const char *)domain,
          (const char *)a->message.registered, a->category, a->color);
  if (a->reserved == 1) { /* one extended payload */
    const Blob *blob = (const Blob *)(uintptr_t)a->payload.u;
    for (size_t i = 0; i < blob->size / 8; i++)
      fprintf(out, " %lld", (long long)((const int64_t *)blob->payload)[i]);
  }
  fprintf(out, "\n");
}
static int push(const void *domain, const Attributes *a) { describe("push", domain, a); return 0; }
static uint64_t start(const void *domain, const Attributes *a) {
  static uint64_t next;
  describe("start", domain, a);
  return ++next;
}
static void end(const void *domain, uint64_t id) {
  if (file()) fprintf(out, "end %s %llu\n", (const char *)domain, (unsigned long long)id);
}
static int pop(const void *domain) {
  if (file()) fprintf(out, "pop %s\n", (const char *)domain);
  return 0;
}

int InitializeInjectionNvtx2(const void *(*get)(uint32_t)) {
  const Callbacks *callbacks = get(1);
  Function **table; unsigned count;
  if (!callbacks || !callbacks->table(5, &table, &count)) return 0;
  *table[2] = (Function)start; *table[3] = (Function)end; *table[4] = (Function)push; *table[5] = (Function)pop; *table[8] = (Function)name_category;
  *table[10] = (Function)intern; *table[12] = (Function)create;
  return 1;
}

static uint64_t schema(const void *domain, const void *attributes) {
  static uint64_t next = 1u << 24;
  (void)domain; (void)attributes;
  return next++;
}
static uint8_t enabled(const void *domain) { (void)domain; return 1; }
int InitializeInjectionNvtxExtension(Extension *extension) {
  if (extension->module == 2) {
    extension->segments[0].slots[0] = (intptr_t)schema;
    extension->segments[0].slots[7] = (intptr_t)enabled;
  }
  return 1;
}
