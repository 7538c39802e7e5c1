"""What runs inside a training job: recording, the demo trainer, benchmarks, integrations."""
