"""Figures as data for the page: traces and axes in Plotly's terms, colours and marks as in plots/style.py."""

import math

import numpy as np

import style

_SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
    "p": "pentagon",
    "h": "hexagon",
    "*": "star",
}
_RESULT_DASHES = ("solid", "6px,3px")
_SECOND_BARS = "#e3bd8f"
_SLO = {"color": "#606060", "width": 1, "dash": "dash"}


def symbol(marker):
    """Plotly's name of a marker of matplotlib."""
    return _SYMBOLS[marker]


def _dash(linestyle):
    return "solid" if linestyle == "-" else ",".join(f"{1.6 * length:g}px" for length in linestyle[1])


def numbers(values):
    """Six significant digits each; None where there is no finite number."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in np.asarray(values, dtype=float)]


def curve(name, x, y, half=None, **more):
    """A line with marks. `half`: half widths of the intervals of y; none is drawn where all are 0."""
    trace = {"type": "scatter", "mode": "lines+markers", "name": str(name), "x": numbers(x), "y": numbers(y), **more}
    if half is not None and np.any(np.asarray(half) > 0):
        trace["error_y"] = {"type": "data", "array": numbers(half), "thickness": 1, "width": 3}
    return trace


def axis(title, log=False, **more):
    # Without a format plotly prints 2 and 5 without their power of ten; 's' has k and M, but also m for thousandths.
    ticks = {"tickformat": "~s" if title.endswith(("(ms)", "(blocks)")) else "~g"} if log else {}
    return {"title": {"text": title}, "type": "log" if log else "linear", **ticks, **more}


def option(traces, x, y, name="", note="", limits=()):
    """One state of a figure. `name`: what its selector calls it; `limits`: ("x" or "y", value) of the SLO."""
    shapes = [
        {
            "type": "line",
            "line": _SLO,
            f"{which}0": value,
            f"{which}1": value,
            **({"yref": "paper", "y0": 0, "y1": 1} if which == "x" else {"xref": "paper", "x0": 0, "x1": 1}),
        }
        for which, value in limits
    ]
    note = " ".join(filter(None, (note, "Dashed grey: the limit of the SLO." if limits else "")))
    return {"name": name, "traces": traces, "layout": {"xaxis": x, "yaxis": y, "shapes": shapes}, "note": note}


def heat(cells, rows, columns, low, high, unit, texts=None):
    """A heat map whose rows begin at the top."""
    trace = {
        "type": "heatmap",
        "z": [numbers(r) for r in cells],
        "x": [str(c) for c in columns],
        "y": [str(r) for r in rows],
        "zmin": low,
        "zmax": high,
        "colorscale": "Viridis",
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": unit}, "thickness": 12},
        "hovertemplate": f"%{{y}}<br>%{{x}}: %{{z:.4~g}} {unit}<extra></extra>",
    }
    return {**trace, "text": texts, "texttemplate": "%{text}", "textfont": {"size": 10}} if texts else trace


def heat_axes(title):
    return {"title": {"text": title}, "type": "category", "automargin": True}, {
        "autorange": "reversed",
        "type": "category",
        "automargin": True,
    }


def figure(key, title, options, select="", is_wide=False):
    """`key` joins the figures of two results; `select` is the label of the selector between its options."""
    return {"key": key, "title": title, "select": select, "wide": is_wide, "options": [o for o in options if o["traces"]]}


def apply_looks(traces):
    """Gives lines the looks of plots/style.py in their order; traces that have colours of their own keep these. Lines of two results that
    have one name have one colour: solid and filled in the first result, dashed and hollow in the second, or dotted where a look has a
    meaning already."""
    lines = [t for t in traces if t["type"] == "scatter" and "line" not in t and "color" not in t.get("marker", {})]
    names = list(dict.fromkeys(t.get("of", t["name"]) for t in lines))
    for trace in lines:
        look, number = style.line(names.index(trace.get("of", trace["name"]))), trace.get("result")
        dash = _dash(look["linestyle"]) if number is None else _RESULT_DASHES[number]
        trace["line"] = {"color": look["color"], "dash": dash, "width": 1.6, **({"shape": trace.pop("shape")} if "shape" in trace else {})}
        trace["marker"] = {"symbol": _SYMBOLS[look["marker"]] + ("-open" if number else ""), "size": 6, "color": look["color"]}
    for trace in traces:
        if trace.get("result") and trace["type"] == "bar":
            trace["marker"] = {**trace["marker"], "color": _SECOND_BARS}
        elif trace.get("result") and not any(trace is line for line in lines) and "symbol" in trace.get("marker", {}):
            trace["marker"] = {**trace["marker"], "symbol": f"{trace['marker']['symbol']}-dot"}
            trace["line"] = {**trace.get("line", {}), "dash": "dot"}
        for own in ("of", "result"):
            trace.pop(own, None)


def _joined(name, options, prefixes):
    traces = []
    for number, (prefix, found) in enumerate(zip(prefixes, options)):
        traces += [
            {**t, "name": f"{prefix}: {t['name']}" if t.get("name") else prefix, "of": t.get("name"), "result": number}
            for t in (found["traces"] if found else ())
        ]
    plain = [t for t in traces if t.get("hoverinfo") == "skip"]  # a line of reference is in both
    traces = [t for t in traces if not any(t is other for other in plain[1:])]
    first = next(o for o in options if o)
    notes = dict.fromkeys(o["note"] for o in options if o and o["note"])
    return {**first, "name": name, "traces": traces, "note": " ".join(notes)}


def join(figures, prefixes):
    """Figures of two results: those of one key and kind of traces become one, its lines named by the result."""
    keys = list(dict.fromkeys(f["key"] for own in figures for f in own))
    result = []
    for key in keys:
        own = [next((f for f in part if f["key"] == key), None) for part in figures]
        first = next(f for f in own if f)
        if None in own:  # one result has it: its lines need no prefix
            result.append({**first, "title": f"{prefixes[own.index(first)]}: {first['title']}"})
            continue
        if any(t["type"] == "heatmap" for f in own if f for o in f["options"] for t in o["traces"]):
            result += [{**f, "key": f"{key}_{number}", "title": f"{prefixes[number]}: {f['title']}"} for number, f in enumerate(own) if f]
            continue
        names = list(dict.fromkeys(o["name"] for f in own if f for o in f["options"]))
        options = [
            _joined(n, [next((o for o in f["options"] if o["name"] == n), None) if f else None for f in own], prefixes) for n in names
        ]
        result.append({**first, "options": options})
    return result


def finish(figures):
    """Looks for every option, once results are joined; figures without traces are left out."""
    figures = [f for f in figures if f["options"]]
    for found in figures:
        for each in found["options"]:
            apply_looks(each["traces"])
    return figures
