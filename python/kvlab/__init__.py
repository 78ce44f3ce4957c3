"""KVLab: a wind tunnel for KV-cache policies and LLM schedulers.

    import kvlab
    results = kvlab.run("quickstart")
    results.summary[["scheduler", "ttft_p99_ms", "goodput_per_s"]]

The guide is docs/python.md. Errors that the caller can mend are InputError, a ValueError, with the program's one-line message."""

from kvlab import _data  # first: it tells the program where its data is
from kvlab import _kvlab
from kvlab._data import data_path
from kvlab._kvlab import InputError
from kvlab.catalogue import describe, list_items as list
from kvlab.cli import main
from kvlab.comparison import compare
from kvlab.experiments import load, replay, run, sweep
from kvlab.policies import block_cache, dispatcher, order, param, scheduler, scorer
from kvlab.results import Results, Run

__version__ = _kvlab.version().split()[0]
# Not `list`: `from kvlab import *` leaves Python's own.
__all__ = [
    *("InputError", "Results", "Run", "compare", "data_path", "describe", "load", "main", "replay", "run", "sweep"),
    *("block_cache", "dispatcher", "order", "param", "scheduler", "scorer"),
]

InputError.__module__ = "kvlab"
