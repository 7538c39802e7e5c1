"""What one line of a job's log says, by its shape: a step and its time, figures beside it, an event.

No shape belongs to one framework alone; which framework it is, the words on the lines tell (`FORMATS`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from gpuscope.analyzers.job_logs.numbers_in_lines import NUMBER, UNIT, clock_ns, duration_ns, number

LONGEST = 1 << 14
"""Characters of a line that are looked at: longer ones print tensors or arguments."""


@dataclass
class Said:
    """What a line says. Durations are in ns."""

    step: int | None = None
    of: int | None = None
    """The number of steps in all, or in the epoch."""
    epoch: int | None = None
    series: str = ""
    """What tells the time of a step; empty where nothing does."""
    step_ns: float | None = None
    covers: int | None = None
    per_second: float | None = None
    """Samples (`series` throughput) or tokens (`series` tokens) per second, in place of a time."""
    figures: dict[str, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    elapsed_ns: int | None = None
    """Of a progress bar: since it began."""
    bar: tuple[str, int | None] | None = None
    """Of a progress bar: its description and its total."""
    trains: bool = False
    """Whether the line itself shows that its steps are those of a training: a loss, a learning rate."""


@dataclass(frozen=True)
class Event:
    """Something that happens beside steps; `dur` in ns where the line tells it."""

    what: str
    name: str = ""
    dur: float | None = None


FORMATS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("mlperf", r":::MLLOG "),
        ("vllm", r"\b(?:vllm|VLLM)\b|Avg prompt throughput"),
        ("sglang", r"\bsglang\b|(?:Prefill|Decode) batch[.,\[]"),
        ("megatron-lm", r"elapsed time per iteration \(ms\)"),
        ("nemo", r"train_step_timing in s|\[NeMo [IWE] "),
        ("torchtitan", r"\btorchtitan\b|\[titan\]|step: +\d+ +loss: .*\btps: "),
        ("deepspeed", r"RunningAvgSamplesPerSec|\[deepspeed\]|DeepSpeed|iter time \(s\)|log_dist"),
        ("hf-trainer", r"\{'(?:train_)?(?:loss|runtime)': |\*{5} Running training \*{5}|'train_samples_per_second'"),
        ("lightning", r"`?Trainer\.fit`? stopped|pytorch_lightning|lightning\.pytorch|\bv_num[=:]"),
        ("maxtext", r"completed step: \d+, seconds: "),
        ("detectron2", r"d2\.utils\.events"),
        ("mmengine", r"- mmengine - |Epoch\(train\)"),
        ("composer", r"Train time/batch:|trainer/batch_idx"),
        ("accelerate", r"\baccelerate\b|Saving current state to"),
    )
)
"""In this order where lines of several are there: what runs on top of another names the log."""

_STEP = re.compile(
    r"(?<![\w/])(?:global[_ ]?|train(?:er|ing)?[_/ ]?|optimizer[_ ]?|optim[_ ]?|update[_ ]?)?"
    r"(?:steps?|iterations?|iters?|itr|it|num_updates|batch|ba)(?![\w])[\"']?(?:\s*[=:#\[(]\s*|\s+|\s*\|\s*)\[?\(?\s*"
    r"(?P<step>\d[\d,]*)(?!\d*\.\d)(?:\s*/\s*~?(?P<of>\d[\d,]*))?(?![\d.]*\s?(?:ms|s|sec|seconds|GiB|GB|MB)\b)",
    re.IGNORECASE,
)
_GLOBAL_STEP = re.compile(r"\bglobal[_ ]step[\"']?\s*[=:]\s*(?P<step>\d+)(?P<of>(?!.))?", re.IGNORECASE)
_EPOCH_OF = re.compile(
    r"\b(?:Epoch|Train|Training)(?:\(train\))?(?:\s+[Ee]poch)?[:\s]*\[?\s*(?P<epoch>\d+)?\s*(?:/\d+)?\]?[:,]?"
    r"(?:\s*,?\s*iteration)?\s*[\[(]?\s*(?P<step>\d+)\s*/\s*(?P<of>\d+)\b(?!\s*\[)"
)
_TIMED: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        # Strong ones first: their key tells that it is the time of one step.
        ("time per iteration", rf"elapsed time per iteration \((?P<unit>ms|s)\)\s*[:=]\s*(?P<value>{NUMBER})"),
        ("train_step_timing", rf"train_step_timing in (?P<unit>s)[\"']?\s*[=:]\s*(?P<value>{NUMBER})"),
        (
            "step time",
            rf"(?<![a-z])(?:train[_ ]?|total[_ ]?|avg[_ ]?|mean[_ ]?)?(?:step|iter(?:ation)?|batch)[_ /-]?"
            rf"(?:time|dur(?:ation)?|dt|latency)\s*"
            rf"(?:\((?P<in>ms|s|sec|seconds)\)|[_ ](?P<in2>ms|s|sec|seconds))?[\"']?"
            rf"\s*(?:[=:|]|\bis\b|\bof\b)?\s*(?P<value>{NUMBER})\s*(?P<unit>{UNIT})?(?![\w:])",
        ),
        (
            "time per step",
            rf"(?<![a-z])(?:time|sec(?:ond)?s?|s|ms)[_ ]?(?:/|per)[_ ]?(?:step|iter(?:ation)?|it|batch)"
            rf"\s*(?:\((?P<in>ms|s|sec|seconds)\))?[\"']?\s*[=:]?\s*(?P<value>{NUMBER})\s*(?P<unit>{UNIT})?(?![\w:])",
        ),
        (
            "s/step",
            rf"(?P<value>{NUMBER})\s*(?P<unit>ms|us|µs|sec(?:ond)?s?|s)\s*(?:/|per )\s*"
            r"(?:it|iter|iteration|step|batch)\b",
        ),
        (
            "steps/s",
            rf"(?P<rate>{NUMBER})\s*(?:its?|iter(?:ation)?s?|steps?|batch(?:es)?)\s*(?:/|per )"
            rf"\s*s(?:ec(?:ond)?)?\b",
        ),
        (
            "steps/s",
            rf"(?:its?|iter(?:ation)?s?|steps?|batches|ups)(?:/|[_ ]per[_ ])s(?:ec(?:ond)?)?[\"']"
            rf"?\s*[=:]\s*(?P<rate>{NUMBER})",
        ),
        ("steps/s", rf"\bups[\"']?\s*[=:]\s*(?P<rate>{NUMBER})"),
        ("dt", rf"(?<![a-z_])dt[\"']?\s*[=:]?\s*(?P<value>{NUMBER})\s*(?P<unit>{UNIT})?(?![\w:])"),
        ("seconds", rf"(?<![a-z_])seconds[\"']?\s*[=:]\s*(?P<value>{NUMBER})"),
        ("time", rf"(?<![a-z_/])time[\"']?\s*[=:]?\s*(?P<value>{NUMBER})\s*(?P<unit>ms|s|sec|seconds)(?![\w:/])"),
        (
            "time",
            rf"(?<![a-z_/])time[\"']?\s*[=:]?\s*(?P<value>{NUMBER})\s*(?:\(\s*{NUMBER}\)|(?=\s+data[_ ]"
            rf"?time\b)|(?=\s+last_time\b))",
        ),
    )
)
_PER_SECOND: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "throughput",
        re.compile(
            rf"\b(?:CurrSamplesPerSec|(?:samples|sample|seqs|sequences|imgs?|images|examples|instances)"
            rf"(?:/|[_ ]per[_ ])s(?:ec(?:ond)?)?)\b[\"']?\s*[=:]?\s*(?P<value>{NUMBER})",
            re.IGNORECASE,
        ),
    ),
    (
        "throughput",
        re.compile(
            rf"(?P<value>{NUMBER})\s*(?:samples|sample|seqs|sequences|imgs?|images|examples)\s*(?:/|per )"
            rf"\s*s(?:ec(?:ond)?)?\b",
            re.IGNORECASE,
        ),
    ),
)
_TOKENS = re.compile(
    rf"\b(?:tps|wps|tok(?:en)?s?(?:/|[_ ]per[_ ])s(?:ec(?:ond)?)?(?:(?:/|[_ ]per[_ ])(?:device|gpu|chip))?)"
    rf"\b[\"']?\s*[=:]\s*"
    rf"(?P<value>{NUMBER})\s*(?P<kilo>[kKM]\b)?"
    rf"|(?P<value2>{NUMBER})\s*(?P<kilo2>[kKM])?\s*tok(?:en)?s?\s*/\s*s(?:ec)?\b",
    re.IGNORECASE,
)
_FIGURES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            "loss",
            rf"(?<![\w-])(?:lm |train(?:ing)?[_/ ]|total_|reduced_train_)?loss[\"']?\s*[=:]?\s*[\"']"
            rf"?(?P<value>{NUMBER})",
        ),
        (
            "memory",
            rf"\b(?:max_mem|max_memory(?:_usage)?|memory|mem[_ ]?(?:used|alloc(?:ated)?)?|MaxMemAllocated|"
            rf"peak_mem(?:ory)?|vram)"
            rf"[\"']?\s*[=:]\s*(?P<value>{NUMBER})",
        ),
        (
            "sequence_length",
            rf"\b(?:seq(?:uence)?[_ -]?len(?:gth)?|max_len|tokens_per_sample)[\"']?\s*[=:]"
            rf"\s*(?P<value>{NUMBER})",
        ),
        (
            "tokens",
            rf"\b(?:n?tokens|num_tokens|tokens[_/ ]per[_/ ](?:step|batch)|wpb)[\"']?\s*[=:]"
            rf"\s*(?P<value>{NUMBER})",
        ),
        ("loss_scale", rf"\bloss[_ ]scale[\"']?\s*[=:]\s*(?P<value>{NUMBER})"),
        ("grad_norm", rf"\b(?:grad(?:ient)?[_ ]?norm|gnorm)[\"']?\s*[=:]\s*[\"']?(?P<value>{NUMBER})"),
        ("batch_size", rf"\bglobal[_ ]batch[_ ]size[\"']?\s*[=:]\s*(?P<value>{NUMBER})"),
        ("mfu", rf"\bmfu[\"']?(?:\s*\(%\))?\s*[=:]?\s*(?P<value>{NUMBER})\s*(?P<percent>%)?"),
        ("tflops", rf"\bT?FLOP/?s?(?:/s)?(?:/(?:device|gpu))?\)?[\"']?\s*[=:]\s*(?P<value>{NUMBER})"),
        (
            "data_time",
            rf"\bdata(?:[_ ]?(?:load(?:ing)?)?[_ ]?time)?[\"']?\s*[=:]?\s*(?P<value>{NUMBER})\s*(?:\(|"
            rf"ms\b|s\b|$|\s)",
        ),
    )
)
FIGURES_TOLD = {
    "memory": "memory",
    "sequence_length": "the sequence length",
    "tokens": "the tokens of a step",
    "loss_scale": "the loss scale",
    "grad_norm": "the gradient norm",
    "batch_size": "the global batch",
    "data_time": "the data's time",
    "loss": "the loss",
    "lr": "the learning rate",
}
"""What a figure is called in a sentence."""
_TRAINS = re.compile(
    r"(?<![\w-])(?:\w+[_ /])?loss(?:es)?\b(?!\s*scale)|\blr\b|learning[_ ]rate|grad[_ ]?norm|\bgnorm\b|\bmfu\b|"
    r"tflop|consumed[_ ]samples"
    r"|train_step_timing|elapsed time per iteration|tok(?:en)?s?\s*/\s*s|\bppl\b|perplexity|completed step",
    re.IGNORECASE,
)
_NOT_TRAINING = re.compile(
    r"\b(?:eval(?:uat\w+)?|valid(?:ation|ating)?|testing|test[_ ](?:step|iter|batch)|predict\w*|sanity|"
    r"download\w*|denois\w*|"
    r"sampling|warm-?up[_ ](?:step|iter)|prefill|decod\w+|generat\w+|calibrat\w+|tokeniz\w+|preprocess\w*|"
    r"benchmark\w*|compil\w+)\b"
    r"|\bbatch[_ ](?:step|iter)",
    re.IGNORECASE,
)
_TIMERS = re.compile(r"time \(ms\)|\bfwd\b.*\bbwd\b|\bforward\w*: .*\bbackward\w*: ")
"""DeepSpeed's breakdown of a step by timers, one of which is called «step»."""

