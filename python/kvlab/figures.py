"""Figures and the HTML report of results, drawn by the scripts of plots/ and report/."""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvlab._call import run_script
from kvlab._kvlab import InputError
from kvlab.yaml_text import flow


class Figures(list):
    """Paths of PNG files; each has a PDF beside it. A notebook shows the images."""

    def _repr_html_(self) -> str:
        def image(path: Path) -> str:
            data = base64.b64encode(path.read_bytes()).decode()
            return f'<img style="max-width: 480px" alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'

        return "\n".join(image(path) for path in self)


def _set(settings: Mapping[str, Any]) -> list[str]:
    return [argument for key, value in settings.items() for argument in ("--set", f"figures.{key}={flow(value)}")]


def draw(folder: Path, every: bool, settings: Mapping[str, Any]) -> Figures:
    """Draws all figures of a results folder. settings: by NAME.KEY (docs/figures.md). Returns all that are there."""
    run_script("plot", str(folder), *(["--all"] if every else []), "--quiet", *_set(settings))
    return Figures(sorted((folder / "figures").glob("*.png")))


def draw_one(folder: Path, name: str, settings: Mapping[str, Any]) -> Figures:
    """Draws one figure by name, in as many parts as it has. InputError: these results have no such figure."""
    began = time.time_ns()
    own = {f"{name}.{key}": value for key, value in {"draw": True, **settings}.items()}
    run_script("plot", str(folder), "--quiet", *_set({"all.draw": False, **own}))
    # The clock of a file system may be coarser than ours.
    drawn = [p for p in (folder / "figures").glob(f"{name}*.png") if p.stat().st_mtime_ns >= began - 20_000_000]
    if not drawn:
        raise InputError(f"{folder}: there is no figure '{name}' of these results; .figures() draws all that there are")
    return Figures(sorted(drawn))


def report(folder: Path, other: Path | None, out: Path | None) -> Path:
    """Writes the HTML page of one folder, or of two side by side, and returns its path."""
    run_script("report", str(folder), *([str(other)] if other else []), *(["--out", str(out)] if out else []))
    return out or folder / "report.html"
