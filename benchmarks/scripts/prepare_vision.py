"""Makes what the other scripts train on, in their environment: images at random, in the formats of MNIST,
Caltech101 and of ultralytics. `python prepare_vision.py FOLDER`.
"""

import gzip
import json
import struct
import sys
from pathlib import Path

import numpy as np
from torchvision_operators import declare

IMAGES = {"train": 1600, "t10k": 200}


def mnist(folder: Path) -> None:
    """Noise in MNIST's own format."""
    chance = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in IMAGES.items():
        pixels = chance.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = chance.integers(0, 10, count, dtype=np.uint8)
        files = {
            f"{name}-images-idx3-ubyte": struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes(),
            f"{name}-labels-idx1-ubyte": struct.pack(">II", 2049, count) + labels.tobytes(),
        }
        for file, content in files.items():
            (raw / file).write_bytes(content)
            (raw / f"{file}.gz").write_bytes(gzip.compress(content))


def pictures(folder: Path, count: int, width: int) -> list[Path]:
    """`count` square JPEGs of noise."""
    from PIL import Image

    chance = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"image_{place:04}.jpg" for place in range(1, count + 1)]
    for path in paths:
        coarse = chance.integers(0, 256, (width // 8, width // 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((width, width)).save(path)
    return paths


def caltech(folder: Path) -> None:
    """One category of Caltech101, with the folders that torchvision looks for."""
    base = folder / "data" / "caltech101"
    pictures(base / "101_ObjectCategories" / "chair", 128, 304)
    for empty in ("Annotations", "101_ObjectCategories/BACKGROUND_Google"):
        (base / empty).mkdir(parents=True, exist_ok=True)


def detection(folder: Path) -> None:
    """Images with a box each, for ultralytics."""
    base = folder / "boxes"
    for path in pictures(base / "images", 64, 160):
        label = base / "labels" / f"{path.stem}.txt"
        label.parent.mkdir(exist_ok=True)
        label.write_text("0 0.5 0.5 0.4 0.4\n")
    (base / "boxes.yaml").write_text(
        json.dumps({"path": str(base), "train": "images", "val": "images", "names": {0: "box"}})
    )


if __name__ == "__main__":
    declare()
    target = Path(sys.argv[1]).resolve()
    for make in (mnist, caltech, detection):
        make(target)
