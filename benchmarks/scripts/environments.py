"""Virtual environments for the scripts: made once, outside the repository, with gpuscope of this checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HOOK = Path(__file__).with_name("hook")
CONSTRAINTS = ("torch==2.13.0", "torchvision==0.28.0")


@dataclass(frozen=True)
class Environment:
    """What is installed (in these groups, in turn), and which source archives are unpacked beside it."""

    name: str
    groups: tuple[tuple[str, ...], ...]
    archives: tuple[str, ...] = ()


ENVIRONMENTS = {
    each.name: each
    for each in (
        Environment(
            "hf",
            (
                ("pip", "setuptools", "wheel", "ninja"),
                ("torch", "transformers==5.23.0", "accelerate==1.15.0"),
                ("trl==1.16.0",),
                ("--no-build-isolation", "deepspeed==0.19.8"),
            ),
        ),
        Environment(
            "vision",
            (
                ("pip", "setuptools", "wheel", "hatchling"),
                ("torch", "torchvision", "pytorch-ignite==0.5.5", "tqdm"),
                ("open-clip-torch==3.3.0", "webdataset", "pandas"),
                ("rl-zoo3==2.9.2",),
                ("pykeen==1.11.1",),
            ),
            ("pytorch-ignite==0.5.5", "fairscale==0.4.13"),
        ),
        Environment(
            "lightning",
            (("pip", "setuptools", "wheel"), ("torch", "lightning==2.6.6", "litgpt==0.5.13", "litdata", "requests")),
        ),
    )
}


@dataclass(frozen=True)
class Place:
    """Where an environment and its scripts lie."""

    work: Path
    name: str

    @property
    def bin(self) -> Path:
        """The folder of its programs."""
        return self.work / self.name / "bin"

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return next((self.work / self.name / "lib").glob("python3.*/site-packages"))

    @property
    def data(self) -> Path:
        """Data and models made for it."""
        return self.work / "data" / self.name

    @property
    def sources(self) -> Path:
        """Where source archives are unpacked."""
        return self.work / "sources"


def prepared(name: str, work: Path) -> Place:
    """The environment in `work`, made if it is not there as it should be. Raises `CalledProcessError`."""
    environment, place = ENVIRONMENTS[name], Place(work, name)
    marker, installed = work / name / "ready.json", work / name / "gpuscope.txt"
    wanted = json.loads(json.dumps({**asdict(environment), "constraints": CONSTRAINTS}))
    constraints = work / "constraints.txt"
    constraints.write_text("\n".join(CONSTRAINTS) + "\n")
    if not marker.is_file() or json.loads(marker.read_text()) != wanted:
        if not place.bin.is_dir():
            _run(sys.executable, "-m", "venv", str(work / name))
        for group in environment.groups:
            _pip(place, "install", "-c", str(constraints), *group)
        for archive in environment.archives:
            _unpack(place, archive)
        place.data.mkdir(parents=True, exist_ok=True)
        _run(str(place.bin / "python"), str(Path(__file__).with_name(f"prepare_{name}.py")), str(place.data))
        marker.write_text(json.dumps(wanted))
    if not installed.is_file() or installed.read_text() != str(REPOSITORY):
        _pip(place, "install", "-c", str(constraints), "-e", f"{REPOSITORY}[train]")
        installed.write_text(str(REPOSITORY))
    return place


def versions(place: Place) -> dict[str, str]:
    """Version of each distribution that is installed or unpacked."""
    done = subprocess.run(
        [place.bin / "python", "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    unpacked = dict(archive.split("==") for archive in ENVIRONMENTS[place.name].archives)
    return unpacked | {one["name"].lower().replace("_", "-"): one["version"] for one in json.loads(done.stdout)}


def _unpack(place: Place, requirement: str) -> None:
    folder = place.sources / "archives"
    _pip(place, "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(folder), requirement)
    stem = requirement.replace("==", "-").replace("-", "_")
    for path in folder.glob("*.tar.gz"):
        if path.name.replace("-", "_") == f"{stem}.tar.gz":
            with tarfile.open(path) as archive:
                archive.extractall(place.sources, filter="data")


def _pip(place: Place, *words: str) -> None:
    _run(str(place.bin / "python"), "-m", "pip", words[0], "--quiet", *words[1:])


def _run(*words: str) -> None:
    subprocess.run(words, check=True)
