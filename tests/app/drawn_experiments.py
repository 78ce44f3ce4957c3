"""Experiments drawn from the program's own schema: every kind of run, system, order, KV recipe, model and GPU, small enough to take a moment.

`Draw(schema, names, seed, index).experiment()` is a mapping for a YAML file. Equal seed and index give the same experiment.
"""

import random
import re

REQUESTS = 24  # most requests of a trace


class Draw:
    def __init__(self, schema, names, seed, index):
        self.defs, self.top, self.names = schema["$defs"], schema["properties"], names
        self.random = random.Random(f"{seed}:{index}")

    # ---- the schema

    def chance(self, probability):
        return self.random.random() < probability

    def alternatives(self, node):
        """The ways to write a value, without lists (axes of a sweep), variables and nothing."""
        while "$ref" in node:
            node = self.defs[node["$ref"].rsplit("/", 1)[1]]
        if "anyOf" not in node:
            return [] if node.get("type") in ("array", "null") or "pattern" in node else [node]
        return [one for part in node["anyOf"] if part.get("$ref") != "#/$defs/variable" for one in self.alternatives(part)]

    def value(self, node, key=""):
        """A value that the schema allows at a key."""
        if key in OVERRIDES:
            return OVERRIDES[key](self)
        ways = self.alternatives(node)
        objects = [way for way in ways if way.get("type") == "object"]
        others = [way for way in ways if way.get("type") != "object"]
        if objects and (not others or any("enum" in way for way in others) and self.chance(0.6)):
            return self.mapping(self.random.choice(objects), is_choice=any("enum" in way for way in others))
        return self.scalar(self.random.choice(others), node.get("description", "")) if others else {}

    def mapping(self, node, is_choice=False):
        """A policy with parameters, where the keys are names to choose from, or a mapping with some of its keys."""
        properties = node.get("properties", {})
        if not properties:
            return {}
        if is_choice:
            name = self.random.choice(sorted(properties))
            inner = [way for way in self.alternatives(properties[name]) if way.get("type") == "object"]
            return {name: self.mapping(inner[0]) if inner else None}
        few = max(0.15, min(0.5, 2 / len(properties)))
        chosen = [key for key, inner in sorted(properties.items()) if self.is_required(inner) or self.chance(few)]
        drawn = {key: self.value(properties[key], key) for key in chosen}
        return {key: value for key, value in drawn.items() if value is not None}

    def is_required(self, node):
        """A number without a default, unless its description says what its absence means."""
        text = node.get("description", "")
        numbers = any(way.get("type") in ("integer", "number") for way in self.alternatives(node))
        return numbers and "default:" not in text and "absent" not in text

    def scalar(self, node, description):
        if "enum" in node:
            return self.random.choice(node["enum"])
        if node.get("type") == "boolean":
            return self.chance(0.5)
        if node.get("type") in ("integer", "number"):
            return self.number(node, description)
        return None  # a text that is no name: a file, say

    def number(self, node, description):
        """Near the default, or at a limit."""
        low, high = node.get("minimum", 0), node.get("maximum", 1e6)
        stated = re.search(r"default: (-?[\d.]+(?:e[+-]?\d+)?)", description)
        middle = float(stated[1]) if stated else min(max(low, 8), high)
        if self.chance(0.05):
            x = low
        elif middle == 0:
            x = self.random.choice([0, self.random.uniform(low, min(high, 4))])
        else:
            x = middle * 4 ** self.random.uniform(-1, 1)
        x = min(max(x, low), high)
        return round(x) if node["type"] == "integer" else float(f"{x:.4g}")

    # ---- what the schema leaves open: sizes that take a moment

    def length(self, most):
        low = self.random.randint(1, max(1, most // 4))
        high = self.random.randint(low, most)
        return self.random.choice([
            low,
            {"uniform": {"min": low, "max": high}},
            {"lognormal": {"median": low, "mean": low * 1.5, "max": high + 1}},
            {"geometric": {"mean": (low + high) / 2 + 1, "max": high * 2 + 2}},
        ])

    def rate(self):
        return float(f"{10 ** self.random.uniform(-0.5, 2):.3g}")

    def arrival(self):
        rate = self.rate()
        return self.random.choice([
            {"poisson": {"rate_per_s": rate}},
            {"constant": {"rate_per_s": rate}},
            {"gamma": {"rate_per_s": rate, "cv": round(self.random.uniform(0.3, 5), 2)}},
            {"weibull": {"rate_per_s": rate, "shape": round(self.random.uniform(0.4, 3), 2)}},
            {"on_off": {"on_rate_per_s": rate, "off_rate_per_s": 0, "on_s": 2, "off_s": 3}},
            {"closed_loop": {"concurrency": self.random.randint(1, 12)}},
        ])

    def trace(self):
        made = {"requests": self.random.randint(1, REQUESTS), "arrival": self.arrival(), "prompt_tokens": self.length(self.random.choice([40, 700, 5000])),
                "output_tokens": self.length(self.random.choice([1, 30, 200]))}
        if self.chance(0.3):
            made["sessions"] = {"turns": self.length(5), "think_time": self.random.choice(["none", {"exponential": {"mean_s": 0.5}}, {"constant": {"s": 1}}])}
        elif self.chance(0.3):
            made["shared_prefix"] = {"num_groups": self.random.randint(1, 4), "tokens": self.random.randint(1, 2000)}
        if self.chance(0.4):
            targets = {"ttft_slo_ms": 500, "tpot_slo_ms": 40}
            made["classes"] = {"chat": {"share_frac": 0.7, "priority": 0, **targets}, "batch": {"share_frac": 0.3, "priority": 2, **targets}}
        if self.chance(0.4):
            made["clients"] = {"num": self.random.randint(1, 4), "zipf": 1.0}
        return {"generate": made}

    def kv_policy(self):
        policy = {"recipe": self.random.choice(self.names["kv"])}
        if self.chance(0.8):
            policy.update(self.random.choice([{"budget_tokens": self.random.choice([64, 256, 700, 2048])}, {"budget_frac": self.random.choice([0.1, 0.5, 1.0])}]))
        if self.chance(0.15):
            part = self.random.choice(["scorer", "allocator", "trigger", "disposal", "format", "selector", "prefill_selector"])
            policy[part] = self.value(self.defs[part])
        return policy

    def memory(self):
        made = self.mapping(self.alternatives(self.defs["keys.memory"])[0])
        made.pop("reserve_bytes", None)
        if self.chance(0.4):
            made.pop("gpu_memory_frac", None)
            made["num_blocks"] = int(10 ** self.random.uniform(1.7, 4))
        else:
            made.pop("num_blocks", None)
        return made

    def pools(self):
        def pool():
            made = {"replicas": self.random.randint(1, 3)}
            if self.chance(0.3):
                made["hardware"] = self.random.choice(self.names["hardware"])
            return made

        return self.random.choice([{"prefill": pool(), "decode": pool()}, {"both": pool()}, {"prefill": pool(), "decode": pool(), "both": pool()}])

    def search(self):
        limits = self.random.choice([{"rate": [0.1, 20]}, {"concurrency": [1, 16]}, {"replicas": [1, 6], "at_rate_per_s": self.rate()}, {"tp": [1, 4], "at_rate_per_s": self.rate()}])
        return {**limits, "tolerance_frac": 0.2, "attainment": self.random.choice([0.5, 0.9])}

    def slo(self):
        made = {"ttft_ms": self.random.choice([10, 200, 5000]), "tpot_ms": self.random.choice([5, 50, 500])}
        if self.chance(0.3):
            made["tbt_ms"] = self.random.choice([100, {"p99": 80}])
        if self.chance(0.2):
            made["e2e_ms"] = 20000
        return made

    # ---- kinds

    def experiment(self):
        return self.random.choices([self.simulation, self.hit_ratios, self.replay], [0.9, 0.06, 0.04])[0]()

    def simulation(self):
        made = {"model": self.random.choice(self.names["models"]), "hardware": self.random.choice(self.names["hardware"]),
                "scheduler": self.value(self.top["scheduler"]), "trace": self.trace(), "seed": self.random.randint(0, 10**6),
                "parallel": {"tp": self.random.choice([1, 1, 2, 4, 8])}}
        optional = {
            "order": (0.4, lambda: self.value(self.top["order"])),
            "predictor": (0.3, lambda: self.value(self.top["predictor"])),
            "dispatcher": (0.3, lambda: self.value(self.top["dispatcher"])),
            "block_cache": (0.3, lambda: self.value(self.top["block_cache"])),
            "kv_policy": (0.5, self.kv_policy),
            "memory": (0.5, self.memory),
            "replicas": (0.3, lambda: self.random.randint(1, 4)),
            "slo": (0.5, self.slo),
            "prefix_caching": (0.3, lambda: self.chance(0.5)),
            "timeline_interval_ms": (0.5, lambda: self.random.choice([0, 50, 333, 5000])),
            "warmup_ms": (0.1, lambda: self.random.choice([1, 500, 3000])),
            "stop": (0.1, lambda: self.random.choice([{"after_s": 2.5}, {"after_requests": 5}])),
            "qoe": (0.1, lambda: {"ttft_ms": 1000, "tokens_per_s": 4.8}),
            "load_frac": (0.05, lambda: 0.5),
            "engine": (0.2, lambda: self.value(self.top["engine"])),
            "max_model_len": (0.1, lambda: self.random.choice([512, 4096])),
        }
        made.update({key: draw() for key, (probability, draw) in optional.items() if self.chance(probability)})
        self.combine(made)
        return made

    def crowded(self, made):
        """Requests that fit one at a time into memory, and not all together: preemptions, swaps and waiting."""
        made["trace"]["generate"].update({"requests": REQUESTS, "arrival": {"poisson": {"rate_per_s": self.random.choice([20, 200])}},
                                          "prompt_tokens": {"uniform": {"min": 20, "max": 300}}, "output_tokens": {"uniform": {"min": 20, "max": 200}}})
        made["trace"]["generate"].pop("shared_prefix", None)
        made["memory"] = {**made.get("memory", {}), "num_blocks": self.random.randint(40, 120)}
        made["memory"].pop("gpu_memory_frac", None)
        made.pop("max_model_len", None)

    def combine(self, made):
        """Keys that go with others."""
        if self.chance(0.2):
            self.crowded(made)
        if self.chance(0.15):
            made["pools"] = self.pools()
            made.pop("replicas", None)
            if self.chance(0.5):
                made["transfer"] = self.mapping(self.alternatives(self.defs["keys.transfer"])[0])
            if self.chance(0.4):
                made["store"] = {"bytes_per_gpu": int(10 ** self.random.uniform(8, 11)), "block_tokens": self.random.choice([16, 64, 256])}
        elif self.chance(0.1):
            made["system"] = self.random.choice(self.names["systems"])
            for key in ("scheduler", "dispatcher", "replicas", "order", "predictor"):
                made.pop(key, None)
        elif self.chance(0.1):
            made["parallel"].update({"dp": 2, "ep": self.random.choice([1, 2 * made["parallel"]["tp"]])})
        elif self.chance(0.07):
            made["parallel"]["pp"] = 2
        if "slo" in made and self.chance(0.1):
            made["search"] = self.search()
            made.pop("load_frac", None)
            if "replicas" in made["search"]:
                made.pop("replicas", None)
            if "tp" in made["search"]:
                made["parallel"].pop("tp", None)

    def hit_ratios(self):
        made = self.trace()
        made["generate"]["sessions"] = {"turns": {"uniform": {"min": 1, "max": 6}}}
        made["generate"].pop("shared_prefix", None)
        return {"kind": "block_cache_mrc", "trace": made, "block_tokens": 16, "block_caches": self.random.choice(self.names["block_caches"]),
                "capacity_blocks": self.random.choice([4, 100, 5000]), "seed": self.random.randint(0, 1000)}

    def replay(self):
        tokens = self.random.choice([96, 400])
        return {"host": "replay", "samples": {"s": {"synthetic": {"prompt_tokens": tokens, "decode_tokens": 4, "layers": 2, "kv_heads": 2, "q_heads": 4}}}, "kv_policy": self.kv_policy()}


OVERRIDES = {
    "model": lambda d: d.random.choice(d.names["models"]),
    "hardware": lambda d: d.random.choice(d.names["hardware"]),
    "seed": lambda d: d.random.randint(0, 1000),
}