_BAR = re.compile(
    r"(?:(?P<desc>[^|\r\n]{0,200}?):?\s*)?(?:(?P<percent>\d{1,3})%\s?\|[^|]*\|\s*|(?<=\s)|^)"
    r"(?P<n>\d+(?:\.\d+)?[kMGT]?)(?:/(?P<of>\d+(?:\.\d+)?[kMGT]?))?\s?(?P<counts>[a-zA-Z]{0,12})\s*"
    r"\[(?P<elapsed>(?:\d+ days?, )?[\d:]+)(?:<(?P<left>(?:\d+ days?, )?[\d:?]+))?,?\s*"
    r"(?P<rate>\?|\d[\d.,]*[kMG]?)\s?(?P<unit>[a-zA-Z]+/s|s/[a-zA-Z]+)(?P<rest>[^\]]*)\]"
)
_BAR_CLOCK = re.compile(r"\[(?:\d+ days?, )?[\d:]+[<, ]")
"""What every such bar has; the whole pattern takes milliseconds on a line that is none."""
_RICH_BAR = re.compile(
    r"Epoch (?P<epoch>\d+)/\d+ .*? (?P<n>\d+)/(?P<of>\d+) (?P<elapsed>\d+:\d\d:\d\d) • "
    r"(?P<left>[\d:\-]+) (?P<rate>\d[\d.,]*)it/s(?P<rest>.*)"
)
_STEP_BAR = re.compile(
    r"^\W*(?:(?:global[ _])?(?:step|iter|iteration|update|batch)s?|train\w*|pre-?train\w*|"
    r"fine-?tun\w*|epoch\W*\d*.*|\d+|.*\bloss\b.*|.*\btrain(?:ing)?\b.*)?\W*$",
    re.IGNORECASE,
)
_OTHER_BAR = re.compile(
    r"download|fetch|load|shard|map\b|filter|token|generat|extract|convert|eval|valid|test|predict|sanity|"
    r"compil|captur"
    r"|quantiz|resolv|prepar|upload|saving|save\b|cach|build|warm|safetensors|\.bin|\.pt\b|\.json|\.parquet|"
    r"process|files"
    r"|examples|split|request|prompt|denois|sampl",
    re.IGNORECASE,
)
_IN_EPOCH = re.compile(r"epoch\W*(?P<epoch>\d+)", re.IGNORECASE)

