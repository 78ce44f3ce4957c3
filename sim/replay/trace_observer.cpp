#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "policies/kv/forward_passes.h"
#include "sim/replay/replay.h"

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

ModelShape shape_of(const AttentionTrace& trace, std::int32_t kv_bytes) {
  return {trace.num_layers, trace.q_heads, trace.kv_heads, trace.head_dim, trace.hidden_dim, kv_bytes, rope_of(trace)};
}

void check_needs(const Needs& needs, const AttentionTrace& trace, const std::string& recipe) {
  const LayerTensors& l = trace.layers.front();
  const auto require = [&](bool needed, bool there, const std::string& what, const std::string& how) {
    if (needed && !there)
      throw InputError(
          fmt::format("recipe '{}' observes {}, which trace '{}' does not have; record it with {}", recipe, what, trace.name, how));
  };
  require(needs.pre_rope_queries, !l.pre_q.empty(), "pre-RoPE queries", "--pre-rope");
  require(needs.pre_rope_keys, !l.pre_k.empty(), "pre-RoPE keys", "--pre-rope");
  require(needs.output_weights, !l.w_o.empty(), "the output projection", "--w-o");
  require(needs.hidden, !l.hidden.empty(), "the attention layers' inputs", "--hidden");
  require(needs.guessed_query, !l.hidden.empty() && !l.w_q.empty(), "the attention layers' inputs and the projections to queries",
          "--hidden --w-q");
  require(needs.token_ids, !trace.ids.empty(), "token ids", "ids");
  require(needs.question, trace.question_begin >= 0, "where the question begins", "a question");
  const std::string how =
      "--pass " + needs.pass + (has_backward(needs.pass) ? ", or in an experiment with 'record: {gradients: true}'" : "");
  const std::string fits = how + " (of a model with windows, a prompt that is shorter than the window together with a piece of the pass)";
  require(!needs.pass.empty(), needs.pass.empty() || trace.passes.contains(needs.pass), "the extra pass '" + needs.pass + "'", fits);
  if (!needs.pass.empty() && has_backward(needs.pass))
    require(true, !trace.passes.at(needs.pass).layers.front().gradient.empty(), "gradients of the extra pass", how);
  require(needs.pass_hidden, !needs.pass_hidden || !trace.passes.at(needs.pass).layers.front().hidden.empty(),
          "the attention layers' inputs in the extra pass", "--hidden");
  if (needs.turns) check_rotation(trace, rope_of(trace));
}

TraceObserver::TraceObserver(const AttentionTrace& trace, const Needs& needs) : trace_(trace), needs_(needs) {}

Queries TraceObserver::slice(const std::vector<float>& q, std::int32_t begin, std::int32_t end) const {
  const std::int64_t width = static_cast<std::int64_t>(trace_.q_heads) * trace_.head_dim;
  return {q.data() + begin * width, std::max(0, end - begin), begin};
}

Observed TraceObserver::observe(std::int32_t layer) {
  const LayerTensors& l = trace_.layers[static_cast<std::size_t>(layer)];
  const std::int32_t end = seq_.end(), prompt_end = std::min(end, seq_.prompt_tokens);
  Observed in;
  if (needs_.step_queries) in.step = std::span(&(step_ = slice(l.q, seq_.seen_tokens, end)), 1);
  if (needs_.window_queries > 0)
    in.window = std::span(&(window_ = slice(l.q, std::max(0, prompt_end - needs_.window_queries), prompt_end)), 1);
  if (needs_.pre_rope_queries) in.pre_rope_queries = std::span(&(pre_rope_queries_ = slice(l.pre_q, 0, prompt_end)), 1);
  if (needs_.future_queries) in.future = std::span(&(future_ = slice(l.q, end, trace_.num_tokens)), 1);
  if (needs_.pre_rope_keys) in.pre_rope_keys = std::span(&(pre_rope_keys_ = l.pre_k.data()), 1);
  if (needs_.hidden)
    in.hidden = std::span(&(hidden_ = l.hidden.data() + static_cast<std::int64_t>(seq_.seen_tokens) * trace_.hidden_dim), 1);
  if (needs_.guessed_query) {
    in.w_q = {l.w_q.data(), l.b_q.empty() ? nullptr : l.b_q.data()};
    const std::int64_t at = static_cast<std::int64_t>(seq_.seen_tokens) * trace_.hidden_dim;
    hidden_before_ = layer == 0 ? nullptr : trace_.layers[static_cast<std::size_t>(layer) - 1].hidden.data() + at;
    if (layer > 0) in.hidden_before = std::span(&hidden_before_, 1);
  }
  if (needs_.token_ids) in.ids = std::span(&(ids_ = trace_.ids.data()), 1);
  if (needs_.output_weights) in.w_o = l.w_o.data();
  if (!needs_.pass.empty()) {
    const ExtraPass& pass = trace_.passes.at(needs_.pass);
    const LayerTensors& tensors = pass.layers[static_cast<std::size_t>(layer)];
    pass_.clear();
    for (const PassChunk& c : pass.chunks)
      pass_.push_back({slice(tensors.q, c.begin, c.end),
                       tensors.k.data() + static_cast<std::int64_t>(c.begin) * trace_.kv_heads * trace_.head_dim, c.ctx_begin, c.ctx_end,
                       needs_.pass_hidden ? tensors.hidden.data() + static_cast<std::int64_t>(c.begin) * trace_.hidden_dim : nullptr,
                       tensors.gradient.empty() ? nullptr : tensors.gradient.data() + c.begin});
    pass_span_ = pass_;
    in.pass = std::span(&pass_span_, 1);
  }
  return in;
}

}  // namespace kvlab
