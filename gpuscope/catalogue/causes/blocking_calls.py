"""Calls that wait for the device and let the launch queue run dry."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.words import palette

CAUSE = Cause(
    code="sync",
    place=20,
    class_name="cpu",
    label="blocking synchronisation",
    meaning=(
        "the device is idle because a blocking call (`.item()`, `cudaStreamSynchronize`, a pageable copy…) "
        "let the launch queue run dry"
    ),
    message="Blocking calls leave the device idle",
    look=Look(palette.YELLOW),
    idle=True,
    about=(
        "The device is idle because a blocking call let the launch queue run dry. The queue fills again over "
        "many launches, so the cost lies in many gaps after the call, not in the call itself: while the host "
        "waits in it the device computes."
    ),
    recognised=(
        "the rank replayed twice, as recorded and with its blocking calls returning at once "
        "([how](definitions.md#sync-host-work-or-launch-two-replays)). What idle time the second one does not have is "
        "`sync`. Blocking are stream, device, context and event synchronisations, synchronous copies, and "
        "asynchronous copies from or to pageable memory, in CUDA, HIP and CANN. The evidence names the call "
        "and the operator around it."
    ),
    helps=(
        "find the `.item()`, `.cpu()`, `print(loss)`, `nonzero`, boolean mask or `tensor.to(device)` of the "
        "evidence and do without it, or do it every n steps; pin the memory of copies; make small constants "
        "once on the device."
    ),
    misleads=(
        "waits between streams that are not recorded and so are inferred from order; a launch queue that the "
        "host would not fill anyway (then little is `sync`, and removing the call gains little). A trace "
        "without runtime calls: nothing links kernels to launches then."
    ),
)