_HF = re.compile(r"\{'[^{}]*\}")
_PAIR = re.compile(r"'(?P<key>[\w/]+)': '?(?P<value>-?\d[\d.,]*(?:[eE][-+]?\d+)?|nan)'?")
_EVENTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            "checkpoint",
            rf"(?:sav(?:ed|ing)|wrote|writing|stor(?:ed|ing)|checkpoint(?:ing)?|snapshot)\b.{{0,160}}?(?:took|in|"
            rf"time)[ :=]*"
            rf"(?P<value>{NUMBER})\s*(?P<unit>{UNIT})\b",
        ),
        (
            "evaluation",
            rf"(?:eval(?:uation|uated|uating)?|validation|validated|validating|test(?:ing)? epoch)\b[^|]{{0,120}}?"
            rf"(?:took|finished in|done in|completed in|runtime|time|in)[ :=]*(?P<value>{NUMBER})\s*(?P<unit>{UNIT})\b",
        ),
        (
            "checkpoint_stop",
            r"(?:successfully )?(?:saved|finished saving|wrote)\b.{0,80}(?:checkpoint|"
            r"state_dict|\.ckpt|\.pt\b|model_states)"
            r"|(?:checkpoint|save).{0,40}\b(?:finished|completed|done)\b",
        ),
        (
            "checkpoint_start",
            r"\b(?:saving|writing|storing)\b.{0,80}(?:checkpoint|current state|state_dict|"
            r"\.ckpt|\.pt\b|model_states)"
            r"|\bbegin(?:ning)? checkpoint",
        ),
        (
            "evaluation_start",
            r"\*{5} Running (?:evaluation|prediction)|(?:start(?:ing|ed)?|begin(?:ning)?|"
            r"running) (?:the )?(?:eval|valid)\w*",
        ),
        (
            "evaluation_stop",
            r"(?:eval|valid)\w* (?:finished|completed|done|ended)|(?:finished|completed|"
            r"end(?:ed)? of) (?:the )?(?:eval|valid)\w*"
            r"|validation loss at iteration",
        ),
        (
            "restart",
            r"\brestarting (?:the )?(?:worker|job|training|process|elastic)|\[default\]"
            r" worker group (?:failed|restart)"
            r"|\b(?:restart|attempt)[ _](?:count|number|#)?\s*[:=#]?\s*[1-9]\d*\b|resum(?:ing|ed)"
            r" (?:training )?from (?:checkpoint|step|iteration)"
            r"|loaded checkpoint .{0,80}at iteration [1-9]|load(?:ing|ed) (?:the )"
            r"?checkpoint at step [1-9]\d*|slurm.*requeue",
        ),
        ("preemption", r"\bpreempt(?:ed|ion)\b.*(?:by|because|recompute|swap|not enough)|is preempted by"),
    )
)
_PARTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            "weights",
            rf"(?:load(?:ing|ed)? (?:model )?weights|model loading|weight load\w*|checkpoint load\w*)"
            rf"\b.{{0,80}}?(?:took|in|and|time)\D{{0,12}}"
            rf"(?P<value>{NUMBER})\s*(?P<unit>{UNIT})\b",
        ),
        (
            "compile",
            rf"(?:torch\.compile|compil(?:ing|ation|ed)|dynamo|inductor|graph for)\b.{{0,120}}?(?:took|"
            rf"takes|time|in)\D{{0,14}}"
            rf"(?P<value>{NUMBER})\s*(?P<unit>{UNIT})\b",
        ),
        (
            "graph capture",
            rf"(?:captur\w+).{{0,80}}?(?:finished in|took|elapsed|in)\D{{0,14}}(?P<value>{NUMBER})"
            rf"\s*(?P<unit>{UNIT})\b",
        ),
        (
            "warm-up",
            rf"(?:warm-?(?:ing )?up|init engine)\b.{{0,120}}?(?:took|time|in)"
            rf"\D{{0,14}}(?P<value>{NUMBER})\s*(?P<unit>{UNIT})\b",
        ),
        (
            "rendezvous",
            rf"(?:rendezvous|init_process_group|process group|distributed init\w*|nccl init)"
            rf"\b.{{0,80}}?(?:took|time|in)\D{{0,14}}"
            rf"(?P<value>{NUMBER})\s*(?P<unit>{UNIT})\b",
        ),
        (
            "imports",
            rf"\bimport(?:s|ing|ed)?\b.{{0,80}}?(?:took|time|in)\D{{0,14}}(?P<value>{NUMBER})"
            rf"\s*(?P<unit>{UNIT})\b",
        ),
        (
            "data",
            rf"(?:dataset|data ?loader|index(?:es)?|data)\b.{{0,60}}?(?:built|loaded|ready|build|took)"
            rf"\D{{0,20}}(?P<value>{NUMBER})\s*(?P<unit>{UNIT})\b",
        ),
        (
            "model",
            rf"(?:model|optimizer)[- ](?:and-optimizer-)?(?:setup|init\w*|built|build|creat\w+)"
            rf"\b.{{0,60}}?(?:took|time|in)\D{{0,14}}(?P<value>{NUMBER})\s*(?P<unit>{UNIT})\b",
        ),
    )
)
_MEGATRON_TIMER = re.compile(r"^\s*(?P<name>[a-z][\w/-]+)[ .]*: \((?P<low>[\d.]+), (?P<high>[\d.]+)\)")
_MEGATRON_PARTS = {
    "save-checkpoint": ("checkpoint", ""),
    "evaluate": ("evaluation", ""),
    "eval-time": ("evaluation", ""),
    "model-and-optimizer-setup": ("part", "model"),
    "load-checkpoint": ("part", "weights"),
    "train/valid/test-data-iterators-setup": ("part", "data"),
}
_SERVER_VLLM = re.compile(
    rf"Avg prompt throughput: (?P<prompt>{NUMBER}) tokens/s, Avg generation throughput: (?P<generated>{NUMBER})"
    rf" tokens/s"
    rf"(?:, Running: (?P<running>\d+) reqs)?(?:, Swapped: \d+ reqs)?(?:, (?:Waiting|Pending): (?P<waiting>\d+) reqs)?"
    rf"(?:.*?(?:GPU )?KV cache usage: (?P<cache>{NUMBER})%)?(?:.*?[Pp]refix cache hit rate: (?:GPU: )"
    rf"?(?P<hit>{NUMBER})%)?"
)
_SERVER_SGLANG = re.compile(
    r"(?P<kind>Prefill|Decode) batch[ .,\[].*?#running-req: (?P<running>\d+)"
    r"|(?P<kind2>Prefill|Decode) batch"
)
_SGLANG_PAIR = re.compile(rf"(?P<key>#?[\w -]+?)(?: \(\w+/s\))?: (?P<value>{NUMBER})(?=,|$|\s)")
_TTFT = re.compile(
    rf"(?:mean |avg |median )?(?:TTFT|time to first token)(?:\s*\((?P<in>ms|s)\))?\s*[=:]"
    rf"\s*(?P<value>{NUMBER})\s*(?P<unit>ms|s)?",
    re.IGNORECASE,
)
_BATCH = re.compile(
    r"\b(?:global[_ -]?(?:train[_ -]?)?batch[_ -]?size|train_batch_size|Total train batch size[^=:]*|"
    r"effective batch size)[\"']?"
    r"\s*(?:[=:]|\.{3,}|\s)\s*(?P<value>\d[\d,]*)",
    re.IGNORECASE,
)
_LOCAL_BATCH = re.compile(r"\blocal batch size (?P<value>\d+)", re.IGNORECASE)
_SEQUENCE = re.compile(
    r"\b(?:seq(?:uence)?[_ -]?len(?:gth)?|max_sequence_length|seq_length)[\"']?\s*(?:[=:]|"
    r"\.{3,}|\s)\s*(?P<value>\d[\d,]*)",
    re.IGNORECASE,
)

