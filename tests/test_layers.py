"""The layers of docs/architecture.md: what may import what, and what must not be imported to analyse."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from helpers.import_graph import FACADE, ROOT, circle, file_graph, folders, imports, modules, place_graph

UPPER = ("analyzers", "instrumented_runtime", "dashboards")
ALLOWED = {
    "ground": set(),
    "analyzers": {"ground"},
    "instrumented_runtime": {"ground"},
    "dashboards": {"ground", "analyzers"},
}
MODULES = modules()
GRAPH = file_graph(MODULES)
FOLDERS = folders(MODULES)


def layer(module: str) -> str:
    """`ground` is gpuscope without the three packages above it."""
    place = module.removeprefix("gpuscope.").partition(".")[0]
    return place if place in UPPER else "ground"


def test_no_import_upward() -> None:
    upward = [
        f"{name} imports {target}"
        for name, targets in GRAPH.items()
        for target in targets
        if name != FACADE and layer(target) not in {layer(name), *ALLOWED[layer(name)]}
    ]
    assert not upward


def test_packages_are_imported_by_their_installed_names() -> None:
    """`import analyzers` works in a clone and nowhere else."""
    assert not [
        f"{path} imports {target}"
        for folder in (*UPPER, "gpuscope", "tests", "benchmarks", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for target in imports(path)
        if target.partition(".")[0] in UPPER
    ]


def test_nothing_inside_imports_the_facade() -> None:
    assert not [name for name, targets in GRAPH.items() if FACADE in targets and name != "gpuscope.__main__"]


def test_no_circle_between_files() -> None:
    assert not circle({name: targets for name, targets in GRAPH.items() if name != FACADE})


def test_the_facade_imports_nothing_of_the_packages_above_by_itself() -> None:
    """`import gpuscope` is quick, and works where an extra is missing: names are looked up when asked for."""
    at_once = file_graph(MODULES, top_level_only=True)[FACADE]
    assert {layer(target) for target in at_once} == {"ground"}


def test_no_circle_between_the_places_of_a_folder() -> None:
    assert not [found for folder in FOLDERS if (found := circle(place_graph(GRAPH, folder)))]


READS_A_SENTENCE = re.compile(
    r"""(why|message|sentence|action|note)["']?\]?\)?\.(startswith|endswith|partition|rpartition|split|removeprefix"""
    r"""|removesuffix)\(|["'] in [a-z_.]*(\[["'])?(why|message|action)\b"""
    r"""|\.(search|match|fullmatch|findall)\([^)]*\b(why|message|sentence|action|note)\b"""
)


def test_no_module_reads_a_sentence() -> None:
    """What another part needs to know is a fact of a record (gpuscope/catalogue); words are for people."""
    found = [
        f"{name}: {line.strip()}"
        for name, path in MODULES.items()
        for line in path.read_text(encoding="utf-8").splitlines()
        if READS_A_SENTENCE.search(line)
    ]
    assert found == []


def test_a_library_is_imported_in_its_own_room_only() -> None:
    """pyarrow by the readers of its formats, dash by the dashboard, torch by the runtime."""
    home = {"dash": {"dashboards"}, "torch": {"instrumented_runtime"}, "nvtx": {"instrumented_runtime"}}
    assert not [
        f"{name} imports {library}"
        for name, path in MODULES.items()
        for library in {target.partition(".")[0] for target in imports(path)} & home.keys()
        if layer(name) not in home[library]
    ]


SLOWLY_IMPORTED = (
    "statistics",
    "tarfile",
    "tempfile",
    "subprocess",
    "xml",
    "csv",
    "socket",
    "numpy.random",
    "numpy.ma",
)
"""What few analyses need and takes milliseconds to import: together a tenth of a small analysis."""


def test_analysing_imports_neither_torch_nor_dash_nor_pyarrow(samples: Path) -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'dash', 'plotly', 'pyarrow', 'nvtx', 'sqlite_utils'):\n"
        "            raise ImportError(f'{name} must not be needed to analyse')\n"
        "sys.meta_path.insert(0, Block())\n"
        "import gpuscope\n"
        "analysis = gpuscope.analyze(sys.argv[1])\n"
        "print(*sorted(set(sys.argv[2:]) & set(sys.modules)))\n"
        "print(analysis.report['verdict']['cause'], len(analysis.tables['ranks']))\n"
    )
    path = samples / "ddp_slow_loader"
    command = [sys.executable, "-c", code, str(path), *SLOWLY_IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["", "input 2"], done.stderr


def test_keeping_an_analysis_imports_sqlite_utils_alone(samples: Path, tmp_path: Path) -> None:
    """The run store costs no pandas either, which sqlite-utils would import to know one more type."""
    code = (
        "import sys\n"
        "from gpuscope.cli import main\n"
        "try:\n    main(['analyze', *sys.argv[1:], '--json'])\nexcept SystemExit:\n    pass\n"
        "told = {'sqlite_utils', 'pandas', 'torch', 'dash', 'plotly', 'pyarrow', 'nvtx'} & set(sys.modules)\n"
        "print(*sorted(told), file=sys.stderr)\n"
    )
    store = tmp_path / "runs.db"
    env = {key: value for key, value in os.environ.items() if key != "GPUSCOPE_NO_STORE"}
    command = [sys.executable, "-c", code, str(samples / "ddp_healthy"), "--store", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert (done.stderr.split(), store.exists()) == (["sqlite_utils"], True)


def test_help_imports_nothing_heavy() -> None:
    """`gpuscope --help` must be quick: no numpy, no pandas, no rich."""
    code = (
        "import sys\n"
        "from gpuscope.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pandas', 'torch', 'dash', 'plotly', 'rich', 'msgspec', 'jinja2', 'sqlite_utils'}\n"
        "heavy &= set(sys.modules)\n"
        "print('heavy:', *sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy:"
