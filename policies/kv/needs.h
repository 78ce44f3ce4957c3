#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvlab {

// Extra forward passes, by their names in traces (forward_passes.h).
namespace passes {
inline constexpr const char *kLookahead = "lookahead", *kReconstruct = "reconstruct", *kReconstructGradient = "reconstruct_gradient",
                            *kRepeat = "repeat", *kTemplate = "template", *kWindows = "windows";
}  // namespace passes

inline constexpr std::string_view kBreaksPeerTies = "breaks ties as a library does on a CPU";  // for Needs::cpu_only

// Tensors that a part reads beyond K and V. Hosts compute only these, or refuse the recipe.
struct Needs {
  bool step_queries = false;        // decode: one per sequence
  bool prompt_queries = false;      // every chunk's; implied by num_words() > 0
  std::int32_t window_queries = 0;  // across chunks
  bool pre_rope_queries = false;    // whole prompt
  bool pre_rope_keys = false;
  bool turns = false;  // applies RoPE itself
  bool output_weights = false;
  bool hidden = false;         // attention layer inputs
  bool guessed_query = false;  // decode: the previous layer's input, this layer's W_q
  bool token_ids = false;
  bool question = false;
  bool future_queries = false;  // for oracles
  std::string pass = {};
  bool pass_hidden = false;
  bool weights = false;  // trained tensors were not given: costs only
  // Why backend cuda refuses the recipe, after "recipe 'x' "; empty: it does not. A string literal.
  std::string_view cpu_only = {};
  void add(const Needs& other);
  // Keeps an earlier reason.
  void run_only_on_cpu(std::string_view reason) { cpu_only = cpu_only.empty() ? reason : cpu_only; }
  // Begins the last max(32, window_queries) prompt tokens; -1: not needed.
  [[nodiscard]] std::int32_t assumed_question(std::int32_t prompt_tokens) const;
};

}  // namespace kvlab
