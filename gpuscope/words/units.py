"""One place where numbers become words: time, sizes, shares, rates, ranks, and names made safe to show."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from functools import cache

from rich.cells import cell_len, set_cell_size

from gpuscope import when_used
from gpuscope.trace.kernel_categories import ENGINE, qualified_name

NONE = "-"
"""What stands where there is no value."""

_TIME_UNITS = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))
_BYTE_UNITS = ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"), (10**15, "PB"))
_FLOP_UNITS = (
    (1, "FLOP/s"),
    (10**6, "MFLOP/s"),
    (10**9, "GFLOP/s"),
    (10**12, "TFLOP/s"),
    (10**15, "PFLOP/s"),
)


def _four_digits(value: float) -> str:
    """`value` to four significant digits, never in exponent form."""
    if value == 0:
        return "0"
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    # Rounding may carry into one digit more (99.996 -> 100.00): ask again of the rounded value.
    value = round(value, decimals)
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def _scaled(value: float, units: tuple[tuple[int, str], ...]) -> str:
    """The largest unit that leaves at least 1 after rounding; whole numbers in the smallest unit."""
    size, unit = units[0]
    for size, unit in reversed(units):  # noqa: B007 - the last one holds when the loop runs out
        if float(f"{abs(value) / size:.4g}") >= 1:
            break
    number = f"{round(value)}" if size == 1 else _four_digits(value / size)
    return f"{number} {unit}"


def duration(ns: float | None) -> str:
    """Nanoseconds in the unit that reads best: `812 ns`, `25.40 µs`, `31.00 ms`, `1.234 s`."""
    return NONE if ns is None else _scaled(ns, _TIME_UNITS)


def span(first_ns: float, last_ns: float, between: str = " to ") -> str:
    """Two times, their unit once where it is the same: `87.97 to 91.76 ms`."""
    first, last = duration(first_ns), duration(last_ns)
    number, _, unit = first.partition(" ")
    return f"{number if unit == last.partition(' ')[2] else first}{between}{last}"


def change(ns: float | None) -> str:
    """A change of time with its sign: `+1.234 ms`, `-812 ns`."""
    if ns is None:
        return NONE
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration(abs(ns))}"


def both(before: str, after: str) -> str:
    """Two values side by side, once where they are equal and with one unit where they share it: `12 → 16 %`."""
    if before == after:
        return before
    number, _, unit = before.partition(" ")
    return f"{number if unit and unit == after.partition(' ')[2] else before} → {after}"


def long_duration(ns: float) -> str:
    """Minutes, hours and days too: `7.350 h`, `33.01 days`."""
    seconds = ns / 1e9
    for size_s, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size_s:
            return f"{_four_digits(seconds / size_s)} {unit}"
    return duration(ns)


def time_unit(longest_ns: float) -> tuple[int, str]:
    """The unit that a set of times reads best in, and its ns: `(1000000, "ms")`."""
    return next((one for one in reversed(_TIME_UNITS) if one[0] <= longest_ns), _TIME_UNITS[0])


def axis(times_ns: list[int]) -> list[str]:
    """Labels of round times, all in the unit of the last: `0`, `0.2 s`, `0.4 s`."""
    size, unit = time_unit(max(times_ns, default=0))
    return [f"{ns / size:.10g} {unit}" if ns else "0" for ns in times_ns]


def exact_ns(ns: int | None) -> str:
    """All digits, in groups of three: `1,694,128,201,545,123,456 ns`."""
    return NONE if ns is None else f"{ns:,} ns"


def offset(ns: int) -> str:
    """A place relative to the run's origin, to the microsecond: `+1.234567 s`, `+47.299 ms`, `+812 µs`."""
    micros = abs(ns) // 1000
    sign = "-" if ns < 0 else "+"
    if micros < 1000:
        return f"{sign}{micros} µs"
    size, digits, unit = (1000, 3, "ms") if micros < 1_000_000 else (1_000_000, 6, "s")
    return f"{sign}{micros // size}.{micros % size:0{digits}d} {unit}"


def size(nbytes: int | None) -> str:
    """Bytes in decimal units, as bandwidths are: `4.194 MB`."""
    return NONE if nbytes is None else _scaled(nbytes, _BYTE_UNITS)


def memory(nbytes: int) -> str:
    """Memory by powers of two, as PyTorch and nvidia-smi print it: `512 B`, `1.5 KiB`, `24,012 MiB`."""
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    size, unit = (1 << 20, "MiB") if nbytes >= 1 << 20 else (1 << 10, "KiB")
    value = nbytes / size
    return f"{value:,.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.3g} {unit}"


