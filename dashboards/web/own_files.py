"""Scripts and styles are the package's own files, and no other file is served."""

from __future__ import annotations

import os
from pathlib import Path

from flask import Flask, abort, request

ROUTE = "/assets/"


def only(server: Flask, folder: Path) -> None:
    """Of what lies in `folder`, serve files that are there themselves: 404 for a link that leads out of it."""

    @server.before_request
    def _check() -> None:
        if request.path.startswith(ROUTE) and not _own(folder, request.path.removeprefix(ROUTE)):
            abort(404)


def _own(folder: Path, name: str) -> bool:
    if "\0" in name:
        return False
    file = os.path.realpath(folder / name)
    return Path(file).is_relative_to(folder) and os.path.isfile(file)
