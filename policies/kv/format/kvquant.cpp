#include <algorithm>
#include <cmath>

#include "base/quantile.h"
#include "policies/kv/format/coded_vectors.h"
#include "policies/kv/format/due_tokens.h"

namespace kvlab {

namespace {

struct KvquantParameters {
  SideBits side_bits;
  double outliers_frac;
  std::int32_t sinks_tokens;
  explicit KvquantParameters(Params& p)
      : side_bits(read_side_bits(p, 3, 1, 6)),
        outliers_frac(p.optional<double>("outliers_frac", 0.01, 0, 0.2,
                                         "share of numbers beyond the thresholds, stored apart in fp16; a vector has room for this share")),
        sinks_tokens(p.optional<std::int32_t>("sinks_tokens", 1, 0, 64, "first tokens in fp16, left out of the calibration")) {}
};

// In [-1, 1].
class PointFit {
 public:
  void add(float z) {
    if (!(std::fabs(z) <= 1)) return;
    Bin& bin = bins_[std::min<std::size_t>(static_cast<std::size_t>((z + 1) / 2 * kBins), kBins - 1)];
    ++bin.count, bin.sum += z;
  }
  // Lloyd's iteration; empty points stay.
  void write(int bits, float* points) const {
    const std::size_t n = std::size_t{1} << bits;
    for (std::size_t i = 0; i < n; ++i) points[i] = 2 * (static_cast<float>(i) + 0.5F) / static_cast<float>(n) - 1;
    for (int round = 0; round < 50; ++round) {
      std::vector<Bin> cluster(n);
      std::size_t at = 0;
      for (const Bin& bin : bins_) {
        if (bin.count == 0) continue;
        const double mean = bin.sum / static_cast<double>(bin.count);
        while (at + 1 < n && mean > (static_cast<double>(points[at]) + points[at + 1]) / 2) ++at;
        cluster[at].count += bin.count, cluster[at].sum += bin.sum;
      }
      for (std::size_t i = 0; i < n; ++i)
        if (cluster[i].count > 0) points[i] = static_cast<float>(cluster[i].sum / static_cast<double>(cluster[i].count));
    }
  }

 private:
  static constexpr std::size_t kBins = 4096;
  struct Bin {
    std::int64_t count = 0;
    double sum = 0;
  };
  std::vector<Bin> bins_ = std::vector<Bin>(kBins);
};

// Outliers [slots] of place and fp16, then codes of the points.
class NonUniformCode : public VectorCode {
 public:
  NonUniformCode(const KvquantParameters& p, std::int32_t bits) : p_(p), bits_(bits) {}
  [[nodiscard]] std::int64_t encode_flops(std::int32_t d) const override { return d * (8LL + (1LL << bits_)); }
  [[nodiscard]] std::int64_t decode_flops(std::int32_t d) const override { return 8LL * d; }
  [[nodiscard]] std::int64_t fit_flops(std::int32_t d) const override { return 32LL * d; }

 protected:
  [[nodiscard]] std::int32_t slots(std::int32_t d) const { return static_cast<std::int32_t>(std::ceil(p_.outliers_frac * d - 1e-9)); }
  [[nodiscard]] std::int64_t slot_bytes(std::int32_t d) const { return slots(d) * (2 + place_bytes(d)); }
  [[nodiscard]] std::int64_t code_bytes(std::int32_t d) const { return slot_bytes(d) + field_bytes(d, bits_); }
  [[nodiscard]] std::vector<std::int32_t> largest(const std::vector<float>& size, float least) const {
    std::vector<std::int32_t> channels;
    for (std::size_t c = 0; c < size.size(); ++c)
      if (size[c] > least) channels.push_back(static_cast<std::int32_t>(c));
    const auto of = [&](std::int32_t c) { return size[static_cast<std::size_t>(c)]; };
    const auto room = static_cast<std::size_t>(slots(static_cast<std::int32_t>(size.size())));
    std::sort(channels.begin(), channels.end(), [&](std::int32_t a, std::int32_t b) { return of(a) > of(b) || (of(a) == of(b) && a < b); });
    channels.resize(std::min(channels.size(), room));
    return channels;
  }
  void put(const std::vector<std::int32_t>& apart, const std::vector<float>& x, const std::vector<float>& z, const float* points,
           std::uint8_t* code) const {
    const auto d = static_cast<std::int32_t>(x.size());
    const int width = 8 * static_cast<int>(place_bytes(d));
    std::fill_n(code, code_bytes(d), std::uint8_t{0});
    for (std::size_t i = 0; i < static_cast<std::size_t>(slots(d)); ++i) {
      std::uint8_t* const slot = code + static_cast<std::int64_t>(i) * (2 + place_bytes(d));
      const bool is_used = i < apart.size();
      put_half(slot, is_used ? x[static_cast<std::size_t>(apart[i])] : 0.0F);
      put_field(slot + 2, 0, width, is_used ? static_cast<std::uint32_t>(apart[i]) : none(d));
    }
    for (std::int32_t c = 0; c < d; ++c)
      put_field(code + slot_bytes(d), c, bits_, nearest_point({points, std::size_t{1} << bits_}, z[static_cast<std::size_t>(c)]));
  }
  [[nodiscard]] float point_at(const std::uint8_t* code, std::int32_t d, std::int32_t c, const float* points) const {
    return points[field_at(code + slot_bytes(d), c, bits_)];
  }
  void put_back(const std::uint8_t* code, std::int32_t d, float* x) const {
    for (std::int32_t i = 0; i < slots(d); ++i) {
      const std::uint8_t* const slot = code + i * (2 + place_bytes(d));
      const std::uint32_t place = field_at(slot + 2, 0, 8 * static_cast<int>(place_bytes(d)));
      if (place != none(d)) x[place] = half_at(slot);
    }
  }
  KvquantParameters p_;
  std::int32_t bits_;

