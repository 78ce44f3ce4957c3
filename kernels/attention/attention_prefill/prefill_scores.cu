#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/attention_prefill/key_scores.cuh"
#include "kernels/attention/attention_prefill/prefill_kernel.cuh"

namespace kvlab {

namespace {

using namespace prefill;  // NOLINT

template <class T, int D>
void launch_scores(const ScoreArgs<T>& args, const DevicePrefillScores& a, CudaContext& cuda) {
  constexpr int kTiles = D <= 128 ? 2 : 1, kKeys = 16 * kTiles * kScoreWarps;
  if (static_cast<std::int64_t>(score_bytes(D, kTiles, false)) + kScoreStaticBytes > cuda.gpu().shared_bytes_per_block)
    refuse_shared_memory("prefill_scores", D, cuda.gpu());
  const auto blocks = static_cast<unsigned>(ceil_div<std::int64_t>(a.prefill.longest_kv, kKeys) * args.rows);
  const LaunchShape shape = blocks_of(blocks, kScoreThreads, score_bytes(D, kTiles, false));
  launch("prefill_scores", cuda, shape,
         a.by_head ? key_scores<T, D, kTiles, Scores::kByHead, false> : key_scores<T, D, kTiles, Scores::kSums, false>, args);
}

template <class T>
void run(const DevicePrefillScores& a, CudaContext& cuda) {
  const DevicePrefill& p = a.prefill;
  ScoreArgs<T> args{};
  args.q = static_cast<const T*>(p.q), args.k = static_cast<const T*>(p.k);
  args.query_first = p.query_first, args.kv_before = p.kv_before, args.page_begin = p.page_begin, args.page = p.page;
  args.first = a.first, args.log_sum = p.log_sum, args.sum = a.scores;
  args.q_stride = q_stride_of(p), args.tokens = p.tokens;
  args.rows = p.prompts * p.kv_heads, args.kv_heads = p.kv_heads, args.group = p.q_heads / p.kv_heads;
  std::int32_t columns = args.group;
  while (a.by_head && (columns & (columns - 1)) != 0) ++columns;
  args.columns = Divisor(columns);
  args.page_units = p.page_tokens / kPageUnit, args.window = p.window, args.last = a.last;
  args.adds = a.adds, args.scale = p.scale * kLog2E, args.factor = a.factor;
  for_value<64, 128, 256>(p.head_dim, [&](auto d) { launch_scores<T, decltype(d)::value>(args, a, cuda); });
}

}  // namespace

void run_cuda(const DevicePrefillScores& a, CudaContext& cuda) {
  if (a.prefill.prompts == 0) return;
  check(a.prefill, cuda.gpu());
  if (!a.prefill.causal) throw CudaError("prefill_scores: queries outside of the cache are not supported");
  if (a.prefill.longest_kv <= 0 && a.prefill.tokens > 0) throw CudaError("prefill_scores: needs longest_kv");
  if (a.prefill.type == ElementType::kF16)
    run<f16>(a, cuda);
  else
    run<bf16>(a, cuda);
}

}  // namespace kvlab
