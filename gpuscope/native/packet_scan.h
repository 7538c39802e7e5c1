/* Packets of a Perfetto trace as rows of numbers: a strict scanner of the wire format. Knows nothing of Python.
 *
 * It takes the events that torch.profiler writes and leaves any other packet (GS_UNUSUAL_PACKET) to the protobuf runtime,
 * so that what it accepts has one meaning only. Nothing outside [text, text + size) is ever read.
 */
#ifndef GPUSCOPE_PACKET_SCAN_H
#define GPUSCOPE_PACKET_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum gs_packet_kind { GS_UNUSUAL_PACKET, GS_SLICE_BEGIN, GS_SLICE_END, GS_STAGE };

/* Columns of a row: gpuscope.sources.perfetto.packet_rows. Spans are offset << 32 | length. */
enum gs_packet_column {
    GS_PACKET_KIND, GS_PACKET_AT, GS_PACKET_SIZE, GS_PACKET_SEQUENCE, GS_PACKET_FLAGS, GS_PACKET_TIME,
    GS_PACKET_NAME, GS_PACKET_CORRELATION,
    GS_SLICE_TRACK, GS_SLICE_CATEGORY, GS_SLICE_EXTERNAL, GS_SLICE_DIMS, GS_SLICE_TYPES, GS_SLICE_CONCRETE,
    GS_SLICE_STRIDES,
    GS_STAGE_EVENT = GS_SLICE_TRACK, GS_STAGE_STAGE, GS_STAGE_STREAM, GS_STAGE_DEVICE, GS_STAGE_BYTES, GS_STAGE_GRAPH,
    GS_STAGE_DURATION, GS_STAGE_GPU, GS_STAGE_QUEUE,
    GS_PACKET_COLUMNS
};

/* Bits of GS_PACKET_FLAGS. */
enum { GS_STATE_CLEARED = 1, GS_SYNC_SLICE = 4 };

/* Times, durations and numbers of arguments from here on are none. */
#define GS_PACKET_LIMIT (INT64_C(1) << 62)

typedef struct {
    int64_t *rows; /* GS_PACKET_COLUMNS items each */
    size_t count, room;
    int64_t *waits; /* event waited for and event that waited, in turn */
    size_t wait_count, wait_room;
    size_t end; /* behind the last whole packet */
} gs_packets;

/* The whole packets from the beginning of the text on, none of more than `largest` bytes. 0 without memory; the caller
 * frees rows and waits. */
int gs_scan_packets(const uint8_t *text, size_t size, size_t largest, gs_packets *found);

#endif
