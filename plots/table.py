"""figures/summary.tex: the numbers as LaTeX tables (needs \\usepackage{booktabs}, and {longtable} where a table is longer than a page)."""

import math

import accuracy
import custom
import hit_ratio
import settings
import style
import validation
import whole_file
import written
from best import best_parts
from groups import combinations, lines_of, mean_and_interval, policy_names, seeds_note, wilson
from load import axis_title, is_numeric, label_of, value_text
from metrics import where_found
from names import shown
from policies import full_name

NAME = settings.TABLE
_PAGE_ROWS = 45  # more of them are no page

_SPECIAL = {c: "\\" + c for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ANSWERS = (("search_rate_per_s", "max rate (1/s)"), ("search_concurrency", "most users"), ("search_replicas", "fewest replicas"), ("search_tp", "lowest TP"),
            ("gpus", "GPUs"), ("dollars_per_million_tokens", r"\$ per 1M tokens"))  # of a search
_MOST_ROWS = 180  # of a table of runs: four pages
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


def named(label):
    return escape(shown(label, NAME))


def tabular(header, rows, above=(), below=(), texts=1):
    """`texts`: columns of text at the left; `above`: lines over the header that span columns; `below`: lines under the rows. A list in `rows` is a row,
    a string a line of its own. Longer than a page it is a longtable, whose header is on every page."""
    columns = "l" * texts + "r" * (len(header) - texts)
    head = [r"\toprule", *above, " & ".join(header) + r" \\", r"\midrule"]
    body = [row if isinstance(row, str) else " & ".join(row) + r" \\" for row in rows]
    if len(rows) > _PAGE_ROWS:
        lines = [rf"\begin{{longtable}}{{{columns}}}", *head, r"\endhead", r"\bottomrule", r"\endfoot", *body, *below, r"\end{longtable}", ""]
    else:
        lines = [rf"\begin{{tabular}}{{{columns}}}", *head, *body, *below, r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def _in_unit(results, columns):
    """(column, title, divisor) each: latencies that reach ten seconds are in seconds."""
    found = []
    for column, title in columns:
        seconds = column.endswith("_ms") and style.in_seconds(results.summary[column].max())
        found.append((column, title + (" (s)" if seconds else " (ms)" if column.endswith("_ms") else ""), 1000 if seconds else 1))
    return found


def _value(row, axis):
    value = row[axis]
    if isinstance(value, float) and math.isnan(value):
        return "--"
    return named(value_text(value)) if not is_numeric_value(value) else escape(value_text(value))


def is_numeric_value(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _grouped(keys, cells):
    """Rows with a column per axis: a value that is as in the row above is not repeated, and groups of the first axis are apart."""
    rows = []
    for i, (key, row) in enumerate(zip(keys, cells)):
        above = keys[i - 1] if i else ()
        if len(key) > 1 and above and key[0] != above[0]:
            rows.append(r"\addlinespace")
        same = next((n for n, (a, b) in enumerate(zip(key, above)) if a != b), 0)
        rows.append(["" if n < min(same, len(key) - 1) else text for n, text in enumerate(key)] + row)
    return rows


def _wanted(results):
    """(column, title) of the metrics: those that `figures: {summary: {metric: [...]}}` names, in its order."""
    usual = (*(_ANSWERS if results.search is not None else ()), *_COLUMNS)
    own = settings.of(NAME)
    if "metric" not in own:
        return usual
    titles, found = dict(usual), []
    for metric in own["metric"]:
        column, title = custom.column_of(results, metric, own.get("statistic", "p99"), f"figures.{NAME}")
        found.append((column, titles.get(column, escape(title.removesuffix(" (ms)")))))
    return found


def _runs(results):
    """Runs by the axes that vary, a column each; the seeds of one combination are a row."""
    wanted = _wanted(results)
    columns = _in_unit(results, [(c, t) for c, t in wanted if c in results.summary and results.summary[c].notna().any()])
    axes = [a for a in results.axes if results.summary[a].nunique(dropna=False) > 1] or results.axes[:1]
    axes.sort(key=lambda a: is_numeric(results.summary[a]))  # texts before numbers, each in their order
    parts = [part for _, part in combinations(results.summary, axes)]
    parts, cut = best_parts(results, parts, _MOST_ROWS)
    keys = [tuple(_value(part.iloc[0], a) for a in axes) or (escape(results.name),) for part in parts]
    firsts = {first: i for i, first in enumerate(dict.fromkeys(key[0] for key in keys))}
    order = sorted(range(len(keys)), key=lambda i: firsts[keys[i][0]])
    shown_parts = [where_found(results, part, [c for c, _, _ in columns]) for part in parts]
    cells = [[with_interval(*(v / unit for v in mean_and_interval(part[c])[:2])) for c, _, unit in columns] for part in shown_parts]
    header = [escape(axis_title(a)) for a in axes] or [""]
    note = seeds_note(parts).replace(" %", r"\,\%")
    notes = [text for text in (note, escape(cut)) if text]
    below = [r"\midrule", *(rf"\multicolumn{{{len(header) + len(columns)}}}{{l}}{{{text}}} \\" for text in notes)] if notes else []
    rows = _grouped([keys[i] for i in order], [cells[i] for i in order])
    return tabular([*header, *(t for _, t, _ in columns)], rows, below=below, texts=len(header))


def _hit_ratios(results):
    """A line per eviction policy and value of the other axes, means over seeds."""
    sizes = sorted(results.summary["capacity_blocks"].unique())
    header = ["blocks"] + [f"{s:,}".replace(",", r"\,") for s in sizes]
    axes = ["block_cache", *hit_ratio.others_of(results)]
    names = [label_of(row, axes, False) for row in results.summary.to_dict("records")]
    mean = results.summary.groupby([names, "capacity_blocks"], sort=False)["hit_frac"].mean()
    rows = [[named(n)] + [number(mean.get((n, s))) for s in sizes] for n in dict.fromkeys(names)]
    return tabular(header, rows)


def _replay(results):
    columns = (("budget_tokens", "budget"), ("attention_mass", "mass"), ("output_rel_err", "output error"), ("topk_recall", "recall"),
               ("needle_kept", "needle"), ("attended_tokens", "attended"), ("resident_bytes_frac", "bytes"))
    rows = results.summary.assign(name=policy_names(results.summary, results.axes))
    mean = rows.groupby(["name", *results.axes], sort=False, dropna=False)[[c for c, _ in columns]].mean()
    lines = [[named(name if isinstance(name, str) else name[0])] + [number(row[c], 0 if c.endswith("_tokens") else None) for c, _ in columns]
             for name, row in mean.iterrows()]
    return tabular(["recipe"] + [t for _, t in columns], lines)


def _answers(results):
    """A line per policy, budget and value of the other axes: answers of all tasks, lengths and seeds together, and the mean over tasks."""
    lines = []
    rows = results.summary.assign(name=policy_names(results.summary, results.axes))
    for (name, budget), own in rows.groupby(["name", "budget"], sort=False):
        answers, point = own["num_answers"].sum(), accuracy.points_of(own).iloc[0]
        right = (own["num_answers"] * own["exact_match_frac"]).sum()
        low, high = wilson(right, answers)
        lines.append([named(name), escape(full_name("", budget)) or "--", number(answers, 0), f"{100 * right / answers:.1f}", f"{100 * low:.1f} to {100 * high:.1f}",
                      f"{100 * point['exact_match_frac']:.1f}", number(point["kl_to_full"]), number(point["resident_bytes_frac"])])
    shares = [r"right (\%)", r"95\,\% interval", r"mean over tasks (\%)"]
    return tabular(["recipe", "budget", "answers", *shares, "KL (nats/token)", "bytes"], lines)


def _validation(table):
    rows = [[escape(r.metric), escape(r.statistic), number(r.real), number(r.simulated), percent(r.diff_frac)] for r in table.itertuples()]
    notes = [f"Difference 0: {validation.EQUAL}.", *(f"{counts}." for counts in [validation.counts_of(table)] if counts)]
    below = [r"\midrule", *(rf"\multicolumn{{5}}{{l}}{{{escape(note)}}} \\" for note in notes)]
    return tabular(["metric", "", "real (ms)", r"simulated (ms)", r"difference (\%)"], rows, below=below, texts=2)


def _hosts(table, name):
    """Simulation against the engine: a line per value of the axes, differences in percent, the median of the seeds."""
    axes = list(table.columns)[: list(table.columns).index("seed")]
    columns = list(dict.fromkeys(zip(table["metric"], table["statistic"])))
    rows = []
    for text, part in lines_of(table, axes, name):
        middle = part.groupby(["metric", "statistic"])["diff_frac"].median()
        rows.append([named(text)] + [percent(middle[c]) for c in columns])
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
    text = "\n".join(parts)
    packages = "booktabs,longtable" if "{longtable}" in text else "booktabs"
    with whole_file.replacing(written.note(folder / f"{NAME}.tex")) as fresh:
        fresh.write_text(f"% from {results.name}; needs \\usepackage{{{packages}}}\n{text}")
    yield "summary.tex", ""
