#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numbers>

#include "base/random.h"
#include "kernels/storage/cast/cast.h"
#include "kernels/storage/stored/stored_code.h"
#include "kernels/storage/vector_code/vector_code.h"
#include "policies/kv/format/coded_vectors.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"

namespace kvlab {

namespace {

using SquareMatrix = std::vector<float>;  // [d, d], rows

// Centroids of the optimal 2^bits-level quantizer of N(0, 1), ascending (Lloyd 1982; Max 1960).
std::vector<float> lloyd_max(int bits) {
  const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); };
  const auto below = [](double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; };
  const std::size_t n = std::size_t{1} << bits;
  std::vector<double> c(n);
  for (std::size_t i = 0; i < n; ++i) c[i] = 6 * (static_cast<double>(i) + 0.5) / static_cast<double>(n) - 3;
  for (int round = 0; round < 3000; ++round) {
    double low = -40;
    std::vector<double> next(n);
    for (std::size_t i = 0; i < n; ++i) {
      const double high = i + 1 < n ? (c[i] + c[i + 1]) / 2 : 40;
      next[i] = (density(low) - density(high)) / std::max(below(high) - below(low), 1e-300);
      low = high;
    }
    c = next;
  }
  return {c.begin(), c.end()};
}

SquareMatrix gaussian(std::int32_t d, std::uint64_t seed, std::uint64_t stream) {
  SquareMatrix g(static_cast<std::size_t>(d) * static_cast<std::size_t>(d));
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(Draw{seed, Purpose::kPolicy, stream, i}.normal());
  return g;
}

double product(const float* a, const float* b, std::int32_t d) {
  double sum = 0;
  for (std::int32_t c = 0; c < d; ++c) sum += static_cast<double>(a[c]) * b[c];
  return sum;
}

// Twice, for float32.
SquareMatrix orthonormal(SquareMatrix m, std::int32_t d) {
  for (std::int32_t r = 0; r < d; ++r) {
    float* const row = m.data() + std::int64_t{r} * d;
    for (int pass = 0; pass < 2; ++pass)
      for (std::int32_t before = 0; before < r; ++before) {
        const float* const other = m.data() + std::int64_t{before} * d;
        const double along = product(row, other, d);
        for (std::int32_t c = 0; c < d; ++c) row[c] -= static_cast<float>(along * other[c]);
      }
    const double length = std::sqrt(product(row, row, d));
    for (std::int32_t c = 0; c < d; ++c) row[c] = static_cast<float>(row[c] / length);
  }
  return m;
}

// |x| in fp16, then `bits` per coordinate of the rotated x / |x|: the nearest centroid / sqrt(d). `sketches` adds |r| in fp16 and signs of
// S r, r = x - decoded, S Gaussian; decoding adds |r| sqrt(pi / 2) / d S^T signs (section 3.2; QJL, Zandieh et al. 2024, arXiv:2406.03482,
// definition 3.1).
class RotatedCode final : public VectorCode {
 public:
  RotatedCode(int bits, bool sketches, std::uint64_t seed) : bits_(bits), sketches_(sketches), seed_(seed) {}

  [[nodiscard]] std::string_view encode_name() const override { return sketches_ ? "turboquant_encode_qjl" : "turboquant_encode"; }
  [[nodiscard]] std::string_view decode_name() const override { return sketches_ ? "turboquant_decode_qjl" : "turboquant_decode"; }
  [[nodiscard]] std::int64_t bytes(std::int32_t d) const override {
    return 2 + field_bytes(d, bits_) + (sketches_ ? 2 + field_bytes(d, 1) : 0);
  }
  // Products with d x d matrices: 1 to encode; with the residual, decoding and 1 more.
  [[nodiscard]] std::int64_t encode_flops(std::int32_t d) const override { return 2LL * d * d * (sketches_ ? 3 : 1); }
  [[nodiscard]] std::int64_t decode_flops(std::int32_t d) const override { return 2LL * d * d * (sketches_ ? 2 : 1); }

  void encode(const float* x, std::int32_t d, const Place&, std::uint8_t* code) const override {
    const Tables& m = tables(d);
    std::fill_n(code, bytes(d), std::uint8_t{0});
    put_half(code, static_cast<float>(std::sqrt(product(x, x, d))));
    const float length = half_at(code), scale = std::sqrt(static_cast<float>(d));
    for (std::int32_t c = 0; c < d; ++c) {
      const auto y = length > 0 ? static_cast<float>(product(m.rotation.data() + std::int64_t{c} * d, x, d)) / length * scale : 0.0F;
      put_field(code + 2, c, bits_, nearest_point(m.centroids, y));
    }
    if (!sketches_) return;
    std::vector<float> rest(static_cast<std::size_t>(d));
    decode_rotated(code, d, m, rest.data());
    for (std::int32_t c = 0; c < d; ++c) rest[static_cast<std::size_t>(c)] = x[c] - rest[static_cast<std::size_t>(c)];
    std::uint8_t* const sketch = code + 2 + field_bytes(d, bits_);
    put_half(sketch, static_cast<float>(std::sqrt(product(rest.data(), rest.data(), d))));
    for (std::int32_t i = 0; i < d; ++i)
      if (product(m.sketch.data() + std::int64_t{i} * d, rest.data(), d) >= 0) put_field(sketch + 2, i, 1, 1);
  }