_SETTINGS = (("global_batch", _BATCH), ("sequence_length", _SEQUENCE), ("local_batch", _LOCAL_BATCH))

_WORDS = (
    "step",
    "iter",
    "epoch",
    "s/",
    "loss",
    "mllog",
    "checkpoint",
    "saving",
    "saved",
    "eval",
    "valid",
    "restart",
    "attempt",
    "resum",
    "took",
    "batch",
    "throughput",
    "preempt",
    "captur",
    "warm",
    "rendezvous",
    "compil",
    "'train_",
    "ttft",
    "ime to first",
    "num_updates",
)
_SHORT_WORDS = tuple(
    re.compile(pattern, re.ASCII) for pattern in (r"it(?<!\wit)\b", r"/s\b", r"\(\d+\.\d+, \d+\.\d+\)")
)
"""Each begins with a fixed text, which `re` finds many times faster than an alternation."""


def may_tell(raw: bytes) -> bool:
    """Whether a line holds any word of those that say something here; only such lines are decoded."""
    small = raw.decode("latin-1").lower()  # a text is searched twice as fast as bytes, and this takes any
    for word in _WORDS:
        if word in small:
            return True
    return any(pattern.search(small) is not None for pattern in _SHORT_WORDS)


Place = tuple[str, re.Pattern[str], int]
"""A pattern's name, the pattern, and where in a line it matches."""


