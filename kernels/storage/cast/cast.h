#pragma once

#include <cstdint>
#include <span>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"
#include "kernels/storage/cast/stored_type.h"

namespace kvlab {

class StoredArrays;
struct RowList;

// Stores the listed vectors in another number format, [total(), head_dim] in list order; they then hold the decoded numbers. Entries of -1
// are stored as zeros.
struct Cast {
  ListedTokens tokens;
  StoredType type = StoredType::kFp16;
  std::uint8_t* stored = nullptr;  // [total() * head_dim * bytes_of(type)] out, little-endian
};
// Read in the model's precision, written in the other; one operation per element.
OpCall call(const Cast&);
void run_cpu(const Cast&);
void run_cuda(const Cast&, CudaContext&);

// Fills the listed vectors from what Cast stored with the same list.
struct Uncast {
  ListedTokens tokens;
  StoredType type = StoredType::kFp16;
  const std::uint8_t* stored = nullptr;
};
// The costs of Cast, also named "cast".
OpCall call(const Uncast&);
void run_cpu(const Uncast&);
void run_cuda(const Uncast&, CudaContext&);

// As stored K and V (kernels/storage/stored/stored_code.h).
inline Uncast unpacking(const Cast& a) { return {a.tokens, a.type, a.stored}; }
void stored_arrays(Uncast&, StoredArrays&);
bool goes_on(const Uncast&, const Uncast& later, std::span<const RowList>);

}  // namespace kvlab
