#include "kernels/model/rope/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/ceil_div.h"
#include "base/parallel.h"

namespace kvlab {

namespace {

// base^(2i / head_dim): positions per radian.
std::vector<float> periods(double base, std::int32_t head_dim) {
  std::vector<float> p;
  for (std::int32_t i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    p.push_back(static_cast<float>(std::pow(base, double{exponent})));
  }
  return p;
}

std::vector<float> inverse(const std::vector<float>& p) {
  std::vector<float> f;
  for (const float x : p) f.push_back(1.0F / x);
  return f;
}

// NTK-aware: the slowest pair turns as far as within original_tokens.
float dynamic_base(double base, std::int32_t head_dim, const RopeScaling& s, std::int64_t tokens) {
  const float stretch =
      static_cast<float>(s.factor * static_cast<double>(tokens)) / static_cast<float>(s.original_tokens) - static_cast<float>(s.factor - 1);
  const double exponent = static_cast<double>(head_dim) / (head_dim - 2);
  return static_cast<float>(base) * static_cast<float>(std::pow(double{stretch}, exponent));
}

void scale_llama3(const RopeScaling& s, std::vector<float>& frequencies) {
  const auto factor = static_cast<float>(s.factor), low = static_cast<float>(s.low_freq_factor),
             high = static_cast<float>(s.high_freq_factor), original = static_cast<float>(s.original_tokens);
  for (float& f : frequencies) {
    const float wave_length = static_cast<float>(2 * std::numbers::pi) / f;
    if (wave_length > static_cast<float>(s.original_tokens / s.low_freq_factor)) {
      f /= factor;
    } else if (wave_length >= static_cast<float>(s.original_tokens / s.high_freq_factor)) {
      const float smooth = (original / wave_length - low) / (high - low);
      f = (1 - smooth) * f / factor + smooth * f;
    }
  }
}

// Real-valued.
double pair_turning(double turns, double base, std::int32_t head_dim, const RopeScaling& s) {
  return head_dim * std::log(s.original_tokens / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

std::vector<float> yarn_frequencies(double base, std::int32_t head_dim, const RopeScaling& s) {
  double low = pair_turning(s.beta_fast, base, head_dim, s), high = pair_turning(s.beta_slow, base, head_dim, s);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  std::vector<float> f = periods(base, head_dim);
  for (std::size_t i = 0; i < f.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F, 1.0F);
    const float unscaled = 1.0F / f[i], scaled = 1.0F / (static_cast<float>(s.factor) * f[i]), keep = 1.0F - ramp;
    f[i] = scaled * (1.0F - keep) + unscaled * keep;
  }
  return f;
}

}  // namespace

double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto magnitude = [factor](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  return mscale > 0 && mscale_all_dim > 0 ? magnitude(mscale) / magnitude(mscale_all_dim) : magnitude(1);
}

Rotary::Rotary(const RopeForm& form, std::int32_t head_dim) : form_(form), head_dim_(head_dim) {
  if (form_.scaling.kind == RopeScaling::Kind::kYarn) {
    frequencies_ = yarn_frequencies(form_.base, head_dim_, form_.scaling);
    return;
  }
  frequencies_ = inverse(periods(form_.base, head_dim_));
  if (form_.scaling.kind == RopeScaling::Kind::kLlama3) scale_llama3(form_.scaling, frequencies_);
  if (form_.scaling.kind == RopeScaling::Kind::kLinear)
    for (float& f : frequencies_) f /= static_cast<float>(form_.scaling.factor);
}

std::vector<float> Rotary::frequencies(std::int64_t tokens) const {
  if (form_.scaling.kind != RopeScaling::Kind::kDynamic || static_cast<double>(tokens) <= form_.scaling.original_tokens)
    return frequencies_;
  return inverse(periods(double{dynamic_base(form_.base, head_dim_, form_.scaling, tokens)}, head_dim_));
}

void Rotary::fill(std::span<const std::int32_t> positions, float* cos, float* sin) const {
  if (positions.empty()) return;
  const std::vector<float> radians = frequencies(std::int64_t{*std::max_element(positions.begin(), positions.end())} + 1);
  const auto scale = static_cast<float>(form_.scaling.attention_factor);
  constexpr std::size_t kPart = 64;
  for_each_in_parallel(static_cast<std::int64_t>(ceil_div(positions.size(), kPart)), [&](std::int64_t part) {
    const std::size_t begin = static_cast<std::size_t>(part) * kPart, end = std::min(positions.size(), begin + kPart);
    std::size_t to = begin * radians.size();
    for (std::size_t i = begin; i < end; ++i) {
      for (const float frequency : radians) {
        const double angle = double{static_cast<float>(positions[i]) * frequency};
        cos[to] = static_cast<float>(std::cos(angle)) * scale;
        sin[to++] = static_cast<float>(std::sin(angle)) * scale;
      }
    }
  });
}

}  // namespace kvlab
