#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;
struct RowList;

// A code of K or V vector by vector, with as many bytes for each. Codes are pure: the same vector in the same place has the same bytes.
class VectorCode {
 public:
  // Data of the vector's row and token that a code may need.
  struct Place {
    const float* parameters = nullptr;   // [num_parameters()] of the row, as fit() left them
    const float* frequencies = nullptr;  // [head_dim / 2] radians per position of RoPE; null: no RoPE
    std::int32_t position = 0;           // of the token
    std::int32_t head = 0;               // KV head
  };
  virtual ~VectorCode() = default;
  // Names of the operations, string literals.
  [[nodiscard]] virtual std::string_view encode_name() const = 0;
  [[nodiscard]] virtual std::string_view decode_name() const = 0;
  // Bytes and FLOPs of one vector.
  [[nodiscard]] virtual std::int64_t bytes(std::int32_t head_dim) const = 0;
  [[nodiscard]] virtual std::int64_t encode_flops(std::int32_t head_dim) const = 0;
  [[nodiscard]] virtual std::int64_t decode_flops(std::int32_t head_dim) const = 0;
  // x [head_dim]; code [bytes(head_dim)]. Called from several threads.
  virtual void encode(const float* x, std::int32_t head_dim, const Place& place, std::uint8_t* code) const = 0;
  virtual void decode(const std::uint8_t* code, std::int32_t head_dim, const Place& place, float* x) const = 0;

  // Numbers that are found for each row when its prompt is complete, 4 bytes each; 0: none.
  [[nodiscard]] virtual std::int32_t num_parameters(std::int32_t /*head_dim*/) const { return 0; }
  [[nodiscard]] virtual std::int64_t fit_flops(std::int32_t /*head_dim*/) const { return 0; }  // per vector
  // Finds them: x [tokens, head_dim], at positions [tokens].
  virtual void fit(std::span<const float> /*x*/, std::int32_t /*head_dim*/, std::span<const std::int32_t> /*positions*/,
                   const float* /*frequencies*/, float* /*parameters*/) const {}
};

// The place of listed vectors in tables, for the operations below.
struct VectorTables {
  float* parameters = nullptr;         // [*, num_parameters()]
  const std::int32_t* line = nullptr;  // [num_rows] lines of `parameters`, in CPU memory
  const float* frequencies = nullptr;  // [num_sequences, head_dim / 2]
};

// Fits the parameters of each row with line[row] >= 0 to all its vectors, which are read once; fit_flops() each. On the CPU alone.
struct FitVectors {
  KvRows kv;
  bool values = false;
  std::shared_ptr<const VectorCode> code;
  VectorTables tables;
};
OpCall call(const FitVectors&);
void run_cpu(const FitVectors&);

// Encodes the listed vectors, [total(), bytes()] in list order. Read in the model's precision. On the CPU alone.
struct EncodeVectors {
  ListedTokens tokens;
  std::shared_ptr<const VectorCode> code;
  VectorTables tables;
  std::uint8_t* packed = nullptr;
};
OpCall call(const EncodeVectors&);
void run_cpu(const EncodeVectors&);

// Fills the listed vectors from what EncodeVectors wrote with the same list. On the CPU alone.
struct DecodeVectors {
  ListedTokens tokens;
  std::shared_ptr<const VectorCode> code;
  VectorTables tables;
  std::uint8_t* packed = nullptr;
};
OpCall call(const DecodeVectors&);
void run_cpu(const DecodeVectors&);

// As stored K and V (kernels/storage/stored/stored_code.h).
void stored_arrays(DecodeVectors&, StoredArrays&);
bool goes_on(const DecodeVectors&, const DecodeVectors& later, std::span<const RowList>);

}  // namespace kvlab
