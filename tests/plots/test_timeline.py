"""Timelines: plots/timeline.py. Run: python3 tests/plots/test_timeline.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

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


if __name__ == "__main__":
    unittest.main()
