#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/transformer.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvlab {

struct LabelOptions {
  std::uint64_t seed = 1;
  std::int32_t probes = 5;                                   // needle prompts, their needles at evenly spaced depths
  std::int32_t prompt_tokens = 1024;                         // of a needle prompt, about
  std::int32_t chunk_tokens = 0;                             // of its prefill; 0: in one piece. No score depends on it
  std::int32_t block_tokens = 128, repeats = 4, blocks = 2;  // of repeated random tokens
  std::int32_t short_prompts = 8, short_tokens = 64;         // for attention sinks
  std::int32_t sink_tokens = 64, recent_tokens = 256;        // of a streaming head (DuoAttention)
  double sink_threshold = 0.3;
};

// Measures of attention heads, from running the model on generated prompts. Per query head [layers * q_heads], per KV head [layers *
// kv_heads] the largest of its group.
//   retrieval  share of a needle's tokens that the model emits while the head's largest attention is on the same token; mean over prompts.
//              Wu et al. 2024, arXiv:2404.15574; a retrieval head has 0.1 or more
//   semantic   the head's attention on the needle, summed over its tokens, while the model emits one of these, over their number.
//              CompressKV, Lin et al. 2025, arXiv:2508.02401
//   sink       mean attention on the first token, over all queries of short prompts. Gu et al. 2024, arXiv:2410.10781
//   echo, induction  mean attention on earlier copies of the current token, and on the tokens after them. RazorAttention, Tang et al. 2024,
//              arXiv:2407.15891
//   gates      mean attention, while the answer is emitted, on tokens that are neither the first sink_tokens nor the last recent_tokens:
//              our untrained replacement for the gates of DuoAttention, Xiao et al. 2024, arXiv:2410.10819
struct HeadLabelScores {
  std::vector<float> retrieval, semantic, sink, echo, induction;  // [layers * q_heads]
  std::vector<float> gates, kv_retrieval, kv_echo, kv_induction;  // [layers * kv_heads]
  double answered_frac = 0;                                       // of the needles' tokens that the model emitted at their place
  double sink_frac = 0;                                           // of heads and prompts with more than sink_threshold on the first token
};

// Deterministic. Errors (InputError): prompts that do not fit into the model's context.
HeadLabelScores label_heads(const Transformer& model, const Tokenizer& tokenizer, const LabelOptions& options);

// Writes the tensors by these names, of shape [layers, q_heads] or [layers, kv_heads], with the options as metadata.
void write_head_labels(const std::string& path, const ModelConfig& model, const LabelOptions& options, const HeadLabelScores& scores);

}  // namespace kvlab
