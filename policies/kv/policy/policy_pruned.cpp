#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "kernels/score/score_map_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/policy/acting.h"
#include "policies/kv/policy/policy.h"

namespace kvlab {

namespace {

bool is_whole_prompt(const SeqStep& seq) { return seq.seen_tokens == 0 && seq.completes_prompt(); }

}  // namespace

std::int32_t KvPolicy::step_tokens(const SeqStep& seq, std::int32_t layer) const {
  if (!prunes() || !is_whole_prompt(seq)) return seq.new_tokens;
  if (parts_.rewriter != nullptr) {
    const std::int32_t question_tokens = seq.question_begin < 0 ? 0 : seq.end() - seq.question_begin;
    return std::min(seq.new_tokens, parts_.rewriter->kept(seq.end(), question_tokens));
  }
  const PromptPruner::Ends ends = parts_.pruner->ends(seq.end());
  const std::int32_t always = ends.first + std::max(1, ends.last);
  std::int32_t tokens = seq.new_tokens;
  for (std::int32_t l = 0; l < layer; ++l) tokens = std::min(tokens, std::max(always, parts_.pruner->kept(model_, l, tokens, seq.end())));
  return tokens;
}

void KvPolicy::refuse_part_of_prompt(const SeqStep& seq) const {
  if (!prunes() || seq.decoding() || is_whole_prompt(seq)) return;
  throw InputError(
      fmt::format("recipe '{}' {} prompts and takes each in one piece, but a step has tokens {} to {} of a prompt of {}: use a scheduler "
                  "that does not cut prompts (vllm_v0), a larger 'budget_tokens', or no 'chunk_tokens'",
                  recipe_.name, parts_.rewriter != nullptr ? "rewrites" : "prunes", seq.seen_tokens, seq.end(), seq.prompt_tokens));
}

void KvPolicy::prune(const PolicyStep& step, std::int32_t layer) {
  going_on_.assign(step.seqs.size(), {});
  if (layer + 1 == model_.num_layers) return;
  Acting acting;
  for (std::size_t s = 0; s < step.seqs.size(); ++s) {
    const std::int32_t left = step_tokens(step.seqs[s], layer + 1);
    if (left == step_tokens(step.seqs[s], layer)) continue;
    acting.which.push_back(static_cast<std::int32_t>(s));
    acting.target.push_back(left);
    acting.seqs.push_back(step.seqs[s]);
  }
  if (acting.which.empty()) return;
  const Ops::Frame frame(step.ops);
  LayerStep view = acting.view(layer_step(step, layer));
  choose_going_on(view, acting);
}

// One score row per sequence: its KV heads hold the same tokens.
void KvPolicy::choose_going_on(LayerStep& view, Acting& acting) {
  const auto sequences = static_cast<std::int32_t>(acting.seqs.size());
  std::int64_t *first = view.ops.host_longs(sequences + 1), *index_first = view.ops.host_longs(sequences + 1);
  std::int32_t *begin = view.ops.host_ints(sequences), *end = view.ops.host_ints(sequences);
  first[0] = index_first[0] = 0;
  for (std::int32_t s = 0; s < sequences; ++s) {
    const std::int32_t tokens = view.kv.len[s * view.kv.kv_heads], left = acting.target[static_cast<std::size_t>(s)];
    const PromptPruner::Ends ends = parts_.pruner->ends(acting.seqs[static_cast<std::size_t>(s)].end());
    first[s + 1] = first[s] + tokens;
    index_first[s + 1] = index_first[s] + left;
    begin[s] = ends.first;
    end[s] = tokens - std::max(1, ends.last);
  }
  float* const scores = view.ops.floats(first[sequences]);
  parts_.pruner->score(view, first, scores);
  view.ops(ScoreMap::fill(sequences, first, begin, end, std::numeric_limits<float>::infinity(), 0.0F, scores, true));
  std::int32_t* const index = view.ops.ints(index_first[sequences]);
  view.ops(TopK{sequences, first, scores, acting.target.data(), index_first, index});
  if (!view.ops.computes()) return;
  for (std::int32_t s = 0; s < sequences; ++s)
    going_on_[static_cast<std::size_t>(acting.which[static_cast<std::size_t>(s)])].assign(index + index_first[s],
                                                                                          index + index_first[s + 1]);
}

}  // namespace kvlab
