"""The messages of a Perfetto trace that torch.profiler writes, as classes of the protobuf runtime.

Names and numbers as in google/perfetto `protos/perfetto/trace/**`; a field that is not listed is skipped when a message
is parsed. Text is declared as bytes, so that names that are not UTF-8 can be counted and shown.
"""

from __future__ import annotations

from typing import Any

from gpuscope.sources.protobuf_messages import message_classes

_MESSAGES: dict[str, str] = {
    # Fields that only other recorders write are declared to tell what is in their traces.
    "TracePacket": """timestamp:8:uint64 timestamp_clock_id:58:uint32 sequence:10:uint32 sequence_flags:13:uint32
        incremental_state_cleared:41:bool previous_packet_dropped:42:bool clock_snapshot:6:ClockSnapshot
        track_event:11:TrackEvent interned_data:12:InternedData gpu_counter_event:52:GpuCounterEvent
        gpu_render_stage_event:53:GpuRenderStageEvent track_descriptor:60:TrackDescriptor trace_stats:35:TraceStats
        ftrace_events:1:bytes process_tree:2:bytes chrome_events:5:bytes sys_stats:7:bytes process_stats:9:bytes
        trace_config:33:bytes profile_packet:37:bytes power_rails:38:bytes android_log:39:bytes system_info:45:bytes
        compressed_packets:50:bytes heap_graph:56:bytes perf_sample:66:bytes cpu_info:67:bytes vulkan_api_event:65:bytes
        trace_packet_defaults:59:bytes""",
    "ClockSnapshot": "clocks:1:Clock*",
    "Clock": "clock_id:1:uint32 timestamp:2:uint64",
    "TrackDescriptor": """uuid:1:uint64 name:2:bytes process:3:ProcessDescriptor thread:4:ThreadDescriptor
        parent_uuid:5:uint64""",
    "ProcessDescriptor": "pid:1:int32 process_name:6:bytes",
    "ThreadDescriptor": "pid:1:int32 tid:2:int64 thread_name:5:bytes",
    "TrackEvent": """type:9:int32 track_uuid:11:uint64 name_iid:10:uint64 name:23:bytes category_iids:3:uint64*
        categories:22:bytes* debug_annotations:4:DebugAnnotation* flow_ids:47:fixed64* terminating_flow_ids:48:fixed64*
        gpu_correlation:3000:GpuCorrelation""",
    "GpuCorrelation": "submitted_event_ids:1:uint64*",
    "DebugAnnotation": """name:10:bytes bool_value:2:bool uint_value:3:uint64 int_value:4:int64 double_value:5:double
        string_value:6:bytes dict_entries:11:DebugAnnotation* array_values:12:DebugAnnotation*""",
    "InternedData": """event_categories:1:Interned* event_names:2:Interned* gpu_specifications:24:Specification*
        gpu_counter_descriptors:47:CounterDescriptor*""",
    "Interned": "iid:1:uint64 name:2:bytes",
    "Specification": "iid:1:uint64 name:2:bytes description:3:bytes category:4:int32",
    "CounterDescriptor": "iid:1:uint64 descriptor:2:GpuCounterDescriptor gpu_id:3:int32",
    "GpuCounterDescriptor": "specs:1:CounterSpec*",
    "CounterSpec": "counter_id:1:uint32 name:2:bytes",
    "GpuCounterEvent": """counter_descriptor:1:GpuCounterDescriptor counters:2:CounterValue* gpu_id:3:int32
        counter_descriptor_iid:4:uint64""",
    "CounterValue": "counter_id:1:uint32 int_value:2:int64 double_value:3:double",
    "GpuRenderStageEvent": """event_id:1:uint64 duration:2:uint64 extra_data:6:ExtraData* gpu_id:11:int32
        hw_queue_iid:13:uint64 stage_iid:14:uint64 event_wait_ids:18:uint64* name_iid:20:uint64""",
    "ExtraData": "name:1:bytes value:2:bytes",
    "TraceStats": "buffer_stats:1:BufferStats*",
    "BufferStats": "chunks_overwritten:3:uint64 chunks_discarded:18:uint64 trace_writer_packet_loss:19:uint64",
}

_CLASSES = message_classes("gpuscope.perfetto", _MESSAGES)
TracePacket: Any = _CLASSES["TracePacket"]
DebugAnnotation: Any = _CLASSES["DebugAnnotation"]
BEGIN, END = 1, 2
"""`TrackEvent.Type`."""
STATE_CLEARED, NEEDS_STATE = 1, 2
"""`TracePacket.SequenceFlags`."""
REALTIME, BOOTTIME = 1, 6
"""`BuiltinClock`."""
