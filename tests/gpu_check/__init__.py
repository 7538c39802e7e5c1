"""`make gpu-check`: the paths of docs/trust.md on a real GPU, each judged by the program."""
