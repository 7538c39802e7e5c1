"""Fuzzing guided by coverage, where atheris installs: `PYTHONPATH=tests python -m fuzzing.coverage_guided FORMAT [libFuzzer's options]`.

libFuzzer changes the bytes of one format's whole file and keeps what reaches new code of the readers; what is bad by
`fuzzing.judge` ends the run, with the input in a file.
"""  # noqa: E501

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"GPUSCOPE_NO_STORE": "1", "GPUSCOPE_NO_CACHE": "1"}


def main() -> None:
    """Fuzz one format until libFuzzer's limits."""
    import atheris

    with atheris.instrument_imports(include=["gpuscope.sources", "gpuscope.trace"]):
        import gpuscope.sources.opening  # noqa: F401
    from fuzzing.inputs import MARK, Mutator
    from fuzzing.judge import analysed, judge
    from fuzzing.seeds import SEEDS

    name, *options = sys.argv[1:]
    seed = next(seed for seed in SEEDS if seed.name == name and not seed.tabular.endswith("dir"))
    folder = Path(tempfile.mkdtemp(prefix="gpuscope-fuzz-"))
    mutator = Mutator(seed, folder)
    whole = analysed(mutator.whole)
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "whole").write_bytes(mutator.whole.read_bytes())

    def one(data: bytes) -> None:
        path = folder / seed.file
        path.write_bytes(data)
        found = judge(path, whole, is_edit=True, partial=bool(data[:1]), advice=False, mark=folder / MARK)
        if found.is_bad:
            raise AssertionError(found.why)

    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