def bandwidth(gbps: float | None) -> str:
    """A bandwidth given in 1e9 B/s."""
    if gbps is None or not math.isfinite(gbps):
        return NONE
    if gbps >= 0.01 or gbps == 0:
        return f"{_four_digits(gbps)} GB/s"
    return _scaled(gbps * 1e9, ((1, "B/s"), (10**3, "kB/s"), (10**6, "MB/s")))


def flop_rate(flops_per_s: float | None) -> str:
    """A rate of floating-point operations: `312.0 TFLOP/s`."""
    if flops_per_s is None or not math.isfinite(flops_per_s):
        return NONE
    return _scaled(flops_per_s, _FLOP_UNITS)


def amount(value: float, unit: str) -> str:
    """A counter's value in the unit that its source names."""
    return f"{value:.4g} {unit}".strip()


def share(frac: float | None) -> str:
    """A fraction of 1 as per cent. Only nothing is `0 %` and only all is `100 %`."""
    if frac is None or not math.isfinite(frac):
        return NONE
    if frac in (0, 1):
        return f"{frac:.0%}".replace("%", " %")
    if 0 < frac < 0.001:
        return "<0.1 %"
    if 0.999 < frac < 1:
        return ">99.9 %"
    return f"{100 * frac:.1f} %"


def signed(frac: float | None) -> str:
    """By what fraction of 1 something is more or less, as per cent: `+4.0 %`."""
    return NONE if frac is None else f"{100 * frac:+.1f} %"


def whole_share(frac: float | None) -> str:
    """A fraction of 1 as whole per cent, for a headline: `31 %`."""
    if frac is None or not math.isfinite(frac):
        return NONE
    if 0 < frac < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= frac < 1 else f"{100 * frac:.0f} %"


def count(number: int | None) -> str:
    """A count in groups of three: `2,370`."""
    return NONE if number is None else f"{number:,}"


def plural(number: int, singular: str, several: str | None = None) -> str:
    """`1 step`, `12 steps`."""
    return f"{count(number)} {singular if number == 1 else several or singular + 's'}"


_UNIT = when_used.pattern(r"(?<=\d) (?=(?:%|[nµum]?s|min|h|days|[kMGT]?B(?:/s)?|[KMG]iB|[MGT]FLOP/s)(?![\w/]))")


def unbroken(text: str, blank: str = "\u00a0") -> str:
    """`text` with another blank between each number and its unit, where no line should break."""
    return _UNIT.sub(blank, text)


def ranks(numbers: Iterable[int]) -> str:
    """Ranks as ranges: `0-3,7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs) or NONE


def rank_words(numbers: Iterable[int]) -> str:
    """`rank 1`, or `ranks 0-3,7`."""
    some = sorted(set(numbers))
    return f"{'rank' if len(some) == 1 else 'ranks'} {ranks(some)}"


def ordinal(number: int) -> str:
    """`2nd`, `13th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def be(some: Sized) -> str:
    """`is` of one, `are` of several."""
    return "is" if len(some) == 1 else "are"


def clean(text: str) -> str:
    """`text` with everything that is not shown as itself spelled out: `\\x1b`, `\\n`, `\\u202e`.

    Names come from traces, so they may hold terminal escapes, line breaks, lone surrogates or characters
    that turn the reading direction around.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _shows(char) else _spelled(char) for char in text)


def clean_lines(text: str) -> str:
    """`text` of several lines, each of them clean."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _shows(char: str) -> bool:
    return char == " " or unicodedata.category(char)[0] not in "CZ"


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def crop(text: str, width: int, ellipsis: str = "…") -> str:
    """`text` in at most `width` cells: the middle goes, since long C++ names differ at both ends."""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(ellipsis)
    if room < 2:
        return set_cell_size(text, max(width, 0)).rstrip()
    tail = room * 2 // 5
    end = text[-tail:] if tail else ""
    while cell_len(end) > tail:
        end = end[1:]
    return set_cell_size(text, room - tail).rstrip() + ellipsis + end


def crop_path(path: str, width: int, ellipsis: str = "…") -> str:
    """A path in at most `width` cells: folders go from the front, whole; the file's name is what tells files apart."""
    if cell_len(path) <= width:
        return path
    parts = path.split("/")
    for first in range(1, len(parts)):
        if cell_len(shown := "/".join([ellipsis, *parts[first:]])) <= width:
            return shown
    return crop(parts[-1], width, ellipsis)


_PLAIN = str.maketrans({"µ": "u", "…": "...", "–": "-", "→": "->", "·": "|", "±": "+/-", "≥": ">=", "«": '"', "»": '"'})


def writable(text: str, encoding: str) -> str:
    """`text` in characters that `encoding` has; the others get a plain stand-in or are spelled out."""
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return writable(text, "ascii")


# Kernel names short enough to read: C++ without what every kernel has, and never two kernels under one name.
#
# `void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::addcmul_cuda_kernel(at::Tensor…)
# ::{lambda()#2}::operator()() const::{lambda(float, float, float)#1}>(…)::{lambda(int)#1}>(int, …)` is
# `elementwise_kernel<128, 2, addcmul_cuda_kernel[float]>`.

