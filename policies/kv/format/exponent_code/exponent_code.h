#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;

// DFloat11's lossless code of bf16 numbers (Zhang et al. 2025, arXiv:2504.11651, section 2): sign and fraction raw, the exponent by a
// Huffman code over the listed tokens of all KV heads of a sequence. A row: a 4-byte offset per block of 64 tokens, then the blocks: a byte
// of sign and fraction per number, the exponents' bits. The table (256 lengths) counts to the first head. Vectors are rounded to bf16 as
// they are read.
struct ExponentCode {
  ListedTokens tokens;
  std::int32_t* bytes = nullptr;    // [num_rows] in and out, real memory: grows by the row's bytes; untouched where only shapes are known
  std::uint8_t* packed = nullptr;   // [most_exponent_bytes()] out; null: bytes are counted alone
  std::uint8_t* lengths = nullptr;  // [num_sequences, kExponentTable] out, of the codes
  std::int64_t* begin = nullptr;    // [num_rows] out, CPU memory: the row's bytes in `packed`
  std::int64_t* end = nullptr;
  bool unpacks = false;  // fills the listed vectors from what was written with the same list: the numbers in bf16, bit for bit
};
inline constexpr std::int32_t kExponentBlock = 64, kExponentTable = 256;
// No Huffman code is longer than 8 bits per exponent over all that it was built from.
std::int64_t most_exponent_bytes(const ListedTokens& tokens);
// The vectors are read twice (frequencies, then codes), 11 of 16 bits are written; four operations per element. Unpacking
// reads the bits and writes the vectors.
OpCall call(const ExponentCode&);
void run_cpu(const ExponentCode&);
void run_cuda(const ExponentCode&, CudaContext&);  // `bytes`, `begin` and `end` are in CPU memory; waits for the stream.

// As stored K and V (kernels/storage/stored/stored_code.h).
void stored_arrays(ExponentCode&, StoredArrays&);

// Lengths of a Huffman code [256]: symbols that do not occur have 0, a single one has 1.
void huffman_lengths(const std::int64_t* count, std::int32_t* length);

}  // namespace kvlab
