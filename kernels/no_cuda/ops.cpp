// The symbols of kernels/*/*.cu in a program built without CUDA: each throws.
#include "kernels/anchor_cosine/anchor_cosine.h"
#include "kernels/append_kv/append_kv_cuda.h"
#include "kernels/append_kv/append_rows.h"
#include "kernels/attend/attend.h"
#include "kernels/attention_decode/attention_decode_cuda.h"
#include "kernels/attention_prefill/attention_prefill_cuda.h"
#include "kernels/attention_prefill/prefill_scores_cuda.h"
#include "kernels/attention_ring/attention_ring.h"
#include "kernels/attention_stats/attention_stats.h"
#include "kernels/balance_channels/balance_channels.h"
#include "kernels/block_max/block_max.h"
#include "kernels/cast/cast.h"
#include "kernels/channel_stats/channel_stats.h"
#include "kernels/chosen_heads/chosen_heads.h"
#include "kernels/chunk_attention/chunk_attention.h"
#include "kernels/chunk_outliers/chunk_outliers.h"
#include "kernels/chunk_pool/chunk_pool.h"
#include "kernels/cluster/cluster.h"
#include "kernels/compact/compact_cuda.h"
#include "kernels/compact/compact_rows.h"
#include "kernels/convert/convert_cuda.h"
#include "kernels/count_above/count_above.h"
#include "kernels/cuda/memory.h"
#include "kernels/delta_code/delta_code.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/diversify/diversify.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/exceeds/exceeds.h"
#include "kernels/expected_attention/expected_attention.h"
#include "kernels/exponent_code/exponent_code.h"
#include "kernels/fill_scores/fill_scores.h"
#include "kernels/gather_scores/gather_scores.h"
#include "kernels/halving_search/halving_search.h"
#include "kernels/head_votes/head_votes.h"
#include "kernels/hold_largest/hold_largest.h"
#include "kernels/keep_queries/keep_queries.h"
#include "kernels/key_codes/key_codes.h"
#include "kernels/key_dot/key_dot.h"
#include "kernels/key_leverage/key_leverage.h"
#include "kernels/key_runs/key_runs.h"
#include "kernels/lag_scores/lag_scores.h"
#include "kernels/layer_preference/layer_preference.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/list_dropped/list_dropped.h"
#include "kernels/low_bit_copy/low_bit_copy.h"
#include "kernels/low_rank/low_rank.h"
#include "kernels/mark_dropped/mark_dropped.h"
#include "kernels/mark_top/mark_top.h"
#include "kernels/mass_count/mass_count.h"
#include "kernels/mean_dropped/mean_dropped.h"
#include "kernels/mean_query/mean_query.h"
#include "kernels/merge_gate/merge_gate.h"
#include "kernels/merge_into/merge_into.h"
#include "kernels/merge_partials/merge_partials.h"
#include "kernels/merge_window/merge_window.h"
#include "kernels/nearest_kept/nearest_kept.h"
#include "kernels/nearest_keys/nearest_keys.h"
#include "kernels/outliers/outliers.h"
#include "kernels/pack_dropped/pack_dropped.h"
#include "kernels/page_bounds/page_bounds.h"
#include "kernels/page_copy/page_copy.h"
#include "kernels/page_means/page_means.h"
#include "kernels/page_scores/page_scores.h"
#include "kernels/partial_scores/partial_scores.h"
#include "kernels/pass_attention/pass_attention.h"
#include "kernels/pool1d/pool1d.h"
#include "kernels/probe_mean/probe_mean.h"
#include "kernels/probe_query/probe_query.h"
#include "kernels/projected_norms/projected_norms.h"
#include "kernels/protect/protect.h"
#include "kernels/protect_above_max/protect_above_max.h"
#include "kernels/protect_span/protect_span.h"
#include "kernels/prune_channels/prune_channels.h"
#include "kernels/quantize/quantize.h"
#include "kernels/query_basis/query_basis.h"
#include "kernels/query_drift/query_drift.h"
#include "kernels/query_moments/query_moments.h"
#include "kernels/rank_means/rank_means.h"
#include "kernels/reduce_heads/reduce_heads.h"
#include "kernels/representatives/representatives.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/scatter/scatter_cuda.h"
#include "kernels/score_map/score_map.h"
#include "kernels/score_variance/score_variance.h"
#include "kernels/sentences/sentences.h"
#include "kernels/share_out/share_out.h"
#include "kernels/silu_mul/silu_mul_cuda.h"
#include "kernels/slerp_pairs/slerp_pairs.h"
#include "kernels/span_mass/span_mass.h"
#include "kernels/span_quota/span_quota.h"
#include "kernels/sparq/sparq.h"
#include "kernels/sparsify/sparsify.h"
#include "kernels/standardize/standardize.h"
#include "kernels/sum_rows/sum_rows.h"
#include "kernels/take_due/take_due.h"
#include "kernels/tier_reuse/tier_reuse.h"
#include "kernels/token_copy/token_copy.h"
#include "kernels/token_norms/token_norms.h"
#include "kernels/token_scores/token_scores.h"
#include "kernels/token_stats/token_stats.h"
#include "kernels/top_direction/top_direction.h"
#include "kernels/top_k/top_k.h"
#include "kernels/tree_select/tree_select.h"
#include "kernels/unit_lists/unit_lists.h"
#include "kernels/value_leverage/value_leverage.h"
#include "kernels/whole_chunks/whole_chunks.h"
#include "kernels/window_moments/window_moments.h"
#include "kernels/word_scores/word_scores.h"

