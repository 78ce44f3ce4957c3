#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Keys turned to new places. A place is the position whose RoPE angle a key has. The tokens of a row are at consecutive places that end
// with the last position of its sequence: token i of n is at place end - n + i. Entry j of m listed tokens gets place end - m + j.
// Queries and later keys keep their positions: attention depends on differences of places alone, so this is the same as places 0 .. m - 1
// for the listed tokens and m, m + 1, ... for the following ones (StreamingLLM: Xiao et al. 2023, arXiv:2309.17453, section 3.2).
namespace kvlab {

struct Places {
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;        // listed tokens, ascending within a row
  const std::int32_t* end = nullptr;          // [num_sequences] one past the sequence's last position
  const float* frequencies = nullptr;         // [num_sequences, head_dim / 2] radians per position, in CPU memory; null: no RoPE
};

// Turns the keys of listed tokens, which are already at the front of their rows. The lengths are those from before the move.
struct RenumberKeys {
  KvRows kv;
  Places places;
};
// Keys of all listed tokens are read and written, with one index each; 3 FLOPs per channel.
OpCall call(const RenumberKeys&);
void run_cpu(const RenumberKeys&);
// index is in device memory. Arithmetic in fp32, one rounding.
void run_cuda(const RenumberKeys&, CudaContext&);

// Copies listed tokens to other rows with their keys turned: K, V and positions. The rows that they come from stay as they are.
struct PlaceSelected {
  KvRows kv;
  Places places;
  KvRows out;  // its rows have room for their lists
};
// K, V and positions of listed tokens are read and written, with one index each; 3 FLOPs per channel of K.
OpCall call(const PlaceSelected&);
void run_cpu(const PlaceSelected&);
void run_cuda(const PlaceSelected&, CudaContext&);

}  // namespace kvlab
