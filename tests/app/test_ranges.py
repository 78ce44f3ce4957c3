"""Extreme values of every number that the program takes: each is refused with its key, or gives a result of finite numbers from 0 on.

Run: python3 tests/app/test_ranges.py. A drawn part of the cases; KVLAB_FULL=1 takes all (20 minutes), KVLAB_SEED=N draws others.
"""

import concurrent.futures
import copy
import csv
import json
import math
import os
import random
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build" / "release" / "kvlab"))
SEED = int(os.environ.get("KVLAB_SEED", "1"))
IS_FULL = bool(os.environ.get("KVLAB_FULL"))
LIMIT_S = 20  # of a call
MOST_BYTES = 6 << 30  # of address space
VALUES = ("-1", "0", "1e-9", "0.5", "50", "1e9", "1e20", "1e300", "1e400", "99999999999999999999", ".nan", ".inf", "-.inf", "0x10", "''")
TEXT = r"[^\n]{1,8000}\n"  # one line

SERVED = """
model: llama-3.1-8b
hardware: h100
scheduler: vllm_v1
timeline_interval_ms: 0
trace: {generate: {requests: 6, arrival: {poisson: {rate_per_s: 20}}, prompt_tokens: 100, output_tokens: 6, clients: {num: 2}}}
"""
REPLAYED = """
host: replay
samples: {s: {synthetic: {layers: 2, q_heads: 2, kv_heads: 1, prompt_tokens: 300}}}
kv_policy: {recipe: snapkv, budget_tokens: 64}
"""
COUNTED = """
kind: block_cache_mrc
block_caches: [lru]
capacity_blocks: [4]
trace: {generate: {requests: 6, arrival: {poisson: {rate_per_s: 20}}, prompt_tokens: 100, output_tokens: 6, shared_prefix: {num_groups: 2, tokens: 32}}}
"""
OTHER_KINDS = {"samples": REPLAYED, "replay": REPLAYED, "question": REPLAYED, "block_bytes": COUNTED, "block_tokens": COUNTED, "capacity_blocks": COUNTED, "block_caches": COUNTED}
# Keys that other keys need, by the beginnings of their paths; None removes a key.
SPLIT = {"replicas": None, "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}}
POOL = {"scheduler": None, "pools": {"both": {"replicas": 1, "scheduler": "vllm_v1"}}}
CLASSES = {"trace": {"generate": {"clients": None, "classes": {"x": {"share_frac": 1}}}}}
IMAGES = {"images": {"tokens_each": 64, "encoder": {"layers": 2, "hidden": 64, "intermediate": 128, "patches": 64}}, "trace": {"generate": {"images": {"per_request": 1}}}}
OF_FILE = {"trace": {"generate": None, "file": "t.csv", "format": "azure"}}
AROUND = (
    ("search.", {"slo": {"ttft_ms": 1000}, "search": {"rate": [1, 4]}}),
    ("search.concurrency", {"search": {"rate": None}}),
    ("slo.", {"slo": {"ttft_ms": 1000}}),
    ("slo.classes", CLASSES),
    ("qoe.", {"qoe": {"ttft_ms": 1000, "tokens_per_s": 10}}),
    ("pools.", POOL),
    ("pools.both.scheduler", {"pools": {"both": {"scheduler": None}}}),
    ("pools.both.parallel.overlap", {"pools": {"both": {"parallel": {"tp": 2}}}}),
    ("store.", {"pools": {"both": {"replicas": 1}}, "dispatcher": "mooncake", "store": {"bytes_per_gpu": 10**11, "block_tokens": 256}}),
    ("transfer.", SPLIT),
    ("kv_policy.", {"kv_policy": {"recipe": "snapkv", "budget_tokens": 64}}),
    ("dispatcher.", {"replicas": 2}),
    ("dispatcher.splitwise", SPLIT),
    ("order.etc", CLASSES),
    ("order.ucb", CLASSES),
    ("parallel.overlap", {"parallel": {"tp": 2}}),
    ("parallel.ep", {"model": "qwen3-30b-a3b", "parallel": {"tp": 2}}),
    ("images.", IMAGES),
    ("trace.generate.images", IMAGES),
    ("trace.generate.sessions", {"trace": {"generate": {"sessions": {"turns": 2}}}}),
    ("trace.generate.shared_prefix", {"trace": {"generate": {"shared_prefix": {"num_groups": 2, "tokens": 32}}}}),
    ("trace.arrival", OF_FILE),
    ("scheduler.sarathi.dynamic", {"scheduler": {"sarathi": {"dynamic_stages": 2}}}),
)
# Errors that follow from a value which is in its range name these.
NAMED_BY = {"default_ttft_ms": ["'ttft_slo_ms'"], "to_rate_per_s": ["'rate_per_s'"], "sinks_tokens": ["first and"], "window_tokens": ["last tokens"]}
ROWS = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,5\n2023-11-16 18:15:47,120,6\n"


def merged(document, changes):
    """The document with the changes, which replace values that are no mappings; None takes a key away."""
    result = dict(document)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key) if isinstance(result.get(key), dict) else {}, value) if isinstance(value, dict) else value
    return result