#define KVLAB_NO_CUDA(Op) \
  void run_cuda(const Op&, CudaContext&) { throw CudaError(why_no_gpu()); }

namespace kvlab {

KVLAB_NO_CUDA(AnchorCosine)
KVLAB_NO_CUDA(AppendKv)
KVLAB_NO_CUDA(AppendRows)
KVLAB_NO_CUDA(AssignCodes)
KVLAB_NO_CUDA(Attend)
KVLAB_NO_CUDA(AttentionStats)
KVLAB_NO_CUDA(BalanceChannels)
KVLAB_NO_CUDA(BlockMax)
KVLAB_NO_CUDA(Cast)
KVLAB_NO_CUDA(ChannelStats)
KVLAB_NO_CUDA(ChosenHeads)
KVLAB_NO_CUDA(ChunkAttention)
KVLAB_NO_CUDA(ChunkOutliers)
KVLAB_NO_CUDA(ChunkPool)
KVLAB_NO_CUDA(ClusterKeys)
KVLAB_NO_CUDA(ClusterThreshold)
KVLAB_NO_CUDA(ClusterTokens)
KVLAB_NO_CUDA(CodeScores)
KVLAB_NO_CUDA(ColumnBasis)
KVLAB_NO_CUDA(CompactRows)
KVLAB_NO_CUDA(ComposeUnits)
KVLAB_NO_CUDA(CountAbove)
KVLAB_NO_CUDA(CoverMass)
KVLAB_NO_CUDA(DeltaCode)
KVLAB_NO_CUDA(Dequantize)
KVLAB_NO_CUDA(DeviceConvert)
KVLAB_NO_CUDA(DeviceEmbedding)
KVLAB_NO_CUDA(DeviceGather)
KVLAB_NO_CUDA(DeviceLinear)
KVLAB_NO_CUDA(DeviceMergePartials)
KVLAB_NO_CUDA(DevicePrefill)
KVLAB_NO_CUDA(DevicePrefillScores)
KVLAB_NO_CUDA(DeviceProject)
KVLAB_NO_CUDA(DeviceRmsNorm)
KVLAB_NO_CUDA(DeviceRope)
KVLAB_NO_CUDA(DeviceSampling)
KVLAB_NO_CUDA(DeviceScatter)
KVLAB_NO_CUDA(DeviceSiluMul)
KVLAB_NO_CUDA(Diversify)
KVLAB_NO_CUDA(EntropyShare)
KVLAB_NO_CUDA(Exceeds)
KVLAB_NO_CUDA(ExpandUnits)
KVLAB_NO_CUDA(ExpectedAttention)
KVLAB_NO_CUDA(ExponentCode)
KVLAB_NO_CUDA(FetchCounts)
KVLAB_NO_CUDA(FillScores)
KVLAB_NO_CUDA(FlashPages)
KVLAB_NO_CUDA(GatherScores)
KVLAB_NO_CUDA(HalvingSearch)
KVLAB_NO_CUDA(HeadVotes)
KVLAB_NO_CUDA(HoldLargest)
KVLAB_NO_CUDA(KeepQueries)
KVLAB_NO_CUDA(KeepUnits)
KVLAB_NO_CUDA(KeyDot)
KVLAB_NO_CUDA(KeyLeverage)
KVLAB_NO_CUDA(KeyRuns)
KVLAB_NO_CUDA(LagScores)
KVLAB_NO_CUDA(LargestQueries)
KVLAB_NO_CUDA(LayerPreference)
KVLAB_NO_CUDA(ListDropped)
KVLAB_NO_CUDA(LowBitAttention)
KVLAB_NO_CUDA(LowBitCopy)
KVLAB_NO_CUDA(LowRankFactor)
KVLAB_NO_CUDA(LowRankRebuild)
KVLAB_NO_CUDA(LowerMarked)
KVLAB_NO_CUDA(MarkDropped)
KVLAB_NO_CUDA(MarkTop)
KVLAB_NO_CUDA(MaskEnds)
KVLAB_NO_CUDA(MassCount)
KVLAB_NO_CUDA(MeanDropped)
KVLAB_NO_CUDA(MeanQuery)
KVLAB_NO_CUDA(MergeBounds)
KVLAB_NO_CUDA(MergeGate)
KVLAB_NO_CUDA(MergeInto)
KVLAB_NO_CUDA(MergeWindow)
KVLAB_NO_CUDA(NearestAnchor)
KVLAB_NO_CUDA(NearestKept)
KVLAB_NO_CUDA(NearestKeys)
KVLAB_NO_CUDA(Outliers)
KVLAB_NO_CUDA(PackDropped)
KVLAB_NO_CUDA(PageBounds)
KVLAB_NO_CUDA(PageCopy)
KVLAB_NO_CUDA(PageMeans)
KVLAB_NO_CUDA(PageScores)
KVLAB_NO_CUDA(PagedDecode)
KVLAB_NO_CUDA(PartialScores)
KVLAB_NO_CUDA(PassAttention)
KVLAB_NO_CUDA(Pool1d)
KVLAB_NO_CUDA(ProbeMean)
KVLAB_NO_CUDA(ProbeQuery)
KVLAB_NO_CUDA(ProbeSums)
KVLAB_NO_CUDA(ProjectKeys)
KVLAB_NO_CUDA(ProjectedNorms)
KVLAB_NO_CUDA(Protect)
KVLAB_NO_CUDA(ProtectAboveMax)
KVLAB_NO_CUDA(ProtectSpan)
KVLAB_NO_CUDA(PruneChannels)
KVLAB_NO_CUDA(PushAttention)
KVLAB_NO_CUDA(Quantize)
KVLAB_NO_CUDA(QueryDrift)
KVLAB_NO_CUDA(QueryGram)
KVLAB_NO_CUDA(QueryMoments)
KVLAB_NO_CUDA(QueryRing)
KVLAB_NO_CUDA(RankMeans)
KVLAB_NO_CUDA(RankUnits)
KVLAB_NO_CUDA(ReduceHeads)
KVLAB_NO_CUDA(Representatives)
KVLAB_NO_CUDA(RestoreOutliers)
KVLAB_NO_CUDA(RingSums)
KVLAB_NO_CUDA(ScoreMap)
KVLAB_NO_CUDA(ScoreVariance)
KVLAB_NO_CUDA(SentenceMeans)
KVLAB_NO_CUDA(SentenceQuery)
KVLAB_NO_CUDA(ShareOut)
KVLAB_NO_CUDA(SlerpPairs)
KVLAB_NO_CUDA(SmoothChannels)
KVLAB_NO_CUDA(SpanMass)
KVLAB_NO_CUDA(SpanQuota)
KVLAB_NO_CUDA(SparqRest)
KVLAB_NO_CUDA(SparqScores)
KVLAB_NO_CUDA(Sparsify)
KVLAB_NO_CUDA(SplitListed)
KVLAB_NO_CUDA(SplitSentences)
KVLAB_NO_CUDA(Standardize)
KVLAB_NO_CUDA(SumRows)
KVLAB_NO_CUDA(TakeDue)
KVLAB_NO_CUDA(TakeRanked)
KVLAB_NO_CUDA(TakeSentences)
KVLAB_NO_CUDA(TierReuse)
KVLAB_NO_CUDA(TokenNorms)
KVLAB_NO_CUDA(TokenScores)
KVLAB_NO_CUDA(TokenStats)
KVLAB_NO_CUDA(TopDirection)
KVLAB_NO_CUDA(TopK)
KVLAB_NO_CUDA(TopKPooled)
KVLAB_NO_CUDA(TrackReuse)
KVLAB_NO_CUDA(TrainCodes)
KVLAB_NO_CUDA(TreeSelect)
KVLAB_NO_CUDA(TurnQueries)
KVLAB_NO_CUDA(Uncast)
KVLAB_NO_CUDA(UnionUnits)
KVLAB_NO_CUDA(Unsparsify)
KVLAB_NO_CUDA(ValueLeverage)
KVLAB_NO_CUDA(ValueSums)
KVLAB_NO_CUDA(VectorCopy)
KVLAB_NO_CUDA(WholeChunks)
KVLAB_NO_CUDA(WindowMoments)
KVLAB_NO_CUDA(WordCopy)
KVLAB_NO_CUDA(WordScores)

std::int32_t splits_of(const DevicePrefill&, const GpuInfo&) { return 1; }
std::vector<PrefillVariant> prefill_variants(std::int32_t) { return {}; }

}  // namespace kvlab
