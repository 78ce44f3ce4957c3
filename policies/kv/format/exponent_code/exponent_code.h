#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;

// DFloat11's lossless code of bf16 numbers: sign and fraction raw, exponents by a Huffman code over the listed tokens of all KV heads of a
// sequence. A row has a 4-byte offset per block of 64 tokens, then the blocks: sign and fraction bytes, exponent bits. The first head pays
// for the table (256 lengths). Vectors are rounded to bf16.
struct ExponentCode {
  ListedTokens tokens;
  std::int32_t* bytes = nullptr;    // [num_rows] in and out, real memory: grows by the row's bytes; untouched on shapes
  std::uint8_t* packed = nullptr;   // [most_exponent_bytes()] out; null: only counts bytes
  std::uint8_t* lengths = nullptr;  // [num_sequences, kExponentTable] out
  std::int64_t* begin = nullptr;    // [num_rows] out, CPU memory: the row's bytes in `packed`
  std::int64_t* end = nullptr;
  bool unpacks = false;  // fills the listed vectors from what was written with the same list, as bf16
};
inline constexpr std::int32_t kExponentBlock = 64, kExponentTable = 256;
// At most 8 bits per exponent.
std::int64_t most_exponent_bytes(const ListedTokens& tokens);
// Vectors are read twice (frequencies, then codes), 11 of 16 bits are written.
OpCall call(const ExponentCode&);
void run_cpu(const ExponentCode&);
void run_cuda(const ExponentCode&, CudaContext&);  // `bytes`, `begin` and `end` are in CPU memory; waits for the stream.

// As stored K and V (kernels/storage/stored/stored_code.h).
void stored_arrays(ExponentCode&, StoredArrays&);

// [256]: symbols that do not occur have 0, a single one has 1.
void huffman_lengths(const std::int64_t* count, std::int32_t* length);

}  // namespace kvlab