WIDTH = 72
"""Cells of a kernel's name where nothing else sets a limit."""

_NAMESPACE = when_used.pattern(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::")
_LAMBDA = when_used.pattern(
    r"::(?:\{lambda\(([^(){}]*)\)(?:#(\d+))?\}|\[lambda\(([^()\[\]]*)\)(?: \(instance (\d+)\))?\])"
)
_CALL = when_used.pattern(r"::operator ?\(\)\(\)(?: const)?")
_CAST = when_used.pattern(r"\((?:unsigned )?(?:int|long|char|bool|short)\)(?=-?\d)")
_NUMBER = when_used.pattern(r"\b(\d+)(?:u?l{1,2}|u)\b")
_WRAPPER = when_used.pattern(r"\b(?:gpu_kernel_impl(?:_nocast)?|gpu_index_kernel|func_wrapper_t)<(?=[A-Za-z_])")
_CPP = when_used.pattern(r"void |[\w:]*<|[\w:]+\(.*\)$")
_VERSION = when_used.pattern(r"_v\d{4,5}$")
"""The version that nsys puts behind a CUDA call: `cudaMemcpyAsync_v3020`."""
_LENGTH = when_used.pattern(r"\d+")
_SAME = when_used.pattern(
    r", (?:std::)?[Aa]rray<char\*, \d+>|, (?:TrivialO|O)ffsetCalculator<[^<>]*>|, (?:memory::)?(?:Load|Store)With\w+"
)
"""Arguments of element-wise kernels that follow from the others."""
_WORD = when_used.pattern(r"[A-Za-z0-9]+|[^A-Za-z0-9]")


def short_kernels(names: Sequence[str], width: int = WIDTH) -> list[str]:
    """`names` in at most `width` cells each. Where several would look alike, what tells them apart stays."""
    found = [short_kernel(name, width) for name in names]
    for text in [text for text, count in Counter(found).items() if count > 1]:
        own = [i for i, one in enumerate(found) if one == text]
        different = len({names[i] for i in own})
        if different == 1:
            continue  # one kernel in several rows
        plain = [plain_kernel(names[i]) for i in own]
        if len(set(plain)) < different:  # they differ only in what plain names leave out
            plain = [_NAMESPACE.sub("", names[i].removeprefix("void ")) for i in own]
        for i, words in zip(own, _told_apart(plain, width), strict=True):
            found[i] = words
    return _numbered(names, found, width)


def _numbered(names: Sequence[str], shown: Sequence[str], width: int) -> list[str]:
    """Names that still look alike, numbered."""
    behind: dict[str, dict[str, int]] = {}
    for name, text in zip(names, shown, strict=True):
        behind.setdefault(text, {}).setdefault(name, len(behind[text]) + 1)
    return [
        text if len(behind[text]) == 1 else f"{crop(text, width - 5)} ({behind[text][name]})"
        for name, text in zip(names, shown, strict=True)
    ]


def short_kernel(name: str, width: int = WIDTH) -> str:
    """One name in at most `width` cells."""
    return _fitted(plain_kernel(name), width)


@cache
def plain_kernel(name: str) -> str:
    """The name without return type, namespaces, parameters and lambdas; what is no C++ stays as it is."""
    if name.startswith("_Z"):
        return _of_symbol(name)
    if not _CPP.match(name):
        return plain_call(name)  # a bare symbol, a copy, an operator, a call
    text = name.removeprefix("void ").replace(" void ", " ").replace("<void ", "<")
    text = _NAMESPACE.sub("", _LAMBDA.sub(_lambda_words, _CALL.sub("", text)))
    text = _without_parameters(_CAST.sub("", text))
    text = _unwrapped(_NUMBER.sub(r"\1", text))
    text = re.sub(r"(?:#\d+)+(?=\[)", "", text)  # the types of the innermost lambda say more than numbers
    text = _SAME.sub("", text)
    text = re.sub(r"\s+>", ">", text).replace(" const&", "").replace(" &", "").replace(" *", "*")
    return _once_each(text).strip() or name


def plain_call(name: str) -> str:
    """The name of an operator or call without what torch's engine and nsys put around it."""
    return _VERSION.sub("", name.removeprefix(ENGINE))


def _lambda_words(match: re.Match[str]) -> str:
    types = match[1] if match[1] is not None else match[3]
    number = match[2] or match[4]
    first = types.split(",")[0].strip()
    if first in ("int", "char*", "char *") or first.startswith("curand"):
        return ""  # the wrapper's own, the same for all
    return f"[{_NAMESPACE.sub('', first)}]" if first else f"#{number}" if number else ""


def _without_parameters(text: str) -> str:
    """Without what stands between parentheses, and qualifiers right after them."""
    kept: list[str] = []
    depth = 0
    for char in text:
        depth += char == "("
        if not depth:
            kept.append(char)
        depth -= char == ")" and depth > 0
    return "".join(kept)


def _unwrapped(text: str) -> str:
    """Without wrappers that say nothing of what they run: `gpu_kernel_impl<X>` is X."""
    while (found := _WRAPPER.search(text)) is not None:
        depth, end = 1, found.end()
        while end < len(text) and depth:
            depth += {"<": 1, ">": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[found.end() : end - 1].rstrip() + text[end:]
    return text


def _once_each(text: str) -> str:
    """`BinaryFunctor<float, float, float, Mul<float>>` with its `float` once."""
    before = ""
    while text != before:
        before, text = text, re.sub(r"(?<=[<,])( ?)([^<>,]+)(?:, ?\2)+(?=[,>])", r"\1\2", text)
    return text


def _of_symbol(name: str) -> str:
    """A mangled name: the function, and the names and numbers among its template arguments."""
    function = qualified_name(name).rpartition("::")[2]
    start = name.find(function) + len(function)
    found: list[str] = []
    while start < len(name):
        number = _LENGTH.match(name, start)
        if number is not None and 2 < int(number[0]) <= len(name) - number.end():
            start = number.end() + int(number[0])
            word = name[number.end() : start]
            if word.isidentifier() and word not in found:
                found.append(word)
        elif (value := re.match(r"L[ijlmb](\d+)E", name[start:])) is not None:
            found.append(value[1])
            start += value.end()
        else:
            start += 1
    return f"{function}<{', '.join(found)}>" if found else function


def _fitted(text: str, width: int) -> str:
    """What fits: numbers go first, then what the template arguments have for arguments, then the last of them; a name
    without any loses its middle."""
    if len(text) <= width:
        return text
    head, opened, rest = text.partition("<")
    if not opened or not rest.endswith(">") or len(head) > width - 8:
        return crop(text, width)
    telling = [one for one in _arguments(rest[:-1]) if not one.lstrip("-").isdigit()] or _arguments(rest[:-1])
    for shown in ([*telling], [_outer(one) for one in telling]):
        while shown:
            if len(words := f"{head}<{', '.join(shown)}>") <= width:
                return words
            if len(shown) == 1:
                break
            shown.pop()
    return f"{head}<{crop(telling[0], width - len(head) - 2)}>"


def _outer(argument: str) -> str:
    name, nested, _ = argument.partition("<")
    return f"{name}<…>" if nested else name


def _arguments(text: str) -> list[str]:
    """Template arguments of the outermost list, without the brackets of that list."""
    found, depth = [""], 0
    for char in text:
        depth += {"<": 1, "[": 1, ">": -1, "]": -1}.get(char, 0)
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return [one.strip() for one in found]


def _told_apart(texts: Sequence[str], width: int) -> list[str]:
    """Names of one beginning: its first part, and all from where they differ; where that is too long, the words in
    which they differ."""
    words = [_WORD.findall(text) for text in texts]
    first = _agree(words)
    tails = ["".join(own[first:]) for own in words]
    if max(map(len, tails)) > width * 2 // 3 and len({len(own) for own in words}) == 1:
        differ = [i for i, at in enumerate(zip(*words, strict=True)) if len(set(at)) > 1]
        tails = ["…".join(own[i] for i in differ) for own in words]
    room = max(width - 2 - max(map(len, tails)), width // 3)
    return [f"{text[:room]}…{crop(tail, width - room - 1)}" for text, tail in zip(texts, tails, strict=True)]


def _agree(words: Sequence[Sequence[str]]) -> int:
    """How many of the first words all have."""
    return next((i for i, at in enumerate(zip(*words, strict=False)) if len(set(at)) > 1), min(map(len, words)))