class Shape:
    """Where patterns match in all lines that differ in their digits alone: a job writes the same line at each step.

    Every pattern asked here takes one digit for another (`\\d`, never a digit itself), so that where it matches in one
    such line it does in all. Values differ, and are read from each line.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def _places(self, patterns: tuple[tuple[str, re.Pattern[str]], ...]) -> tuple[Place, ...]:
        return tuple(
            (name, pattern, match.start())
            for name, pattern in patterns
            if (match := pattern.search(self._text)) is not None
        )

    @cached_property
    def formats(self) -> tuple[Place, ...]:
        """Of `FORMATS` those that may match: one names a digit, which stands for any digit here."""
        return self._places(FORMATS)

    @cached_property
    def settings(self) -> tuple[Place, ...]:
        return self._places(_SETTINGS)

    @cached_property
    def timed(self) -> tuple[Place, ...]:
        return self._places(_TIMED)

    @cached_property
    def per_second(self) -> tuple[Place, ...]:
        return self._places(_PER_SECOND)

    @cached_property
    def figures(self) -> tuple[Place, ...]:
        return self._places(_FIGURES)

    @cached_property
    def tokens(self) -> tuple[Place, ...]:
        return self._places((("tokens", _TOKENS),))

    @cached_property
    def step(self) -> tuple[Place, ...]:
        """The number of a step, the surer first."""
        return self._places((("step", _GLOBAL_STEP), ("step", _STEP), ("epoch", _EPOCH_OF)))

    @cached_property
    def bar(self) -> tuple[Place, ...]:
        """A progress bar, where the line has a bar's clock."""
        if "[" not in self._text or ("it]" not in self._text and "/" not in self._text):
            return ()
        return self._places((("bar", _BAR),)) if _BAR_CLOCK.search(self._text) is not None else ()

    @cached_property
    def rich_bar(self) -> tuple[Place, ...]:
        return self._places((("bar", _RICH_BAR),))

    @cached_property
    def parts(self) -> tuple[Place, ...]:
        return self._places(_PARTS)

    @cached_property
    def events(self) -> tuple[Place, ...]:
        """Those that may match: a restart's number must not be 0, and no digit is here."""
        return self._places(_EVENTS)

    @cached_property
    def has_timers(self) -> bool:
        return _TIMERS.search(self._text) is not None

    @cached_property
    def trains(self) -> bool:
        return _TRAINS.search(self._text) is not None

    @cached_property
    def is_other_work(self) -> bool:
        """Whether the line's steps are named as those of something else than a training."""
        return _NOT_TRAINING.search(self._text) is not None and not re.search(r"\btrain", self._text, re.IGNORECASE)

    @cached_property
    def server(self) -> bool:
        return any(pattern.search(self._text) is not None for pattern in (_SERVER_VLLM, _SERVER_SGLANG, _TTFT))


