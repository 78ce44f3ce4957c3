"""Tests of profiles/aisimulate/ over made-up parquet tables. Run: python3 tests/profiles/test_aisimulate.py"""

import contextlib
import importlib.util
import io
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "profiles" / "aisimulate"))

import pandas as pd  # noqa: E402

import convert  # noqa: E402
import fit_roofline  # noqa: E402
import tables  # noqa: E402

CARD = tables.Card(memory_bytes_per_s=1e12, l2_bytes=1e6, bf16_flops=1e15, fp8_flops=2e15)
NO_ARGUMENTS = SimpleNamespace(routing="power_law_1.2")


def attention(rows, step=0, **more):
    """Rows of (batch, isl or context, KV heads, milliseconds) for 8 query heads of 128."""
    decode = step == 1
    frame = pd.DataFrame([{"batch_size": b, "isl": 1 if decode else n, "step": n - 1 if decode else 0, "num_heads": 8, "num_key_value_heads": kv,
                           "head_dim": 128, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0, "kernel_source": "a",
                           "latency": ms} for b, n, kv, ms in rows])
    return frame.assign(**more)


class Tables(unittest.TestCase):
    def setUp(self):
        self.notes = []

    def test_products_become_nanoseconds_by_type(self):
        frame = pd.DataFrame({"gemm_dtype": ["bfloat16", "bfloat16", "fp8"], "m": [2, 1, 1], "n": 16, "k": 32, "latency": [0.003, 0.002, 0.001],
                              "kernel_source": "a"})
        made = tables.gemm(frame, CARD, NO_ARGUMENTS, self.notes)
        self.assertEqual(sorted(made), ["gemm_bfloat16", "gemm_fp8"])
        self.assertEqual(made["gemm_bfloat16"].columns.tolist(), ["n", "k", "m", "time_ns"])
        self.assertEqual(made["gemm_bfloat16"].to_numpy().tolist(), [[16, 32, 1, 2000], [16, 32, 2, 3000]])
        self.assertEqual(self.notes, [])

    def test_impossible_rows_are_left_out_and_counted(self):
        # 64 x 65,536 tokens of 8 KV heads are 17 GB of K and V: 17 ms at 1 TB/s.
        made = tables.decode(attention([(64, 65536, 8, 10.0), (64, 65536, 4, 20.0), (1, 128, 8, 0.01)], step=1), CARD, NO_ARGUMENTS, self.notes)
        rows = made["attention_decode_bfloat16"]
        self.assertEqual(rows.kv_heads.tolist(), [4, 8])
        self.assertEqual(rows.context.tolist(), [65536, 128])
        self.assertEqual(self.notes, ["lint: 1 of 3 decode attention bfloat16 rows are faster than the memory or the peak rate, left out"])

    def test_rows_that_a_cache_explains_stay(self):
        made = tables.decode(attention([(1, 128, 8, 1e-4)], step=1), CARD, NO_ARGUMENTS, self.notes)  # 0.5 MB in 0.1 us
        self.assertEqual(len(made["attention_decode_bfloat16"]), 1)
        self.assertEqual(self.notes, [])

    def test_rows_faster_than_the_peak_rate(self):
        frame = pd.DataFrame({"gemm_dtype": ["bfloat16", "fp8"], "m": 8192, "n": 8192, "k": 8192, "latency": [0.8, 0.8], "kernel_source": "a"})
        made = tables.gemm(frame, CARD, NO_ARGUMENTS, self.notes)  # 1.1e12 FLOPs: 1.1 ms, or 0.55 in fp8
        self.assertEqual([len(made.get(f"gemm_{t}", [])) for t in ("bfloat16", "fp8")], [0, 1])
        self.assertEqual(len(self.notes), 1)

    def test_repeats_are_averaged_and_the_faster_kernel_counts(self):
        frame = pd.concat([attention([(1, 128, 8, 0.01), (1, 128, 8, 0.03)], step=1), attention([(1, 128, 8, 0.05)], step=1, kernel_source="b")])
        made = tables.decode(frame, CARD, NO_ARGUMENTS, self.notes)
        self.assertEqual(made["attention_decode_bfloat16"].time_ns.tolist(), [20000])
        self.assertIn("1 times of slower kernels", self.notes[0])

    def test_a_prompt_more_in_a_call(self):
        made = tables.prefill(attention([(1, 128, 8, 0.010), (2, 128, 8, 0.012), (8, 128, 8, 0.031), (1, 256, 8, 0.020)]), CARD, NO_ARGUMENTS, self.notes)
        rows = made["attention_prefill_bfloat16"]
        self.assertEqual(rows.tokens.tolist(), [128, 256])
        self.assertEqual(rows.time_ns.round(3).tolist(), [10000, 20000])
        self.assertEqual(rows.more_ns.round(3).tolist(), [3000, 20000])  # (31 - 10) / 7 us; as alone where one was measured

    def test_other_types_of_attention_are_named(self):
        frame = pd.concat([attention([(1, 128, 8, 0.01)]), attention([(1, 128, 8, 0.01)], attn_dtype="fp8")])
        tables.prefill(frame, None, NO_ARGUMENTS, self.notes)
        self.assertEqual(self.notes, ["prefill attention: 1 rows that attend in fp8 are left out"])

    def test_experts_of_one_routing(self):
        frame = pd.DataFrame({"moe_dtype": "fp8", "num_tokens": [1, 1], "hidden_size": 64, "inter_size": 32, "topk": 2, "num_experts": 8,
                              "moe_tp_size": 1, "moe_ep_size": 2, "distribution": ["balanced", "power_law_1.2"], "latency": [0.1, 0.2]})
        made = tables.moe(frame, CARD, NO_ARGUMENTS, self.notes)
        self.assertEqual(made["moe_fp8"].to_numpy().tolist(), [[64, 32, 8, 2, 1, 2, 1, 200000]])
        self.assertEqual(tables.moe(frame, CARD, SimpleNamespace(routing="none"), self.notes), {})
        self.assertIn("there is balanced, power_law_1.2", self.notes[-1])


