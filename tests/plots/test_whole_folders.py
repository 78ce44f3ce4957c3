"""Everything that plots/plot.py draws of a results folder, and what it leaves out. Run: python3 tests/plots/test_whole_folders.py"""

import contextlib
import io
import shutil
import sys
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE), str(HERE.parent / "front_door")]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

import plot  # noqa: E402
import synthetic  # noqa: E402
import table  # noqa: E402
import test_front_door  # noqa: E402
import timeline  # noqa: E402
from figure_case import RATE, SCHEDULERS, FigureTest  # noqa: E402


class OneRun(FigureTest):
    def test_figures_and_no_comparison(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1"]})
        names, _ = self.draw()
        self.assertEqual(names, ["cdf_ttft", "cdf_tpot", "cdf_e2e", "timeline", "summary.tex"])
        self.assertEqual(len(self.axes("cdf_ttft")[0].lines), 1)
        self.assertEqual(self.drawn["cdf_ttft"].legends, [])
        self.assert_labelled_with_units()
        self.assert_fits_a_column()

    def test_no_axes_at_all(self):
        synthetic.write_runs(self.folder, {})
        self.draw()
        self.assertIn("made\\_up &", (self.folder / "figures" / "summary.tex").read_text())

    def test_same_results_give_the_same_bytes(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1"]}, num_requests=20)
        self.draw()
        first = {p.name: p.read_bytes() for p in (self.folder / "figures").iterdir()}
        self.draw()
        self.assertEqual(first, {p.name: p.read_bytes() for p in (self.folder / "figures").iterdir()})

    def test_fonts_are_embedded_as_truetype(self):
        synthetic.write_runs(self.folder, {}, num_requests=20)
        self.draw()
        self.assertIn(b"/FontFile2", (self.folder / "figures" / "cdf_ttft.pdf").read_bytes())


class ManyRuns(FigureTest):
    def test_six_policies_and_five_seeds(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS}, seeds=(1, 2, 3, 4, 5), num_requests=60)
        names, notes = self.draw(write=False)
        self.assertEqual(len(self.axes("cdf_e2e")[0].lines), 6)
        self.assertEqual(self.legend("cdf_e2e"), ["Static batches", "orca_max", "vLLM V0", "vLLM V1", "Sarathi", "FastGen"])
        self.assertIn("timeline_sarathi", names)
        self.assertEqual(self.texts("comparison"), ["Mean and 95 % t-interval over n = 5 seeds."])
        self.assertEqual(notes, [])
        self.assert_labelled_with_units()
        self.assert_fits_a_column()

    def test_twelve_lines_all_look_different(self):
        synthetic.write_runs(self.folder, {"scheduler": [f"policy_{i:02d}" for i in range(12)]}, num_requests=40)
        self.draw(write=False)
        lines = self.axes("cdf_ttft")[0].lines
        self.assertEqual(len({(line.get_color(), line.get_marker()) for line in lines}), 12)
        self.assertEqual(len({(str(line._unscaled_dash_pattern), line.get_marker()) for line in lines}), 12)
        self.assert_fits_a_column()

    def test_long_labels_fit(self):
        policies = ["{sarathi: {chunk_tokens: 512}}", "{sarathi: {chunk_tokens: 2048}}"]
        synthetic.write_runs(self.folder, {"scheduler": policies, "router": ["least_outstanding", "prefix_affinity"]}, num_requests=40, slo=False)
        self.draw(write=False)
        self.assertEqual(self.legend("timeline")[0], "Sarathi (chunks of 512), Least outstanding")
        self.assert_fits_a_column(["comparison"])

    def test_lines_past_the_limit_are_counted(self):
        synthetic.write_runs(self.folder, {"scheduler": [f"policy_{i:02}" for i in range(30)]}, num_requests=10)
        _, notes = self.draw(write=False)
        self.assertIn("cdf_ttft: 12 of 30 lines drawn", notes)


class MissingValues(FigureTest):
    def write(self, axes, missing, metrics):
        synthetic.write_runs(self.folder, axes, num_requests=20)
        for table in ("requests", "timeline"):
            (self.folder / f"{table}.csv").unlink()
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        rows.loc[rows["run"].isin(missing), metrics] = np.nan
        rows.to_csv(self.folder / "summary.csv", index=False)

    def test_the_unit_is_that_of_the_values_there_are(self):
        for missing in ("0001", "0002"):
            self.write({"scheduler": SCHEDULERS[:3]}, [missing], "ttft_p99_ms")
            self.draw(write=False)
            self.assertEqual(self.axes("comparison")[0].get_xlabel(), "P99 TTFT (ms)")

    def test_a_figure_without_any(self):
        metrics = ["ttft_p99_ms", "tpot_p99_ms", "goodput_per_s", "output_tokens_per_s"]
        self.write({"scheduler": SCHEDULERS, RATE: [1.0, 2.0, 4.0]}, [f"{run:04}" for run in range(1, 19, 3)], metrics)
        self.draw(write=False)
        self.assertEqual([t.get_text() for a in self.axes("comparison_rate_per_s_1") for t in a.texts], [])
        self.assertEqual(len(self.axes("comparison_rate_per_s_2")[0].texts), 6)


class LeftOut(FigureTest):
    """Notes on stderr."""

    def test_figures_of_which_the_same_is_said_share_a_line(self):
        synthetic.write_runs(self.folder, {"scheduler": [f"policy_{i:02}" for i in range(30)]}, num_requests=10)
        (self.folder / "timeline.csv").unlink()
        heard = io.StringIO()
        with contextlib.redirect_stderr(heard), mock.patch.object(Figure, "savefig"):
            plot.main([str(self.folder)])
        self.assertEqual(heard.getvalue().splitlines()[:-1], ["  cdf_ttft and 2 more: 12 of 30 lines drawn", "  comparison: 24 of 30 lines drawn"])

    def test_they_are_printed_after_a_run(self):
        synthetic.write_runs(self.folder, {"scheduler": [f"policy_{i:02}" for i in range(30)]}, num_requests=10)
        for file in ("timeline", "requests"):
            (self.folder / f"{file}.csv").unlink()
        door = test_front_door.FrontDoor("kvlab")
        door.setUp()
        self.addCleanup(door.doCleanups)
        shutil.copytree(HERE.parents[1] / "plots", door.root / "plots", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        result = door.kvlab("run", str(self.folder))
        self.assertIn("  comparison: 24 of 30 lines drawn\nkvlab: drew 2 figures and tables into ", result.stderr)
        self.assertEqual(result.stdout, f"wrote {self.folder}\n")


class Failures(FigureTest):
    """Unexpected errors."""

    def draw_with(self, *patches):
        heard = io.StringIO()
        with contextlib.ExitStack() as stack:
            for patch in (mock.patch.object(Figure, "savefig"), contextlib.redirect_stderr(heard), *patches):
                stack.enter_context(patch)
            status = plot.main([str(self.folder)])
        return status, heard.getvalue().splitlines()

    def test_a_kind_that_fails_leaves_the_others_and_the_table(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        status, lines = self.draw_with(mock.patch.object(timeline, "of_run", side_effect=IndexError("list index\nout of range")))
        self.assertEqual(status, 1)
        self.assertRegex(lines[0], r"^kvlab plot: not drawn: timeline: IndexError: list index out of range \(timeline.py:\d+\)$")
        self.assertRegex(lines[1], "^kvlab: drew 5 figures and tables into ")
        self.assertEqual(len(lines), 2)
        self.assertTrue((self.folder / "figures" / "summary.tex").exists())

    def test_a_table_that_fails(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        status, lines = self.draw_with(mock.patch.object(table, "tabular", side_effect=ValueError("made up")))
        self.assertEqual((status, len(lines)), (1, 2))
        self.assertIn("not drawn: summary.tex: ValueError: made up (table.py:", lines[0])
        self.assertIn("drew 5 figures", lines[1])

    def test_nothing_fails(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        status, lines = self.draw_with()
        self.assertEqual((status, len(lines)), (0, 1))


class BadFolders(FigureTest):
    def error_of(self, *arguments):
        heard = io.StringIO()
        with contextlib.redirect_stderr(heard):
            status = plot.main([str(self.folder), *arguments])
        self.assertEqual(status, 2)
        self.assertEqual(heard.getvalue().count("\n"), 1, heard.getvalue())
        return heard.getvalue()

    def drop(self, file, column):
        path = self.folder / file
        pd.read_csv(path, dtype={"run": str}).drop(columns=column).to_csv(path, index=False)

    def test_missing_columns(self):
        for file, column in (("requests.csv", "first_token_ns"), ("summary.csv", "tpot_p99_ms"), ("timeline.csv", "used_blocks")):
            synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
            self.drop(file, column)
            self.assertIn(f"{file}: no column '{column}'", self.error_of())

    def test_replay(self):
        synthetic.write_replay(self.folder)
        self.assertIn("has no recipe 'h2o'; it has: streaming, snapkv, kivi2", self.error_of("--recipe", "h2o"))
        self.drop("summary.csv", "needle_kept")
        self.assertIn("summary.csv: no column 'needle_kept'", self.error_of())

    def test_not_a_results_folder(self):
        self.assertIn("no such folder", self.error_of())
        self.folder.mkdir()
        self.assertIn("no summary.csv", self.error_of())
        (self.folder / "summary.csv").write_text("")
        self.assertIn("summary.csv: empty", self.error_of())
        (self.folder / "summary.csv").write_text("a,b\n1,2\n")
        self.assertIn("expected columns 'run'", self.error_of())
        (self.folder / "summary.csv").write_text("run,seed\n1,2\n1,2,3,4\n")
        self.assertIn("not a table", self.error_of())

    def test_no_requests(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=0)
        names, _ = self.draw(write=False)
        self.assertEqual([n for n in names if n.startswith("cdf")], [])

    def test_no_rows_at_all(self):
        synthetic.write_runs(self.folder, {"scheduler": []}, num_requests=0)
        names, _ = self.draw(write=False)
        self.assertEqual(names, [])

    def test_only_the_summary(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        (self.folder / "requests.csv").unlink()
        (self.folder / "timeline.csv").unlink()
        names, _ = self.draw(write=False)
        self.assertEqual(names, ["comparison", "summary.tex"])


if __name__ == "__main__":
    unittest.main()
