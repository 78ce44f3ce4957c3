"""figures/summary.tex: the numbers as LaTeX tables (needs \\usepackage{booktabs})."""

import math

import accuracy
import hit_ratio
import validation
import written
from groups import lines_of, mean_and_interval, policy_names, seeds_note
from load import label_of
from policies import full_name

_SPECIAL = {c: "\\" + c for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_COLUMNS = (("ttft_p50_ms", "TTFT P50"), ("ttft_p99_ms", "TTFT P99"), ("tpot_p50_ms", "TPOT P50"), ("tpot_p99_ms", "TPOT P99"),
            ("e2e_p99_ms", "E2E P99"), ("output_tokens_per_s", "tokens/s"), ("slo_attainment_frac", "SLO met"))


def escape(text):
    return "".join(_SPECIAL.get(c, c) for c in str(text))


def decimals(value):
    """Enough for three significant digits, at most four."""
    return 2 if value == 0 else min(4, max(0, 2 - math.floor(math.log10(abs(value)))))


def number(value, places=None):
    """Rounded to `places`, or to three significant digits; thin spaces between thousands; an absent value is a dash."""
    if value is None or not math.isfinite(value):
        return "--"
    return f"{value:,.{decimals(value) if places is None else places}f}".replace(",", r"\,")


def with_interval(mean, half):
    if half == 0 or not math.isfinite(mean):
        return number(mean)
    return rf"{number(mean)} $\pm$ {number(half, decimals(mean))}"


def percent(share):
    return "--" if not math.isfinite(share) else f"{100 * share:+.1f}"


def tabular(header, rows, above=(), below=()):
    """`above`: lines over the header that span columns; `below`: lines under the rows."""
    lines = [r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}", r"\toprule", *above, " & ".join(header) + r" \\", r"\midrule"]
    lines += [" & ".join(row) + r" \\" for row in rows]
    return "\n".join([*lines, *below, r"\bottomrule", r"\end{tabular}", ""])


def _runs(results):
    columns = [(c, t) for c, t in _COLUMNS if c in results.summary and results.summary[c].notna().any()]
    header = [""] + [t + (" (ms)" if c.endswith("_ms") else "") for c, t in columns]
    lines = lines_of(results.summary, results.axes, results.name)
    rows = [[escape(text)] + [with_interval(*mean_and_interval(part[c])[:2]) for c, _ in columns] for text, part in lines]
    note = seeds_note(part for _, part in lines).replace(" %", r"\,\%")
    below = [r"\midrule", rf"\multicolumn{{{len(header)}}}{{l}}{{{note}}} \\"] if note else []
    return tabular(header, rows, below=below)


def _hit_ratios(results):
    """A line per eviction policy and value of the other axes, means over seeds."""
    sizes = sorted(results.summary["capacity_blocks"].unique())
    header = ["blocks"] + [f"{s:,}".replace(",", r"\,") for s in sizes]
    axes = ["block_cache", *hit_ratio.others_of(results)]
    names = [label_of(row, axes, False) for row in results.summary.to_dict("records")]
    mean = results.summary.groupby([names, "capacity_blocks"], sort=False)["hit_frac"].mean()
    rows = [[escape(n)] + [number(mean.get((n, s))) for s in sizes] for n in dict.fromkeys(names)]
    return tabular(header, rows)


def _replay(results):
    columns = (("budget_tokens", "budget"), ("attention_mass", "mass"), ("output_rel_err", "output error"), ("topk_recall", "recall"),
               ("needle_kept", "needle"), ("attended_tokens", "attended"), ("resident_bytes_frac", "bytes"))
    rows = results.summary.assign(name=policy_names(results.summary, results.axes))
    mean = rows.groupby(["name", *results.axes], sort=False, dropna=False)[[c for c, _ in columns]].mean()
    lines = [[escape(name if isinstance(name, str) else name[0])] + [number(row[c], 0 if c.endswith("_tokens") else None) for c, _ in columns]
             for name, row in mean.iterrows()]
    return tabular(["recipe"] + [t for _, t in columns], lines)


def wilson(right, answers):
    """95 % score interval of a share (Wilson 1927)."""
    z = 1.959964
    share, wider = right / answers, 1 + z * z / answers
    middle, half = (share + z * z / (2 * answers)) / wider, z / wider * math.sqrt(share * (1 - share) / answers + z * z / (4 * answers**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _answers(results):
    """A line per policy, budget and value of the other axes: answers of all tasks, lengths and seeds together, and the mean over tasks."""
    lines = []
    rows = results.summary.assign(name=policy_names(results.summary, results.axes))
    for (name, budget), own in rows.groupby(["name", "budget"], sort=False):
        answers, point = own["num_answers"].sum(), accuracy.points_of(own).iloc[0]
        right = (own["num_answers"] * own["exact_match_frac"]).sum()
        low, high = wilson(right, answers)
        lines.append([escape(name), escape(full_name("", budget)) or "--", number(answers, 0), f"{100 * right / answers:.1f}", f"{100 * low:.1f} to {100 * high:.1f}",
                      f"{100 * point['exact_match_frac']:.1f}", number(point["kl_to_full"]), number(point["resident_bytes_frac"])])
    shares = [r"right (\%)", r"95\,\% interval", r"mean over tasks (\%)"]
    return tabular(["recipe", "budget", "answers", *shares, "KL (nats/token)", "bytes"], lines)


def _validation(table):
    rows = [[escape(r.metric), escape(r.statistic), number(r.real), number(r.simulated), percent(r.diff_frac)] for r in table.itertuples()]
    text = tabular(["metric", "", "real (ms)", r"simulated (ms)", r"difference (\%)"], rows)
    return text.replace("{lrrrr}", "{llrrr}")


def _hosts(table, name):
    """Simulation against the engine: a line per value of the axes, differences in percent, the median of the seeds."""
    axes = list(table.columns)[: list(table.columns).index("seed")]
    columns = list(dict.fromkeys(zip(table["metric"], table["statistic"])))
    rows = []
    for text, part in lines_of(table, axes, name):
        middle = part.groupby(["metric", "statistic"])["diff_frac"].median()
        rows.append([escape(text)] + [percent(middle[c]) for c in columns])
    spans = [rf"\multicolumn{{{sum(m == metric for m, _ in columns)}}}{{c}}{{{validation.NAMES.get(metric, escape(metric))} (\%)}}"
             for metric in dict.fromkeys(m for m, _ in columns)]
    header = [""] + [s if s == "mean" else s.upper() for _, s in columns]
    return tabular(header, rows, [" & ".join(["simulated / engine $-$ 1", *spans]) + r" \\"])


def write(results, folder):
    """Yields (name, note) of the file, where there is something to put into it."""
    parts = []
    if results.summary is not None and len(results.summary):
        parts.append(_hit_ratios(results) if results.is_hit_ratio else _answers(results) if results.is_accuracy else _replay(results) if results.is_replay else _runs(results))
    if results.validation is not None and len(results.validation):
        of_hosts = validation.is_of_hosts(results.validation)
        parts.append(_hosts(results.validation, results.name) if of_hosts else _validation(results.validation))
    if not parts:
        return
    folder.mkdir(parents=True, exist_ok=True)
    written.note(folder / "summary.tex").write_text("% from " + results.name + "; needs \\usepackage{booktabs}\n" + "\n".join(parts))
    yield "summary.tex", ""
