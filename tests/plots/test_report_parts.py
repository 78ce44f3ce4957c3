"""Parts of the page for KV policies: single answers, predictions of replay, and figures of two results. Run: python3 tests/plots/test_report_parts.py"""

import sys
import unittest
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))

import synthetic  # noqa: E402
from report_case import RATE, ReportTest  # noqa: E402  (makes report/ and plots/ known)

import joined  # noqa: E402
from load import load  # noqa: E402
from test_joint import write_graded, write_served  # noqa: E402

ANSWERS = "run,recipe,budget_tokens,task,length,sample,turn,exact,neg_log2,full_exact"


class Parts(ReportTest):
    def figures(self, *folders):
        return {f["key"]: f for f in self.write(*folders).data()["figures"]}

    def test_single_answers_begin_with_those_that_the_policy_lost(self):
        write_graded(self.folder, (("full", None, 1.0), ("snapkv", 128, 0.5)))
        rows = ["1,full,1000,niah,1024,0,0,1,0.1,1", "2,snapkv,128,niah,1024,0,0,1,0.2,1", "2,snapkv,128,niah,1024,1,0,0,9.5,1",
                "2,snapkv,128,copy,1024,2,0,1,0.3,0", "2,snapkv,128,copy,1024,3,0,0,8.0,0"]
        (self.folder / "answers.csv").write_text("\n".join([ANSWERS, *rows]) + "\n")
        (table,) = [t for t in self.write().data()["results"][0]["tables"] if t["name"].startswith("answers.csv")]
        self.assertEqual([row[0] for row in table["rows"]], ["lost", "won", "both wrong", "both right"])
        self.assertEqual(table["rows"][0][1:], rows[2].split(","))
        self.assertEqual(table["columns"][table["shown"][0]], "full cache and policy")

    def test_no_answers_no_table(self):
        write_graded(self.folder, (("full", None, 1.0),))
        self.assertEqual(self.write().data()["results"][0]["tables"], [])

    def test_predictions_of_replay(self):
        synthetic.write_predictions(self.folder)
        figures = self.figures()
        points, rho = figures["replay_predicts"], figures["replay_predicts_rho"]
        self.assertIn("attention mass", [o["name"] for o in points["options"]])
        self.assertTrue(all("Right answers lost" in o["layout"]["yaxis"]["title"]["text"] for o in points["options"]))
        cells = next(o for o in rho["options"] if o["name"] == "attention mass, right answers")["traces"][0]
        self.assertEqual((cells["zmin"], cells["zmax"]), (-1, 1))
        self.assertTrue(all(-1 <= v <= 1 for row in cells["z"] for v in row if v is not None))

    def test_two_results_that_can_be_joined_have_a_figure_together(self):
        graded = write_graded(self.top / "graded", (("full", None, 1.0), ("snapkv", 128, 0.75)))
        served = write_served(self.top / "served", (("full",), ("snapkv 128",)), seeds=(1, 2))
        figures, remarks = joined.figures_of([load(graded), load(served)])
        self.assertEqual(([f["key"] for f in figures], remarks), (["accuracy_serving"], []))
        (figure,) = figures
        self.assertEqual([o["name"] for o in figure["options"]], ["Goodput within the SLO", "Output", "Mean time per output token"])
        goodput = {t["text"][0]: (t["x"], t["y"], t["error_x"]["array"][0] > 0) for t in figure["options"][0]["traces"]}
        self.assertEqual(goodput, {"Full cache": ([15], [1.0], True), "SnapKV 128 tokens": ([25], [0.75], True)})
        self.assertIn("nothing was graded on it", figure["options"][0]["note"])

    def test_a_result_served_on_both_hosts_has_the_frontier(self):
        graded, served = write_graded(self.top / "graded", (("full", None, 1.0), ("snapkv", 128, 0.5))), self.top / "served"
        served.mkdir()
        policies = [(p, h) for p in (("full", ""), ("budget_tokens 128", "snapkv")) for h in ("sim", "engine")]
        rows = [[f"{i:04}", host, 0.3, *policy, 1, 2.0 + i, 100.0 + i] for i, (policy, host) in enumerate(policies)]
        columns = ["run", "host", "load_frac", "kv_policy", "kv_policy.recipe", "seed", "tpot_mean_ms", "e2e_mean_ms"]
        synthetic.write_csv(served / "summary.csv", columns, rows)
        (figure,), _ = joined.figures_of([load(graded), load(served)])
        marks = {t["name"]: (t["x"], t["y"]) for t in figure["options"][0]["traces"]}
        self.assertEqual(marks["attention, predicted"], ([4.0], [0.5]))
        self.assertEqual(marks["reference, measured"], ([3.0], [1.0]))

    def test_two_results_without_a_common_policy_say_so(self):
        graded = write_graded(self.top / "graded", (("snapkv", 64, 0.75),))
        served = synthetic.write_runs(self.top / "served", {"scheduler": ["vllm_v1", "sarathi"], RATE: [2.0, 4.0]}, num_requests=20)
        data = self.write(graded, served).data()
        self.assertNotIn("accuracy_serving", [f["key"] for f in data["figures"]])
        self.assertTrue(any("no KV policy is in both folders" in line for line in data["left_out"]), data["left_out"])

    def test_a_figure_of_one_result_has_lines_without_its_name(self):
        graded = write_graded(self.top / "graded", (("snapkv", 64, 0.75),))
        served = synthetic.write_runs(self.top / "served", {"scheduler": ["vllm_v1", "sarathi"]}, num_requests=20)
        figures = self.figures(graded, served)
        self.assertEqual(figures["cdf_ttft"]["title"][:7], "served:")
        self.assertEqual([t["name"] for t in figures["cdf_ttft"]["options"][0]["traces"]], ["vLLM V1", "Sarathi"])

    def test_names_and_units_are_those_of_the_figures(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1", "sarathi"], RATE: [2.0, 4.0]}, num_requests=20)
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        rows["e2e_p99_ms"] = [4000.0, 12000.0, 16000.0, 20000.0]
        rows.to_csv(self.folder / "summary.csv", index=False)
        (self.folder / "resolved.yaml").write_text("figures: {all: {names: {sarathi: Ours}}}\n")
        data = self.write().data()
        figures = {f["key"]: f for f in data["figures"]}
        self.assertEqual([t["name"] for t in figures["goodput"]["options"][0]["traces"]][:2], ["vLLM V1", "Ours"])
        bars = next(o for o in figures["comparison"]["options"] if o["name"].startswith("P99 end-to-end"))
        self.assertEqual(bars["name"], "P99 end-to-end latency (s)")
        self.assertEqual(bars["traces"][0]["x"], [4, 12, 16, 20])
        self.assertEqual(bars["traces"][0]["y"], ["vLLM V1, 2 req/s", "vLLM V1, 4 req/s", "Ours, 2 req/s", "Ours, 4 req/s"])
        self.assertEqual([run["label"] for run in data["runs"]], bars["traces"][0]["y"])

    def test_ids_with_one_name_stay_apart(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1", "sarathi"]}, num_requests=20)
        (self.folder / "resolved.yaml").write_text("figures: {all: {names: {sarathi: Same, vllm_v1: Same}}}\n")
        figures = {f["key"]: f for f in self.write().data()["figures"]}
        self.assertEqual([t["name"] for t in figures["cdf_ttft"]["options"][0]["traces"]], ["vllm_v1", "sarathi"])

    def test_runs_that_keep_their_summary_name_the_key(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1"]}, num_requests=5)
        (self.folder / "requests.csv").unlink()
        (self.folder / "resolved.yaml").write_text("output: {keep: summary}\n")
        self.assertIn("'output: {keep: summary}'; without this key", " ".join(self.write().data()["left_out"]))

    def test_many_bars_are_a_figure_for_each_rate(self):
        synthetic.write_runs(self.folder, {"scheduler": [f"s{i}" for i in range(15)], RATE: [2.0, 4.0, 6.0]}, num_requests=5)
        options = self.figures()["comparison"]["options"]
        self.assertEqual(max(len(o["traces"][0]["x"]) for o in options), 15)
        self.assertIn("P99 TTFT (ms), 4 req/s", [o["name"] for o in options])


if __name__ == "__main__":
    unittest.main()
