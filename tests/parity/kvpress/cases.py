"""The presses that run_kvpress.py records, with their arguments."""

import dataclasses

import kvpress
import numpy as np
import safetensors.numpy

LAZY_THRESHOLD = 0.6
RATIOS = (0.13, 0.5, 0.77)
# DMS has a threshold in place of a ratio.
NORM_THRESHOLDS = {0.13: -22.0, 0.5: -18.0, 0.77: -15.0}
COSINE_THRESHOLDS = {0.13: -0.9, 0.5: -0.7, 0.77: -0.5}
# DuoAttention's scores of heads [layer, KV head]; the smaller ones stream.
HEAD_SCORES = np.array([[7 * (2 * layer + head) % 16 for head in range(2)] for layer in range(8)]) / 16


@dataclasses.dataclass
class Case:
    """make(ratio, n, question_tokens) builds the press; head and tail count the protected tokens; attn is the attention used."""

    make: object
    head: int = 0
    tail: int = 0  # -1: the question (Finch)
    attn: str = "eager"


def snapkv(r):
    return kvpress.SnapKVPress(r, window_size=64, kernel_size=5)


def expected(r, **arguments):
    return kvpress.ExpectedAttentionPress(r, **arguments)


def finch(r, chunk_length=None, **arguments):
    return kvpress.FinchPress(r, chunk_length=chunk_length, **arguments)


def simlayer(r, n):
    # A lazy layer keeps n_initial + n_recent - n_last tokens: make that the budget of the other presses.
    return kvpress.SimLayerKVPress(lazy_threshold=LAZY_THRESHOLD, n_last=1, n_recent=int(n * (1 - r)) - 3, n_initial=4)


def layer_ratios(r):
    """Ratios of PerLayerCompressionPress: the first layers keep more than the last ones, about r on average."""
    return [min(0.95, r * (0.6 + 0.1 * layer)) for layer in range(8)]


def budget_curves(r):
    """LU-KV's curves [99, layers, KV heads] of dropped shares: made up here, since it ships none for this model."""
    heads = np.array([[0.8 + 0.05 * layer, 1.1 - 0.03 * layer] for layer in range(8)])
    return np.stack([np.minimum(0.97, (i + 1) / 100 * heads) for i in range(99)])


def lukv(r):
    press = kvpress.LUKVPress(kvpress.ExpectedAttentionPress(epsilon=0.02), compression_ratio=r)
    press._budget_curves = budget_curves(r)
    return press


def duo(r):
    press = kvpress.DuoAttentionPress(head_compression_ratio=r, on_the_fly_scoring=True)
    return press


