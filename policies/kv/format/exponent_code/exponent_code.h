#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;

// DFloat11's lossless code of bf16 numbers (Zhang et al. 2025, arXiv:2504.11651, section 2): sign and fraction raw in 8 bits, the exponent
// by a Huffman code built over the listed tokens of all KV heads of a sequence. The listed vectors are rounded to bf16 as they are read and
// do not change. A row is a 4-byte offset for each block of 64 tokens, from the row's first byte, then the blocks: a byte of sign and
// fraction per number, then the exponents' bits, up to a whole byte. The table (256 lengths) is in the first head's bytes.
struct ExponentCode {
  ListedTokens tokens;
  std::int32_t* bytes = nullptr;    // [num_rows] in and out, real memory: grows by the row's bytes; untouched where only shapes are known
  std::uint8_t* packed = nullptr;   // [most_exponent_bytes()] out; null: bytes are counted alone
  std::uint8_t* lengths = nullptr;  // [num_sequences, kExponentTable] out, of the codes
  std::int64_t* begin = nullptr;    // [num_rows] out, CPU memory: the row's bytes in `packed`
  std::int64_t* end = nullptr;
};
inline constexpr std::int32_t kExponentBlock = 64, kExponentTable = 256;
// No Huffman code is longer than 8 bits per exponent over all that it was built from.
std::int64_t most_exponent_bytes(const ListedTokens& tokens);
// The vectors are read twice (frequencies, then codes), 11 of 16 bits are written; four operations per element.
OpCall call(const ExponentCode&);
void run_cpu(const ExponentCode&);
void run_cuda(const ExponentCode&, CudaContext&);  // `bytes`, `begin` and `end` are in CPU memory; waits for the stream.

// Fills the listed vectors from what ExponentCode wrote with the same list: the numbers in bf16, bit for bit.
struct ExponentDecode {
  ListedTokens tokens;
  std::uint8_t* packed = nullptr;
  std::uint8_t* lengths = nullptr;
  const std::int64_t* begin = nullptr;
  const std::int64_t* end = nullptr;
};
// 11 of 16 bits are read, the vectors written; four operations per element.
OpCall call(const ExponentDecode&);
void run_cpu(const ExponentDecode&);
void run_cuda(const ExponentDecode&, CudaContext&);

// As stored K and V (kernels/storage/stored/stored_code.h).
void stored_arrays(ExponentDecode&, StoredArrays&);

// Lengths of a Huffman code [256]: symbols that do not occur have 0, a single one has 1.
void huffman_lengths(const std::int64_t* count, std::int32_t* length);

}  // namespace kvlab
