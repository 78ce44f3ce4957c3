"""The presses that run_kvpress.py records, with their arguments."""

import dataclasses

import kvpress

FINCH_DELIMITER = 259  # an unused row of the vocabulary
LAZY_THRESHOLD = 0.6


@dataclasses.dataclass
class Case:
    """make(ratio, n, question_tokens) builds the press; head and tail count the protected tokens; attn is the attention used."""

    make: object
    head: int = 0
    tail: int = 0  # -1: the question (Finch)
    attn: str = "eager"


def snapkv(r):
    return kvpress.SnapKVPress(r, window_size=64, kernel_size=5)


def finch(r, chunk_length=None):
    press = kvpress.FinchPress(r, chunk_length=chunk_length)
    press.delimiter_token_id = FINCH_DELIMITER
    return press


def simlayer(r, n):
    # A lazy layer keeps n_initial + n_recent - n_last tokens: make that the budget of the other presses.
    return kvpress.SimLayerKVPress(lazy_threshold=LAZY_THRESHOLD, n_last=1, n_recent=int(n * (1 - r)) - 3, n_initial=4)


CASES = {
    "streaming_llm": Case(lambda r, n, w: kvpress.StreamingLLMPress(r, n_sink=4)),
    "knorm": Case(lambda r, n, w: kvpress.KnormPress(r)),
    "snapkv": Case(lambda r, n, w: snapkv(r), tail=64),
    "tova": Case(lambda r, n, w: kvpress.TOVAPress(r), tail=1),
    "observed_attention": Case(lambda r, n, w: kvpress.ObservedAttentionPress(r)),
    "expected_attention": Case(lambda r, n, w: kvpress.ExpectedAttentionPress(r), head=4),
    "pyramidkv": Case(lambda r, n, w: kvpress.PyramidKVPress(r, window_size=16, kernel_size=5, beta=4), tail=16),
    "pyramidkv_default": Case(lambda r, n, w: kvpress.PyramidKVPress(r, window_size=64, kernel_size=5, beta=20), tail=64),
    "lagkv": Case(lambda r, n, w: kvpress.LagKVPress(r, n_sink=4, lag_size=32)),
    "lagkv_default": Case(lambda r, n, w: kvpress.LagKVPress(r, n_sink=4, lag_size=128)),
    "keydiff": Case(lambda r, n, w: kvpress.KeyDiffPress(r)),
    "simlayerkv": Case(lambda r, n, w: simlayer(r, n)),
    "chunkkv": Case(lambda r, n, w: kvpress.ChunkKVPress(snapkv(r), chunk_length=20), tail=64, attn="sdpa"),
    "criticalkv": Case(lambda r, n, w: kvpress.CriticalKVPress(snapkv(r))),
    "criticalkv_expected": Case(
        lambda r, n, w: kvpress.CriticalKVPress(kvpress.ExpectedAttentionPress(r, use_vnorm=False))
    ),
    "cur": Case(lambda r, n, w: kvpress.CURPress(r), head=4),
    "finch": Case(lambda r, n, w: finch(r), tail=-1),
    "finch_chunked": Case(lambda r, n, w: finch(r, 256), tail=-1),
    "think": Case(lambda r, n, w: kvpress.ThinKPress(r, window_size=32)),
    "kvzip": Case(lambda r, n, w: kvpress.KVzipPress(r), attn="sdpa"),
    "kvzip_layerwise": Case(lambda r, n, w: kvpress.KVzipPress(r, layerwise=True), attn="sdpa"),
    "kvzip_plus": Case(lambda r, n, w: kvpress.KVzipPress(r, kvzip_plus_normalization=True), attn="sdpa"),
    "adakv": Case(lambda r, n, w: kvpress.AdaKVPress(snapkv(r)), tail=64, attn="sdpa"),
    "adakv_expected": Case(lambda r, n, w: kvpress.AdaKVPress(kvpress.ExpectedAttentionPress(r)), head=4, attn="sdpa"),
    "adakv_knorm": Case(lambda r, n, w: kvpress.AdaKVPress(kvpress.KnormPress(r)), attn="sdpa"),
    "critical_adakv": Case(lambda r, n, w: kvpress.CriticalAdaKVPress(snapkv(r)), tail=64, attn="sdpa"),
    "non_causal": Case(lambda r, n, w: kvpress.NonCausalAttnPress(r, chunk_size=256)),
    "block_keydiff": Case(lambda r, n, w: kvpress.BlockPress(kvpress.KeyDiffPress(r), block_size=128), attn="sdpa"),
    "chunk_knorm": Case(lambda r, n, w: kvpress.ChunkPress(kvpress.KnormPress(r), chunk_length=256), attn="sdpa"),
    "capkv": Case(lambda r, n, w: kvpress.CapPress(r), head=4),
}
