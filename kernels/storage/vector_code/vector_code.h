#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "base/half.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;
struct RowList;

// Codes single vectors of K or V, of fixed size. A vector in a place has one code.
class VectorCode {
 public:
  struct Place {
    const float* parameters = nullptr;   // [num_parameters()] of the row, by fit()
    const float* frequencies = nullptr;  // [head_dim / 2] radians per position of RoPE; null: no RoPE
    std::int32_t position = 0;
    std::int32_t head = 0;  // KV head
  };
  virtual ~VectorCode() = default;
  // String literals.
  [[nodiscard]] virtual std::string_view encode_name() const = 0;
  [[nodiscard]] virtual std::string_view decode_name() const = 0;
  // Per vector.
  [[nodiscard]] virtual std::int64_t bytes(std::int32_t head_dim) const = 0;
  [[nodiscard]] virtual std::int64_t encode_flops(std::int32_t head_dim) const = 0;
  [[nodiscard]] virtual std::int64_t decode_flops(std::int32_t head_dim) const = 0;
  // x [head_dim]; code [bytes(head_dim)]. Called by several threads.
  virtual void encode(const float* x, std::int32_t head_dim, const Place& place, std::uint8_t* code) const = 0;
  virtual void decode(const std::uint8_t* code, std::int32_t head_dim, const Place& place, float* x) const = 0;

  // fp32 numbers per row, fitted to the complete prompt.
  [[nodiscard]] virtual std::int32_t num_parameters(std::int32_t /*head_dim*/) const { return 0; }
  [[nodiscard]] virtual std::int64_t fit_flops(std::int32_t /*head_dim*/) const { return 0; }  // per vector
  // fit() then takes all KV heads of a sequence, head after head.
  [[nodiscard]] virtual bool fits_all_heads() const { return false; }
  // x [tokens, head_dim], at positions [tokens].
  virtual void fit(std::span<const float> /*x*/, std::int32_t /*head_dim*/, std::span<const std::int32_t> /*positions*/,
                   const float* /*frequencies*/, float* /*parameters*/) const {}
};

struct VectorTables {
  float* parameters = nullptr;         // [*, num_parameters()]
  const std::int32_t* line = nullptr;  // [num_rows], in CPU memory
  const float* frequencies = nullptr;  // [num_sequences, head_dim / 2]
};

// Encodes listed vectors, [total(), bytes()] in list order; decodes them; or fits parameters of rows with line[row] >= 0. CPU only.
struct CodeVectors {
  enum class Kind : std::uint8_t { kEncode, kDecode, kFit };
  ListedTokens tokens;  // of kFit only kv and values
  std::shared_ptr<const VectorCode> code;
  VectorTables tables;
  std::uint8_t* packed = nullptr;
  Kind kind = Kind::kEncode;
};
OpCall call(const CodeVectors&);
void run_cpu(const CodeVectors&);

inline CodeVectors unpacking(CodeVectors a) {
  a.kind = CodeVectors::Kind::kDecode;
  return a;
}
void stored_arrays(CodeVectors&, StoredArrays&);
bool goes_on(const CodeVectors&, const CodeVectors& later, std::span<const RowList>);

// Numbers in fp16, and fields of a few bits, lowest first, in bytes that are 0 beforehand.
inline void put_half(std::uint8_t* to, float x) {
  const std::uint16_t half = float_to_half(x);
  std::memcpy(to, &half, 2);
}
inline float half_at(const std::uint8_t* from) {
  std::uint16_t half = 0;
  std::memcpy(&half, from, 2);
  return half_to_float(half);
}
constexpr std::int64_t field_bytes(std::int64_t fields, int bits) { return (fields * bits + 7) / 8; }
inline void put_field(std::uint8_t* to, std::int32_t i, int bits, std::uint32_t value) {
  for (std::int32_t b = 0, at = i * bits; b < bits; ++b, ++at)
    to[at / 8] = static_cast<std::uint8_t>(to[at / 8] | (value >> b & 1U) << (at % 8));
}
inline std::uint32_t field_at(const std::uint8_t* from, std::int32_t i, int bits) {
  std::uint32_t value = 0;
  for (std::int32_t b = 0, at = i * bits; b < bits; ++b, ++at) value |= (std::uint32_t{from[at / 8]} >> (at % 8) & 1U) << b;
  return value;
}
// Index of the nearest point; the first of equals.
inline std::uint32_t nearest_point(std::span<const float> points, float x) {
  std::uint32_t best = 0;
  for (std::uint32_t i = 1; i < points.size(); ++i)
    if (std::fabs(points[i] - x) < std::fabs(points[best] - x)) best = i;
  return best;
}

}  // namespace kvlab
