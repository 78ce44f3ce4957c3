#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/transformer.h"
#include "policies/kv/needs.h"
#include "traces/attention_trace.h"

namespace kvlab {

// Before chunks of "reconstruct" (KVzip, Kim et al. 2025): instruction, the previous chunk's last tokens, separator.
struct RepeatPrompt {
  std::vector<std::int32_t> first, later, separator;
  std::int32_t chunk_tokens = 2048, hint_tokens = 8;
  std::int32_t gradient_chunk_tokens = 512;
};

RepeatPrompt byte_repeat_prompt();
// For "template", between prompt and answer.
std::vector<std::int32_t> byte_answer_template();

struct RecordOptions {
  std::vector<std::int32_t> continuation;              // in one piece after the prompt
  std::int32_t decode_tokens = 0;                      // greedy, after the continuation
  std::int32_t chunk_tokens = 0;                       // of prefill; 0: one chunk
  bool pre_rope = false, hidden = false, w_o = false;  // hidden: also of passes
  bool w_q = false;                                    // omitted if the model norms queries
  std::vector<std::string> passes;                     // of extra_pass_names()
  RepeatPrompt repeat = byte_repeat_prompt();
  std::int32_t lookahead_tokens = 8;
  std::vector<std::int32_t> answer_template = byte_answer_template();
  std::int32_t question_begin = -1;  // end of the "windows" prompt; -1: all
};

// "lookahead": greedy decoding (LAQ, Wang et al. 2025). "reconstruct": the prompt in chunks (KVzip, Kim et al. 2025).
// "reconstruct_gradient": shorter chunks with a backward pass (KVgrad, 2026; CPU only). "repeat": the prompt again (KVCompose, Akulov et
// al. 2025). Without passes that run after chunks (runs_after_chunks).
std::vector<std::string> extra_pass_names();

class PassHost {
 public:
  virtual ~PassHost() = default;
  // recorder: receives attention tensors except `out`.
  virtual void run(std::span<const std::int32_t> ids, Recorder& recorder) = 0;
  // GradientTape::norms, [layers][ids.size()]. Throws InputError if unsupported.
  virtual std::vector<std::vector<float>> run_with_gradient(std::span<const std::int32_t> ids, Recorder& recorder);
  // Greedy.
  [[nodiscard]] virtual std::int32_t next_token() = 0;
  virtual void rewind() = 0;
};

// Leaves the host at its prompt. cached: its prompt tokens; -1: all.
ExtraPass run_extra_pass(const std::string& name, PassHost& host, const ModelConfig& model, std::span<const std::int32_t> prompt_ids,
                         const RecordOptions& options, std::int32_t cached = -1);
// `kv` has the prompt's first kv.tokens, and is restored; `logits` follow.
ExtraPass run_extra_pass(const std::string& name, const Transformer& model, std::span<const std::int32_t> prompt_ids, KvState& kv,
                         std::span<const float> logits, const RecordOptions& options);

// If the model does not norm queries.
void add_query_weights(const Transformer& model, const RecordOptions& options, AttentionTrace& trace);

// With a piece of the pass.
bool fits_windows(const std::string& pass, const ModelConfig& model, std::int32_t prompt_tokens, const RecordOptions& options);

// Errors as record().
AttentionTrace empty_trace(const ModelConfig& model, std::size_t prompt_tokens, const RecordOptions& options);

// Passes run right after the prompt, even beyond the model's context; the cache is unchanged. Deterministic. Throws InputError for an empty
// prompt, invalid ids or passes, and tokens beyond the context or a window.
AttentionTrace record(const Transformer& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options);

// Appends requested inputs to `layers` [num_layers].
class RecordingHost final : public AttentionHost {
 public:
  RecordingHost(AttentionHost& inner, const ModelConfig& config, const RecordOptions& options, std::int64_t tokens,
                std::vector<LayerTensors>& layers)
      : inner_(inner), config_(config), options_(options), tokens_(tokens), layers_(layers) {}

  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override {
    LayerTensors& to = layers_[static_cast<std::size_t>(layer)];
    if (options_.hidden) add(to.hidden, hidden, config_.hidden_dim);
    if (options_.pre_rope) add(to.pre_q, q, config_.q_width()), add(to.pre_k, k, config_.kv_width());
    inner_.before_rope(layer, hidden, q, k);
  }
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    LayerTensors& to = layers_[static_cast<std::size_t>(layer)];
    add(to.q, q, config_.q_width()), add(to.k, k, config_.kv_width()), add(to.v, v, config_.kv_width());
    inner_.attend(layer, q, k, v, out);
  }
  [[nodiscard]] std::span<const std::int32_t> going_on(std::int32_t layer) override { return inner_.going_on(layer); }

 private:
  void add(std::vector<float>& to, const float* from, std::int64_t width) const { to.insert(to.end(), from, from + tokens_ * width); }

  AttentionHost& inner_;
  const ModelConfig& config_;
  const RecordOptions& options_;
  std::int64_t tokens_;
  std::vector<LayerTensors>& layers_;
};

// A pass from which many policies start.
struct PromptTensors {
  std::vector<std::int32_t> ids;
  std::vector<LayerTensors> layers;  // k, v; q, pre_q, pre_k and hidden if needed
  std::map<std::string, std::shared_ptr<const ExtraPass>> passes;
  std::vector<float> last_hidden;  // [hidden_dim], last token, after the last norm
  [[nodiscard]] std::int32_t tokens() const { return static_cast<std::int32_t>(ids.size()); }
};

// Full cache, then the extra passes. `needs`: of all policies. Errors as Transformer::forward.
PromptTensors run_prompt(const Transformer& model, std::span<const std::int32_t> ids, const Needs& needs,
                         std::span<const std::string> passes, const RecordOptions& options = {});

}  // namespace kvlab
