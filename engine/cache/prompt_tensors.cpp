#include "engine/cache/prompt_tensors.h"

namespace kvlab {

namespace {

class PromptRecorder final : public Recorder {
 public:
  PromptRecorder(const Needs& needs, std::vector<LayerTensors>& layers) : needs_(needs), layers_(layers) {}
  void on_hidden(std::int32_t layer, std::span<const float> hidden) override {
    if (needs_.hidden) at(layer).hidden.assign(hidden.begin(), hidden.end());
  }
  void on_pre_rope(std::int32_t layer, std::span<const float> q, std::span<const float> k) override {
    if (needs_.pre_rope_queries) at(layer).pre_q.assign(q.begin(), q.end());
    if (needs_.pre_rope_keys) at(layer).pre_k.assign(k.begin(), k.end());
  }
  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> /*k*/, std::span<const float> /*v*/,
                    std::span<const float> /*out*/) override {
    if (needs_.step_queries || needs_.window_queries > 0) at(layer).q.assign(q.begin(), q.end());
  }

 private:
  LayerTensors& at(std::int32_t layer) { return layers_[static_cast<std::size_t>(layer)]; }
  const Needs& needs_;
  std::vector<LayerTensors>& layers_;
};

}  // namespace

PromptTensors run_prompt(const Transformer& model, std::span<const std::int32_t> ids, const Needs& needs,
                         std::span<const std::string> passes, const RecordOptions& options) {
  PromptTensors prompt;
  prompt.ids.assign(ids.begin(), ids.end());
  prompt.layers.resize(static_cast<std::size_t>(model.config().layers));
  PromptRecorder recorder(needs, prompt.layers);
  KvState kv(model.config());
  const std::vector<float> hidden = forward(model, ids, kv, &recorder);
  prompt.last_hidden.assign(hidden.end() - model.config().hidden_dim, hidden.end());
  const std::vector<float> logits = passes.empty() ? std::vector<float>{} : model.logits(prompt.last_hidden);
  for (const std::string& name : passes)
    prompt.passes[name] = std::make_shared<ExtraPass>(run_extra_pass(name, model, ids, kv, logits, options));
  for (std::size_t l = 0; l < prompt.layers.size(); ++l) {
    prompt.layers[l].k = std::move(kv.k[l]);
    prompt.layers[l].v = std::move(kv.v[l]);
  }
  return prompt;
}

}  // namespace kvlab
