#include "engine/label/prefill_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/config/params.h"
#include "base/error.h"
#include "engine/label/probe_prompts.h"
#include "engine/model/transformer.h"
#include "policies/kv/prefill_selector/prefill_selector.h"

namespace kvlab {

namespace {

using PatternKind = HeadPattern::Kind;

// Patterns whose first number is the share `first` of `tokens`.
struct PatternFamily {
  PatternKind kind;
  double first;
};
constexpr PatternFamily kPatternFamilies[] = {{PatternKind::kAShape, 0.0625},     {PatternKind::kAShape, 0.25},
                                              {PatternKind::kAShape, 0.5},        {PatternKind::kVerticalSlash, 0.125},
                                              {PatternKind::kVerticalSlash, 0.5}, {PatternKind::kVerticalSlash, 0.875},
                                              {PatternKind::kBlocks, 1}};

HeadPattern pattern_of(const PatternFamily& family, std::int32_t tokens) {
  constexpr std::int32_t kBlock = 64;  // of the selector
  if (family.kind == PatternKind::kBlocks) return {family.kind, std::max(1, tokens / kBlock), 0};
  const auto first = static_cast<std::int32_t>(family.first * tokens);
  return {family.kind, first, std::max(1, tokens - first)};
}

struct PatternRun {
  double error = 0, flops = 0;
};
PatternRun run_pattern(const HeadPattern& pattern, const HeadPrompt& prompt) {
  const std::string entry = head_patterns_inline({{{0, 0}, pattern}});
  Params params = Params::from_text("{heads: '" + entry + "'}", "minference");
  const auto selector = PrefillSelectorRegistry::make("minference", params, "prefill_selector");
  Ops ops(Ops::Backend::kCpu);
  ops.keep_log(true);
  ModelShape model;
  model.num_layers = model.q_heads = model.kv_heads = 1, model.head_dim = model.hidden_dim = prompt.head_dim;
  std::vector<float> out(prompt.out.size());
  PromptChunk chunk{ops, model, 0, {0, 0, prompt.tokens, prompt.tokens, -1}, prompt.q.data(), prompt.k.data(), prompt.v.data(), out.data()};
  chunk.window = prompt.window;
  const Ops::Frame frame(ops);
  selector->attend(chunk);
  PatternRun run;
  for (const OpCall& call : ops.log()) run.flops += static_cast<double>(call.flops);
  for (std::size_t i = 0; i < out.size(); ++i) run.error += std::pow(double{out[i]} - prompt.out[i], 2);
  return run;
}

double causal_flops(const HeadPrompt& prompt) { return 4.0 * prompt.head_dim * (0.5 * prompt.tokens * (prompt.tokens + 1.0)); }

class PatternRecorder final : public Recorder {
 public:
  PatternRecorder(const ModelConfig& config, std::vector<HeadPatternSearch>& searches) : config_(config), searches_(searches) {}

  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                    std::span<const float> out) override {
    const std::int32_t heads = config_.q_heads, kv_heads = config_.kv_heads;
    HeadPrompt prompt;
    prompt.head_dim = config_.head_dim, prompt.window = config_.window(layer);
    prompt.tokens = static_cast<std::int32_t>(std::ssize(q) / (std::int64_t{heads} * config_.head_dim));
    for (std::int32_t h = 0; h < heads; ++h) {
      prompt.q = of_head(q, heads, h), prompt.out = of_head(out, heads, h);
      prompt.k = of_head(k, kv_heads, h / (heads / kv_heads)), prompt.v = of_head(v, kv_heads, h / (heads / kv_heads));
      searches_[static_cast<std::size_t>(layer * heads + h)].see(prompt);
    }
  }

 private:
  [[nodiscard]] std::vector<float> of_head(std::span<const float> all, std::int32_t heads, std::int32_t head) const {
    const auto d = static_cast<std::size_t>(config_.head_dim), width = static_cast<std::size_t>(heads) * d;
    std::vector<float> one;
    for (std::size_t at = static_cast<std::size_t>(head) * d; at < all.size(); at += width)
      one.insert(one.end(), all.begin() + static_cast<std::ptrdiff_t>(at), all.begin() + static_cast<std::ptrdiff_t>(at + d));
    return one;
  }

  const ModelConfig& config_;
  std::vector<HeadPatternSearch>& searches_;
};

}  // namespace

// Bisects the patterns' tokens in steps of 1/128 of the prompt.
void HeadPatternSearch::add_candidates(const HeadPrompt& prompt) {
  constexpr std::int32_t kSteps = 128;
  const double all = causal_flops(prompt);
  double least = 1;
  for (const PatternFamily& family : kPatternFamilies) {
    std::int32_t low = 0, high = kSteps + 1;
    Candidate fits;
    while (high - low > 1) {
      const std::int32_t middle = (low + high) / 2, tokens = std::max(1, ceil_div(middle * prompt.tokens, kSteps));
      const HeadPattern pattern = pattern_of(family, tokens);
      const double share = run_pattern(pattern, prompt).flops / all;
      least = std::min(least, share);
      (share <= flops_frac_ ? low : high) = middle;
      if (share <= flops_frac_) fits = {pattern, share};
    }
    if (low > 0) candidates_.push_back(fits);
  }
  if (candidates_.empty())
    throw InputError(
        fmt::format("a prompt of {} tokens has no pattern of {:.3g} of its attention's FLOPs, the smallest has {:.3g}: give "
                    "--flops-frac more, or longer prompts",
                    prompt.tokens, flops_frac_, least));
}

void HeadPatternSearch::see(const HeadPrompt& prompt) {
  if (candidates_.empty()) add_candidates(prompt);
  for (Candidate& candidate : candidates_) candidate.error += run_pattern(candidate.pattern, prompt).error;
  for (const float x : prompt.out) squares_ += double{x} * x;
}

HeadPatternSearch::Found HeadPatternSearch::best() const {
  const Candidate& best =
      *std::min_element(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.error < b.error; });
  return {best.pattern, squares_ > 0 ? best.error / squares_ : 0, best.flops_frac};
}

PrefillLabels label_prefill(const Transformer& model, const Tokenizer& tokenizer, const LabelOptions& options, double flops_frac) {
  const ModelConfig& config = model.config();
  std::vector<HeadPatternSearch> searches(static_cast<std::size_t>(config.layers * config.q_heads), HeadPatternSearch(flops_frac));
  PatternRecorder recorder(config, searches);
  for (std::int32_t i = 0; i < options.probes; ++i) {
    const NeedleProbe probe =
        needle_probe(tokenizer, config, options.seed, static_cast<std::uint64_t>(i), options.prompt_tokens, (i + 0.5) / options.probes);
    require_context(config, probe.ids.size(), "a needle prompt");
    KvState kv(config);
    forward(model, probe.ids, kv, &recorder);
  }
  PrefillLabels labels{{}, config.q_heads};
  for (const HeadPatternSearch& search : searches) labels.heads.push_back(search.best());
  return labels;
}

std::string prefill_labels_text(const PrefillLabels& labels) {
  std::vector<std::pair<HeadPattern, double>> found;
  for (const HeadPatternSearch::Found& head : labels.heads) found.emplace_back(head.pattern, head.error);
  return head_patterns_text(found, labels.q_heads);
}

}  // namespace kvlab