_SAME = str.maketrans({**dict.fromkeys("0123456789", "2"), **dict.fromkeys("▏▎▍▌▋▊▉", "█")})
"""Digits, of which only that of Detectron2's name is in a pattern, and what a progress bar is drawn with."""
_LONGEST_KEPT = 2_000
_kept_shape = lru_cache(2_048)(Shape)


def shape_of(line: str) -> Shape:
    """The shape of a line; those of the last lines are kept."""
    text = line.translate(_SAME)
    return _kept_shape(text) if len(text) <= _LONGEST_KEPT else Shape(text)


def said_by(line: str) -> Said | None:
    """What a line without prefixes says; None where it says nothing of steps or of what lies beside them."""
    line = line[:LONGEST]
    shape = shape_of(line)
    if (found := _bar(line, shape)) is not None or (shape.server and (found := _server(line)) is not None):
        return found
    if line.startswith("{") and '":' in line and (found := _object(line)) is not None:
        return found
    if "{'" in line and (found := _trainer_rows(line)) is not None:
        return found
    found = _step_line(line, shape)
    events = list(_events(line, shape, of_step=found is not None))
    if found is None and not events:
        return None
    found = found or Said()
    found.events += events
    return found


def format_of(line: str, shape: Shape) -> str | None:
    """The framework that a line's words name."""
    return next((name for name, pattern, _ in shape.formats if pattern.search(line)), None)


def settings_of(line: str, shape: Shape) -> Iterator[tuple[str, float]]:
    """What a line says of the whole job: the global batch, the sequence length, the batch of one device."""
    for name, pattern, at in shape.settings:
        if (match := pattern.match(line, at)) is not None and (value := number(match["value"])):
            yield name, value


def _step_line(line: str, shape: Shape) -> Said | None:
    if shape.has_timers:
        return None
    place: re.Match[str] | None = None
    of_epoch = False
    if shape.step:
        what, pattern, at = shape.step[0]
        place, of_epoch = pattern.match(line, at), what == "epoch"
    series, step_ns, strong = _step_time(line, shape, place is not None)
    trains = shape.trains
    if place is None and not (strong and trains):
        return None
    if series not in _SURE and shape.is_other_work:
        return None
    found = Said(series=series, step_ns=step_ns, trains=trains)
    if place is not None:
        found.step, found.of = _whole(place["step"]), _whole(place["of"])
        if of_epoch and place["epoch"] is not None:
            found.epoch = int(place["epoch"])
    if not series:
        _per_second(line, shape, found)
    if not found.series and not trains:
        return None
    found.figures.update(_figures_of(line, shape))
    return found


_SURE = frozenset({"time per iteration", "train_step_timing", "completed step"})
_WEAK = frozenset({"dt", "seconds", "time"})


def _step_time(line: str, shape: Shape, counted: bool) -> tuple[str, float | None, bool]:
    """(what tells it, ns, whether that alone shows that it is the time of a step)."""
    for name, pattern, at in shape.timed:
        match = pattern.match(line, at)
        if match is None or (name in _WEAK and not counted):
            continue
        found = match.groupdict()
        if found.get("rate"):
            rate = duration_ns(found["rate"], "s", line=line)
            if rate:
                return name, 1e18 / rate, True
            continue
        unit = found.get("unit") or found.get("in") or found.get("in2")
        if unit is None and re.match(r"ms", match[0], re.IGNORECASE):
            unit = "ms"
        value = duration_ns(found["value"], unit, line=line)
        if value:
            return name, value, name not in _WEAK
    return "", None, False


