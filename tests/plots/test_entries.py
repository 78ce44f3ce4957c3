"""Labels of list entries that name one policy: figures and tables show the parameters in which they differ. Run: python3 tests/plots/test_entries.py"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE), str(HERE.parents[1] / "python" / "kvlab" / "report")]

import entries  # noqa: E402
import load  # noqa: E402
import names as naming  # noqa: E402
import settings  # noqa: E402
import synthetic  # noqa: E402
import table  # noqa: E402
import tables  # noqa: E402

SCHEDULERS = {"sarathi#1": {"budget_tokens": "512"}, "sarathi#2": {"budget_tokens": "2048", "max_num_seqs": "64"}}


class Entries(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="kvlab_entries_")
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name) / "made_up"
        self.folder.mkdir()

    def given(self, columns, overrides=()):
        (self.folder / "manifest.json").write_text(json.dumps({"entries": columns}))
        settings.start(self.folder, overrides)

    def test_figures_show_parameters_after_the_name(self):
        self.given({"scheduler": SCHEDULERS})
        self.assertEqual(naming.shown("sarathi#1"), "Sarathi (budget_tokens 512)")
        self.assertEqual(naming.shown("rate_per_s 2, sarathi#2"), "2 req/s, Sarathi (budget_tokens 2048, max_num_seqs 64)")
        self.assertEqual([naming.shown("sarathi#12"), naming.shown("sarathi"), naming.shown("vllm_v1#1")], ["sarathi#12", "Sarathi", "vllm_v1#1"])

    def test_explicit_names_go_first(self):
        self.given({"scheduler": SCHEDULERS}, ["figures.all.names.sarathi#1=small steps", "figures.f.names.sarathi=S"])
        self.assertEqual([naming.shown("sarathi#1"), naming.shown("sarathi#1, fcfs")], ["small steps", "small steps, FCFS"])
        self.assertEqual(naming.shown("sarathi#2", "f"), "S (budget_tokens 2048, max_num_seqs 64)")

    def test_recipes_with_other_parts(self):
        """As policies.add_names has them: in brackets after the policy's own name."""
        label = "snapkv 128 scorer window_attention#2"
        self.given({"kv_policy": {label: {"window_tokens": "16"}}})
        self.assertEqual(naming.shown(f"snapkv (scorer window_attention) ({label})"), "SnapKV (scorer window_attention, window_tokens 16)")
        self.assertEqual(naming.shown(label), "SnapKV 128 scorer window_attention (window_tokens 16)")

    def test_a_label_of_two_lists_keeps_its_place(self):
        self.given({"pools.prefill.scheduler": SCHEDULERS, "pools.decode.scheduler": {"sarathi#1": {"budget_tokens": "9"}}})
        self.assertEqual(naming.shown("sarathi#1"), "sarathi#1")
        self.assertEqual(naming.shown("sarathi#2"), "Sarathi (budget_tokens 2048, max_num_seqs 64)")

    def test_a_label_without_parameters_remains(self):
        """The program leaves labels out where an entry's parameters differ between runs."""
        synthetic.write_runs(self.folder, {"scheduler": ["sarathi#1", "sarathi#2", "sarathi#3"]}, num_requests=5)
        for rest in ({}, {"sarathi#2": {}, "sarathi#3": None}, {"sarathi#2": {"max_num_seqs": "8"}, "sarathi#3": {"max_num_seqs": "8"}}):
            self.given({"scheduler": {"sarathi#1": {"budget_tokens": "512"}, **rest}, "router": None})
            self.assertEqual([naming.shown(f"sarathi#{i}") for i in (1, 2, 3)], ["Sarathi (budget_tokens 512)", "sarathi#2", "sarathi#3"])
            self.assertEqual(list(entries.show_in(load.load(self.folder)).summary["scheduler"]), ["sarathi (budget_tokens 512)", "sarathi#2", "sarathi#3"])
        self.given({"scheduler": {"sarathi#1": {"budget_tokens": "512"}, "sarathi#2": {}}})
        self.assertEqual([row[1] for row in tables.summary(load.load(self.folder))["rows"]], ["sarathi {budget_tokens: 512}", "sarathi#2", "sarathi#3"])

    def test_loaded_results_are_left_as_they_are(self):
        synthetic.write_runs(self.folder, {"scheduler": ["sarathi#1", "sarathi#2"]}, num_requests=5)
        self.given({"scheduler": SCHEDULERS})
        results = load.load(self.folder)
        self.assertNotEqual(list(entries.show_in(results).summary["scheduler"]), ["sarathi#1", "sarathi#2"])
        self.assertEqual(list(results.summary["scheduler"]), ["sarathi#1", "sarathi#2"])

    def test_labels_without_parameters_keep_their_place(self):
        """{}: a default that differs among the runs; null: joined folders with other entries."""
        self.given({"scheduler": {"vllm_v1#1": {}, "vllm_v1#2": None, "vllm_v1#3": {"budget_tokens": "64"}}, "router": {"vllm_v1#1": {"n": "9"}}})
        self.assertEqual([naming.shown(f"vllm_v1#{i}") for i in (1, 2, 3)], ["vllm_v1#1", "vllm_v1#2", "vLLM V1 (budget_tokens 64)"])
        self.assertEqual(naming.shown("a, vllm_v1#2"), "a, vllm_v1#2")

    def test_joined_folders_with_other_entries(self):
        """Rows of one label and two folders stay apart, and neither has the other's parameters."""
        synthetic.write_runs(self.folder, {"results": ["a", "b"], "scheduler": ["sarathi#1", "sarathi#2"]}, num_requests=5)
        self.given({"scheduler": {"sarathi#1": {"budget_tokens": "512"}, "sarathi#2": None}})
        loaded = load.load(self.folder)
        self.assertEqual([row[1:3] for row in tables.summary(loaded)["rows"]],
                         [["a", "sarathi {budget_tokens: 512}"], ["a", "sarathi#2"], ["b", "sarathi {budget_tokens: 512}"], ["b", "sarathi#2"]])
        labels = [naming.shown(load.label_of(row, loaded.axes, False)) for row in loaded.summary.to_dict("records")]
        self.assertEqual(labels, ["a, Sarathi (budget_tokens 512)", "a, sarathi#2", "b, Sarathi (budget_tokens 512)", "b, sarathi#2"])
        shown = entries.show_in(load.load(self.folder))
        self.assertEqual(list(shown.summary["scheduler"])[1::2], ["sarathi#2", "sarathi#2"])

    def test_older_results_have_none(self):
        settings.start(self.folder)
        self.assertEqual(naming.shown("sarathi#1"), "sarathi#1")
        (self.folder / "manifest.json").write_text("[]")
        self.assertEqual(entries.of_folder(self.folder), {})

    def test_tables_of_latex_and_of_the_report(self):
        synthetic.write_runs(self.folder, {"scheduler": ["sarathi#1", "sarathi#2", "orca"]}, num_requests=5)
        self.given({"scheduler": SCHEDULERS})
        self.assertEqual([name for name, _ in table.write(load.load(self.folder), self.folder / "figures")], ["summary.tex"])
        text = (self.folder / "figures" / "summary.tex").read_text()
        for row in (r"Sarathi (budget\_tokens 512) & ", r"Sarathi (budget\_tokens 2048, max\_num\_seqs 64) & ", "Orca & "):
            self.assertIn(row, text)
        rows = tables.summary(load.load(self.folder))["rows"]
        self.assertEqual([row[1] for row in rows], ["sarathi {budget_tokens: 512}", "sarathi {budget_tokens: 2048, max_num_seqs: 64}", "orca"])
        shown = entries.show_in(load.load(self.folder))
        self.assertEqual(list(shown.summary["scheduler"]), ["sarathi (budget_tokens 512)", "sarathi (budget_tokens 2048, max_num_seqs 64)", "orca"])


if __name__ == "__main__":
    unittest.main()
