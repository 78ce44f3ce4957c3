"""Figures as pgfplots source: plots/pgf.py. Run: python3 tests/plots/test_pgf.py"""

import sys
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import fidelity  # noqa: E402
import pgf  # noqa: E402
import synthetic  # noqa: E402
from figure_case import RATE, SCHEDULERS, FigureTest  # noqa: E402


class Pgf(FigureTest):
    def test_source_has_the_data_and_balances(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[2:4], RATE: [2.0, 4.0]}, seeds=(1, 2), num_requests=10)
        (self.folder / "timeline.csv").unlink()
        self.draw(overrides=["figures.all.format=pgf"])
        self.assertEqual(list((self.folder / "figures").glob("*.pdf")), [])
        for path in (self.folder / "figures").glob("*.pgf"):
            text = path.read_text()
            for opening, closing in (("{", "}"), (r"\begin{axis}", r"\end{axis}"), (r"\begin{tikzpicture}", r"\end{tikzpicture}")):
                self.assertEqual(text.replace(r"\{", "").replace(r"\}", "").count(opening), text.replace(r"\{", "").replace(r"\}", "").count(closing), path)
            self.assertNotIn("nan", text)
            self.assertEqual(text.count(r"\begin{axis}"), len([a for a in self.axes(path.stem) if a.get_visible()]))
        goodput = (self.folder / "figures" / "goodput.pgf").read_text()
        self.assertIn(r"\addlegendentry{vLLM V0}", goodput)
        self.assertIn(r"xlabel={Arrival rate (requests/s)}", goodput)
        self.assertEqual(pgf.escape("50 % − a_b"), r"50 \% $-$ a\_b")

    def test_a_heat_map_is_the_pdf(self):
        synthetic.write_replay(self.folder)
        with mock.patch.object(fidelity, "maps", lambda *_: ()), mock.patch.object(fidelity, "_fidelity_over", lambda *_: None):
            self.draw(overrides=["figures.needles.format=pgf"])
        self.assertEqual((self.folder / "figures" / "needles.pgf").read_text(), "\\includegraphics{needles.pdf}\n")
        self.assertTrue((self.folder / "figures" / "needles.pdf").exists())


if __name__ == "__main__":
    unittest.main()
