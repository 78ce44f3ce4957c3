"""Sweeps with several numeric axes, curves over one, and lines that cover each other. Run: python3 tests/plots/test_sweeps.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import best  # noqa: E402
import groups  # noqa: E402
import load_curves  # noqa: E402
import synthetic  # noqa: E402
from figure_case import RATE, SCHEDULERS, FigureTest  # noqa: E402

HEAT = ["figures.all.draw=false", "figures.settings.draw=true", "figures.cdf_ttft.draw=true", "figures.comparison.draw=true", "figures.goodput.draw=true"]


class SeveralNumbers(FigureTest):
    AXES = {"scheduler": SCHEDULERS[2:4], RATE: [1.0, 2.0, 4.0, 8.0], "memory.gpu_memory_frac": [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95]}

    def setUp(self):
        super().setUp()
        synthetic.write_runs(self.folder, self.AXES, num_requests=5)
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        self.rows = rows.assign(goodput_per_s=rows[RATE] * rows["memory.gpu_memory_frac"] + (rows["scheduler"] == "vllm_v1"))
        self.rows.to_csv(self.folder / "summary.csv", index=False)

    def test_one_slice_at_the_best_setting_and_a_heat_map_of_all(self):
        names, notes = self.draw(write=False, overrides=HEAT)
        self.assertEqual(names, ["cdf_ttft", "goodput", "comparison", "settings", "summary.tex"])
        (note,) = [n for n in notes if n.startswith("comparison: one value of")]
        self.assertIn("at the highest goodput (requests/s): ", note)
        self.assertTrue("rate_per_s 8" in note and "gpu_memory_frac 0.95" in note, note)
        self.assertEqual(self.legend("goodput"), ["vLLM V0", "vLLM V1"])
        panels = self.axes("settings")
        self.assertEqual([a.get_title() for a in panels], ["vLLM V0", "vLLM V1"])
        self.assertEqual(panels[0].images[0].get_array().shape, (4, 7))
        self.assertIn("Each cell: the highest goodput (requests/s), mean over seeds.", self.texts("settings")[-1])

    def test_a_cell_is_the_best_over_the_other_axes(self):
        more = pd.concat([self.rows.assign(replicas=n, goodput_per_s=self.rows["goodput_per_s"] * n) for n in (1, 3)])
        columns = [*more.columns[:4], "replicas", *more.columns[4:-1]]
        more.assign(run=[f"{i:04}" for i in range(len(more))])[columns].to_csv(self.folder / "summary.csv", index=False)
        self.draw(write=False, overrides=[*HEAT, "figures.settings.size=[7, 3]"])
        shown = {t.get_text() for t in self.axes("settings")[0].texts}
        self.assertIn(f"{8 * 0.95 * 3:#.3g}", shown)
        self.assertIn("over replicas", self.texts("settings")[-1])

    def test_a_long_table_has_the_best_settings_and_says_so(self):
        parts = [part for _, part in groups.combinations(self.rows, list(self.AXES))]
        results = type("Results", (), {"summary": self.rows})
        kept, note = best.best_parts(results, parts, 3)
        self.assertEqual(sorted(round(p["goodput_per_s"].iloc[0], 2) for p in kept), [7.8, 8.2, 8.6])
        self.assertEqual(note, "3 of 56 settings, those with the highest goodput (requests/s); summary.csv has all.")


class Lines(unittest.TestCase):
    def test_rates_at_which_lines_differ_most_are_drawn(self):
        rows = pd.DataFrame([{"rate": r, "scheduler": s, "goodput_per_s": r - d} for r, spread in ((1, 0), (2, 0), (3, 1), (4, 3), (5, 2)) for s, d in (("a", 0), ("b", spread))])
        found = groups.combinations(rows, ["rate"])
        self.assertEqual([values for values, _ in best.most_different(found, 3, ["scheduler"])], [(3,), (4,), (5,)])
        self.assertIsNone(best.most_different(groups.combinations(rows[rows["rate"] < 3], ["rate"]), 1, ["scheduler"]))  # all are alike

    def test_lines_that_cover_each_other_are_named(self):
        view = groups.View("", [], "goodput")
        curve = np.array([[1.0, 1.0, 0.0], [2.0, 1.8, 0.0]])
        self.assertEqual(load_curves.on_one_line(view, [("vllm_v0", curve), ("sarathi", curve * [1, 1.001, 1]), ("orca", curve * [1, 0.5, 1])]), "On one line: vLLM V0, Sarathi.")
        self.assertEqual(load_curves.on_one_line(view, [("vllm_v0", curve), ("orca", curve * [1, 0.5, 1])]), "")


class SameRequests(FigureTest):
    def test_distributions_that_cover_each_other_are_named(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v0", "sarathi", "orca"]}, num_requests=40)
        rows = pd.read_csv(self.folder / "requests.csv", dtype={"run": str})
        twin = rows[rows["run"] == "0001"].assign(run="0002")
        pd.concat([rows[rows["run"] != "0002"], twin]).to_csv(self.folder / "requests.csv", index=False)
        self.draw(write=False, overrides=["figures.all.draw=false", "figures.cdf_ttft.draw=true"])
        self.assertIn("On one line: vLLM V0, Sarathi.", self.texts("cdf_ttft")[-1])


class OneNumber(FigureTest):
    def test_four_values_are_a_curve_and_three_are_bars(self):
        for values, lines, bars in (([512, 1024, 2048, 16384], 2, 0), ([512, 1024, 2048], 0, 6)):
            synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[2:4], "budget_tokens": values}, num_requests=5)
            self.draw(write=False, overrides=["figures.all.draw=false", "figures.comparison.draw=true"])
            panel = self.axes("comparison")[0]
            self.assertEqual((len([line for line in panel.lines if len(line.get_xdata()) == len(values)]), len(panel.patches)), (lines, bars))
        self.assertEqual(self.axes("comparison")[0].get_xlabel(), "P99 TTFT (ms)")


if __name__ == "__main__":
    unittest.main()
