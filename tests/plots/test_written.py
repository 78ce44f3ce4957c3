"""Figures of earlier results: plots/written.py. Run: python3 tests/plots/test_written.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import load  # noqa: E402
import synthetic  # noqa: E402
from figure_case import SCHEDULERS, FigureTest  # noqa: E402


class EarlierResults(FigureTest):
    """Figures of results that are no longer there."""

    def setUp(self):
        super().setUp()
        self.figures = self.folder / "figures"

    def run_and_draw(self, schedulers):
        synthetic.write_runs(self.folder, {"scheduler": schedulers}, num_requests=5)
        (self.folder / "requests.csv").unlink()
        self.draw()

    def there(self, pattern="timeline*.pdf"):
        return sorted(p.name for p in self.figures.glob(pattern))

    def test_they_are_deleted(self):
        self.run_and_draw(SCHEDULERS)
        self.assertEqual(self.there(), sorted(f"timeline_{s}.pdf" for s in SCHEDULERS))
        self.run_and_draw(SCHEDULERS[:5])
        self.assertEqual(self.there("timeline*"), sorted(f"timeline_{s}.{kind}" for s in SCHEDULERS[:5] for kind in ("pdf", "png")))
        self.run_and_draw(SCHEDULERS[:1])
        self.assertEqual(self.there("*"), [".drawn", "summary.tex", "timeline.pdf", "timeline.png"])
        synthetic.write_runs(self.folder, {"scheduler": []}, num_requests=0)
        self.draw()
        self.assertEqual(self.there("*"), [".drawn"])

    def test_files_of_others_stay(self):
        self.run_and_draw(SCHEDULERS)
        (self.figures / "timeline_other.pdf").write_text("mine")
        (self.figures / "timeline_static.pdf").write_text("mine")  # in place of ours
        (self.figures / "timeline_sarathi.png").unlink()
        self.run_and_draw(SCHEDULERS[:1])
        self.assertEqual(self.there(), ["timeline.pdf", "timeline_other.pdf", "timeline_static.pdf"])
        self.run_and_draw(SCHEDULERS[:2])
        self.assertEqual(self.there(), ["timeline.pdf", "timeline_other.pdf", "timeline_static.pdf"])

    def test_a_file_of_others_is_not_replaced(self):
        self.run_and_draw(SCHEDULERS[:2])
        (self.figures / "timeline.pdf").write_text("mine")
        with self.assertRaisesRegex(load.ResultsError, "timeline.pdf: was not drawn by kvlab"):
            self.run_and_draw(SCHEDULERS[:1])
        self.assertEqual((self.figures / "timeline.pdf").read_text(), "mine")
        (self.figures / "timeline.pdf").unlink()
        (self.figures / "timeline.pdf").symlink_to(self.folder / "summary.csv")
        with self.assertRaisesRegex(load.ResultsError, "is a symbolic link"):
            self.run_and_draw(SCHEDULERS[:1])

    def test_what_was_cut_off_while_drawing_is_ours(self):
        self.run_and_draw(SCHEDULERS[:1])
        with (self.figures / ".drawn").open("a") as file:
            file.write("drawing  timeline.pdf\n")
        (self.figures / "timeline.pdf").write_text("half")
        self.run_and_draw(SCHEDULERS[:1])
        self.assertTrue((self.figures / "timeline.pdf").read_bytes().startswith(b"%PDF"))

    def test_the_list_names_nothing_outside_of_the_folder(self):
        self.run_and_draw(SCHEDULERS[:1])
        (self.folder / "summary.tex").write_bytes((self.figures / "summary.tex").read_bytes())
        text = (self.figures / ".drawn").read_text()
        (self.figures / ".drawn").write_text(text + text.replace("  summary.tex", "  ../summary.tex") + "no list\n")
        self.run_and_draw(SCHEDULERS[:2])
        self.assertTrue((self.folder / "summary.tex").exists())

    def test_of_the_same_results_nothing_is_deleted(self):
        synthetic.write_replay(self.folder)
        for recipe in ("snapkv", "streaming", None):
            self.draw(recipe=recipe)
        self.assertEqual(self.there("fidelity_heads_s*.pdf"), ["fidelity_heads_snapkv.pdf", "fidelity_heads_streaming.pdf"])
        synthetic.write_replay(self.folder, budgets=(64, 128))
        self.draw()
        self.assertEqual(self.there("fidelity_heads_s*"), [])


if __name__ == "__main__":
    unittest.main()