def _per_second(line: str, shape: Shape, found: Said) -> None:
    for name, pattern, at in shape.per_second:
        if (match := pattern.match(line, at)) is not None and (value := _rate(match["value"], line)):
            found.series, found.per_second = name, value
            return
    for _, pattern, at in shape.tokens:
        if (match := pattern.match(line, at)) is None:
            continue
        text, kilo = match["value"] or match["value2"], match["kilo"] or match["kilo2"]
        if value := number(text):
            found.series = "tokens"
            found.per_second = value * {"k": 1e3, "m": 1e6}.get((kilo or "").lower(), 1.0)


def _rate(text: str, line: str) -> float | None:
    found = duration_ns(text, "s", line=line)
    return None if found is None else found / 1e9


def _figures_of(line: str, shape: Shape | None = None) -> dict[str, float]:
    found: dict[str, float] = {}
    shape = shape or shape_of(line)
    for name, pattern, at in shape.figures:
        if (match := pattern.match(line, at)) is not None and (value := number(match["value"])) is not None:
            found[name] = value / 100 if name == "mfu" and (match.groupdict().get("percent") or value > 1) else value
    for _, pattern, at in shape.tokens:
        match = pattern.match(line, at)
        if match is not None and (value := number(match["value"] or match["value2"])) is not None:
            kilo = (match["kilo"] or match["kilo2"] or "").lower()
            found["tokens_per_s"] = value * {"k": 1e3, "m": 1e6}.get(kilo, 1.0)
    return found


def _whole(text: str | None) -> int | None:
    if text is None:
        return None
    value = number(text, comma_is_decimal=False)
    return None if value is None or value > 1 << 60 else int(value)


def _bar(line: str, shape: Shape) -> Said | None:
    """A progress bar of tqdm, or of Lightning's with rich."""
    if shape.rich_bar and (rich := _RICH_BAR.match(line, shape.rich_bar[0][2])) is not None:
        rate = number(rich["rate"])
        found = Said(
            _whole(rich["n"]), _whole(rich["of"]), int(rich["epoch"]), "bar", bar=("epoch", _whole(rich["of"]))
        )
        found.step_ns = 1e9 / rate if rate else None
        found.elapsed_ns, found.trains = clock_ns(rich["elapsed"]), True
        found.figures = _figures_of(rich["rest"].replace(": ", "="))
        return found
    match = _BAR.match(line, shape.bar[0][2]) if shape.bar else None
    if match is None:
        return None
    unit = match["unit"].lower()
    counted = unit.removesuffix("/s").removeprefix("s/")
    if counted not in ("it", "step", "steps", "iter", "batch", "ba", "update"):
        return None if ":::" in line else Said()
    if not match["n"].isdigit() or match["counts"]:
        return Said()
    desc, rest = (match["desc"] or "").strip(), match["rest"] or ""
    found = Said(int(match["n"]), _whole(match["of"]), series="bar", elapsed_ns=clock_ns(match["elapsed"]))
    found.bar = (re.sub(r"\d+(?:[.,]\d+)?", "#", desc)[-60:], found.of)
    trains = _TRAINS.search(rest) is not None or "v_num" in rest
    if _OTHER_BAR.search(desc) is not None and not trains:
        found.series = ""
        if found.step == found.of and found.elapsed_ns and (kind := _bar_event(desc)) is not None:
            found.events.append(Event(kind[0], kind[1], found.elapsed_ns))
        return found
    if (known := re.search(rf"train_step_timing in s=(?P<value>{NUMBER})", rest)) is not None:
        found.series, found.step_ns = "train_step_timing", duration_ns(known["value"], "s", line=line)
        if (at := re.search(r"global_step=(\d+)", rest)) is not None:
            found.step, found.of = int(at[1]), None
        found.trains, found.bar = True, None
        found.figures = _figures_of(rest)
        return found
    rate = None if match["rate"] == "?" else duration_ns(match["rate"], "s", line=line)
    if rate:
        found.step_ns = rate if unit.startswith("s/") else 1e18 / rate
    if (epoch := _IN_EPOCH.search(desc)) is not None:
        found.epoch = int(epoch["epoch"])
    named = bool(desc) and _STEP_BAR.match(desc) is not None and re.search(r"[A-Za-z]", desc) is not None
    found.trains = trains or named
    if desc and not found.trains and _STEP_BAR.match(desc) is None:
        found.series = ""
    found.figures = _figures_of(rest)
    return found


def _bar_event(desc: str) -> tuple[str, str] | None:
    if re.search(r"sanity", desc, re.IGNORECASE):
        return "part", "sanity check"
    if re.search(r"eval|valid|test", desc, re.IGNORECASE):
        return "evaluation", ""
    if re.search(r"shard|weights|safetensors|loading", desc, re.IGNORECASE):
        return "part", "weights"
    if re.search(r"captur", desc, re.IGNORECASE):
        return "part", "graph capture"
    if re.search(r"download|fetch", desc, re.IGNORECASE):
        return "part", "downloads"
    if re.search(r"map|token|filter|split|examples", desc, re.IGNORECASE):
        return "part", "data"
    return None


