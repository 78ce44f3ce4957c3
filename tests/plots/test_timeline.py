"""Timelines: plots/timeline.py. Run: python3 tests/plots/test_timeline.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import pandas as pd  # noqa: E402

import synthetic  # noqa: E402
from figure_case import RATE, SCHEDULERS, FigureTest  # noqa: E402


class Timelines(FigureTest):
    def test_title_has_policy_and_rate_and_files_share_their_ranges(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2], RATE: [2.0, 4.0, 8.0]}, num_requests=60)
        names, _ = self.draw(write=False)
        mine = [n for n in names if n.startswith("timeline")]
        self.assertEqual(len(mine), 6)
        self.assertEqual(self.texts("timeline_static_rate_per_s_2"), ["Static batches, 2 req/s", "n = 1 seed."])
        for panel in range(4):
            self.assertEqual(len({(self.axes(n)[panel].get_ylim(), self.axes(n)[panel].get_xlim()) for n in mine}), 1)
        self.assert_nothing_overlaps("timeline_static_rate_per_s_2")

    def test_a_number_has_the_name_of_its_axis(self):
        synthetic.write_runs(self.folder, {RATE: [1.0, 2.0, 3.0, 4.0, 5.0]}, seeds=(1, 2), num_requests=20)
        self.draw(write=False)
        self.assertEqual(self.texts("timeline_3"), ["3 req/s", "The first of 2 seeds."])

    def test_pools_are_drawn_apart(self):
        synthetic.write_runs(self.folder, {}, num_requests=40)
        synthetic.write_csv(self.folder / "pools.csv", ["run", "pool", "replicas"], [["0001", "prefill", 1], ["0001", "decode", 1]])
        rows = pd.read_csv(self.folder / "timeline.csv", dtype={"run": str})
        rows.assign(running=rows["replica"].map({0: 3, 1: 40})).to_csv(self.folder / "timeline.csv", index=False)
        self.draw(write=False, overrides=["figures.all.draw=false", "figures.timeline.draw=true"])
        self.assertEqual(self.legend("timeline"), ["prefill", "decode"])
        self.assertEqual([sorted(set(line.get_ydata())) for line in self.axes("timeline")[0].lines], [[3], [40]])

    def test_a_range_that_differs_tenfold_is_each_figures_own(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:5]}, num_requests=40)
        rows = pd.read_csv(self.folder / "timeline.csv", dtype={"run": str})
        rows.loc[rows["run"] == "0002", "waiting"] = 5000
        rows.to_csv(self.folder / "timeline.csv", index=False)
        self.draw(write=False, overrides=["figures.all.draw=false", "figures.timeline.draw=true"])
        tops = {name: [a.get_ylim()[1] for a in self.axes(name)] for name in ("timeline_static", "timeline_orca_max")}
        self.assertLess(tops["timeline_static"][1], 1000)
        self.assertGreater(tops["timeline_orca_max"][1], 5000)
        self.assertEqual(tops["timeline_static"][0], tops["timeline_orca_max"][0])  # of "running" all files have one range
        self.assertIn("Range of waiting as this figure needs it", self.texts("timeline_static")[-1])


if __name__ == "__main__":
    unittest.main()