class Collectives(unittest.TestCase):
    NCCL = pd.DataFrame([{"op_name": op, "nccl_dtype": dtype, "num_gpus": gpus, "message_size": size, "latency": size / 1e6}
                         for op in ("all_reduce", "all_gather", "alltoall") for dtype in ("half", "int8") for gpus in (2, 4) for size in (512, 4096)])

    def test_sizes_are_elements_of_two_bytes(self):
        made = tables.collectives(None, [self.NCCL], [])
        self.assertEqual(sorted(made), ["all_gather", "all_reduce", "all_to_all"])
        self.assertEqual(made["all_to_all"].columns.tolist(), ["bytes", "ranks", "time_ns"])
        self.assertEqual(made["all_to_all"].iloc[0].tolist(), [1024, 2, 512])

    def test_the_engines_own_all_reduce_up_to_its_last_size(self):
        custom = pd.DataFrame({"num_gpus": 2, "message_size": [512, 512], "latency": [0.02, 0.004], "backend": ["vllm_eager", "vllm_graph"]})
        rows = tables.collectives(custom, [self.NCCL], [])["all_reduce"]
        self.assertEqual(rows.to_numpy().tolist(), [[1024, 2, 4000], [8192, 2, 4096], [1024, 4, 512], [8192, 4, 4096]])

    def test_disturbed_messages_are_left_out_and_counted(self):
        slow = pd.DataFrame([{"op_name": "all_gather", "nccl_dtype": "half", "num_gpus": 2, "message_size": size, "latency": ms}
                             for size, ms in ((256, 0.0054), (512, 0.02), (1024, 0.005), (2048, 0.006))])
        notes = []
        rows = tables.collectives(None, [slow], notes)["all_gather"]
        self.assertEqual(rows.to_numpy().tolist(), [[512, 2, 5400], [2048, 2, 5000], [4096, 2, 6000]])
        self.assertEqual(notes, ["all_gather: 1 of 4 messages took longer than longer ones, left out"])

    def test_the_newest_nccl_that_has_it(self):
        newer = pd.DataFrame([{"op_name": "all_gather", "nccl_dtype": "half", "num_gpus": 2, "message_size": 512, "latency": 1.0}])
        made = tables.collectives(None, [newer, self.NCCL], [])
        self.assertEqual(made["all_gather"].time_ns.tolist(), [1e6])
        self.assertEqual(len(made["all_reduce"]), 4)


@unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "pyarrow is not installed: parquet files cannot be written")
class Conversion(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvlab_aisimulate_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.data, self.out = self.folder / "data", self.folder / "out"
        for version in ("0.9.1", "0.24.0"):
            gemm = pd.DataFrame({"gemm_dtype": "bfloat16", "m": [1, 2], "n": 16, "k": 16, "latency": 0.002, "device": "Tiny", "kernel_source": "a"})
            self.write(f"gemm/vllm/{version}/gemm_perf", gemm)
            self.write(f"attention/vllm/{version}/generation_attention_perf", attention([(1, 128, 8, 0.01)], step=1))
            self.write(f"attention/vllm/{version}/context_attention_perf", attention([(1, 128, 8, 0.01)]))
        self.write("comm/nccl/2.29.2/nccl_perf", Collectives.NCCL)
        moe = {"moe_dtype": "fp8", "num_tokens": 1, "hidden_size": 64, "inter_size": 32, "topk": 2, "num_experts": 8, "moe_tp_size": 1,
               "moe_ep_size": 1, "distribution": "power_law_1.2", "latency": 0.2}
        self.write("moe/vllm/0.9.1/moe_perf", pd.DataFrame([moe]))

    def write(self, name, frame):
        file = self.data / "h100_sxm" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(file)

    def convert(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            convert.main([str(self.data), *arguments])
        return out.getvalue()

    def test_writes_a_folder(self):
        said = self.convert("--system", "h100_sxm", "--version", "0.24.0", "--out", str(self.out))
        names = ["all_gather", "all_reduce", "all_to_all", "attention_decode_bfloat16", "attention_prefill_bfloat16", "gemm_bfloat16", "moe_fp8"]
        self.assertEqual(sorted(p.stem for p in self.out.glob("*.csv")), names)
        self.assertIn("note: moe_perf.parquet is of vllm 0.9.1: 0.24.0 has none", said)
        self.assertEqual((self.out / "gemm_bfloat16.csv").read_text(), "n,k,m,time_ns\n16,16,1,2000.000\n16,16,2,2000.000\n")
        meta = (self.out / "meta.yaml").read_text()
        for line in ("tables: by_shape", 'hardware: "h100"', 'device: "Tiny"', 'version: "0.24.0"'):
            self.assertIn(line, meta.splitlines())

    def test_a_second_conversion_replaces_the_first_and_nothing_else(self):
        arguments = ("--system", "h100_sxm", "--version", "0.24.0", "--out", str(self.out))
        self.convert(*arguments)
        self.convert(*arguments)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.endswith(".part")], [])
        other = self.folder / "other"
        other.mkdir()
        (other / "mine.txt").write_text("kept")
        with self.assertRaisesRegex(convert.ConvertError, "exists and is no conversion"):
            self.convert("--system", "h100_sxm", "--version", "0.24.0", "--out", str(other))
        self.assertEqual((other / "mine.txt").read_text(), "kept")

    def test_names_that_are_not_there(self):
        for arguments, said in ((("--system", "h10", "--version", "0.24.0"), "no system 'h10': there is h100_sxm"),
                                (("--system", "h100_sxm", "--backend", "trt", "--version", "1"), "no gemm tables of 'trt': there is vllm"),
                                (("--system", "h100_sxm", "--version", "0.30"), "vllm '0.30': there is 0.9.1, 0.24.0"),
                                (("--system", "h100_sxm"), "--system and --version are needed")):
            with self.assertRaisesRegex(convert.ConvertError, said):
                self.convert(*arguments, "--out", str(self.out))
        self.assertFalse(self.out.exists())

    def test_lists_what_there_is(self):
        self.assertEqual(self.convert("--list"), "h100_sxm vllm 0.9.1: attention gemm moe\nh100_sxm vllm 0.24.0: attention gemm\n")


class RooflineFit(unittest.TestCase):
    """Times made by the roofline itself give its floor and its efficiency back."""

    def test_products(self):
        shapes = [(m, n, k) for m in (1, 64, 1024, 8192) for n in (2048, 8192) for k in (1024, 4096)]
        rows = pd.DataFrame(shapes, columns=["m", "n", "k"])
        flops, moved = 2.0 * rows.m * rows.n * rows.k, 2 * (rows.m * rows.k + rows.n * rows.k + rows.m * rows.n)
        rows["time_ns"] = 5000 + (flops / 1e15 / 0.6).combine(moved / 0.8e12, max) * 1e9
        (error, floor, frac), used = fit_roofline.fit_products(rows, 2, 1e15, 0.8e12)
        self.assertEqual((floor, round(frac, 2), used), (5, 0.6, len(rows)))
        self.assertLess(error, 1e-9)

    def test_decode_attention(self):
        shapes = [(rows, context, kv) for rows in (1, 32, 256) for context in (128, 4096) for kv in (1, 8)]
        rows = pd.DataFrame(shapes, columns=["rows", "context", "kv_heads"]).assign(q_heads=32, head_dim=128, window=0)
        moved = rows.rows * (rows.context * rows.kv_heads + 32) * 128 * 4
        rows["time_ns"] = 8000 + moved / 1e12 / 0.5 * 1e9
        others = rows.assign(window=1024, time_ns=1.0)
        (error, floor, frac), used, count = fit_roofline.fit_decode(pd.concat([rows, others]), 1e12, 0.8)
        self.assertEqual((floor, round(frac, 2), count), (8, 0.5, len(rows)))
        self.assertLess(error, 1e-9)
        self.assertGreater(used, 0.01)


class Versions(unittest.TestCase):
    def test_order(self):
        names = ["1.3.0", "0.24.0", "1.3.0rc20", "0.9.1", "1.3.0rc3"]
        self.assertEqual(sorted(names, key=convert.version_key), ["0.9.1", "0.24.0", "1.3.0rc3", "1.3.0rc20", "1.3.0"])


if __name__ == "__main__":
    unittest.main(verbosity=1)
