#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

// Largest |x| or mean square per channel and row (of queries a mean over the group's heads). Written to, multiplied into, or raising line
// `line[r]` of a table [*, head_dim] to at least that; line -1: none. 0 without tokens.
struct ChannelStats {
  enum class Source : std::uint8_t { kKeys, kValues, kQueries };
  enum class Kind : std::uint8_t { kMaxAbs, kMeanSquare };
  enum class Into : std::uint8_t { kWrite, kMultiply, kRaise };
  KvRows kv;
  Source source = Source::kKeys;
  Kind kind = Kind::kMaxAbs;
  const ListedTokens* listed = nullptr;  // null: all tokens
  const Queries* queries = nullptr;      // [num_sequences]
  const std::int32_t* line = nullptr;    // [num_rows]
  Into into = Into::kWrite;
  float* out = nullptr;  // [*, head_dim]
};
OpCall call(const ChannelStats&);
void run_cpu(const ChannelStats&);
void run_cuda(const ChannelStats&, CudaContext&);

}  // namespace kvlab
