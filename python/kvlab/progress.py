"""Shows how far a sweep is: a line that updates itself in notebooks and on terminals, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

Listener = Callable[[int, int, int, float], None]
_WIDTH = 30


def line(done: int, total: int, requests: int, seconds: float) -> str:
    """'[####......] 2/5 runs  3,100 req/s  12 s to go'. requests: simulated so far; seconds: of wall time since the first run began."""
    filled = _WIDTH * done // max(1, total)
    text = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total} runs"
    if requests and seconds > 0:
        text += f"  {requests / seconds:,.0f} req/s"
    return text + (f"  {seconds / done * (total - done):.0f} s to go" if 0 < done < total else "")


def _notebook() -> Listener | None:
    """A listener for a notebook; None where this is none."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import TextDisplayObject, display

    class Line(TextDisplayObject):
        def __repr__(self) -> str:
            return self.data

    handle = display(Line(""), display_id=True)
    return lambda *at: handle.update(Line(line(*at)))


def _terminal(done: int, total: int, requests: int, seconds: float) -> None:
    end = "\r\033[K" if done == total else ""
    sys.stderr.write(f"\r\033[K{line(done, total, requests, seconds)}{end}")
    sys.stderr.flush()


def listener() -> Listener | None:
    """The way that progress is shown here; None: not shown."""
    return _notebook() or (_terminal if sys.stderr is not None and sys.stderr.isatty() else None)
