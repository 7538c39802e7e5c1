"""`make gpu-check`: the paths of docs/gpu-checklist.md on a real GPU, each judged by the program."""
