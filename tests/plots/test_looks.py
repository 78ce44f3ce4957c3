"""Tests of names, legends, notes and labels of figures, and of the figure of prefill selectors. Run: python3 tests/plots/test_looks.py"""

import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

import accuracy  # noqa: E402
import bars  # noqa: E402
import fidelity  # noqa: E402
import groups  # noqa: E402
import layout  # noqa: E402
import legends  # noqa: E402
import load  # noqa: E402
import names  # noqa: E402
import plot  # noqa: E402
import settings  # noqa: E402
import style  # noqa: E402
import synthetic  # noqa: E402

MODELS = HERE.parents[1] / "profiles" / "models"


class Names(unittest.TestCase):
    def setUp(self):
        settings.start(Path("/nowhere"))

    def test_every_model_has_a_name(self):
        ids = {path.stem for path in MODELS.glob("*.yaml")}
        self.assertEqual(sorted(i for i in ids if names.model_name(i) == i), [], "models without a line in plots/names.yaml")

    def test_labels(self):
        for label, shown in (
            ("llama-3.1-8b, vllm_v1", "Llama-3.1-8B, vLLM V1"),
            ("rate_per_s 16, prefill 2 decode 2", "16 req/s, 2 prefill + 2 decode"),
            ("both 4", "4 mixed"),
            ("concurrency 1, full", "1 client, Full cache"),
            ("concurrency 8", "8 clients"),
            ("snapkv 512 allocator pyramid, rate_per_s 2", "SnapKV 512 (allocator pyramid), 2 req/s"),
            ("snapkv (allocator pyramid)", "SnapKV (allocator pyramid)"),
            ("xattention prefill_selector xattention, cost_share 0.1", "XAttention (cost_share 0.1)"),
            ("promptdistill (prompt_pruner prompt_distill, stages 0.5=0.5)", "PromptDistill (stages 0.5=0.5)"),
            ("minference (prefill_selector minference)", "MInference (prefill selector changed)"),
            ("snapkv (selector quest, pages 3)", "SnapKV (selector Quest, pages 3)"),
        ):
            self.assertEqual(names.shown(label), shown)

    def test_a_users_name_of_a_model_goes_first(self):
        settings.start(Path("/nowhere"), ["figures.all.names={llama-3.1-8b: mine}"])
        self.assertEqual(names.shown("llama-3.1-8b, vllm_v1"), "mine, vLLM V1")


