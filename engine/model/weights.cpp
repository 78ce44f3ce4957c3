#include "engine/model/weights.h"

#include <filesystem>
#include <set>

#include "traces/safetensors.h"

namespace kvlab {

namespace {

// Hands out the file's tensors and remembers which, so that none is left out unseen.
class TensorTaker {
 public:
  explicit TensorTaker(const std::string& path) : file_(SafetensorsFile::open(path)) {}
  std::vector<float> take(const std::string& name, const std::vector<std::int64_t>& shape) {
    taken_.insert(name);
    return file_.floats(name, shape);
  }
  void ignore(const std::string& name) { taken_.insert(name); }
  void refuse_others() const {
    for (const auto& [name, info] : file_.tensors())
      if (!taken_.contains(name)) file_.fail("tensor '" + name + "' has no place in a Llama model of this config");
  }

 private:
  SafetensorsFile file_;
  std::set<std::string> taken_;
};

LayerWeights take_layer(TensorTaker& tensors, const ModelConfig& c, std::int32_t layer) {
  const std::string at = "model.layers." + std::to_string(layer) + ".";
  const std::int64_t hidden = c.hidden_dim, inner = c.intermediate_dim;
  const std::int64_t q_dim = std::int64_t{c.q_heads} * c.head_dim, kv_dim = std::int64_t{c.kv_heads} * c.head_dim;
  LayerWeights w;
  w.attention_norm = tensors.take(at + "input_layernorm.weight", {hidden});
  w.mlp_norm = tensors.take(at + "post_attention_layernorm.weight", {hidden});
  w.q = tensors.take(at + "self_attn.q_proj.weight", {q_dim, hidden});
  w.k = tensors.take(at + "self_attn.k_proj.weight", {kv_dim, hidden});
  w.v = tensors.take(at + "self_attn.v_proj.weight", {kv_dim, hidden});
  w.o = tensors.take(at + "self_attn.o_proj.weight", {hidden, q_dim});
  w.gate = tensors.take(at + "mlp.gate_proj.weight", {inner, hidden});
  w.up = tensors.take(at + "mlp.up_proj.weight", {inner, hidden});
  w.down = tensors.take(at + "mlp.down_proj.weight", {hidden, inner});
  return w;
}

}  // namespace

ModelWeights load_weights(const std::string& dir, const ModelConfig& c) {
  TensorTaker tensors((std::filesystem::path(dir) / "model.safetensors").string());
  ModelWeights w;
  w.embedding = tensors.take("model.embed_tokens.weight", {c.vocab_size, c.hidden_dim});
  w.final_norm = tensors.take("model.norm.weight", {c.hidden_dim});
  if (c.tied_head) {
    w.head = w.embedding;
    tensors.ignore("lm_head.weight");  // a copy of the table that some files carry
  } else {
    w.head = tensors.take("lm_head.weight", {c.vocab_size, c.hidden_dim});
  }
  for (std::int32_t layer = 0; layer < c.layers; ++layer) w.layers.push_back(take_layer(tensors, c, layer));
  tensors.refuse_others();
  return w;
}

}  // namespace kvlab
