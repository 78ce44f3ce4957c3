"""Experiments and bad experiments against the JSON Schema that the program prints. Run: python3 tests/app/test_schema.py"""

import json
import os
import re
import subprocess
import tempfile
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
# Bad experiments that the schema takes, by the reason. A schema knows the grammar of an experiment alone.
PASSES = {
    "YAML or its variables: the document that a schema sees is in order": """
        duplicate_inner duplicate_key merge_key_of_itself octal open_variable unset_variable""",
    "something that is missing: which keys are needed depends on others": """
        empty_slo images_without_encoder kv_sample_empty kv_without_policy kv_without_samples missing_hardware missing_model missing_scheduler
        missing_trace mrc_without_capacity pool_without_role pools_empty profile_without_path search_without_rate slo_no_classes store_without_pools
        trace_file_and_generate transfer_without_pools validate_without_requests""",
    "a key of another kind of run": """
        mrc_with_scheduler""",
    "what a file holds, or that there is none": """
        hugging_face_id hugging_face_id_unknown kv_hidden_not_recorded kv_pass_not_recorded kv_sample_missing kv_weights_missing kv_weights_names
        kv_weights_no_tensors missing_trace_file model_key_unknown model_layer_kind mooncake_block_size order_without_column_in_engine
        predictor_without_column_in_engine profile_missing profile_not_measured slo_class_without_classes slo_unknown_class slo_unknown_client
        swap_turns_without_session validate_missing_log""",
    "a rule between keys, or one of the model and the hardware": """
        bad_name closed_loop_search dispatcher_and_router dp_and_ep dp_and_gpus dp_deepep_without_ep dp_in_engine dp_with_oracle encode_pool_alone
        encode_pool_with_scheduler encode_pool_without_images ep_without_experts images_in_engine kept_outside_replay kv_allocator_in_decode
        kv_allocator_without_trigger kv_budget_and_ratio kv_budget_below_page kv_budget_below_window kv_budget_of_full kv_budget_without_use
        kv_chunk_pass_in_replay kv_disposal_acts_alone kv_disposal_without_trigger kv_format_on_latent kv_incomparable_scores kv_layer_pairs_cast
        kv_low_precision_encoded kv_low_rank_unequal_heads kv_merge_encoded kv_oracle_in_serving kv_policy_on_latent kv_policy_on_windows
        kv_positions_of_full kv_prefill_selector_over_cut kv_pruner_in_replay kv_pruner_with_trigger kv_retrieval_heads_cut_again
        kv_rewriter_in_replay kv_rewriter_vectors kv_sample_without_decode kv_scorer_without_trigger kv_selector_on_latent kv_table_beyond_layers
        kv_trigger_without_budget kv_trigger_without_scorer kv_two_budgets kv_weights_of_another_model kv_weights_without_use layers_cut_twice
        layers_fewer_than_kept layers_fewer_than_stages layers_in_engine layers_not_in_blocks layers_rise layers_two_left layers_with_ranks
        layers_with_stages max_model_len_above_model model_too_large num_blocks_and_frac num_blocks_and_reserve only_null_block oracle_two_replicas
        order_in_replay overlap_with_pp overlap_without_sms overlap_without_tp overtaking_in_engine padding_in_engine pools_and_replicas
        pools_block_tokens pools_contiguous_decode pools_in_engine pools_unused_key pools_with_oracle pools_without_decode pools_without_prefill
        predictor_in_mrc sarathi_budget_with_stages sarathi_dynamic_without_stages sarathi_low_above_high search_rate_reversed search_rate_three
        search_without_slo sjf_without_length store_block_tokens store_too_small store_with_oracle store_without_prefix_caching swap_int8_of_latent
        swap_int8_of_packed swap_turns_without_reuse too_many_runs tp_not_dividing tp_not_dividing_kv_heads trace_images_undescribed
        transfer_absent_link vllm_v1_odd_graph""",
}
# Guides that write a policy of their own, which is in no registry.
GUIDES = {"write-a-dispatcher.md", "write-a-predictor.md", "write-a-scheduler.md", "write-a-scorer.md", "write-an-order.md"}
# Keys that take names, by the definition of these names; the program lists the same ones.
NAMED = {
    **{name: name for name in ("scheduler", "order", "predictor", "dispatcher", "block_cache", "profile", "parallel.overlap")},
    "kv_policy.scorer": "scorer",
    "kv_policy.prefill_selector": "prefill_selector",
    "trace.generate.prompt_tokens": "length",
    "trace.generate.output_tokens": "output_length",
    "trace.generate.arrival": "arrivals",
    "trace.generate.sessions.think_time": "wait",
}


