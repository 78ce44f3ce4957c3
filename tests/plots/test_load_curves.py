"""Curves over the load: plots/load_curves.py. Run: python3 tests/plots/test_load_curves.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import load  # noqa: E402
import load_curves  # noqa: E402
import synthetic  # noqa: E402
from figure_case import RATE, SCHEDULERS, FigureTest  # noqa: E402


class Attainment(FigureTest):
    def test_a_curve_per_line_over_the_rates_that_were_tried(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[2:4]}, num_requests=10)
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str}).assign(search_rate_per_s=[4.0, 6.0])
        rows.to_csv(self.folder / "summary.csv", index=False)
        probes = [[run, i, rate, share, 0, int(share >= 0.9)] for run in rows["run"] for i, (rate, share) in enumerate(((1, 1.0), (16, 0.0), (4, 0.95), (8, 0.2)))]
        synthetic.write_csv(self.folder / "search.csv", "run probe rate_per_s slo_attainment_frac goodput_per_s attains".split(), probes)
        (self.folder / "resolved.yaml").write_text("search: {rate: [1, 16], attainment: 0.8}\n")
        names, _ = self.draw(write=False)
        self.assertIn("attainment", names)
        (axis,) = self.axes("attainment")
        x, y = axis.lines[0].get_xdata(), axis.lines[0].get_ydata()
        self.assertEqual([list(x[np.isfinite(x)]), list(y[np.isfinite(y)])], [[1, 4, 8, 16], [100, 95, 20, 0]])
        self.assertEqual(np.isnan(x).sum(), 3, "probes that are far apart are not joined")
        self.assertAlmostEqual(axis.get_xlim()[1], 1.03 * 12)  # twice the largest rate found
        self.assertTrue(any(list(line.get_ydata()) == [80, 80] for line in axis.lines), "no line at the share wanted")

    def test_lines_of_one_numeric_axis_are_chosen_by_name(self):
        synthetic.write_runs(self.folder, {"replicas": [1, 2, 4]}, num_requests=10)
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str}).assign(search_rate_per_s=[1.0, 2.0, 4.0])
        rows.to_csv(self.folder / "summary.csv", index=False)
        probes = [[run, i, rate, share, 0, int(share >= 0.9)] for run in rows["run"] for i, (rate, share) in enumerate(((1, 1.0), (8, 0.2)))]
        synthetic.write_csv(self.folder / "search.csv", "run probe rate_per_s slo_attainment_frac goodput_per_s attains".split(), probes)
        self.draw(write=False, overrides=['figures.attainment.only=["4 replicas", "1"]'])
        self.assertEqual(self.legend("attainment"), ["4 replicas", "1 replica"])

    def test_a_search_over_replicas(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[2:4]}, num_requests=10)
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str}).assign(search_rate_per_s=None, search_replicas=[3, 2])
        rows.to_csv(self.folder / "summary.csv", index=False)
        probes = [[run, i, "", share, 0, int(share >= 0.9), "replicas", n] for run in rows["run"] for i, (n, share) in enumerate(((4, 1.0), (1, 0.0), (2, 0.5), (3, 0.95)))]
        synthetic.write_csv(self.folder / "search.csv", "run probe rate_per_s slo_attainment_frac goodput_per_s attains varied value".split(), probes)
        names, _ = self.draw(write=False)
        self.assertIn("attainment", names)
        (axis,) = self.axes("attainment")
        self.assertEqual([list(axis.lines[0].get_xdata()), list(axis.lines[0].get_ydata())], [[1, 2, 3, 4], [0, 50, 95, 100]])
        self.assertEqual(axis.get_xlabel(), "Replicas")


class Pieces(unittest.TestCase):
    def test_only_neighbours_are_joined(self):
        x, y = load_curves.in_pieces([1, 2, 9, 10], [4, 3, 2, 1], 1.5)
        self.assertEqual([str(v) for v in x], ["1.0", "2.0", "nan", "9.0", "10.0"])
        self.assertEqual([str(v) for v in y], ["4.0", "3.0", "nan", "2.0", "1.0"])


class RateSweep(FigureTest):
    def setUp(self):
        super().setUp()
        rates = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:4], RATE: rates}, seeds=(1, 2, 3), num_requests=30)

    def test_curves_and_a_few_rates(self):
        names, notes = self.draw()
        self.assertEqual(len([line for line in self.axes("goodput")[0].lines if line.get_marker() not in ("None", "|", "_")]), 4)
        self.assertEqual(self.legend("goodput"), ["Static batches", "orca_max", "vLLM V0", "vLLM V1"])
        self.assertEqual(self.axes("goodput")[0].get_xlabel(), "Arrival rate (requests/s)")
        self.assertEqual([n for n in names if n.startswith("cdf_ttft")], ["cdf_ttft"])
        self.assertEqual([a.get_title() for a in self.axes("cdf_ttft")], [f"{r} req/s" for r in (1, 2, 4, 6, 8, 10)])
        self.assertEqual({len(a.lines) for a in self.axes("cdf_ttft")}, {4})
        self.assertIn(f"comparison_rate_per_s_10: 4 of 6 values of {RATE} drawn, where lines differ most", notes)
        self.assert_labelled_with_units()
        self.assert_fits_a_column()

    def test_all_draws_every_rate(self):
        names, notes = self.draw(every=True, write=False)
        self.assertEqual(len([n for n in names if n.startswith("comparison")]), 6)
        self.assertEqual(notes, [])

    def test_points_are_means_over_seeds(self):
        results = load.load(self.folder)
        rows = results.summary[results.summary["scheduler"] == "static"]
        rate, mean, half = load_curves.points(rows, RATE, "ttft_p99_ms")[2]
        values = rows.loc[rows[RATE] == 4.0, "ttft_p99_ms"]
        self.assertEqual((rate, len(values)), (4.0, 3))
        self.assertAlmostEqual(mean, values.mean())
        self.assertAlmostEqual(half, 4.303 * values.std() / np.sqrt(3))


if __name__ == "__main__":
    unittest.main()
