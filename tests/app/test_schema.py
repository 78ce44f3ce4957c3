"""Experiments and bad experiments against the JSON Schema that the program prints. Run: python3 tests/app/test_schema.py"""

import json
import os
import subprocess
import unittest
from pathlib import Path

import yaml

try:
    import jsonschema
except ImportError:
    jsonschema = None

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build" / "release" / "kvlab"))
BAD = ROOT / "tests" / "bad_configs"
# The schema leaves 'kv_policy' open below its recipe, and takes keys of every kind of run in each.
OPEN = {"kv_misspelled_parameter.yaml", "kv_misspelled_part_kind.yaml", "misplaced_kv_window.yaml", "mrc_with_scheduler.yaml"}


class Numbers(yaml.SafeLoader):
    """As YAML 1.2 and the program have them: 1e9 is a number, yes is a word."""


Numbers.yaml_implicit_resolvers = {}
Numbers.add_implicit_resolver("tag:yaml.org,2002:null", yaml.resolver.re.compile(r"^(~|null|)$"), ["~", "n", ""])
Numbers.add_implicit_resolver("tag:yaml.org,2002:bool", yaml.resolver.re.compile(r"^(true|false)$"), list("tf"))
Numbers.add_implicit_resolver("tag:yaml.org,2002:int", yaml.resolver.re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
Numbers.add_implicit_resolver("tag:yaml.org,2002:float", yaml.resolver.re.compile(r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"), list("-+0123456789."))
Numbers.add_implicit_resolver("tag:yaml.org,2002:merge", yaml.resolver.re.compile(r"^<<$"), ["<"])


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
@unittest.skipUnless(jsonschema, "python3-jsonschema is not installed")
class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = subprocess.run([PROGRAM, "schema"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        cls.schema = json.loads(text)
        cls.validator = jsonschema.Draft202012Validator(cls.schema)

    def errors(self, file):
        return [f"{file.name}: {'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in self.validator.iter_errors(yaml.load(file.read_text(), Numbers))]

    def test_it_is_a_schema(self):
        jsonschema.Draft202012Validator.check_schema(self.schema)

    def test_shipped_experiments_are_valid(self):
        files = sorted((ROOT / "experiments").glob("*.yaml"))
        self.assertGreater(len(files), 20)
        for file in files:
            self.assertEqual(self.errors(file), [])

    def test_unknown_keys_are_not(self):
        expected = dict(line.split("\t", 1) for line in (BAD / "expected.txt").read_text().splitlines())
        unknown = [BAD / name for name, message in expected.items() if ": unknown key" in message]
        self.assertGreater(len(unknown), 15)
        passed = {file.name for file in unknown if not self.errors(file)}
        self.assertEqual(passed, OPEN)

    def test_unknown_policies_and_bad_numbers_are_not(self):
        for name in ("misspelled_scheduler.yaml", "zero_replicas.yaml", "fraction_replicas.yaml", "frac_above_one.yaml", "flag_as_word.yaml", "bad_kind.yaml"):
            self.assertTrue(self.errors(BAD / name), name)


if __name__ == "__main__":
    unittest.main()
