"""Lists and counts in the guides, compared with the sources: registered names, claims, kinds, walks."""

import re
import unittest
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def registered():
    """Interface -> names that sources register."""
    names = {}
    for folder in ("policies", "traces", "app"):
        for source in sorted((ROOT / folder).rglob("*.cpp")):
            for interface, name in re.findall(r'KVLAB_REGISTER\((\w+),\s*\w+,\s*"(\w+)"', source.read_text(encoding="utf-8")):
                names.setdefault(interface, set()).add(name)
            for name in re.findall(r'KVLAB_REGISTER_TRACE\(\w+,\s*"(\w+)"', source.read_text(encoding="utf-8")):
                names.setdefault("trace", set()).add(name)
    return names


class Names(unittest.TestCase):
    def check(self, interface, page):
        self.assertTrue(registered().get(interface), interface)
        missing = [name for name in sorted(registered()[interface]) if not re.search(rf"`[^`]*\b{name}\b[^`]*`", text(page))]
        self.assertEqual(missing, [], f"registered, and not in {page}")

    def test_every_policy_is_in_its_guide(self):
        self.check("Scheduler", "docs/schedulers.md")
        self.check("Dispatcher", "docs/schedulers.md")
        self.check("Order", "docs/orders.md")
        self.check("Predictor", "docs/orders.md")
        self.check("BlockCache", "docs/block-caches.md")

    def test_every_format_is_in_its_guide(self):
        self.check("trace", "docs/traces.md")
        self.check("ExportFormat", "docs/exchange.md")

    def test_every_system_is_in_its_guide(self):
        for file in (ROOT / "policies/systems").glob("*.yaml"):
            self.assertRegex(text("docs/pools.md"), rf"`{file.stem}`")

    def test_kinds_of_run(self):
        self.check("RunKind", "docs/architecture.md")
        self.assertEqual(len(registered()["RunKind"]), 5)  # as docs/architecture.md says


class Counts(unittest.TestCase):
    def test_kinds_of_parts(self):
        page = text("docs/architecture.md")
        kinds = {"".join(word.capitalize() for word in folder.name.split("_")): folder.name for folder in (ROOT / "policies/kv").iterdir() if folder.is_dir()}
        parts = sorted(folder for interface, folder in kinds.items() if interface in registered())
        self.assertEqual(sorted(re.findall(r"^\| `(\w+)` \| (?:how|when|which)", page, re.M)), parts)
        self.assertIn("There are nine kinds", page)
        self.assertIn("from nine small parts", text("docs/kv-policies.md"))
        self.assertEqual(len(parts), 9)

    def test_claims(self):
        said = int(re.search(r"reproduce --all\s+# (\d+) published claims", text("README.md"))[1])
        self.assertEqual(said, len(list((ROOT / "claims").glob("*.yaml"))))

    def test_timed_operations_of_policies(self):
        words = {15: "Fifteen", 16: "Sixteen", 17: "Seventeen", 18: "Eighteen", 19: "Nineteen", 20: "Twenty"}
        timed = len(re.findall(r"operations::policy\(OpId::", text("sim/cost/operations.h")))
        self.assertIn(f"{words.get(timed, timed)} operations of KV policies have", text("docs/calibrate.md"))


class Walks(unittest.TestCase):
    HEIGHT = {"base": 0, "kernels": 1, "traces": 1, "policies": 2, "serving": 3, "sim": 4, "engine": 4, "calibrate": 5, "app": 6}

    def test_summary_of_the_walks(self):
        page = text("docs/architecture.md")
        rows = re.findall(r"^\| \[([\w ]+)\]\(#([\w-]+)\)[^|]*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|(?: [^|]+ \|)?$", page, re.M)
        self.assertEqual(len(rows), 5)
        for title, anchor, *said in rows:
            section = re.search(rf"^## {anchor.replace('-', ' ')}$(.*?)(?=^## )", page, re.M | re.S | re.I)[1]
            files = re.findall(r"^\| `([\w./-]+/[\w./-]+)` \|", section, re.M)
            tops = [top for file in files if (top := file.split("/")[0]) in self.HEIGHT]
            moves = [self.HEIGHT[b] - self.HEIGHT[a] for a, b in zip(tops, tops[1:])]
            found = [len(set(files)), len(set(tops)), sum(m > 0 for m in moves), sum(m < 0 for m in moves)]
            self.assertEqual([int(n) for n in said], found, title)
            for file in files:
                self.assertTrue((ROOT / file).exists(), file)


if __name__ == "__main__":
    unittest.main()
