"""Snapshots of PyTorch's caching allocator."""

from __future__ import annotations

from gpuscope.problems.problem import ProblemKind

ENTRY_UNREADABLE = ProblemKind(
    "allocator_entry_unreadable",
    "data_loss",
    "{file}: entries that could not be read",
    about="Segments, blocks or events of an allocator snapshot that could not be read were left out.",
)
FRAME_NAME_CUT = ProblemKind(
    "frame_name_cut",
    "info",
    "{file}: names of stack frames cut at {characters} characters",
    about="Names or files of stack frames in an allocator snapshot were longer than 1,000 characters; the end of each "
    "is left out.",
)
NO_HISTORY = ProblemKind(
    "no_allocator_history",
    "info",
    "{file}: no history of allocations: only what was held at the end is known",
    about="The snapshot holds segments and blocks but no history: peaks, fragmentation and failures are unknown. Call "
    '`torch.cuda.memory._record_memory_history(stacks="python")` at the start of the job: with C++ frames, torch\'s '
    "default, a snapshot takes a hundred times as long.",
)
HISTORY_INCONSISTENT = ProblemKind(
    "allocator_history_inconsistent",
    "data_loss",
    "{file}: events that contradict the state of their blocks",
    about="Events of an allocator snapshot contradict the blocks they speak of (an address is handed out twice). No "
    "other setting is predicted from such a history.",
)