  void decode(const std::uint8_t* code, std::int32_t d, const Place&, float* x) const override {
    const Tables& m = tables(d);
    decode_rotated(code, d, m, x);
    if (!sketches_) return;
    const std::uint8_t* const sketch = code + 2 + field_bytes(d, bits_);
    const float weight = half_at(sketch) * static_cast<float>(std::sqrt(std::numbers::pi / 2) / d);
    for (std::int32_t i = 0; i < d; ++i) {
      const float sign = field_at(sketch + 2, i, 1) != 0 ? weight : -weight;
      for (std::int32_t c = 0; c < d; ++c) x[c] += sign * m.sketch[static_cast<std::size_t>(i * d + c)];
    }
  }

 private:
  struct Tables {
    SquareMatrix rotation, sketch;
    std::vector<float> centroids;
  };
  // For the model's head_dim.
  const Tables& tables(std::int32_t d) const {
    if (is_drawn_.load(std::memory_order_acquire)) return tables_;
    const std::lock_guard lock(drawing_);
    if (is_drawn_.load(std::memory_order_relaxed)) return tables_;
    tables_.rotation = orthonormal(gaussian(d, seed_, 0), d);
    if (sketches_) tables_.sketch = gaussian(d, seed_, 1);
    tables_.centroids = lloyd_max(bits_);
    is_drawn_.store(true, std::memory_order_release);
    return tables_;
  }

  // x = n R^T centroids / sqrt(d).
  void decode_rotated(const std::uint8_t* code, std::int32_t d, const Tables& m, float* x) const {
    std::fill_n(x, d, 0.0F);
    const float scale = half_at(code) / std::sqrt(static_cast<float>(d));
    for (std::int32_t r = 0; r < d; ++r) {
      const float y = scale * m.centroids[field_at(code + 2, r, bits_)];
      const float* const row = m.rotation.data() + std::int64_t{r} * d;
      for (std::int32_t c = 0; c < d; ++c) x[c] += y * row[c];
    }
  }

  int bits_;
  bool sketches_;
  std::uint64_t seed_;
  // Not std::call_once: the Python module may not find libstdc++'s thread-local state.
  mutable std::mutex drawing_;
  mutable std::atomic<bool> is_drawn_{false};
  mutable Tables tables_;
};

// One rotation for all layers and heads. Keys after RoPE.
class TurboQuant final : public CodedVectors {
 public:
  explicit TurboQuant(Params& p) : CodedVectors(codes(p), {0, 1}) {}

 private:
  static Codes codes(Params& p) {
    const int key_bits = p.optional<int>("key_bits", 4, 1, 6, "of a coordinate of K, the bit of the residual's sketch included");
    const int value_bits = p.optional<int>("value_bits", 4, 1, 6, "of a coordinate of V");
    const bool sketches = p.choice("keys", {{"mse", false}, {"inner_product", true}}, false,
                                   "mse: nearest centroids; inner_product: one bit fewer, and a sketch of the residual in its place (QJL)");
    const auto seed = static_cast<std::uint64_t>(p.optional<std::int32_t>("seed", 1, 0, 1 << 30, "of the rotation"));
    return {std::make_shared<RotatedCode>(sketches ? key_bits - 1 : key_bits, sketches, seed),
            std::make_shared<RotatedCode>(value_bits, false, seed)};
  }
};

KVLAB_REGISTER(Format, TurboQuant, "turboquant", "randomly rotated vectors, each coordinate by the best scalar quantizer of a Gaussian",
               "TurboQuant: Zandieh et al. 2025, arXiv:2504.19874, algorithms 1 and 2");

// fp16 or bf16.
class Native final : public Format {
 public:
  explicit Native(Params&) {}
  [[nodiscard]] bool is_native() const override { return true; }
  [[nodiscard]] bool encodes() const override { return false; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] bool stores_prompt_keys_alone() const override { return true; }
};

KVLAB_REGISTER(Format, Native, "native", "K and V in the model's own type", "paged KV cache: Kwon et al. 2023, arXiv:2309.06180");

// Without scales: the kv-cache-dtype of serving engines.
class CastFormat final : public Format {
 public:
  explicit CastFormat(Params& p)
      : type_(p.choice("type",
                       {{"fp16", StoredType::kFp16},
                        {"bf16", StoredType::kBf16},
                        {"fp8_e4m3", StoredType::kFp8E4M3},
                        {"fp8_e5m2", StoredType::kFp8E5M2}},
                       StoredType::kFp16, "number format of K and V")) {
    if (p.has("scale"))
      p.fail_at("scale", "'cast' has no scales: write 'format: {scaled_fp8: {scale: token}}', or head or tensor (docs/kv-policies.md)");
  }

  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    const std::int64_t bytes = keys.total() * step.kv.head_dim * bytes_of(type_);
    auto* const stored = reinterpret_cast<std::uint8_t*>(step.ops.ints((bytes + 3) / 4));
    step.decode(Cast{keys, type_, stored});
    step.decode(Cast{keys.of_values(), type_, stored});
  }

  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const override {
    return 2LL * tokens * m.head_dim * bytes_of(type_);
  }

 private:
  StoredType type_;
  DueTokens due_{*this, {0, 1, true}};
};

