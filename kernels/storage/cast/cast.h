#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/storage/cast/stored_type.h"

namespace kvlab {

class StoredArrays;
struct RowList;

// Stores listed vectors, [total(), head_dim] in list order; they then hold the decoded numbers. Entries of -1 are stored as zeros.
// `unpacks` fills the listed vectors.
struct Cast {
  ListedTokens tokens;
  StoredType type = StoredType::kFp16;
  std::uint8_t* stored = nullptr;  // [total() * head_dim * bytes_of(type)] out, little-endian
  bool unpacks = false;
};
OpCall call(const Cast&);
void run_cpu(const Cast&);
void run_cuda(const Cast&, CudaContext&);

void stored_arrays(Cast&, StoredArrays&);
bool goes_on(const Cast&, const Cast& later, std::span<const RowList>);

}  // namespace kvlab
