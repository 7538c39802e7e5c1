"""Makes what the other scripts train on, in their environment: images at random, in the formats of MNIST
and Caltech101. `python prepare_vision.py FOLDER`.
"""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from torchvision_operators import declare

IMAGES = {"train": 800, "t10k": 200}


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


def pictures(folder: Path, count: int, width: int) -> None:
    """`count` square JPEGs of noise."""
    from PIL import Image

    chance = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(1, count + 1):
        coarse = chance.integers(0, 256, (width // 8, width // 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((width, width)).save(folder / f"image_{place:04}.jpg")


def caltech(folder: Path) -> None:
    """One category of Caltech101, with the folders that torchvision looks for."""
    base = folder / "data" / "caltech101"
    pictures(base / "101_ObjectCategories" / "chair", 128, 304)
    for empty in ("Annotations", "101_ObjectCategories/BACKGROUND_Google"):
        (base / empty).mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    declare()
    target = Path(sys.argv[1]).resolve()
    for make in (mnist, caltech):
        make(target)
