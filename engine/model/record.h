#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/plain_cache.h"
#include "traces/attention_trace.h"

namespace kvlab {

// The tokens that the pass "reconstruct" feeds before each chunk of the prompt (KVzip, Kim et al. 2025): an instruction to repeat, from the
// second chunk on with the last tokens of the chunk before as a hint, then a separator.
struct RepeatPrompt {
  std::vector<std::int32_t> first, later, separator;
  std::int32_t chunk_tokens = 2048, hint_tokens = 8;
  std::int32_t gradient_chunk_tokens = 512;  // of pass "reconstruct_gradient"
};

// The method's English wording as bytes, for models whose tokens are bytes.
RepeatPrompt byte_repeat_prompt();
// The tokens of the pass "template" as bytes: those that the shipped probe has seen between a text and an answer, without a question.
std::vector<std::int32_t> byte_answer_template();

struct RecordOptions {
  std::vector<std::int32_t> continuation;              // known tokens after the prompt, run in one piece as if they had been decoded
  std::int32_t decode_tokens = 0;                      // decoded greedily after the continuation, one at a time
  std::int32_t chunk_tokens = 0;                       // of the prefill; 0: the prompt in one piece
  bool pre_rope = false, hidden = false, w_o = false;  // hidden: of the extra passes too
  bool w_q = false;                                    // left out if the model norms its queries, which a trace cannot store
  std::vector<std::string> passes;                     // of extra_pass_names()
  RepeatPrompt repeat = byte_repeat_prompt();
  std::int32_t lookahead_tokens = 8;
  std::vector<std::int32_t> answer_template = byte_answer_template();
  std::int32_t question_begin = -1;  // in the prompt: the pass "windows" takes tokens before it; -1: of the whole prompt
};

// "lookahead": queries of tokens decoded greedily over the full cache (LAQ, Wang et al. 2025).
// "reconstruct": each chunk of the prompt repeated over the full cache (KVzip, Kim et al. 2025).
// "reconstruct_gradient": the same in shorter chunks, each with a backward pass that gives LayerTensors::gradient (KVgrad, 2026; CPU
// alone). "repeat": the whole prompt again, without an instruction (KVCompose, Akulov et al. 2025).
// Those that run after chunks (runs_after_chunks) are not recorded, and are not among the names.
std::vector<std::string> extra_pass_names();

// The sequence that an extra pass runs on, with its whole prompt cached.
class PassHost {
 public:
  virtual ~PassHost() = default;
  // Runs tokens after the cached ones; `recorder` gets all that the attention layers compute but `out`.
  virtual void run(std::span<const std::int32_t> ids, Recorder& recorder) = 0;
  // The same, then a backward pass; returns GradientTape::norms, [layers][ids.size()]. InputError: a host without backward passes.
  virtual std::vector<std::vector<float>> run_with_gradient(std::span<const std::int32_t> ids, Recorder& recorder);
  // The most likely token after the last that ran: after the prompt, at first.
  [[nodiscard]] virtual std::int32_t next_token() = 0;
  // Back to the prompt.
  virtual void rewind() = 0;
};

// One of them, or of those that run after chunks; the host is at its prompt before and afterwards. `cached`: tokens of the prompt that the
// host has; -1: all.
ExtraPass run_extra_pass(const std::string& name, PassHost& host, const ModelConfig& model, std::span<const std::int32_t> prompt_ids,
                         const RecordOptions& options, std::int32_t cached = -1);
// The same after a prompt that `kv` holds whole, or of which it holds the first kv.tokens; `logits` are those of the last of them.
// Afterwards `kv` is as before.
ExtraPass run_extra_pass(const std::string& name, const Transformer& model, std::span<const std::int32_t> prompt_ids, KvState& kv,
                         std::span<const float> logits, const RecordOptions& options);

// The projections to queries, where the options ask for them and the model does not norm its queries.
void add_query_weights(const Transformer& model, const RecordOptions& options, AttentionTrace& trace);

// A trace with everything but tensors and tokens. Errors as record().
AttentionTrace empty_trace(const ModelConfig& model, std::size_t prompt_tokens, const RecordOptions& options);

// Runs the model and records its attention inputs. Extra passes run right after the prompt and leave no trace in the cache; their
// positions follow the prompt's, even beyond the model's context. Same input, same bytes. Errors (InputError): an empty prompt, prompt and
// decoded tokens that do not fit into the model's context, an id outside the vocabulary, an unknown pass or one named twice,
// more tokens than the window of some layer.
AttentionTrace record(const Transformer& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options);

}  // namespace kvlab
