"""Which files in figures/ are ours, and of which results: figures/.drawn. Those of other results are deleted, nobody else's files are."""

import hashlib
from pathlib import Path

LIST = ".drawn"
_written = []


def start():
    _written.clear()


def note(path):
    """Returns the path of a file that is about to be written."""
    _written.append(Path(path))
    return path


def _digest(paths):
    found = hashlib.sha256()
    for path in paths:
        found.update(path.name.encode())
        with path.open("rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                found.update(piece)
    return found.hexdigest()


def _listed(folder):
    """The results that the list is of, and what was in each file: {name: digest}."""
    path = folder / LIST
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    files = dict(line.split("  ", 1)[::-1] for line in lines if "  " in line)
    return files.pop("results", None), {name: digest for name, digest in files.items() if Path(name).name == name}


def finish(folder, results):
    """Lists what was written since `start`. If the results in the folder `results` have changed since the list was made, deletes what is
    in it and was not written again, unless another file has taken its place."""
    state = _digest(sorted(results.glob("*.csv")))
    of, listed = _listed(folder)
    new = {p.name: _digest([p]) for p in _written if p.parent == folder and p.is_file()}
    old = {name: digest for name, digest in listed.items() if name not in new and (folder / name).is_file()}
    kept = {name: digest for name, digest in old.items() if _digest([folder / name]) == digest}
    if of != state:
        for name in kept:
            (folder / name).unlink()
        kept = {}
    if new or listed:
        lines = [f"{state}  results", *(f"{digest}  {name}" for name, digest in sorted((kept | new).items()))]
        (folder / LIST).write_text("\n".join(lines) + "\n")
