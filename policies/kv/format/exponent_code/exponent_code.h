#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

// DFloat11's lossless code of bf16 numbers (Zhang et al. 2025, arXiv:2504.11651, section 2): sign and fraction raw in 8 bits, the exponent
// by a Huffman code built over the listed tokens of all KV heads of a sequence. Counts the bytes of each row in this code: the bits,
// rounded up to whole bytes in each block of 64 tokens, and a 4-byte start offset per block. The listed vectors, rounded to bf16 by the
// caller, do not change; the table (256 lengths) is in the first head's bytes.
struct ExponentCode {
  ListedTokens tokens;
  std::int32_t* bytes = nullptr;  // [num_rows] in and out, real memory: grows by the row's bytes; untouched where only shapes are known
};
inline constexpr std::int32_t kExponentBlock = 64, kExponentTable = 256;
// The vectors are read twice (frequencies, then codes), 11 of 16 bits are written; four operations per element.
OpCall call(const ExponentCode&);
void run_cpu(const ExponentCode&);
void run_cuda(const ExponentCode&, CudaContext&);  // `bytes` is in CPU memory; waits for the stream.

// Lengths of a Huffman code [256]: symbols that do not occur have 0, a single one has 1.
void huffman_lengths(const std::int64_t* count, std::int32_t* length);

}  // namespace kvlab
