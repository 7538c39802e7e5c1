"""HolisticTraceAnalysis in a separate virtual environment, since its dependencies are not ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = ("HolisticTraceAnalysis==0.5.0", "ijson>=3.3")


def python_with_hta(folder: Path) -> Path:
    """The Python of an environment in `folder` that has HTA, made there on first use."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return python
