"""Budgets at the marks of KV policies."""

from families import FAMILIES

_PLACES = ((3, 0), (0, 4.5), (0, -4.5), (-3, 0), (3, 4), (3, -4), (-3, 4), (-3, -4), (6, 0), (0, 8), (0, -8), (-6, 0))  # from a mark, in points
_SIZE_PT = 5
_UNITS = {"budget_tokens": "tokens per layer and KV head", "budget_frac": "% of the prompt", "compression_ratio": "compression ratio"}


def short(budget):
    """'128' of 'budget_tokens 128', '25' of 'budget_frac 0.25'; "" for none."""
    key, _, value = budget.partition(" ")
    return f"{100 * float(value):.3g}" if key == "budget_frac" else value


def has_several(points):
    return points.loc[points["budget"] != "", "budget"].nunique() > 1


def budgets_note(points):
    """The meaning of the numbers at marks; "" where all marks have one budget."""
    if not has_several(points):
        return ""
    units = [_UNITS[key] for key in dict.fromkeys(b.split()[0] for b in points["budget"] if b)]
    return f"Numbers at marks: the budget ({' or '.join(units)})."


def _is_free(box, taken):
    return not any(min(box[2], o[2]) > max(box[0], o[0]) and min(box[3], o[3]) > max(box[1], o[1]) for o in taken)


def label_budgets(axis, points, x, y):
    """Writes the budget at each mark, where the points have several, clear of other marks and texts if there is a place. To be called when the
    panel has its final place."""
    if not has_several(points):
        return
    scale, renderer = 72 / axis.figure.dpi, axis.figure.canvas.get_renderer()
    places = axis.transData.transform(points[[x, y]].to_numpy(dtype=float)) * scale
    taken = [(px - 2, py - 2, px + 2, py + 2) for px, py in places]
    taken += [tuple(v * scale for v in t.get_window_extent(renderer).extents) for t in axis.texts if t.get_text()]
    inside = [v * scale for v in axis.bbox.extents]
    for (px, py), row in zip(places, points.to_dict("records")):
        text = short(row["budget"])
        if not text:
            continue
        width = 0.56 * _SIZE_PT * len(text)
        boxes = {}
        for dx, dy in _PLACES:
            left = px + dx + (0 if dx > 0 else -width if dx < 0 else -width / 2)
            boxes[dx, dy] = (left, py + dy - _SIZE_PT / 2, left + width, py + dy + _SIZE_PT / 2)
        within = [d for d, b in boxes.items() if b[0] >= inside[0] and b[2] <= inside[2] and b[1] >= inside[1] and b[3] <= inside[3]]
        at = next((d for d in within if _is_free(boxes[d], taken)), (within or [_PLACES[0]])[0])
        taken.append(boxes[at])
        axis.annotate(text, (row[x], row[y]), (boxes[at][0] - px, boxes[at][1] - py), textcoords="offset points", ha="left", va="bottom", fontsize=_SIZE_PT,
                      color=FAMILIES[row["family"]])