CASES = {
    "streaming_llm": Case(lambda r, n, w: kvpress.StreamingLLMPress(r, n_sink=4)),
    "knorm": Case(lambda r, n, w: kvpress.KnormPress(r)),
    "random": Case(lambda r, n, w: kvpress.RandomPress(r, seed=7)),
    "snapkv": Case(lambda r, n, w: snapkv(r), tail=64),
    "tova": Case(lambda r, n, w: kvpress.TOVAPress(r), tail=1),
    "observed_attention": Case(lambda r, n, w: kvpress.ObservedAttentionPress(r)),
    "expected_attention": Case(lambda r, n, w: expected(r), head=4),
    "expected_mean": Case(lambda r, n, w: expected(r, use_covariance=False, epsilon=0.02), head=4),
    "pyramidkv": Case(lambda r, n, w: kvpress.PyramidKVPress(r, window_size=16, kernel_size=5, beta=4), tail=16),
    "pyramidkv_default": Case(lambda r, n, w: kvpress.PyramidKVPress(r, window_size=64, kernel_size=5, beta=20), tail=64),
    "lagkv": Case(lambda r, n, w: kvpress.LagKVPress(r, n_sink=4, lag_size=32)),
    "lagkv_default": Case(lambda r, n, w: kvpress.LagKVPress(r, n_sink=4, lag_size=128)),
    "lagkv_cross": Case(lambda r, n, w: kvpress.LagKVPress(r, n_sink=4, lag_size=128, cross_scoring=True)),
    "keydiff": Case(lambda r, n, w: kvpress.KeyDiffPress(r)),
    "key_rerotation": Case(lambda r, n, w: kvpress.KeyRerotationPress(kvpress.KnormPress(r))),
    "simlayerkv": Case(lambda r, n, w: simlayer(r, n)),
    "per_layer": Case(lambda r, n, w: kvpress.PerLayerCompressionPress(kvpress.KnormPress(), layer_ratios(r))),
    "chunkkv": Case(lambda r, n, w: kvpress.ChunkKVPress(snapkv(r), chunk_length=20), tail=64, attn="sdpa"),
    "chunkkv_knorm": Case(lambda r, n, w: kvpress.ChunkKVPress(kvpress.KnormPress(r), chunk_length=20), attn="sdpa"),
    "chunkkv_long": Case(lambda r, n, w: kvpress.ChunkKVPress(snapkv(r), chunk_length=300), tail=64, attn="sdpa"),
    "entropy_chunkkv": Case(lambda r, n, w: kvpress.EntropyGatedChunkKVPress(snapkv(r)), attn="sdpa"),
    "entropy_knorm": Case(lambda r, n, w: kvpress.EntropyGatedChunkKVPress(kvpress.KnormPress(r)), attn="sdpa"),
    "criticalkv": Case(lambda r, n, w: kvpress.CriticalKVPress(snapkv(r))),
    "criticalkv_expected": Case(lambda r, n, w: kvpress.CriticalKVPress(expected(r, use_vnorm=False))),
    "criticalkv_knorm": Case(lambda r, n, w: kvpress.CriticalKVPress(kvpress.KnormPress(r))),
    "cur": Case(lambda r, n, w: kvpress.CURPress(r), head=4),
    "cur_key": Case(lambda r, n, w: kvpress.CURPress(r, leverage_type="key"), head=4),
    "cur_value": Case(lambda r, n, w: kvpress.CURPress(r, leverage_type="value"), head=4),
    "cur_mean": Case(lambda r, n, w: kvpress.CURPress(r, leverage_type="kv_avg"), head=4),
    "cur_global": Case(lambda r, n, w: kvpress.CURPress(r, use_local_approximation=False), head=4),
    "finch": Case(lambda r, n, w: finch(r), tail=-1),
    "finch_unweighed": Case(lambda r, n, w: finch(r, normalize_scores=False), tail=-1),
    "finch_chunked": Case(lambda r, n, w: finch(r, 256), tail=-1),
    "think": Case(lambda r, n, w: kvpress.ThinKPress(r, window_size=32)),
    "kvzip": Case(lambda r, n, w: kvpress.KVzipPress(r), attn="sdpa"),
    "kvzip_layerwise": Case(lambda r, n, w: kvpress.KVzipPress(r, layerwise=True), attn="sdpa"),
    "kvzip_plus": Case(lambda r, n, w: kvpress.KVzipPress(r, kvzip_plus_normalization=True), attn="sdpa"),
    "kvgrad": Case(lambda r, n, w: kvpress.KVgradPress(r), attn="sdpa"),
    "kvgrad_layerwise": Case(lambda r, n, w: kvpress.KVgradPress(r, layerwise=True), attn="sdpa"),
    "kvcompose": Case(lambda r, n, w: kvpress.KVComposePress(compression_ratio=r)),
    "kvcompose_heads": Case(lambda r, n, w: kvpress.KVComposePress(structured=False, compression_ratio=r)),
    "adakv": Case(lambda r, n, w: kvpress.AdaKVPress(snapkv(r)), tail=64, attn="sdpa"),
    "adakv_expected": Case(lambda r, n, w: kvpress.AdaKVPress(expected(r)), head=4, attn="sdpa"),
    "adakv_knorm": Case(lambda r, n, w: kvpress.AdaKVPress(kvpress.KnormPress(r)), attn="sdpa"),
    "adakv_keydiff": Case(lambda r, n, w: kvpress.AdaKVPress(kvpress.KeyDiffPress(r)), attn="sdpa"),
    "adakv_critical": Case(lambda r, n, w: kvpress.AdaKVPress(kvpress.CriticalKVPress(snapkv(r))), attn="sdpa"),
    "critical_adakv": Case(lambda r, n, w: kvpress.CriticalAdaKVPress(snapkv(r)), tail=64, attn="sdpa"),
    "duo": Case(lambda r, n, w: duo(r), attn="sdpa"),
    "dms_knorm": Case(lambda r, n, w: kvpress.DMSPress(kvpress.KnormPress(), threshold=NORM_THRESHOLDS[r]), attn="sdpa"),
    "dms_keydiff": Case(lambda r, n, w: kvpress.DMSPress(kvpress.KeyDiffPress(), threshold=COSINE_THRESHOLDS[r]), attn="sdpa"),
    "lukv": Case(lambda r, n, w: lukv(r), attn="sdpa"),
    "merging": Case(lambda r, n, w: kvpress.MergingPress(snapkv(r)), tail=64),
    "non_causal": Case(lambda r, n, w: kvpress.NonCausalAttnPress(r, chunk_size=256)),
    "compactor": Case(lambda r, n, w: kvpress.CompactorPress(r, blending=0.0)),
    "block_keydiff": Case(lambda r, n, w: kvpress.BlockPress(kvpress.KeyDiffPress(r), block_size=128), attn="sdpa"),
    "block_knorm": Case(lambda r, n, w: kvpress.BlockPress(kvpress.KnormPress(r), block_size=128), attn="sdpa"),
    "chunk_knorm": Case(lambda r, n, w: kvpress.ChunkPress(kvpress.KnormPress(r), chunk_length=256), attn="sdpa"),
    "chunk_keydiff": Case(lambda r, n, w: kvpress.ChunkPress(kvpress.KeyDiffPress(r), chunk_length=256), attn="sdpa"),
    "chunk_expected": Case(lambda r, n, w: kvpress.ChunkPress(expected(r), chunk_length=300), attn="sdpa"),
    "capkv": Case(lambda r, n, w: kvpress.CapPress(r), head=4),
}


if __name__ == "__main__":
    curves = np.ascontiguousarray(budget_curves(0), dtype=np.float32)
    safetensors.numpy.save_file({"prune_ratios": curves}, "lukv_curves.safetensors")
