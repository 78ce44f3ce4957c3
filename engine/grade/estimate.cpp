#include "engine/grade/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/model/model_work.h"

namespace kvlab {

namespace {

constexpr int kTimes = 3;

// The fastest of three: interference would add hours.
double time_of(const auto& work) {
  double fastest = 0;
  for (int i = 0; i < kTimes; ++i) {
    const auto began = std::chrono::steady_clock::now();
    work();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    fastest = i == 0 ? seconds : std::min(fastest, seconds);
  }
  return fastest;
}

}  // namespace

void GradeWork::add(const EvalSample& sample, const Recipe& recipe) {
  const ModelConfig& c = model_.config();
  const ModelWork work(c);
  const double n = sample.num_tokens(),
               prompt = static_cast<double>(sample.context.size() + (options_.compresses_question ? sample.turns[0].question.size() : 0));
  if (sample.number != last_sample_) prompt_flops_ += work.forward_flops(0, n);  // with the full cache's answers
  last_sample_ = sample.number;
  const double kept = recipe.has_budget && recipe.trigger != "never"
                          ? std::min<double>(prompt, recipe.budget.of(static_cast<std::int32_t>(prompt)))
                          : prompt;
  const double row_bytes = 8.0 * c.layers * c.kv_heads * c.head_dim;
  copied_bytes_ += prompt * row_bytes;
  if (!recipe.computes_whole_prompts()) chunk_flops_ += work.forward_flops(0, prompt);  // its own prompt run: an upper bound
  if (rests_after_prompt(recipe)) {
    chunk_flops_ += work.forward_flops(kept, kept + n - prompt);
  } else {
    decode_tokens_ += n - prompt;
    decode_kv_bytes_ += (n - prompt) * kept * row_bytes;
  }
}

double GradeWork::seconds() const {
  constexpr std::int32_t kPrompt = 256, kBatch = 8, kSteps = 4;
  const std::vector<std::int32_t> ids(kPrompt + kTimes * kSteps, 1);
  PromptTensors prompt = model_.run_prompt(std::span(ids).first(1), {}, {}, {});  // warm-up
  const double prompt_s = time_of([&] { prompt = model_.run_prompt(std::span(ids).first(kPrompt), {}, {}, {}); });
  const std::unique_ptr<PolicyCache> cache = model_.make_cache(load_recipe("full"), {});
  std::vector<EngineSequence> sequences(kBatch);
  std::vector<StepPiece> pieces;
  for (std::int32_t i = 0; i < kBatch; ++i) {
    EngineSequence& s = sequences[static_cast<std::size_t>(i)];
    s.index = i, s.prompt_tokens = kPrompt, s.ids = ids;
    cache->start(s);
    cache->adopt(s, prompt);
    pieces.push_back({&s, 1});
  }
  const std::vector<std::int32_t> last{kBatch - 1};
  std::int32_t position = kPrompt;
  const double step_s = time_of([&] {
                          for (std::int32_t t = 0; t < kSteps; ++t, ++position) {
                            const std::vector<std::int32_t> one(kBatch, 1), positions(kBatch, position);
                            static_cast<void>(model_.forward(*cache, pieces, {one, positions}, last));
                          }
                        }) /
                        kSteps;
  constexpr double kReadBytesPerS = 10e9;  // K and V, for policies that read them too
  const double flops_per_s = ModelWork(model_.config()).forward_flops(0, kPrompt) / prompt_s;
  return (prompt_flops_ + 2 * chunk_flops_) / flops_per_s + 3 * decode_tokens_ * step_s / kBatch +
         (decode_kv_bytes_ + copied_bytes_) / kReadBytesPerS;
}

std::string GradeWork::describe() const {
  const double s = seconds();
  const std::string time = s < 90     ? fmt::format("{:.0f} seconds", std::max(1.0, s))
                           : s < 5400 ? fmt::format("{:.0f} minutes", s / 60)
                                      : fmt::format("{:.1f} hours", s / 3600);
  return "about " + time + " on this machine";
}

}  // namespace kvlab
