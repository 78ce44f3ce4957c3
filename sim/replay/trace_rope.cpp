#include "sim/replay/trace_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

using Json = nlohmann::json;
using Kind = RopeScaling::Kind;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

class ScalingText {
 public:
  explicit ScalingText(const AttentionTrace& trace) : name_(trace.name), text_(trace.rope_scaling) {
    json_ = Json::parse(text_, nullptr, false);
    if (!json_.is_object()) fail("is no JSON object");
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw InputError(fmt::format("trace '{}': rope_scaling = {} {}", name_, text_, why));
  }
  [[nodiscard]] Kind kind() const {
    const std::string key = json_.contains("rope_type") ? "rope_type" : "type";
    const std::string name = json_.contains(key) && json_[key].is_string() ? json_[key].get<std::string>() : "";
    for (const auto& [known, kind] : {std::pair{"default", Kind::kNone},
                                      {"linear", Kind::kLinear},
                                      {"dynamic", Kind::kDynamic},
                                      {"llama3", Kind::kLlama3},
                                      {"yarn", Kind::kYarn}})
      if (name == known) return kind;
    fail("has a rope_type that is not supported; supported are default, linear, dynamic, llama3, yarn");
  }
  // A finite number from `least`; `otherwise` if absent, which throws if NaN.
  [[nodiscard]] double number(const std::string& key, double least, double otherwise) const {
    const bool there = json_.contains(key) && !json_[key].is_null();
    if (!there && std::isnan(otherwise)) fail(fmt::format("has no '{}': add it to the trace's metadata, or record the trace again", key));
    if (!there) return otherwise;
    const double value = json_[key].is_number() ? json_[key].get<double>() : kNone;
    if (!(value >= least) || !std::isfinite(value)) fail(fmt::format("has a '{}' that is no number from {}", key, number_text(least)));
    return value;
  }
  // As transformers: absent is true, null is false.
  [[nodiscard]] bool truncates() const {
    return !json_.contains("truncate") || (json_["truncate"].is_boolean() && json_["truncate"].get<bool>());
  }

 private:
  std::string name_, text_;
  Json json_;
};

}  // namespace

RopeForm rope_of(const AttentionTrace& trace) {
  if (trace.rope_base == 0 || trace.rope_scaling == "none") return {trace.rope_base};
  const ScalingText text(trace);
  RopeScaling s;
  s.kind = text.kind();
  if (s.kind == Kind::kNone) return {trace.rope_base};
  s.factor = text.number("factor", 1, kNone);
  if (s.kind != Kind::kLinear) s.original_tokens = text.number("original_max_position_embeddings", 1, kNone);
  if (s.kind == Kind::kLlama3) {
    s.low_freq_factor = text.number("low_freq_factor", 1e-9, kNone);
    s.high_freq_factor = text.number("high_freq_factor", 1e-9, kNone);
    if (!(s.high_freq_factor > s.low_freq_factor)) text.fail("has a 'high_freq_factor' that is not above 'low_freq_factor'");
  }
  if (s.kind == Kind::kYarn) {
    s.beta_fast = text.number("beta_fast", 1e-9, 32);
    s.beta_slow = text.number("beta_slow", 1e-9, 1);
    s.truncate = text.truncates();
    const double own = yarn_attention_factor(s.factor, text.number("mscale", 0, 0), text.number("mscale_all_dim", 0, 0));
    s.attention_factor = text.number("attention_factor", 1e-9, own);
  }
  return {trace.rope_base, s};
}

void check_rotation(const AttentionTrace& trace, const RopeForm& rope) {
  const LayerTensors& layer = trace.layers.front();
  if (layer.pre_q.empty() || rope.base == 0 || trace.head_dim % 2 != 0) return;
  // Last token of the first pass, which sets dynamic scaling.
  const std::int32_t position = (trace.chunk_ends.empty() ? trace.prompt_tokens : trace.chunk_ends.front()) - 1;
  const auto half = static_cast<std::size_t>(trace.head_dim / 2), width = static_cast<std::size_t>(trace.q_heads) * 2 * half;
  const std::vector<float> frequency = Rotary(rope, trace.head_dim).frequencies(position + 1);
  double error = 0, size = 0;
  for (std::size_t at = static_cast<std::size_t>(position) * width; at < (static_cast<std::size_t>(position) + 1) * width; at += 2 * half)
    for (std::size_t c = 0; c < half; ++c) {
      const double angle = double{static_cast<float>(position) * frequency[c]}, m = rope.scaling.attention_factor;
      const double a = double{layer.pre_q[at + c]}, b = double{layer.pre_q[at + c + half]};
      const double x = double{layer.q[at + c]}, y = double{layer.q[at + c + half]};
      error = std::max({error, std::abs(m * (a * std::cos(angle) - b * std::sin(angle)) - x),
                        std::abs(m * (b * std::cos(angle) + a * std::sin(angle)) - y)});
      size = std::max({size, std::abs(x), std::abs(y)});
    }
  constexpr double kTolerance = 0.03;  // rounding of 16-bit models and files
  if (error <= kTolerance * size) return;
  throw InputError(
      fmt::format("trace '{}': its queries are not those before RoPE turned by rope_base {} and rope_scaling {}: they differ by {:.0f} % "
                  "of the largest; "
                  "set rope_scaling in its metadata to the rope_scaling of the model's config.json",
                  trace.name, number_text(rope.base), trace.rope_scaling, 100 * error / size));
}

}  // namespace kvlab
