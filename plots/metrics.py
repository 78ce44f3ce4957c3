"""Columns of summary.csv as figures and tables name them, and which way is better."""

from errors import ResultsError
from load import axis_title, is_numeric

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
# The quantity that a search varied; of each run one is given.
SEARCHED = (("search_rate_per_s", "Highest rate that attains the SLO (requests/s)"), ("search_concurrency", "Most users within the SLO (users)"),
            ("search_replicas", "Fewest replicas that attain the SLO (replicas)"), ("search_tp", "Lowest TP that attains the SLO (GPUs of a replica)"))
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "inter-token latency", "e2e": "end-to-end latency", "queueing": "queueing time"}
_TITLES = {**dict(SEARCHED), "search_rate_per_s_per_gpu": "Highest rate that attains the SLO (requests/s per GPU)", "gpus": "GPUs (number)",
           "dollars_per_million_tokens": "Price (dollars per 1M tokens)", "goodput_per_s": "Goodput (requests/s)", "output_tokens_per_s": "Output (tokens/s)",
           "requests_per_s": "Throughput (requests/s)", "slo_attainment_frac": "Requests within the SLO (share)", "prefix_hit_frac": "Prefix hit ratio (share)",
           "energy_j_per_token": "Energy (J per token)", "kv_used_mean_frac": "KV in use, mean (share)", "kv_used_peak_frac": "KV in use, peak (share)",
           "goodput_per_s_per_gpu": "Goodput (requests/s per GPU)", "requests_per_s_per_gpu": "Throughput (requests/s per GPU)",
           "output_tokens_per_s_per_gpu": "Output (tokens/s per GPU)", "overload_frac": "Overload (share of time)"}
_COSTS = {"search_replicas", "search_tp", "gpus", "dollars_per_million_tokens", "preemptions", "swaps", "recompute_fallbacks", "recomputed_tokens", "rejected",
          "overload_frac", "energy_j", "duration_s", "internal_fragmentation_frac", "external_fragmentation_frac", "slo_rejected_frac", "step_policy_frac"}


COSTS_OF_A_SEARCH = ("gpus", "dollars_per_million_tokens")


def where_found(results, rows, columns):
    """The rows, without these columns' numbers where a search found nothing: they are of its last try, which misses the limits."""
    found = [c for c, _ in SEARCHED if c in rows]
    if results.search is None or not found or results.summary[found].isna().all(axis=None):
        return rows
    lost = rows[found].isna().all(axis=1)
    return rows.assign(**{c: rows[c].where(~lost) for c in columns}) if lost.any() else rows


def title_of(column):
    """'P99 TTFT (ms)' of 'ttft_p99_ms'."""
    for name, text in _LATENCIES.items():
        statistic = column.removeprefix(f"{name}_").removesuffix("_ms")
        if column.startswith(f"{name}_") and statistic in STATISTICS:
            return f"{statistic.upper() if statistic != 'mean' else 'Mean'} {text} (ms)"
    return _TITLES.get(column) or axis_title(column)


def is_cost(column):
    """True where less is better."""
    return column in _COSTS or column.endswith(("_ms", "_per_token", "_miss_frac"))


def usable(rows, without=("run", "seed")):
    """Columns with numbers, in the order of the file."""
    return [c for c in rows.columns if c not in without and is_numeric(rows[c]) and rows[c].notna().any()]


def refuse_empty(place, column, rows):
    """ResultsError for a column that these results have and that holds no number."""
    if column in rows.columns and column not in usable(rows, ()):
        raise ResultsError(f"{place}: column '{column}' of summary.csv has no numbers here; columns with numbers: {', '.join(usable(rows))}")
