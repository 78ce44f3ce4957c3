#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// is_start: gets leading tokens (<s>).
using Encode = std::function<std::vector<std::int32_t>(std::string_view text, bool is_start)>;
// 0: unknown.
using CountBytes = std::function<std::int32_t(std::span<const std::int32_t> ids)>;

struct EvalTurn {
  std::vector<std::int32_t> question, answer;
  std::int32_t answer_bytes = 0;  // 0: unknown
};

// Fed as context, question, answer, ..., with true answers.
struct EvalSample {
  std::string task;
  std::int32_t length = 0;  // about the tokens
  std::int32_t number = 0;  // line, from 0
  std::vector<std::int32_t> context;
  std::vector<EvalTurn> turns;
  [[nodiscard]] std::int32_t num_tokens() const;
};

struct EvalChoice {
  std::vector<std::string> tasks;     // empty: all
  std::vector<std::int32_t> lengths;  // empty: all
  std::int32_t per_task = 0;          // first samples per task and length; 0: all
};

struct EvalLimits {
  std::string model;
  std::int32_t max_tokens = 0, vocab_size = 0;  // 0: any
};

// Reads JSON lines {"task", "length", "prompt", "turns": [{"question", "answer"}]}; texts may be token ids, length is optional, other keys
// are ignored. count_bytes: for ids as answers. Throws InputError with FILE:LINE, also for samples beyond the limits, or none.
std::vector<EvalSample> read_eval_set(const std::string& file, const EvalChoice& choice, const Encode& encode,
                                      const EvalLimits& limits = {}, const CountBytes& count_bytes = {});

}  // namespace kvlab
