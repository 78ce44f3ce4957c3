"""The folder of the program's data: data/ in an installed package, else the source tree that the module was built from."""

from __future__ import annotations

from pathlib import Path

from kvlab import _kvlab

_PACKAGE = Path(__file__).resolve().parent

if (_PACKAGE / "data").is_dir():
    _kvlab.set_data_root(str(_PACKAGE / "data"))


def root() -> Path:
    """The folder with profiles/, policies/, experiments/, claims/, traces/samples/, engine/probe/ and plots/."""
    return Path(_kvlab.data_root())


def data_path(name: str) -> str:
    """The path of a file that ships: data_path("traces/samples/probe_niah.safetensors"). FileNotFoundError: it does not."""
    path = root() / name
    if not path.exists():
        raise FileNotFoundError(f"the package has no {name}; its data is in {root()}")
    return str(path)


def script(name: str) -> Path:
    """The path of a script of the package: "plot", "report" or "convert" (tables of the package aisimulate)."""
    own = {"report": _PACKAGE / "report" / "report.py"}
    return own.get(name) or root() / {"plot": "plots/plot.py", "convert": "profiles/aisimulate/convert.py"}[name]
