#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/engine_model.h"
#include "engine/grade/eval_set.h"

namespace kvlab {

// Right if each token is the most likely after the true ones.
struct GradedAnswer {
  std::int32_t sample = 0, turn = 0;  // sample: number in its file
  std::int32_t tokens = 0, bytes = 0;
  std::int32_t first_wrong = -1;      // -1: right
  std::int32_t first_diverging = -1;  // unlike the full cache; -1: none
  std::int32_t agreeing = 0;
  bool is_full_exact = true;
  double bits = 0;     // sum of -log2 p(token)
  double kl_nats = 0;  // sum of KL(full cache || policy)
  // Share of the full cache's bytes for the sample, mean over tokens after the prompt (none: at its end).
  double resident_bytes_frac = 0;
  [[nodiscard]] bool is_exact() const { return first_wrong < 0; }
};

struct GradeOptions {
  // False: the first question is unknown to the policy.
  bool compresses_question = true;
  std::int32_t chunk_tokens = 0;  // of prefill; 0: one chunk
  std::uint64_t seed = 1;
  RecordOptions passes = {};
};

struct GradeSample {
  const EvalSample* sample = nullptr;
  std::vector<std::int32_t> ids;
  std::uint64_t draws = 0;  // by ids
  std::int32_t prompt_tokens = 0, question_begin = -1;
  PromptTensors prompt;
  // Before answer tokens; full-cache logits [answer tokens, vocab_size].
  struct Place {
    std::int32_t position = 0, turn = 0;  // position + 1 is the answer's
  };
  std::vector<Place> places;
  std::vector<float> full_logits;
};

// Throws InputError beyond the model's context or vocabulary.
GradeSample prepare_sample(const EngineModel& model, const EvalSample& sample, const GradeOptions& options, const Needs& needs,
                           std::span<const std::string> passes);

struct GradeNeeds {
  Needs needs;
  std::vector<std::string> passes;
};
GradeNeeds needs_of(const EngineModel& model, std::span<const Recipe> recipes);

// Later tokens are only appended, all are attended to.
bool rests_after_prompt(const Recipe& recipe);

// One batch by sample and turn. Errors as PolicyCache.
std::vector<GradedAnswer> grade(const EngineModel& model, const Recipe& recipe, std::span<const GradeSample* const> samples,
                                const GradeOptions& options);
// Gives the same bits for each recipe. As many caches as memory allows go through the model together.
std::vector<std::vector<GradedAnswer>> grade(const EngineModel& model, std::span<const Recipe* const> recipes,
                                             std::span<const GradeSample* const> samples, const GradeOptions& options);

// Extrapolates from a short prompt and some decode steps.
class GradeWork {
 public:
  GradeWork(const EngineModel& model, const GradeOptions& options) : model_(model), options_(options) {}
  void add(const EvalSample& sample, const Recipe& recipe);
  [[nodiscard]] double seconds() const;
  [[nodiscard]] std::string describe() const;  // "about 12 minutes on this machine"

 private:
  const EngineModel& model_;
  GradeOptions options_;
  std::int32_t last_sample_ = -1;
  double prompt_flops_ = 0, chunk_flops_ = 0, decode_tokens_ = 0, decode_kv_bytes_ = 0, copied_bytes_ = 0;
};

}  // namespace kvlab
