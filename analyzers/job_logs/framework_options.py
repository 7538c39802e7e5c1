"""What to set and what to record, in each framework's own names."""

from __future__ import annotations

TRACES = {
    "megatron-lm": "--profile --use-pytorch-profiler --profile-step-start 20 --profile-step-end 24 writes a trace",
    "torchtitan": "--profiling.enable_profiling --profiling.profile_freq 100 writes a trace",
    "nemo": "the PytorchProfilerCallback, or nsys through NsysCallback(start_step=20, end_step=24), records a trace",
    "mlperf": "run a few steps under `nsys profile -t cuda,nvtx` or torch.profiler",
    "deepspeed": 'wrap some steps in torch.profiler; "wall_clock_breakdown": true logs forward, backward and step',
    "hf-trainer": "add gpuscope's TrainerCallback, or wrap some steps in torch.profiler",
    "lightning": "add gpuscope's Lightning callback, or Trainer(profiler=PyTorchProfiler(…))",
    "accelerate": "Accelerator(kwargs_handlers=[ProfileKwargs(…)]) and accelerator.profile() record a trace",
    "vllm": "--profiler-config.profiler torch and /start_profile record a trace",
    "sglang": "SGLANG_TORCH_PROFILER_DIR and /start_profile record a trace",
}
ANY_TRACE = "`gpuscope record -- python train.py` records some steps of every rank"
CHECKPOINTS = {
    "megatron-lm": "--async-save --ckpt-format torch_dist",
    "torchtitan": "--checkpoint.async_mode async_with_pinned_mem",
    "nemo": "AsyncFinalizableCheckpointIO (checkpoint.async_save=True)",
    "mlperf": "asynchronous checkpoints",
    "deepspeed": '"checkpoint": {"writer": {"type": "fast"}} (DeepNVMe), or DataStates',
    "hf-trainer": "a larger save_steps, save_only_model=True, or torch.distributed.checkpoint.async_save",
    "lightning": "AsyncCheckpointIO, or a larger every_n_train_steps",
    "accelerate": "torch.distributed.checkpoint.async_save in place of save_state",
}
EVALUATIONS = {
    "megatron-lm": "--eval-interval, --eval-iters",
    "torchtitan": "--validation.freq, --validation.steps",
    "nemo": "trainer.val_check_interval, trainer.limit_val_batches",
    "hf-trainer": "eval_steps, eval_accumulation_steps, a larger per_device_eval_batch_size",
    "lightning": "val_check_interval, limit_val_batches",
}
COMPILED = {
    "vllm": "VLLM_CACHE_ROOT on a disk that survives keeps compiled graphs",
    "torchtitan": "TORCHINDUCTOR_CACHE_DIR on a disk that survives keeps compiled code",
}
ANY_COMPILED = "keep TORCHINDUCTOR_CACHE_DIR and the weights on a local disk"


def trace_for(name: str) -> str:
    """What records a trace in that framework."""
    return TRACES.get(name, ANY_TRACE)