# A line of each command, to which an option is added.
LINES = {
    "run": "e.yaml --quiet", "merge": "results", "submit": "e.yaml --slurm", "trace inspect": "e.yaml", "trace convert": "t.csv out.csv",
    "trace generate": "e.yaml out.jsonl", "trace fetch": "", "trace record": "--model nosuch --out t.st", "estimate": "--hardware h100",
    "characterize": "--hardware h100", "compare": "results results", "pivot": "results --rows scheduler --metric ttft_p50_ms", "why": "results --no-try",
    "validate": "--requests nosuch --against results", "export": "results --format mlflow", "reproduce": "nosuch", "profile lint": "nosuch",
    "profile convert": "nosuch out", "calibrate": "--cpu --model nosuch", "logits": "--model nosuch --ids a --out b", "label heads": "--model nosuch --out a",
    "label prefill": "--model nosuch --out a", "label q_filters": "--model nosuch --out a", "tokenize": "--model nosuch --text a",
}
BAD_NUMBERS = ("-1", "nan", "inf", "abc", "", "1e400", "99999999999999999999", "0x10", "1_000", "1e20")
BAD_TEXTS = ("", "{", "=", "a=b=c", "[1, 2", "no/such", "\u00e9" * 3000)


def options_of(words):
    """(command, option, kind) of every option that takes a value, as the help texts list them."""
    text = subprocess.run([PROGRAM, *words, "--help"], check=True, capture_output=True, text=True).stdout
    below = re.search(r"^Subcommands:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    for name in re.findall(r"^  (\w+) ", below[1], re.MULTILINE) if below else ():
        yield from options_of((*words, name))
    for option, kind in re.findall(r"^  (?:-\w,)?(--[\w-]+) (INT|UINT|FLOAT|TEXT)\b", text, re.MULTILINE):
        yield " ".join(words), option, kind


class Key:
    """A number of an experiment: its path, which parts of it are a choice of one name, and its limits."""

    def __init__(self, path, choices, schema):
        self.path, self.choices, self.schema = path, choices, schema
        self.beside = {}  # keys that this one needs, in the same mapping

    def __str__(self):
        return ".".join(self.path)

    def usual(self):
        low, high = self.schema.get("minimum", self.schema.get("exclusiveMinimum", 1)), self.schema.get("maximum", math.inf)
        found = min(max(low, 16 if self.path[-1] == "chunk_tokens" else 2), high)
        return int(found) if self.schema["type"] == "integer" or found == int(found) else found

    def document(self, value):
        """An experiment with the value, as text: YAML in which a mark is replaced."""
        document = yaml.safe_load(OTHER_KINDS.get(self.path[0], SERVED))
        for begin, around in AROUND:
            if str(self).startswith(begin):
                document = merged(document, around)
        place = document
        for depth, name in enumerate(self.path[:-1]):
            if depth in self.choices or not isinstance(place.get(name), dict):
                below = place.get(name)
                if depth in self.choices:
                    place.clear()
                place[name] = below if isinstance(below, dict) else {}
            place = place[name]
        if len(self.path) - 1 in self.choices:
            place.clear()
        place.update({name: value for name, value in self.beside.items() if name != self.path[-1]})
        place[self.path[-1]] = "VALUE"
        return yaml.safe_dump({"name": "r", **document}, sort_keys=False).replace("VALUE", str(value))


def numbers_in(schema, definitions, path=(), choices=(), above=()):
    """Keys of all numbers of a schema; a definition is entered once on a path."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        if name not in above:
            yield from numbers_in(definitions[name], definitions, path, choices, (*above, name))
        return
    for branch in schema.get("anyOf", ()):
        yield from numbers_in(branch, definitions, path, choices, above)
    if schema.get("type") in ("integer", "number"):
        yield Key(path, choices, schema)
    if schema.get("type") == "object":
        is_choice = schema.get("maxProperties") == 1
        for name, below in schema.get("properties", {}).items():
            yield from numbers_in(below, definitions, (*path, name), (*choices, len(path)) if is_choice else choices, above)
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and path != ("figures",):
            yield from numbers_in(more, definitions, (*path, {("pools",): "both", ("samples",): "s", ("trace", "generate", "clients"): "0"}.get(path, "x")), choices, above)


def complete(key, keys, folder):
    """Gives the key the ones that it needs, as the program names them. Returns whether it runs with its usual value."""
    for _ in range(6):
        (folder / "e.yaml").write_text(key.document(key.usual()))
        status, _, error = call("run", "e.yaml", "--quiet", "--out", "u", cwd=folder)
        if status in (0, 3):
            return True
        needed = re.search(r" needs (?:either )?'(\w+)'", error)
        other = keys.get(".".join((*key.path[:-1], needed[1]))) if needed else None
        if status != 2 or other is None or needed[1] in key.beside:
            return False
        key.beside[needed[1]] = other.usual()
    return False


def call(*arguments, cwd):
    """(status, output, errors); status "hangs": it took too long."""
    command = ["bash", "-c", f"ulimit -v {MOST_BYTES >> 10}; exec \"$@\"", "_", str(PROGRAM), *map(str, arguments)]
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=LIMIT_S, errors="replace", stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return "hangs", "", ""
    return done.returncode, done.stdout, done.stderr


def wrong_numbers(folder):
    """Columns of the tables of a results folder with a number that cannot be."""
    found = []
    for name in ("summary.csv", "requests.csv"):
        if not (folder / name).is_file():
            continue
        with open(folder / name, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                for column, text in row.items():
                    if re.fullmatch(r"[-+]?(nan|inf|infinity)", text or "", re.IGNORECASE) or (text or "").startswith("-"):
                        found.append(f"{name} {column} = {text}")
    return list(dict.fromkeys(found))


def in_parallel(work, cases):
    """The results of work(case, folder) that are no None."""
    with tempfile.TemporaryDirectory(prefix="kvlab_ranges_") as top, concurrent.futures.ThreadPoolExecutor(int(os.environ.get("KVLAB_JOBS", "2"))) as pool:
        def one(numbered):
            folder = Path(top, str(numbered[0]))
            folder.mkdir()
            return work(numbered[1], folder)

        return [found for found in pool.map(one, enumerate(cases)) if found]


def fault_of(status, error, names, folder=None):
    """The fault of how a call ended; "" for none. `names`: texts of which a refusal has one."""
    if status == 2:
        if not re.fullmatch(TEXT, error):
            return f"not one line: {error[:300]!r}"
        return "" if any(name in error for name in names) else f"does not name it: {error.strip()[:300]}"
    if status in (0, 3):
        wrong = wrong_numbers(folder) if folder else []
        return ", ".join(wrong[:4])
    return f"status {status}: {error.strip()[-200:]}"


def drawn(cases, number):
    chosen = list(cases)
    random.Random(SEED).shuffle(chosen)
    return chosen if IS_FULL else chosen[:number]


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
class Ranges(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"seed {SEED}", flush=True)

    def report(self, faults):
        self.assertEqual(faults, [], "\n" + "\n".join(faults))

    def test_keys_of_experiments(self):
        schema = json.loads(subprocess.run([PROGRAM, "schema"], check=True, capture_output=True, text=True).stdout)
        keys = {str(key): key for key in numbers_in(schema, schema["$defs"]) if key.path[0] != "system"}  # its keys are those of the others
        self.assertGreater(len(keys), 800)

        def work(case, folder):
            key, value = case
            (folder / "t.csv").write_text(ROWS)
            is_strict = complete(key, keys, folder)
            (folder / "e.yaml").write_text(key.document(value))
            status, _, error = call("run", "e.yaml", "--quiet", "--out", "o", cwd=folder)
            fault = fault_of(status, error, [*key.path[-2:], *key.beside, *NAMED_BY.get(key.path[-1], ())] if is_strict else [""], folder / "o")
            return f"{key}: {value}: {fault}" if fault else None

        self.report(in_parallel(work, drawn([(key, value) for key in keys.values() for value in VALUES], 120)))

    def known_keys(self, kind, name, key_to_set):
        """The keys that the program names where one is unknown."""
        with tempfile.TemporaryDirectory(prefix="kvlab_ranges_") as folder:
            Path(folder, "f.yaml").write_text((ROOT / "profiles" / kind / f"{name}.yaml").read_text() + "\nno_such_key: 1\n")
            Path(folder, "e.yaml").write_text("name: r\n" + SERVED)
            error = call("run", "e.yaml", "--out", "o", "--set", f"{key_to_set}=f.yaml", cwd=folder)[2]
        return [(key,) for key in error.strip().rsplit("known: ", 1)[1].split(", ")] if "known: " in error else []

    def of_file(self, kind, name, key_to_set):
        """Cases (keys from the top, value) of the numbers of a shipped YAML file, and the function that tries one."""
        document = yaml.safe_load((ROOT / "profiles" / kind / f"{name}.yaml").read_text())

        def numbers(place, path=()):
            for key, value in place.items():
                if isinstance(value, dict):
                    yield from numbers(value, (*path, key))
                elif isinstance(value, (int, float)) and not isinstance(value, bool) or isinstance(value, str) and re.fullmatch(r"[\d.]+e[\d.]+", value):
                    yield (*path, key)

        def work(case, folder):
            path, value = case
            changed = copy.deepcopy(document)
            place = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = "VALUE"
            (folder / "f.yaml").write_text(yaml.safe_dump(changed, sort_keys=False).replace("VALUE", value))
            (folder / "e.yaml").write_text("name: r\n" + SERVED)
            status, _, error = call("run", "e.yaml", "--quiet", "--out", "o", "--set", f"{key_to_set}=f.yaml", cwd=folder)
            fault = fault_of(status, error, ["f.yaml"], folder / "o")
            return f"{kind} {name} {'.'.join(path)}: {value}: {fault}" if fault else None

        paths = dict.fromkeys([*numbers(document), *(self.known_keys(kind, name, key_to_set) if IS_FULL or kind == "hardware" else ())])
        return [(path, value) for path in paths for value in VALUES], work

    def test_keys_of_hardware(self):
        faults = []
        for card in ("h100", "l4") if not IS_FULL else ("h100", "l4", "mi300x", "rtx4090"):
            cases, work = self.of_file("hardware", card, "hardware")
            self.assertGreater(len(cases), 100)
            faults += in_parallel(work, drawn(cases, 50))
        self.report(faults)

    def test_keys_of_models(self):
        faults = []
        for model in ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "deepseek-v2-lite"):
            cases, work = self.of_file("models", model, "model")
            self.assertGreater(len(cases), 60)
            faults += in_parallel(work, drawn(cases, 25))
        self.report(faults)

    def test_options_of_commands(self):
        with tempfile.TemporaryDirectory(prefix="kvlab_ranges_") as top:
            (Path(top) / "e.yaml").write_text("name: r\n" + SERVED)
            status, _, error = call("run", "e.yaml", "--quiet", "--out", "results", "--set", "scheduler=[vllm_v1, sarathi]", cwd=top)
            self.assertEqual(status, 0, error)
            options = list(options_of(()))
            self.assertGreater(len(options), 80)
            self.assertEqual({words for words, _, _ in options} - set(LINES), set(), "a command without a line here")
            cases = [(words, option, kind, value) for words, option, kind in options for value in (BAD_NUMBERS if kind != "TEXT" else BAD_TEXTS)]

            def work(case, folder):
                words, option, kind, value = case
                shutil.copytree(top, folder, dirs_exist_ok=True)
                status, _, error = call(*words.split(), *LINES[words].split(), f"{option}={value}", cwd=folder)
                is_text = kind == "TEXT"
                fault = "" if status == 1 and is_text else fault_of(status, error, [""] if is_text else [option])
                if status in (0, 3) and not is_text:
                    fault = "is taken"
                return f"{words} {option}={value}: {fault}" if fault else None

            self.report(in_parallel(work, drawn(cases, 150)))


if __name__ == "__main__":
    unittest.main()
