"""Files that are complete or absent: written beside their place and renamed into it."""

import contextlib
import os
import re
from pathlib import Path

from errors import ResultsError


def _is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _remove_of_dead_processes(path):
    for other in path.parent.glob(f".{path.name}.new*"):
        number = re.fullmatch(r"[0-9]{1,9}", other.name.removeprefix(f".{path.name}.new"))
        if number and not _is_running(int(number[0])):
            other.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path):
    """The path to write to in place of `path`, which is renamed at the end. ResultsError with the name where it cannot be written."""
    path = Path(path)
    fresh = path.parent / f".{path.name}.new{os.getpid()}"
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "is a folder")
        _remove_of_dead_processes(path)
        yield fresh
        if fresh.exists():  # a body that wrote nothing leaves what was there
            os.replace(fresh, path)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
