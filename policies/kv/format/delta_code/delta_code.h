#pragma once

#include <cstdint>
#include <span>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

// CacheGen's transfer codec (Liu et al. 2023, arXiv:2310.07240, section 5.2). The listed tokens in groups: the first of a group, its
// anchor, is quantized to 255 levels, the others as differences to the decoded anchor to levels - 1 levels, both uniform and symmetric with
// one fp16 scale of max |x| per token. The symbols of the differences are entropy coded with one frequency table per (row, channel). The
// listed vectors then hold the decoded numbers; bytes[r] grows by what row r takes: scales, anchors raw at a byte per number, differences
// at their empirical entropy over this list (an arithmetic coder comes within a few bytes of it; the tables are known to both ends, as the
// paper profiles them per model).
struct DeltaCode {
  ListedTokens tokens;
  std::int32_t group_tokens = 10, levels = 16;
  std::int32_t* bytes = nullptr;  // [num_rows] in and out, real memory; untouched where only shapes are known
};
// Entropy in bits of symbols with these counts, coded at their own frequencies.
double entropy_bits(std::span<const std::int32_t> counts);
// The same bytes without data, at ceil(log2(levels)) bits per difference: a bound.
std::int64_t delta_code_bound(std::int64_t tokens, std::int64_t head_dim, std::int32_t group_tokens, std::int32_t levels);

// The vectors are read, and the bound is written; five operations per element, and five in the coder.
OpCall call(const DeltaCode&);
void run_cpu(const DeltaCode&);
void run_cuda(const DeltaCode&, CudaContext&);  // `bytes` is in CPU memory; waits for the stream.

}  // namespace kvlab
