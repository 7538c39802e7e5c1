"""Why a device was idle: gaps, the host threads that launch, and a replay without blocking calls."""