def _trainer_rows(line: str) -> Said | None:
    """Dicts as Hugging Face's trainer prints them."""
    for text in _HF.findall(line):
        row = {match["key"]: number(match["value"]) for match in _PAIR.finditer(text)}
        if "eval_runtime" in row and row["eval_runtime"] is not None:
            return Said(events=[Event("evaluation", "", row["eval_runtime"] * 1e9)])
        if "train_runtime" in row:
            return Said(events=[Event("train_runtime", "", (row["train_runtime"] or 0) * 1e9)], trains=True)
        if "loss" in row and ("epoch" in row or "learning_rate" in row):
            figures = {
                name: value for name, value in row.items() if value is not None and name in ("loss", "grad_norm")
            }
            return Said(series="", figures=figures, trains=True)
    return None


_JSON_STEP = (
    "step",
    "global_step",
    "iteration",
    "iter",
    "_step",
    "trainer/global_step",
    "train/step",
    "train/global_step",
)
_JSON_TIME = re.compile(
    r"^(?:train/|perf/|timing/|time/|throughput/)?(?:(?:step|iter(?:ation)?|batch)_?(?:time|duration|dt)|"
    r"time_?(?:per_)?(?:step|iter)|"
    r"train_step_time|train_step_timing|dt|s/it|step_time)(?:[_/ ](?P<unit>ms|s|sec|seconds))?(?: in s)?$",
    re.IGNORECASE,
)
_JSON_STAMP = ("time", "timestamp", "_timestamp", "ts", "wall_time")


def _object(line: str) -> Said | None:
    """A JSON object on a line of its own, as metric files have them."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return of_metrics(row)


def of_metrics(row: Mapping[str, Any]) -> Said | None:
    """What a row of metrics says."""
    flat = {
        f"{outer}/{key}" if isinstance(value, dict) else outer: one
        for outer, value in row.items()
        for key, one in (value.items() if isinstance(value, dict) else [("", value)])
    }
    bare = {key.removeprefix("data/").removeprefix("metrics/"): value for key, value in flat.items()}
    step = next((bare[key] for key in _JSON_STEP if isinstance(bare.get(key), int | float)), None)
    if step is None or isinstance(step, bool) or not 0 <= step < 1 << 60:
        return None
    found = Said(int(step), trains=any("loss" in key for key in bare))
    for key, value in bare.items():
        match = _JSON_TIME.match(key)
        if match is not None and isinstance(value, int | float) and value > 0:
            found.series, found.step_ns = key, value * (1e6 if match["unit"] == "ms" else 1e9)
            break
    words = " ".join(f"{key}={value}" for key, value in bare.items() if isinstance(value, int | float))
    found.figures = _figures_of(words)
    if not found.series:
        _per_second(words, shape_of(words), found)
    return found if found.series or found.trains else None


def _server(line: str) -> Said | None:
    """A line of an inference server: its throughput, its queue, its cache."""
    if (match := _SERVER_VLLM.search(line)) is not None:
        values = {name: number(text) for name, text in match.groupdict().items() if text}
        return Said(series="server", figures=_of_server(values, cache=0.01))
    if (match := _SERVER_SGLANG.search(line)) is not None:
        pairs = {pair["key"].strip(" ,.#"): number(pair["value"]) for pair in _SGLANG_PAIR.finditer(line)}
        decode = (match["kind"] or match["kind2"]) == "Decode"
        values = {
            "running": pairs.get("running-req"),
            "waiting": pairs.get("queue-req"),
            "cache": pairs.get("token usage"),
            "generated": pairs.get("gen throughput") if decode else None,
            "prompt": None if decode else pairs.get("input throughput"),
        }
        return Said(series="server", figures=_of_server(values, cache=1.0))
    if (match := _TTFT.search(line)) is not None:
        value = duration_ns(match["value"], match["unit"] or match["in"], line=line)
        return None if value is None else Said(figures={"time_to_first_token": value / 1e9})
    return None


def _of_server(values: Mapping[str, float | None], cache: float) -> dict[str, float]:
    names = {
        "prompt": "prompt_tokens_per_s",
        "generated": "generated_tokens_per_s",
        "running": "running",
        "waiting": "waiting",
        "cache": "cache_used",
        "hit": "prefix_hit",
    }
    factors = {"cache_used": cache, "prefix_hit": 0.01}
    return {
        names[name]: value * factors.get(names[name], 1.0)
        for name, value in values.items()
        if value is not None and name in names
    }


def _events(line: str, shape: Shape, *, of_step: bool) -> Iterator[Event]:
    if (timer := _MEGATRON_TIMER.match(line)) is not None:
        kind = _MEGATRON_PARTS.get(timer["name"].rstrip("."))
        if kind is not None:
            yield Event(*kind, float(timer["high"]) * 1e6)
        return
    for name, pattern, at in () if of_step else shape.parts:
        if (match := pattern.match(line, at)) is not None:
            yield Event("part", name, duration_ns(match["value"], match["unit"], line=line))
            return
    for name, pattern, _ in shape.events:
        if of_step and name != "restart":
            continue
        if (match := pattern.search(line)) is not None:
            value = match.groupdict().get("value")
            yield Event(name, "", duration_ns(value, match["unit"], line=line) if value else None)
            return
