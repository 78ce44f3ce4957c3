"""Finds what leaves the page of a figure, and texts that the legend covers."""

from matplotlib.text import Text

_SLACK_PX = 2.0


def _tick_labels(axes):
    """Labels of the ticks that are drawn: others are beyond the ends of the axis."""
    for axis in (axes.xaxis, axes.yaxis):
        for tick in axis._update_ticks():
            yield from (label for label in (tick.label1, tick.label2) if label.get_visible() and label.get_text().strip())


def _texts(figure):
    """(words, box) of every text on the page outside of legends."""
    renderer = figure.canvas.get_renderer()
    in_legends = {text for legend in figure.legends for text in legend.findobj(Text)}
    of_ticks = {text for axes in figure.axes for text in [*axes.xaxis.findobj(Text), *axes.yaxis.findobj(Text)]}
    found = [t for axes in figure.axes if axes.get_visible() for t in _tick_labels(axes)]
    found += [axis.label for axes in figure.axes if axes.get_visible() for axis in (axes.xaxis, axes.yaxis)]
    hidden = {t for axes in figure.axes if not axes.get_visible() for t in axes.findobj(Text)}
    found += [t for t in figure.findobj(Text) if t not in in_legends | of_ticks | hidden]
    for text in found:
        if text.get_visible() and text.get_text().strip() and text.get_alpha() != 0:
            yield text.get_text(), text.get_window_extent(renderer)


def faults(figure):
    """Sentences on the texts, legends and panels that leave the page, and on texts that a legend covers."""
    figure.canvas.draw()
    renderer, page, found = figure.canvas.get_renderer(), figure.bbox, []
    legends = [legend.get_window_extent(renderer) for legend in figure.legends]
    texts = list(_texts(figure))
    panels = [("a panel", axes.get_window_extent(renderer)) for axes in figure.axes if axes.get_visible()]
    for words, box in [*texts, *panels, *(("the legend", box) for box in legends)]:
        beyond = max(page.x0 - box.x0, box.x1 - page.x1, page.y0 - box.y0, box.y1 - page.y1)
        if beyond > _SLACK_PX:
            found.append(f"{words!r} is {beyond:.0f} px beyond the page")
    for words, box in [*texts, *panels]:
        for legend in legends:
            if min(box.x1, legend.x1) - max(box.x0, legend.x0) > _SLACK_PX and min(box.y1, legend.y1) - max(box.y0, legend.y0) > _SLACK_PX:
                found.append(f"the legend covers {words!r}")
    small = [a for a in figure.axes if a.get_visible() and (a.bbox.height < 0.25 * figure.dpi or a.bbox.width < 0.25 * figure.dpi)]
    return found + (["a panel is smaller than a quarter of an inch"] if small else [])
