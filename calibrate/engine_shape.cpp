#include "calibrate/engine_shape.h"

#include <fmt/format.h>

#include "base/error.h"

namespace kvlab {

ModelConfig engine_shape(const ModelSpec& m) {
  const char* const why = m.is_moe()                                            ? "experts"
                          : m.learned_positions                                 ? "learned positions"
                          : !m.gated_mlp                                        ? "an MLP without a gate"
                          : m.norm_bias                                         ? "LayerNorm"
                          : m.embedding_width != m.hidden                       ? "a projected embedding"
                          : m.norms != 2                                        ? "other norms than two in a layer"
                          : m.has_sinks                                         ? "attention sinks"
                          : m.qk_norm && m.qk_norm_parameters != 2 * m.head_dim ? "a norm over all query heads"
                          : !m.quantization.empty()                             ? "quantized weights"
                                                                                : nullptr;
  if (why != nullptr) throw InputError(fmt::format("{} has {}, which the engine does not compute", m.name, why));
  const auto narrow = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  ModelConfig c;
  c.name = m.name, c.type = "llama";
  c.layers = narrow(m.layers), c.hidden_dim = narrow(m.hidden), c.intermediate_dim = narrow(m.intermediate);
  c.q_heads = narrow(m.q_heads), c.kv_heads = narrow(m.kv_heads), c.head_dim = narrow(m.head_dim);
  c.vocab_size = narrow(m.vocabulary), c.max_tokens = narrow(m.max_tokens);
  c.rope_base = 10'000, c.norm_epsilon = 1e-5F;
  c.tied_head = m.tied_embeddings, c.qk_norm = m.qk_norm;
  c.qkv_bias = m.qkv_bias, c.o_bias = m.o_bias, c.mlp_bias = m.mlp_bias;
  if (m.sliding_window > 0) c.windows.assign(static_cast<std::size_t>(m.layers), narrow(m.sliding_window));
  return c;
}

}  // namespace kvlab
