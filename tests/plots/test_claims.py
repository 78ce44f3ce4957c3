"""Published figures beside ours: plots/claims.py. Run: python3 tests/plots/test_claims.py"""

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import claims  # noqa: E402
import load  # noqa: E402
import style  # noqa: E402


class Claims(unittest.TestCase):
    HEADER = "name,system,published,published_to,no_effect,unit,ours,counts,verdict"

    def draw(self, rows):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "claims.csv").write_text("\n".join([self.HEADER, *rows]) + "\n")
            saved = []
            with mock.patch.object(style, "save", side_effect=lambda figure, *rest, **options: saved.append((figure, rest))):
                list(claims.draw(load.load(folder), Path(folder) / "figures"))
            return saved

    def test_a_row_per_claim_with_both_figures(self):
        rows = [f"claim_{i},s,2,4,1,x,{i + 1},factor,reproduced" for i in range(14)] + ["last_one,s,40,40,,%,20,number,not_reproduced", "bad,s,2,2,1,x,,factor,error"]
        ((figure, (_, name, handles, labels)),) = self.draw(rows)
        self.assertEqual(name, "claims")
        self.assertEqual(labels[1:], ["ours: reproduced (14)", "ours: direction only (0)", "ours: not reproduced (1)"])
        names = [label.get_text() for axis in figure.axes for label in axis.get_yticklabels()]
        self.assertEqual(len(names), 15)
        self.assertEqual(names[-1], "last one (%)")
        self.assertTrue(all(axis.get_xscale() == "log" for axis in figure.axes))

    def test_without_a_measured_claim_there_is_no_figure(self):
        self.assertEqual(self.draw(["bad,s,2,2,1,x,,factor,error"]), [])


if __name__ == "__main__":
    unittest.main()
