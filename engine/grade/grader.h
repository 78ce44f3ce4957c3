#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/engine_model.h"
#include "engine/grade/eval_set.h"

namespace kvlab {

// The grades of one answer. Greedy decoding agrees with teacher forcing up to its first mistake, so an answer is right exactly if each of
// its tokens is the most likely one after the true tokens before it.
struct GradedAnswer {
  std::int32_t sample = 0, turn = 0;  // number of the sample in its file
  std::int32_t tokens = 0, bytes = 0;
  std::int32_t first_wrong = -1;      // token of the answer that is not the most likely one; -1: none, the answer is right
  std::int32_t first_diverging = -1;  // token at which the full cache's choice is another one; -1: none
  std::int32_t agreeing = 0;          // tokens at which the choices are the same
  bool is_full_exact = true;          // the full cache's answer is right
  double bits = 0;                    // sum of -log2 p(token)
  double kl_nats = 0;                 // sum over the answer's tokens of KL(full cache || policy)
  // Share of the full cache's bytes, mean over the tokens after the prompt (none: at its end); of the whole sample.
  double resident_bytes_frac = 0;
  [[nodiscard]] bool is_exact() const { return first_wrong < 0; }
};

struct GradeOptions {
  // The first question belongs to the prompt that is run and compressed; else the policy does not know what will be asked.
  bool compresses_question = true;
  std::int32_t chunk_tokens = 0;  // of the prefill, for policies that act inside it; 0: in one piece
  std::uint64_t seed = 1;
  RecordOptions passes = {};
};

// A sample that ran over the full cache: what policies start from and are compared with.
struct GradeSample {
  const EvalSample* sample = nullptr;
  std::vector<std::int32_t> ids;  // of everything
  std::uint64_t draws = 0;        // random draws follow from the ids, not from which other samples there are
  std::int32_t prompt_tokens = 0, question_begin = -1;
  PromptTensors prompt;
  // The positions after the prompt whose logits choose a token of an answer, and the full cache's logits there [answer tokens, vocab_size].
  struct Place {
    std::int32_t position = 0, turn = 0;  // the token at position + 1 is the answer's
  };
  std::vector<Place> places;
  std::vector<float> full_logits;
};

// `needs`, `passes`: all that the policies to come observe. Errors (InputError): a sample longer than the model's context, ids outside its
// vocabulary.
GradeSample prepare_sample(const EngineModel& model, const EvalSample& sample, const GradeOptions& options, const Needs& needs,
                           std::span<const std::string> passes);

// The needs of several recipes together.
struct GradeNeeds {
  Needs needs;
  std::vector<std::string> passes;
};
GradeNeeds needs_of(const EngineModel& model, std::span<const Recipe> recipes);

// True: after the prompt, tokens are only appended and all are attended to, so that known tokens may run in one piece.
bool rests_after_prompt(const Recipe& recipe);

// Runs one recipe over the samples, decoded as one batch. Returns grades in the order of samples and turns. Errors: PolicyCache's.
std::vector<GradedAnswer> grade(const EngineModel& model, const Recipe& recipe, std::span<const GradeSample* const> samples,
                                const GradeOptions& options);

}  // namespace kvlab