class Numbers(yaml.SafeLoader):
    """As YAML 1.2 and the program have them: 1e9 is a number, yes is a word."""


Numbers.yaml_implicit_resolvers = {}
Numbers.add_implicit_resolver("tag:yaml.org,2002:null", yaml.resolver.re.compile(r"^(~|null|)$"), ["~", "n", ""])
Numbers.add_implicit_resolver("tag:yaml.org,2002:bool", yaml.resolver.re.compile(r"^(true|false)$"), list("tf"))
Numbers.add_implicit_resolver("tag:yaml.org,2002:int", yaml.resolver.re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
Numbers.add_implicit_resolver("tag:yaml.org,2002:float", yaml.resolver.re.compile(r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"), list("-+0123456789."))
Numbers.add_implicit_resolver("tag:yaml.org,2002:merge", yaml.resolver.re.compile(r"^<<$"), ["<"])


def document_of(text):
    """The document of a YAML text, with keys that are texts, as in JSON."""
    done = {}  # aliases stay shared

    def with_text_keys(value):
        if not isinstance(value, (dict, list)):
            return value
        if id(value) not in done:
            done[id(value)] = (
                {key if isinstance(key, str) else str(key): with_text_keys(below) for key, below in value.items()}
                if isinstance(value, dict)
                else [with_text_keys(item) for item in value]
            )
        return done[id(value)]

    return with_text_keys(yaml.load(text, Numbers))


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
@unittest.skipUnless(jsonschema, "python3-jsonschema is not installed")
class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.schema = json.loads(subprocess.run([PROGRAM, "schema"], cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        cls.validator = jsonschema.Draft202012Validator(cls.schema)

    def errors(self, document):
        return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in self.validator.iter_errors(document)]

    def target(self, schema):
        """The value that a reference names."""
        return self.target(self.schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]) if "$ref" in schema else schema

    def mappings(self, schema, path):
        """Every schema of a mapping in this one, with its path; definitions are visited on their own."""
        if isinstance(schema, list):
            for item in schema:
                yield from self.mappings(item, path)
        if not isinstance(schema, dict):
            return
        if schema.get("type") == "object":
            yield path, schema
        for key, value in schema.items():
            if key in ("properties", "$defs", "patternProperties"):
                for name, below in value.items():
                    yield from self.mappings(below, f"{path}.{name}")
            elif key != "enum":
                yield from self.mappings(value, path)

    def example(self, schema):
        """A value that the schema of a parameter takes."""
        schema = self.target(schema)
        if "anyOf" in schema:
            return self.example(schema["anyOf"][0])
        if "enum" in schema:
            return schema["enum"][0]
        if "const" in schema:
            return schema["const"]
        kind = schema["type"][0] if isinstance(schema["type"], list) else schema["type"]
        return {"integer": schema.get("minimum", 1), "number": schema.get("minimum", 1), "boolean": True, "string": "x", "object": {}, "array": ["x"]}[kind]

    def test_it_is_a_schema(self):
        jsonschema.Draft202012Validator.check_schema(self.schema)

    def test_every_mapping_is_closed_and_every_property_described(self):
        open_ones, bare, count = [], [], 0
        for path, mapping in self.mappings(self.schema, ""):
            if mapping.get("additionalProperties", True) is True:
                open_ones.append(path)
            for key, value in mapping.get("properties", {}).items():
                count += 1
                if not value.get("description"):
                    bare.append(f"{path}.{key}")
                if not set(value) - {"description"}:
                    open_ones.append(f"{path}.{key}")
        self.assertGreater(count, 700)
        self.assertEqual(open_ones, [])
        self.assertEqual(bare, [])

    def test_shipped_experiments_are_valid(self):
        files = sorted((ROOT / "experiments").glob("*.yaml"))
        self.assertGreater(len(files), 20)
        for file in files:
            self.assertEqual(self.errors(document_of(file.read_text())), [], file.name)

    def test_experiments_in_the_docs_are_valid(self):
        refused, count = {}, 0
        for file in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]:
            for indent, text in re.findall(r"^( *)```ya?ml\n(.*?)^ *```", file.read_text(), re.MULTILINE | re.DOTALL):
                document = document_of("\n".join(line.removeprefix(indent) for line in text.split("\n")))
                if not isinstance(document, dict) or not set(document) <= set(self.schema["properties"]):
                    continue  # a file of another kind
                count += 1
                if errors := self.errors(document):
                    refused[file.name] = errors
        self.assertGreater(count, 30)
        self.assertEqual(set(refused), GUIDES, refused)

    def test_bad_experiments_are_not_but_for_those_that_break_no_grammar(self):
        passed = set()
        for file in sorted(BAD.glob("*.yaml")):
            try:
                document = document_of(file.read_text())
            except yaml.YAMLError:
                continue  # an editor says so without a schema
            if self.validator.is_valid(document):
                passed.add(file.stem)
        known = [name for names in PASSES.values() for name in names.split()]
        self.assertEqual(sorted(passed), sorted(known))

    def test_misspelt_parameters_are_refused(self):
        items = []
        for kind in ("schedulers", "orders", "predictors", "dispatchers", "block_caches", "kv"):
            text = subprocess.run([PROGRAM, "list", kind, "--json"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
            items += [(item["kind"].removesuffix("s") if kind != "kv" else item["kind"], item["name"]) for item in json.loads(text)]
        self.assertGreater(len(items), 200)
        checked = 0
        for kind, name in items:
            if kind == "recipe":
                self.assertEqual(self.errors({"kv_policy": {"recipe": name}}), [])
                self.assertTrue(self.errors({"kv_policy": {"recipe": name, "budget_token": 128}}), name)
                continue
            forms = self.schema["$defs"][f"one.{kind}"]["anyOf"]
            forms = forms[0].get("anyOf", forms)  # with `none` or a number beside the names
            form = forms[1]["properties"][name]["anyOf"][0]
            top = kind in self.schema["properties"]
            for key, value in form.get("properties", {}).items():
                for written, is_right in ((key, True), (key + "x", False)):
                    policy = {kind: {name: {written: self.example(value)}}}
                    document = policy if top else {"kv_policy": {"recipe": "full", **policy}}
                    self.assertEqual(self.validator.is_valid(document), is_right, policy)
                checked += 1
        self.assertGreater(checked, 200)

    def test_names_are_those_that_the_program_knows(self):
        served = "model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {generate: {requests: 1, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 1, output_tokens: 1, sessions: {turns: 1}}}\n"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "named.yaml"
            file.write_text(served)
            for path, kind in NAMED.items():
                done = subprocess.run([PROGRAM, "run", file, "--out", Path(folder) / "out", "--set", f"{path}=zqzqzqzq"], cwd=ROOT, capture_output=True, text=True)
                self.assertIn("known: ", done.stderr, path)
                known = set(done.stderr.strip().rsplit("known: ", 1)[1].split(", "))
                names = self.target(self.schema["$defs"][f"one.{kind}"])["anyOf"][0]
                names = set(names["enum"] if "enum" in names else names["anyOf"][0]["enum"])
                self.assertEqual(names, known - ({"trace"} if kind == "arrivals" else set()), path)


if __name__ == "__main__":
    unittest.main()
