"""A test case that draws figures into a temporary folder, and what tests of figures share."""

import contextlib
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

from matplotlib.figure import Figure  # noqa: E402

import plot  # noqa: E402
import settings  # noqa: E402
import style  # noqa: E402
import synthetic  # noqa: E402

SCHEDULERS = ["static", "orca_max", "vllm_v0", "vllm_v1", "sarathi", "fastgen"]
RATE = "trace.arrival.poisson.rate_per_s"

style.plt.rcParams["figure.max_open_warning"] = 0


def overlap(a, b, slack=1.0):
    """True where two boxes share more than `slack` pixels in both directions."""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > slack and min(a.y1, b.y1) - max(a.y0, b.y0) > slack


class FigureTest(unittest.TestCase):
    """Draws into a temporary folder and keeps the figures open for inspection."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvlab_plots_")) / "made_up"
        self.addCleanup(shutil.rmtree, self.folder.parent)
        self.addCleanup(style.plt.close, "all")
        self.drawn = {}

    def draw(self, every=False, write=True, recipe=None, overrides=()):
        """Names and notes of what is drawn; without `write` the slow part, the files, is left out."""
        save = style.save
        nothing = contextlib.nullcontext() if write else mock.patch.object(Figure, "savefig")

        def keep(figure, folder, name, *legend, **more):
            with mock.patch.object(style.plt, "close"):
                saved = save(figure, folder, name, *legend, **more)
            if saved:
                self.drawn[name] = figure
            return saved

        with nothing, mock.patch.object(style, "save", keep):
            drawn = plot.draw_all(self.folder, every, recipe, overrides)
        self.assertEqual(drawn.failures, [])
        for name in drawn.names if write else ():
            forms = settings.of(name).get("format", ("pdf", "png"))
            for path in [drawn.folder / name] if "." in name else [drawn.folder / f"{name}.{form}" for form in forms]:
                self.assertGreater(path.stat().st_size, 20, path)
        self.assertEqual(len(drawn.names), len(set(drawn.names)), "two figures under one name")
        return drawn.names, drawn.notes

    def axes(self, name):
        return self.drawn[name].axes

    def texts(self, name):
        """Title and note, each on one line."""
        return [t.get_text().replace("\n", " ") for t in self.drawn[name].texts]

    def legend(self, name):
        return [t.get_text() for t in self.drawn[name].legends[0].get_texts()]

    def assert_labelled_with_units(self):
        for name, figure in self.drawn.items():
            labels = [a.get_xlabel() + a.get_ylabel() for a in figure.axes]
            for axis, label in zip(figure.axes, labels):  # panels that share their axes are labelled at the edges alone
                shared = [a for a in figure.axes if axis.get_shared_x_axes().joined(axis, a) and axis.get_shared_y_axes().joined(axis, a)]
                self.assertTrue(label or any(a.get_xlabel() for a in shared), f"{name}: an axis without a label")
            self.assertTrue(any("(" in label for label in labels), f"{name}: no unit in {labels}")

    def assert_nothing_overlaps(self, name):
        """Title, legend, panels and note have places of their own, and all of them fit on a page."""
        figure = self.drawn[name]
        self.assertLessEqual(figure.get_figheight(), style.PAGE_HEIGHT_IN, name)
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        panels = [a.get_tightbbox(renderer) for a in figure.axes if a.get_visible()]
        others = [t.get_window_extent(renderer) for t in figure.texts] + [legend.get_window_extent(renderer) for legend in figure.legends]
        for i, box in enumerate(others):
            for other in panels + others[i + 1 :]:
                self.assertFalse(overlap(box, other), f"{name}: {box} over {other}")
            self.assertTrue(-1 <= box.y0 and box.y1 <= figure.bbox.height + 1, f"{name}: cut")

    def assert_fits_a_column(self, of_a_page=()):
        for name, figure in self.drawn.items():
            width = style.PAGE_IN if name in of_a_page else style.COLUMN_IN
            self.assert_nothing_overlaps(name)
            self.assertAlmostEqual(figure.get_figwidth(), width, msg=name)
            box = figure.get_tightbbox(figure.canvas.get_renderer())
            self.assertGreater(box.x0, -0.03, f"{name} is cut on the left")
            self.assertLess(box.x1, width + 0.03, f"{name} is cut on the right")
            for legend in figure.legends:
                below = legend.get_window_extent().y0
                self.assertTrue(all(a.get_window_extent().y1 <= below + 1 for a in figure.axes), f"{name}: the legend covers data")


def write_graded(folder, policies, budget="budget_tokens", more=()):
    """Answers on two tasks: (kv_policy, kv_policy.recipe, the budget's axis, right answers) of each policy, and values of more axes after these."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i, (at, recipe, value, right, *others) in enumerate(policies):
        name = recipe or at.split()[0]
        family, share = ("reference", 1.0) if name == "full" else ("attention", 0.1)
        for task in ("NA", "copy"):
            rows.append([f"{i:04}", at, recipe, value, *others, 1, name, 128, task, 1024, 4, right, 0.5, 0.7, share, 0, 1, 1.0, *[""] * 7, family])
    synthetic.write_csv(folder / "summary.csv", ["run", "kv_policy", "kv_policy.recipe", f"kv_policy.{budget}", *more, "seed", *synthetic.GRADED], rows)
    return folder
