#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// Turns text into token ids; `is_start`: it opens the sequence, so that tokens that the model expects in front (<s>) belong to it.
using Encode = std::function<std::vector<std::int32_t>(std::string_view text, bool is_start)>;
// Bytes of the text of these token ids; 0: not known.
using CountBytes = std::function<std::int32_t(std::span<const std::int32_t> ids)>;

// A question and the answer that counts as right, token by token.
struct EvalTurn {
  std::vector<std::int32_t> question, answer;
  std::int32_t answer_bytes = 0;  // of its text; 0: not known
};

// One sample: a context, then turns. Fed as context, question, answer, question, answer, ...: after a turn the cache holds the true answer,
// whatever was generated.
struct EvalSample {
  std::string task;
  std::int32_t length = 0;  // that the set names: about the tokens of everything together
  std::int32_t number = 0;  // line of the file, from 0
  std::vector<std::int32_t> context;
  std::vector<EvalTurn> turns;
  [[nodiscard]] std::int32_t num_tokens() const;  // of everything together
};

// Which samples of a file to take.
struct EvalChoice {
  std::vector<std::string> tasks;     // empty: all
  std::vector<std::int32_t> lengths;  // empty: all
  std::int32_t per_task = 0;          // number of samples of each task and length, the first ones; 0: all
};

// Limits of a model.
struct EvalLimits {
  std::string model;
  std::int32_t max_tokens = 0, vocab_size = 0;  // 0: any
};

// Reads JSON lines {"task", "length", "prompt", "turns": [{"question", "answer"}]}, where prompt, question and answer are text or lists of
// token ids; length may be absent (0), other keys are passed over. Errors (InputError with FILE:LINE): not JSON, a key missing, misspelled
// or of another type, no turns, an empty prompt or answer; a sample taken that the model cannot; a task or length asked for that no sample
// has; nothing left. `count_bytes` is asked of answers that are given as ids.
std::vector<EvalSample> read_eval_set(const std::string& file, const EvalChoice& choice, const Encode& encode,
                                      const EvalLimits& limits = {}, const CountBytes& count_bytes = {});

}  // namespace kvlab
