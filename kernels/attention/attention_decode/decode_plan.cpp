#include "kernels/attention/attention_decode/decode_plan.h"

#include <cmath>

#include "base/ceil_div.h"

namespace kvlab {

namespace {

struct Cost {
  double waves_tokens;  // token times of a full GPU
  std::int32_t chunk, splits;
};

// Overheads of a block and of a split row, in 16-bit tokens that a block streams on a full H100.
constexpr double kStartTokens = 40, kSplitTokens = 30;
// Speed-up of the only block on a GPU.
constexpr double kAlone = 2;

// `relative`: tokens of the format per 16-bit token, by bytes.
Cost cost_of(double rows, double tokens, std::int32_t longest, std::int32_t chunk, double resident, double relative) {
  const auto splits = static_cast<std::int32_t>(ceil_div(longest, chunk));
  const double blocks = std::clamp(tokens / chunk + (tokens < rows * longest ? rows / 2 : 0), rows, rows * splits);
  const double length = std::min<double>(chunk, longest) + relative * kStartTokens;
  const double waves = std::floor(blocks / resident), rest = blocks / resident - waves;
  const double all = length * (waves + (rest > 0 ? std::max(rest, 1 / kAlone) : 0));
  return {all + (splits > 1 ? relative * (kSplitTokens + splits) : 0), chunk, splits};
}

}  // namespace

std::span<const DecodeTuning> decode_tunings(KvFormat format, std::int32_t head_dim) { return decode::tunings(format, head_dim); }

DecodePlan plan_of(const PagedDecode& a, const GpuInfo& gpu) {
  const std::span<const DecodeTuning> tunings = decode_tunings(a.kv.format, a.kv.head_dim);
  const std::int32_t group = a.q_heads / a.kv.kv_heads;
  DecodePlan plan;
  plan.tuning = a.tuning;
  for (int i = 0; plan.tuning < 0 && i < static_cast<int>(tunings.size()); ++i)
    if (decode::shared_bytes(tunings[static_cast<std::size_t>(i)], a.kv.format, group, a.kv.head_dim) <= gpu.shared_bytes_per_block)
      plan.tuning = i;
  if (plan.tuning < 0 || plan.tuning >= static_cast<int>(tunings.size()))
    throw CudaError("attention_decode: no tuning " + std::to_string(a.tuning) + " of " + std::to_string(tunings.size()) + " for format " +
                    std::string(name_of(a.kv.format)) + " and head_dim " + std::to_string(a.kv.head_dim) + " that fits into the GPU's " +
                    std::to_string(gpu.shared_bytes_per_block) + " bytes of shared memory per block");
  const DecodeTuning& t = tunings[static_cast<std::size_t>(plan.tuning)];
  plan.shared_bytes = decode::shared_bytes(t, a.kv.format, group, a.kv.head_dim);
  const std::int64_t registers_allow = decode::blocks_for(t.blocks, group);
  const std::int64_t together =
      std::clamp<std::int64_t>((gpu.shared_bytes_per_block + 1024) / (plan.shared_bytes + 1024), 1, registers_allow);
  const auto resident = static_cast<double>(std::max<std::int64_t>(1, together * gpu.multiprocessors));
  // A chunk is whole units for each warp.
  const std::int32_t step = decode::unit_tokens(a.kv.format) * t.warps, longest = std::max(a.longest, 1);
  const std::int32_t most = std::min<std::int32_t>(decode::kMostSplits, ceil_div(longest, step));
  const double relative =
      64.0 * a.kv.head_dim / static_cast<double>(decode::unit_bytes(a.kv.format, a.kv.head_dim)) * decode::unit_tokens(a.kv.format) / 16;
  Cost best{0, 0, 0};
  for (std::int32_t splits = a.splits > 0 ? std::min(a.splits, most) : 1; splits <= most; ++splits) {
    const std::int32_t even = ceil_div(longest, splits), chunk = round_up(even, step);
    const Cost cost = cost_of(static_cast<double>(a.kv.num_rows), static_cast<double>(a.kv_tokens), longest, chunk, resident, relative);
    if (best.chunk == 0 || cost.waves_tokens < best.waves_tokens) best = cost;
    if (a.splits > 0) break;
  }
  plan.chunk_tokens = best.chunk, plan.splits = best.splits;
  return plan;
}

AttentionDecodeShape shape(const PagedDecode& a) {
  AttentionDecodeShape s;
  s.rows = a.kv.num_rows / a.kv.kv_heads;
  s.kv_tokens = a.kv_tokens / a.kv.kv_heads;
  s.q_heads = a.q_heads, s.kv_heads = a.kv.kv_heads, s.head_dim = a.kv.head_dim;
  s.kv_bytes = bits_of(a.kv.format) / 8;
  return s;
}

std::int64_t bytes(const PagedDecode& a) {
  const std::int64_t rows = a.kv.num_rows, group = a.q_heads / a.kv.kv_heads;
  if (rows == 0) return 0;
  const std::int64_t mean = a.kv_tokens / rows;
  // Row lengths are the mean and the mean + 1.
  const std::int64_t longer = a.kv_tokens - mean * rows;
  const auto pages = [&](std::int64_t len) { return ceil_div(len, a.kv.page_tokens); };
  std::int64_t sum =
      (rows - longer) * (row_bytes(a.kv, mean) + 4 * pages(mean)) + longer * (row_bytes(a.kv, mean + 1) + 4 * pages(mean + 1));
  sum += rows * (8 + group * a.kv.head_dim * (element_bytes(a.kv.type) + element_bytes(a.out_type)));
  if (a.log_sum != nullptr) sum += rows * group * 4;
  if (a.column_sum != nullptr || a.probabilities != nullptr) sum += a.kv_tokens * group * 8;  // logits, written and read
  if (a.column_sum != nullptr) sum += a.kv_tokens * 4;
  if (a.probabilities != nullptr) sum += a.kv_tokens * group * 4;
  return sum;
}

std::int64_t flops(const PagedDecode& a) { return a.kv.num_rows == 0 ? 0 : 4 * a.kv_tokens * (a.q_heads / a.kv.kv_heads) * a.kv.head_dim; }

KVLAB_WITHOUT_CUDA(PagedDecode)

}  // namespace kvlab
