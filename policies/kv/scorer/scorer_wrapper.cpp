#include "policies/kv/scorer/scorer_wrapper.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "base/error.h"

namespace kvlab {

namespace {

// Sentence end, or "".
std::string obstacle(const PassedOn& passed, const Scorer& inner) {
  if (!passed.whole_step) {
    if (const std::string tensor = first_not_given(inner.needs(), passed.needs); !tensor.empty()) return "reads " + tensor;
    if (inner.num_words() > 0) return "keeps statistics of every token";
  }
  if (!passed.refines && inner.ranks_after_counts()) return "ranks tokens anew once counts are known";
  if (passed.adds_scores && inner.marks_tokens())
    return "gives the tokens of a first stage the largest score that there is, in which sums and means overflow";
  return "";
}

std::vector<std::string> fitting(const PassedOn& passed) {
  std::vector<std::string> fit;
  for (const std::string& name : ScorerRegistry::names()) {
    for (const char* parameters : {"{}", "{of: key_norm, first_stage: of_budget}"}) {
      try {
        Params p = Params::from_text(parameters, name);
        if (const auto scorer = ScorerRegistry::make(name, p, "scorer"); !obstacle(passed, *scorer).empty()) continue;
        fit.push_back(parameters == std::string("{}") ? name : fmt::format("{{{}: {}}}", name, parameters));
        break;
      } catch (const InputError&) {  // a required or unknown parameter
      }
    }
  }
  return fit;
}

}  // namespace

std::string first_not_given(const Needs& needs, const Needs& given) {
  // Lists all members, so that a new one does not compile.
  const auto& [step_queries, prompt_queries, window_queries, pre_rope_queries, pre_rope_keys, turns, output_weights, hidden, guessed_query,
               token_ids, question, future_queries, pass, pass_hidden, weights, cpu_only] = needs;
  static_cast<void>(turns), static_cast<void>(cpu_only), static_cast<void>(weights);
  struct Tensor {
    bool needed, is_given;
    const char* words;
  };
  const std::array<Tensor, 13> tensors{{{step_queries, given.step_queries, "the step's queries"},
                                        {prompt_queries, given.prompt_queries, "the queries of all chunks of the prompt"},
                                        {window_queries > given.window_queries, false, "the last queries of the prompt"},
                                        {pre_rope_queries, given.pre_rope_queries, "queries before RoPE"},
                                        {pre_rope_keys, given.pre_rope_keys, "keys before RoPE"},
                                        {output_weights, given.output_weights, "the output projection"},
                                        {hidden, given.hidden, "the attention layer's inputs"},
                                        {guessed_query, given.guessed_query, "the input of the layer before"},
                                        {token_ids, given.token_ids, "token ids"},
                                        {question, given.question, "the question's start"},
                                        {future_queries, given.future_queries, "the queries still to come"},
                                        {!pass.empty(), pass == given.pass, "an extra pass over the prompt"},
                                        {pass_hidden, given.pass_hidden, "the attention layers' inputs in an extra pass"}}};
  for (const Tensor& t : tensors)
    if (t.needed && !t.is_given) return t.words;
  return "";
}

std::string why_not_inside(const PassedOn& passed, const Scorer& inner, const std::string& name, const std::string& or_else) {
  const std::string why = obstacle(passed, inner);
  if (why.empty()) return "";
  return fmt::format("'{}' cannot build on '{}', which {}: take one of {}{}", passed.wrapper, name, why, fmt::join(fitting(passed), ", "),
                     or_else);
}

}  // namespace kvlab
