"""Names in figures: plots/names.py. Run: python3 tests/plots/test_names.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import yaml  # noqa: E402

import names as naming  # noqa: E402
import settings  # noqa: E402


class Names(unittest.TestCase):
    def test_every_policy_has_one(self):
        root = HERE.parents[1] / "policies"
        ids = {p.stem for p in (root / "kv" / "recipes").glob("*.yaml")}
        known, _ = naming.table()
        self.assertEqual(sorted(ids - set(known)), [], "recipes without a line in plots/names.yaml")

    def test_hardware_has_the_names_of_its_profiles(self):
        settings.start(Path("/nowhere"))
        for path in (HERE.parents[1] / "profiles" / "hardware").glob("*.yaml"):
            name = yaml.safe_load(path.read_text())["name"]
            self.assertEqual(naming.shown(f"{path.stem}, tp 4"), f"{name}, TP 4")

    def test_names_of_different_policies_differ(self):
        known, _ = naming.table()
        self.assertEqual(len(set(known.values())), len(known))

    def test_labels_made_of_several_ids(self):
        settings.start(Path("/nowhere"))
        for label, text in (("snapkv (allocator pyramid) 128", "SnapKV (allocator pyramid) 128"), ("rate_per_s 2, vllm_v0", "2 req/s, vLLM V0"),
                            ("sarathi, budget_tokens 2048", "Sarathi, 2048 tokens"), ("prefix_affinity", "Prefix affinity"), ("unheard_of 3", "unheard_of 3")):
            self.assertEqual(naming.shown(label), text)
        settings.start(Path("/nowhere"), ["figures.all.names.vllm_v1#1=vLLM", "figures.f.names.snapkv=mine"])
        self.assertEqual([naming.shown("vllm_v1#1"), naming.shown("snapkv 64", "f"), naming.shown("snapkv 64", "g")], ["vLLM", "mine 64", "SnapKV 64"])


if __name__ == "__main__":
    unittest.main()
