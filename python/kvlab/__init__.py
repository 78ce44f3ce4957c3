"""KVLab: a wind tunnel for KV-cache policies and LLM schedulers.

    import kvlab
    results = kvlab.run("quickstart")
    results.summary[["scheduler", "ttft_p99_ms", "goodput_per_s"]]

The guide is docs/python.md. Errors that the caller can mend are InputError, a ValueError, with the program's one-line message."""

from kvlab import _data  # first: it tells the program where its data is
from kvlab import _kvlab
from kvlab._kvlab import InputError
from kvlab.catalogue import describe, list_items as list
from kvlab.cli import main
from kvlab.comparison import compare
from kvlab.experiments import load, replay, run, sweep
from kvlab.results import Results, Run

__version__ = _kvlab.version().split()[0]
__all__ = ["InputError", "Results", "Run", "compare", "describe", "list", "load", "main", "replay", "run", "sweep"]

InputError.__module__ = "kvlab"
