#pragma once

#include <cstdint>
#include <span>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

// CacheGen's transfer codec (Liu et al. 2023, arXiv:2310.07240, section 5.2). The first of a group of listed tokens, the anchor, is
// quantized to 255 levels, the others as differences to the decoded anchor to levels - 1 levels, uniform and symmetric, one fp16 scale of
// max |x| per token. The listed vectors become decoded numbers. bytes[r] grows by scales, anchors at a byte per number, and differences at
// their empirical entropy over this list, per (row, channel); tables are known to both ends.
struct DeltaCode {
  ListedTokens tokens;
  std::int32_t group_tokens = 10, levels = 16;
  std::int32_t* bytes = nullptr;  // [num_rows] in and out, real memory; untouched on shapes
};
// Bits of symbols with these counts.
double entropy_bits(std::span<const std::int32_t> counts);
// Bytes at ceil(log2(levels)) bits per difference.
std::int64_t delta_code_bound(std::int64_t tokens, std::int64_t head_dim, std::int32_t group_tokens, std::int32_t levels);

// Writes are priced at the bound.
OpCall call(const DeltaCode&);
void run_cpu(const DeltaCode&);
void run_cuda(const DeltaCode&, CudaContext&);  // `bytes` is in CPU memory; waits for the stream.

}  // namespace kvlab
