"""Which files in figures/ are ours, and of which results: figures/.drawn. Those of other results are deleted; files of others are neither
deleted nor replaced."""

import hashlib
from pathlib import Path

import whole_file
from load import ResultsError

LIST = ".drawn"
_DRAWING = "drawing"  # in place of the digest of a file that is being written
_written = []


def start():
    _written.clear()


def note(path):
    """Returns the path of a file that is about to be written. Raises ResultsError where somebody else's file would be replaced."""
    path = Path(path)
    for place in (path.parent, path):
        if place.is_symlink():
            raise ResultsError(f"{place}: is a symbolic link, and none is followed: move it away")
    if path.exists() and path not in _written:
        digest = _listed(path.parent)[1].get(path.name)
        if digest not in (_DRAWING, _digest([path])):
            raise ResultsError(f"{path}: was not drawn by kvlab, or was changed since: move it away, and it is drawn")
    if path.parent.is_dir():
        try:
            with (path.parent / LIST).open("a") as file:  # before it is there: whatever ends the program, it is known
                file.write(f"{_DRAWING}  {path.name}\n")
        except OSError as error:
            raise ResultsError(f"{path.parent / LIST}: cannot be written: {error.strerror}") from None
    _written.append(path)
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
    now = {name: _digest([folder / name]) for name in old}
    kept = {name: now[name] for name, digest in old.items() if digest in (_DRAWING, now[name])}
    if of != state:
        for name in kept:
            (folder / name).unlink()
        kept = {}
    if new or listed:
        lines = [f"{state}  results", *(f"{digest}  {name}" for name, digest in sorted((kept | new).items()))]
        with whole_file.replacing(folder / LIST) as fresh:
            fresh.write_text("\n".join(lines) + "\n")