 private:
  static std::int64_t place_bytes(std::int32_t d) { return d <= 255 ? 1 : 2; }
  static std::uint32_t none(std::int32_t d) { return d <= 255 ? 0xFF : 0xFFFF; }
};

// K before RoPE, thresholds per channel. Row parameters: center [d], half range [d], points.
class KeyCode final : public NonUniformCode {
 public:
  using NonUniformCode::NonUniformCode;
  [[nodiscard]] std::string_view encode_name() const override { return "kvquant_encode_keys"; }
  [[nodiscard]] std::string_view decode_name() const override { return "kvquant_decode_keys"; }
  [[nodiscard]] std::int64_t bytes(std::int32_t d) const override { return code_bytes(d); }
  [[nodiscard]] std::int32_t num_parameters(std::int32_t d) const override { return 2 * d + (1 << bits_); }

  void fit(std::span<const float> x, std::int32_t d, std::span<const std::int32_t> positions, const float* frequencies,
           float* parameters) const override {
    std::vector<std::vector<float>> channel(static_cast<std::size_t>(d));
    for (std::size_t t = 0; t < positions.size(); ++t) {
      if (positions[t] < p_.sinks_tokens && positions.size() > static_cast<std::size_t>(p_.sinks_tokens)) continue;
      const std::vector<float> key =
          turned_vector(x.data() + t * static_cast<std::size_t>(d), d, {nullptr, frequencies, positions[t]}, -1.0F);
      for (std::size_t c = 0; c < key.size(); ++c) channel[c].push_back(key[c]);
    }
    PointFit points;
    for (std::size_t c = 0; c < channel.size(); ++c) {
      std::vector<float> sorted = channel[c];
      std::sort(sorted.begin(), sorted.end());
      const double low = quantile_of_sorted(sorted, p_.outliers_frac / 2), high = quantile_of_sorted(sorted, 1 - p_.outliers_frac / 2);
      parameters[c] = static_cast<float>((low + high) / 2);
      parameters[static_cast<std::size_t>(d) + c] = static_cast<float>((high - low) / 2);
      for (const float k : channel[c]) points.add(normal(k, parameters[c], parameters[static_cast<std::size_t>(d) + c]));
    }
    points.write(bits_, parameters + 2 * d);
  }
  void encode(const float* x, std::int32_t d, const Place& place, std::uint8_t* code) const override {
    const std::vector<float> key = turned_vector(x, d, place, -1.0F);
    std::vector<float> z(key.size()), size(key.size());
    for (std::size_t c = 0; c < key.size(); ++c) {
      z[c] = normal(key[c], place.parameters[c], place.parameters[static_cast<std::size_t>(d) + c]);
      size[c] = std::fabs(key[c] - place.parameters[c]) - place.parameters[static_cast<std::size_t>(d) + c];  // beyond the threshold
    }
    put(largest(size, 0), key, z, place.parameters + 2 * d, code);
  }
  void decode(const std::uint8_t* code, std::int32_t d, const Place& place, float* x) const override {
    std::vector<float> key(static_cast<std::size_t>(d));
    for (std::int32_t c = 0; c < d; ++c)
      key[static_cast<std::size_t>(c)] = place.parameters[c] + place.parameters[d + c] * point_at(code, d, c, place.parameters + 2 * d);
    put_back(code, d, key.data());
    key = turned_vector(key.data(), d, place, 1.0F);
    std::copy(key.begin(), key.end(), x);
  }

