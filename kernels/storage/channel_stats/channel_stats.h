#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

// One number per channel and row: the largest |x| or the mean square of keys, values or queries (of queries the mean square is
// averaged over the group's heads). Written to, or multiplied into, line `line[r]` of a table [*, head_dim]; rows with line -1 are
// left out. Without tokens the number is 0.
struct ChannelStats {
  enum class Source : std::uint8_t { kKeys, kValues, kQueries };
  enum class Kind : std::uint8_t { kMaxAbs, kMeanSquare };
  KvRows kv;
  Source source = Source::kKeys;
  Kind kind = Kind::kMaxAbs;
  const ListedTokens* listed = nullptr;  // keys or values to include; null: all that the rows hold
  const Queries* queries = nullptr;      // [num_sequences]
  const std::int32_t* line = nullptr;    // [num_rows]
  bool multiplies = false;
  float* out = nullptr;  // [*, head_dim]
};
// Every vector is read once (queries at 2 bytes per element), the lines are written in fp32; two operations per element.
OpCall call(const ChannelStats&);
void run_cpu(const ChannelStats&);
void run_cuda(const ChannelStats&, CudaContext&);

// Turns lines of largest |x| per channel into the divisors of SmoothAttention (QServe, Lin et al. 2024, arXiv:2405.04532, section
// 4.2): lambda_c = m_c^exponent; with `pairs` both channels of a RoPE pair (c, c + d / 2) take the larger m, so that lambda commutes
// with the rotation. After that the `outliers` channels with the largest m_c / lambda_c (ties to the lower channel) are divided
// further, by their ratio to the median. A channel of zeros has lambda 1. In place.
struct SmoothChannels {
  std::int32_t num_rows = 0, head_dim = 0;
  const std::int32_t* line = nullptr;  // [num_rows], -1: left out
  float exponent = 0.5F;
  bool pairs = false;
  std::int32_t outliers = 0;
  float* lines = nullptr;  // [*, head_dim]
};
// Lines are read and written; a power counts as 10 operations, the median as 2 more per channel.
OpCall call(const SmoothChannels&);
void run_cpu(const SmoothChannels&);
void run_cuda(const SmoothChannels&, CudaContext&);

}  // namespace kvlab
