"""Tests of traces/record_hf.py on tiny models with random weights. Run: python3 tests/traces/test_record_hf.py (skipped without torch)"""

import contextlib
import importlib.util
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "traces"))
HAS_TORCH = all(map(importlib.util.find_spec, ("torch", "transformers", "safetensors")))

SIZES = dict(vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=32,
             max_position_embeddings=512, eos_token_id=None, bos_token_id=None)


@unittest.skipUnless(HAS_TORCH, "needs torch, transformers and safetensors")
class RecordHf(unittest.TestCase):
    def setUp(self):
        from transformers.utils import logging

        logging.disable_progress_bar()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def model(self, kind, **more):
        import torch
        import transformers

        torch.manual_seed(1)
        config = getattr(transformers, kind + "Config")(**{**SIZES, **more})
        model = getattr(transformers, kind + "ForCausalLM")(config)
        for parameter in model.parameters():  # trained models have larger weights than fresh ones: attention should not be flat
            parameter.data = torch.randn_like(parameter) * 0.3
        model.save_pretrained(self.folder)

    def record(self, *options, ids=tuple(range(3, 40)), more=None):
        from safetensors import safe_open

        import record_hf

        sample, out = self.folder / "ids.json", self.folder / "out.safetensors"
        sample.write_text(json.dumps({"ids": list(ids), **more} if more else list(ids)))
        with contextlib.redirect_stdout(io.StringIO()):
            record_hf.main(["--model", str(self.folder), "--ids", str(sample), "--out", str(out), "--dtype", "f32", *options])
        with safe_open(out, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()

    def reference(self, ids):
        """Per layer what the eager implementation does with all ids at once: weights [heads, t, t], input and output of the module."""
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32, attn_implementation="eager").eval()
        layers = []
        for block in model.model.layers:
            block.self_attn.register_forward_hook(
                lambda m, args, kwargs, out: layers.append((m, kwargs["hidden_states"][0], out[0][0], out[1][0])), with_kwargs=True)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        return layers, logits

    def check_attention(self, tensors):
        import torch

        ids = tensors["ids"].tolist()
        layers, logits = self.reference(ids)
        mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)
        for i, (module, hidden, output, weights) in enumerate(layers):
            q, k, v = (tensors[f"L{i}.{name}"] for name in "qkv")
            group = q.shape[1] // k.shape[1]
            heads = []
            for h in range(q.shape[1]):
                row = torch.softmax(q[:, h] @ k[:, h // group].T / q.shape[2] ** 0.5 + mask, dim=-1)
                torch.testing.assert_close(row, weights[h], rtol=1e-3, atol=1e-4)
                heads.append(row @ v[:, h // group])
            torch.testing.assert_close(torch.cat(heads, -1) @ module.o_proj.weight.T, output, rtol=1e-3, atol=1e-3)
        return layers, logits

    def test_recording_reproduces_the_modules_attention(self):
        for kind, more in (("Llama", {}), ("Qwen2", {}), ("Qwen3", {}), ("Mistral", {"sliding_window": None})):
            with self.subTest(kind):
                self.model(kind, **more)
                tensors, metadata = self.record("--decode-tokens", "5")
                self.assertEqual(tensors["L1.k"].shape, (42, 2, 16))
                self.assertEqual(metadata["prompt_tokens"], "37")
                _, logits = self.check_attention(tensors)
                self.assertEqual(tensors["ids"][37:].tolist(), logits[36:41].argmax(-1).tolist())

    def test_chunked_prefill_is_the_same_attention(self):
        self.model("Llama")
        tensors, metadata = self.record("--decode-tokens", "2", "--chunk-tokens", "16")
        self.assertEqual(metadata["chunk_ends"], "16,32,37")
        self.check_attention(tensors)

    def test_before_rope_hidden_and_output_weights(self):
        import torch

        for kind in ("Llama", "Qwen3"):
            with self.subTest(kind):
                self.model(kind, rope_parameters={"rope_theta": 5000.0, "rope_type": "default"})
                tensors, metadata = self.record("--decode-tokens", "3", "--pre-rope", "--hidden", "--w-o")
                self.assertEqual((metadata["rope_base"], metadata["rope_scaling"]), ("5000.0", "none"))
                angles = torch.arange(40.0)[:, None] / float(metadata["rope_base"]) ** (torch.arange(8.0) / 8)
                cos, sin = angles.cos()[:, None], angles.sin()[:, None]
                for name in "qk":
                    low, high = tensors[f"L1.pre_{name}"].chunk(2, dim=-1)
                    turned = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
                    torch.testing.assert_close(turned, tensors[f"L1.{name}"], rtol=1e-3, atol=1e-3)
                layers, _ = self.reference(tensors["ids"].tolist())
                torch.testing.assert_close(tensors["L1.hidden"], layers[1][1], rtol=1e-3, atol=1e-3)
                torch.testing.assert_close(tensors["W_o.L1"], layers[1][0].o_proj.weight.detach())

    def test_projections_to_queries(self):
        import torch

        self.model("Llama", rope_parameters={"rope_theta": 5000.0, "rope_type": "default"})
        tensors, _ = self.record("--decode-tokens", "0", "--w-q")
        layers, _ = self.reference(tensors["ids"].tolist())
        torch.testing.assert_close(tensors["W_q.L1"], layers[1][0].q_proj.weight.detach())
        self.assertNotIn("b_q.L1", tensors)

    def test_what_a_sample_says_becomes_metadata(self):
        self.model("Llama", rope_parameters={"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0})
        _, metadata = self.record("--prompt-tokens", "20", "--decode-tokens", "0", more={"task": "niah", "needles": [[2, 5], [7, 8]], "question_begin": 15})
        self.assertEqual([metadata[key] for key in ("needles", "question_begin", "task", "prompt_tokens")], ["2-5,7-8", "15", "niah", "20"])
        self.assertEqual(json.loads(metadata["rope_scaling"]), {"factor": 2.0, "rope_type": "linear"})

    def test_what_is_refused(self):
        self.model("Mistral", sliding_window=16)
        with self.assertRaisesRegex(SystemExit, "layer 0 sees 16 tokens of 37; record fewer than its sliding window holds"):
            self.record()
        self.model("Llama")
        with self.assertRaisesRegex(SystemExit, "the input has 37 tokens, at least 38 are needed"):
            self.record("--prompt-tokens", "38")
        with self.assertRaisesRegex(SystemExit, "unknown key 'needle'"):
            self.record(more={"needle": []})


if __name__ == "__main__":
    unittest.main()
