"""Kernel names short enough to read: C++ without what every kernel has, and never two kernels under one name.

`void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::addcmul_cuda_kernel(at::Tensor…)
::{lambda()#2}::operator()() const::{lambda(float, float, float)#1}>(…)::{lambda(int)#1}>(int, …)` is
`elementwise_kernel<128, 2, addcmul_cuda_kernel[float]>`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

from gpuscope import when_used
from gpuscope.trace.naming.kernel_categories import ENGINE
from gpuscope.trace.naming.kernel_names import qualified_name
from gpuscope.words.units import crop

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