class Looks(unittest.TestCase):
    def setUp(self):
        settings.start(Path("/nowhere"))
        style.apply()
        self.top = Path(tempfile.mkdtemp(prefix="kvlab_looks_"))
        self.addCleanup(shutil.rmtree, self.top)
        self.addCleanup(style.plt.close, "all")

    def saved(self, draw):
        """The figure that `draw` saves."""
        with mock.patch.object(Figure, "savefig"), mock.patch.object(style.plt, "close"), mock.patch.object(style, "save", wraps=style.save) as save:
            draw()
        figure = save.call_args.args[0]
        figure.canvas.draw()
        return figure

    def test_numbers_of_bars_are_clear_of_the_limits_line(self):
        lines = [(name, pd.DataFrame({"ttft_p99_ms": [value]})) for name, value in (("a", 90.0), ("b", 20.0), ("c", 150.0))]
        figure = self.saved(lambda: bars.draw_bars("bars", lines, [("ttft_p99_ms", "P99 TTFT (ms)")], {"ttft": 100}, self.top))
        axis = figure.axes[0]
        at = axis.transData.transform((100, 0))[0]
        boxes = {t.get_text(): t.get_window_extent() for t in axis.texts if t.get_gid() is None}
        self.assertEqual(sorted(boxes), ["150", "20", "90"])
        for text, box in boxes.items():
            self.assertFalse(box.x0 < at < box.x1, f"the line crosses {text}")
        self.assertLess(boxes["20"].x1, at)  # it was clear of the line before

    def test_one_long_label_leaves_the_others_their_columns(self):
        figure, _ = style.panels("legend", 1, 2)
        for first, columns in (("a long label of thirty letters " * 3, {1}), ("a long label of thirty letters", {2, 3, 4})):
            drawn = legends.place(figure, legends.Plain([Line2D([], [])] * 8, [first, *"bcdefgh"]), str)
            self.assertIn(drawn._ncols, columns)
            self.assertLessEqual(drawn.get_window_extent().width, figure.bbox.width)
            drawn.remove()

    def test_lines_of_a_note_are_no_wider_than_the_figure(self):
        figure, _ = style.panels("note", 1, 2)
        text, _ = layout.wrapped(figure, "iiii llll " * 20 + "MMMM WWWW " * 20, 6)
        probe = figure.text(0, 0, text, fontsize=6)
        self.assertLessEqual(probe.get_window_extent(figure.canvas.get_renderer()).width, figure.bbox.width)

    def test_tall_families_have_columns_next_to_each_other(self):
        def block(name, count):
            return [(Line2D([], []), f"{name}{i}") for i in range(count)]

        columns, height = legends.block_columns([block("small", 2), block("tall", 10), block("mid", 4)])
        self.assertEqual([[text for _, text in column][:1] for column in columns[:2]], [["tall0"], ["tall5"]])
        self.assertEqual(sorted(text for column in columns for _, text in column), sorted(t for b in (block("small", 2), block("tall", 10), block("mid", 4)) for _, t in b))
        self.assertTrue(all(len(column) <= height for column in columns))

    def test_intervals_of_right_answers_stay_between_0_and_1(self):
        rows = pd.DataFrame([{"policy": p, "budget": "", "family": "attention", "task": task, "num_answers": 4, "exact_match_frac": share, "full_exact_match_frac": 1.0,
                              "kl_to_full": 0.1, "resident_bytes_frac": 0.5} for p, share in (("all", 1.0), ("none", 0.0), ("half", 0.5)) for task in ("a", "b")])
        points = accuracy.points_of(rows).set_index("name")
        self.assertAlmostEqual(points.loc["all", "above"], 0)
        self.assertAlmostEqual(points.loc["none", "below"], 0)
        low, high = groups.wilson(2, 4)
        self.assertAlmostEqual(points.loc["half", "below"], (0.5 - low) / 2**0.5)
        self.assertAlmostEqual(points.loc["half", "above"], (high - 0.5) / 2**0.5)
        self.assertAlmostEqual(points.loc["all", "below"], (1 - groups.wilson(4, 4)[0]) / 2**0.5)

    def test_policies_of_a_family_have_shades_that_can_be_told_apart(self):
        for family in (f for f in fidelity.FAMILIES if f != "reference"):
            points = pd.DataFrame({"name": ["a", "b", "c", "d"], "family": family})
            light = [np.dot(to_rgb(look["color"]), (0.2126, 0.7152, 0.0722)) for look in fidelity.looks_of(points).values()]
            self.assertGreater(min(np.diff(light)), 0.08, family)

    def test_figures_over_equal_bytes_are_left_out_and_prompts_have_theirs(self):
        rows = [synthetic.replay_row(recipe, "prefill selection", 1000, 1000, 1.0, 0.0, 1.0, 1.0) for recipe in ("minference", "xattention")]
        synthetic.write_csv(self.top / "summary.csv", ["run", "kv_policy.recipe", "seed", *synthetic.REPLAY], [[f"{i}", row[0], 1, *row] for i, row in enumerate(rows)])
        prompts = [[f"{i}", sample, 0.9 + i / 20, 0.1 - i / 20, share] for i in range(2) for sample, share in (("short", 0.5), ("long", 0.25))]
        synthetic.write_csv(self.top / "prompts.csv", "run sample mass_kept output_rel_err pairs_frac".split(), prompts)
        (self.top / "manifest.json").write_text("{}")
        with mock.patch.object(Figure, "savefig"):
            drawn = plot.draw_all(self.top)
        self.assertEqual((drawn.failures, [n for n in drawn.names if n != "summary.tex"]), ([], ["prefill_attention"]))
        axis = self.saved(lambda: list(plot.prefill.draw(load.load(self.top), self.top))).axes[0]
        self.assertEqual(sorted((x, y) for line in axis.lines for x, y in zip(line.get_xdata(), line.get_ydata())), [(0.25, 0.9), (0.25, 0.95), (0.5, 0.9), (0.5, 0.95)])


if __name__ == "__main__":
    unittest.main()
