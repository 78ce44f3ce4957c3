"""Hit ratios of block caches: plots/hit_ratio.py. Run: python3 tests/plots/test_hit_ratio.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402

import synthetic  # noqa: E402
from figure_case import FigureTest  # noqa: E402


class HitRatio(FigureTest):
    def test_belady_is_the_upper_line(self):
        synthetic.write_hit_ratios(self.folder)
        names, _ = self.draw()
        self.assertEqual(names, ["hit_ratio", "hit_ratio_tokens", "summary.tex"])
        (axis,) = self.axes("hit_ratio")
        self.assertEqual(axis.get_xscale(), "log")
        self.assertEqual(len(axis.lines), 7)
        self.assertEqual(self.legend("hit_ratio")[0], "Belady (upper bound)")
        self.assertEqual(axis.get_xlabel(), "Cache size (GiB)")
        belady = next(line for line in axis.lines if line.get_color() == "black")
        for line in axis.lines:
            self.assertTrue(np.all(belady.get_ydata() >= line.get_ydata()))
        self.assert_labelled_with_units()
        self.assert_fits_a_column()

    def table(self):
        text = (self.folder / "figures" / "summary.tex").read_text()
        return text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]

    def test_the_table_has_a_line_per_policy(self):
        synthetic.write_hit_ratios(self.folder, ("lru", "arc"), (9000,))
        self.draw(write=False)
        self.assertEqual(self.table(), [r"LRU & 0.392 \\", r"ARC & 0.378 \\"])

    def test_the_table_has_a_line_for_each_value_of_other_axes(self):
        synthetic.write_hit_ratios(self.folder, ("lru", "arc"), (9000,), limits=(50, 100))
        names, _ = self.draw(write=False)
        self.assertEqual(self.table(), [r"LRU, 50 requests & 0.392 \\", r"ARC, 50 requests & 0.378 \\",
                                        r"LRU, 100 requests & 0.196 \\", r"ARC, 100 requests & 0.189 \\"])
        self.assertEqual(names[:2], ["hit_ratio_50", "hit_ratio_100"])  # ratios of tokens are those of blocks here: no figure of their own


if __name__ == "__main__":
    unittest.main()
