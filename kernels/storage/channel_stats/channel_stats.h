#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

// One number per channel and row: the largest |x| or the mean square of keys, values or queries (of queries the mean square is
// averaged over the group's heads). Written to, multiplied into, or raising line `line[r]` of a table [*, head_dim] to at least that; rows
// with line -1 are left out. Without tokens the number is 0.
struct ChannelStats {
  enum class Source : std::uint8_t { kKeys, kValues, kQueries };
  enum class Kind : std::uint8_t { kMaxAbs, kMeanSquare };
  enum class Into : std::uint8_t { kWrite, kMultiply, kRaise };
  KvRows kv;
  Source source = Source::kKeys;
  Kind kind = Kind::kMaxAbs;
  const ListedTokens* listed = nullptr;  // keys or values to include; null: all that the rows hold
  const Queries* queries = nullptr;      // [num_sequences]
  const std::int32_t* line = nullptr;    // [num_rows]
  Into into = Into::kWrite;
  float* out = nullptr;  // [*, head_dim]
};
// Every vector is read once (queries at 2 bytes per element), the lines are written in fp32; two operations per element.
OpCall call(const ChannelStats&);
void run_cpu(const ChannelStats&);
void run_cuda(const ChannelStats&, CudaContext&);

}  // namespace kvlab