KVLAB_REGISTER(Format, CastFormat, "cast", "K and V rounded to fp16, bf16 or fp8 as they are written",
               "fp8 formats: Micikevicius et al. 2022, arXiv:2209.05433; kv-cache-dtype of vLLM");

enum class ScaleOf : std::uint8_t { kToken, kHead, kTensor };

// x / scale, scale = largest |x| / largest fp8 number, in fp32: before a token's code, or the row's parameter, beyond which later numbers
// saturate.
class ScaledFp8Code final : public VectorCode {
 public:
  ScaledFp8Code(StoredType type, ScaleOf of) : type_(type), of_(of), most_(type == StoredType::kFp8E4M3 ? 448.0F : 57344.0F) {}

  [[nodiscard]] std::string_view encode_name() const override { return "scaled_fp8_encode"; }
  [[nodiscard]] std::string_view decode_name() const override { return "scaled_fp8_decode"; }
  [[nodiscard]] std::int64_t bytes(std::int32_t d) const override { return d + (of_ == ScaleOf::kToken ? kScaleBytes : 0); }
  [[nodiscard]] std::int64_t encode_flops(std::int32_t d) const override { return (of_ == ScaleOf::kToken ? 3LL : 2LL) * d; }
  [[nodiscard]] std::int64_t decode_flops(std::int32_t d) const override { return 2LL * d; }
  [[nodiscard]] std::int32_t num_parameters(std::int32_t) const override { return of_ == ScaleOf::kToken ? 0 : 1; }
  [[nodiscard]] std::int64_t fit_flops(std::int32_t d) const override { return d; }
  [[nodiscard]] bool fits_all_heads() const override { return of_ == ScaleOf::kTensor; }

  void fit(std::span<const float> x, std::int32_t, std::span<const std::int32_t>, const float*, float* parameters) const override {
    *parameters = scale_of(x);
  }
  void encode(const float* x, std::int32_t d, const Place& place, std::uint8_t* code) const override {
    const bool is_own = of_ == ScaleOf::kToken;
    const float scale = is_own ? scale_of({x, static_cast<std::size_t>(d)}) : *place.parameters;
    if (is_own) std::memcpy(code, &scale, kScaleBytes);
    std::uint8_t* const numbers = code + (is_own ? kScaleBytes : 0);
    for (std::int32_t c = 0; c < d; ++c) numbers[c] = static_cast<std::uint8_t>(to_stored(type_, x[c] / scale));
  }
  void decode(const std::uint8_t* code, std::int32_t d, const Place& place, float* x) const override {
    const bool is_own = of_ == ScaleOf::kToken;
    float scale = 0;
    if (is_own)
      std::memcpy(&scale, code, kScaleBytes);
    else
      scale = *place.parameters;
    const std::uint8_t* const numbers = code + (is_own ? kScaleBytes : 0);
    for (std::int32_t c = 0; c < d; ++c) x[c] = from_stored(type_, numbers[c]) * scale;
  }

 private:
  static constexpr std::int64_t kScaleBytes = 4;

  // 1 if all numbers are 0.
  [[nodiscard]] float scale_of(std::span<const float> x) const {
    float largest = 0;
    for (const float number : x)
      if (std::isfinite(number)) largest = std::max(largest, std::fabs(number));
    const float scale = largest / most_;
    return scale > 0 ? scale : 1.0F;
  }

  StoredType type_;
  ScaleOf of_;
  float most_;
};

// Scales per head or layer come from the complete prompt.
class ScaledFp8 final : public CodedVectors {
 public:
  explicit ScaledFp8(Params& p)
      : ScaledFp8(p.choice("type", {{"fp8_e4m3", StoredType::kFp8E4M3}, {"fp8_e5m2", StoredType::kFp8E5M2}}, StoredType::kFp8E4M3,
                           "number format of K and V"),
                  p.choice("scale", {{"token", ScaleOf::kToken}, {"head", ScaleOf::kHead}, {"tensor", ScaleOf::kTensor}}, ScaleOf::kToken,
                           "numbers with one fp32 scale, for K and for V: of a token in a KV head, a KV head, all KV heads of a layer")) {}

 private:
  ScaledFp8(StoredType type, ScaleOf of) : ScaledFp8(std::make_shared<ScaledFp8Code>(type, of), of == ScaleOf::kToken) {}
  ScaledFp8(const std::shared_ptr<const VectorCode>& code, bool at_once) : CodedVectors({code, code}, {0, 1, at_once}) {}
};

KVLAB_REGISTER(Format, ScaledFp8, "scaled_fp8", "K and V in fp8 with scales by token, KV head or layer",
               "fp8 formats: Micikevicius et al. 2022, arXiv:2209.05433; kv-cache-dtype fp8 of vLLM with scales");

}  // namespace

}  // namespace kvlab