 private:
  static float normal(float x, float centre, float half) { return half > 0 ? (x - centre) / half : 0.0F; }
};

// Outliers: farthest from the median; thresholds: the others' extremes. fp16 center and half range follow the codes. Row parameters:
// points.
class ValueCode final : public NonUniformCode {
 public:
  using NonUniformCode::NonUniformCode;
  [[nodiscard]] std::string_view encode_name() const override { return "kvquant_encode_values"; }
  [[nodiscard]] std::string_view decode_name() const override { return "kvquant_decode_values"; }
  [[nodiscard]] std::int64_t bytes(std::int32_t d) const override { return code_bytes(d) + 4; }
  [[nodiscard]] std::int32_t num_parameters(std::int32_t) const override { return 1 << bits_; }

  void fit(std::span<const float> x, std::int32_t d, std::span<const std::int32_t> positions, const float*,
           float* parameters) const override {
    PointFit points;
    for (std::size_t t = 0; t < positions.size(); ++t) {
      if (positions[t] < p_.sinks_tokens && positions.size() > static_cast<std::size_t>(p_.sinks_tokens)) continue;
      for (const float z : normal(x.data() + t * static_cast<std::size_t>(d), d).z) points.add(z);
    }
    points.write(bits_, parameters);
  }
  void encode(const float* x, std::int32_t d, const Place& place, std::uint8_t* code) const override {
    const Normal n = normal(x, d);
    put(n.apart, {x, x + d}, n.z, place.parameters, code);
    put_half(code + code_bytes(d), n.centre);
    put_half(code + code_bytes(d) + 2, n.half);
  }
  void decode(const std::uint8_t* code, std::int32_t d, const Place& place, float* x) const override {
    const float centre = half_at(code + code_bytes(d)), half = half_at(code + code_bytes(d) + 2);
    for (std::int32_t c = 0; c < d; ++c) x[c] = centre + half * point_at(code, d, c, place.parameters);
    put_back(code, d, x);
  }

 private:
  struct Normal {
    std::vector<std::int32_t> apart;
    float centre = 0, half = 0;  // as stored
    std::vector<float> z;        // 2: outlier
  };
  [[nodiscard]] Normal normal(const float* x, std::int32_t d) const {
    std::vector<float> sorted(x, x + d), distance(x, x + d);
    std::nth_element(sorted.begin(), sorted.begin() + d / 2, sorted.end());
    const float median = sorted[static_cast<std::size_t>(d / 2)];
    for (float& y : distance) y = std::fabs(y - median);
    Normal n{largest(distance, -1), 0, 0, std::vector<float>(x, x + d)};
    for (const std::int32_t c : n.apart) n.z[static_cast<std::size_t>(c)] = median;
    const auto [low, high] = std::minmax_element(n.z.begin(), n.z.end());
    n.centre = half_to_float(float_to_half((*low + *high) / 2));
    n.half = half_to_float(float_to_half((*high - *low) / 2));
    for (float& y : n.z) y = n.half > 0 ? std::clamp((y - n.centre) / n.half, -1.0F, 1.0F) : 0.0F;
    for (const std::int32_t c : n.apart) n.z[static_cast<std::size_t>(c)] = 2;
    return n;
  }
};

// Thresholds and points come from the prompt, per KV head and unweighted; in the paper offline, weighted by loss gradients.
class Kvquant final : public CodedVectors {
 public:
  explicit Kvquant(Params& p) : Kvquant(KvquantParameters(p)) {}

 protected:
  [[nodiscard]] bool keys_turn() const override { return true; }

 private:
  explicit Kvquant(const KvquantParameters& p)
      : CodedVectors({std::make_shared<KeyCode>(p, p.side_bits.key), std::make_shared<ValueCode>(p, p.side_bits.value)}, {0, 1},
                     p.sinks_tokens) {}
};

KVLAB_REGISTER(Format, Kvquant, "kvquant", "K before RoPE per channel, V per token, in non-uniform codes; outliers and first tokens apart",
               "KVQuant: Hooper et al. 2024, arXiv:2401.18079, section 3");

}  // namespace

}  // namespace kvlab
