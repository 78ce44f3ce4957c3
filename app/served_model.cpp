#include "app/served_model.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/spec_file.h"

namespace kvlab {

namespace {

std::string find_folder(Params& p, const ModelSpec& spec) {
  std::error_code error;
  const std::string named = p.has("model") ? p.resolve_file(p.text("model", "model")) : "";
  if (std::filesystem::is_directory(named, error)) return named;
  const std::filesystem::path probe = std::filesystem::path(profiles_folder()).parent_path() / "engine" / "probe";
  if (spec.name == "probe" && std::filesystem::is_directory(probe, error)) return probe.string();
  p.fail_at(p.has("model") ? "model" : "host",
            fmt::format("'host: engine' runs real weights, and {} names none: 'model: FOLDER' with config.json and safetensors, or "
                        "'weights: random' where only times matter",
                        spec.name));
}

void check_shape(const Params& p, const ModelConfig& c, const ModelSpec& m) {
  if (c.layers == m.layers && c.q_heads == m.q_heads && c.kv_heads == m.kv_heads && c.head_dim == m.head_dim && c.hidden_dim == m.hidden)
    return;
  p.fail_at(p.has("model") ? "model" : "profile",
            fmt::format("the model in {} has another shape than {}, for which the profile was measured: kvlab calibrate --model FOLDER",
                        c.name, m.name));
}

}  // namespace

ModelConfig shape_of(const ModelSpec& m) {
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

ServedModel read_served_model(Params& p) {
  ServedModel served;
  served.has_random_weights = p.choice("weights", {"files", "random"}, 0,
                                       "of the model, with 'host: engine'; random: in the profile's shape, to measure times") == 1;
  served.backend = read_backend(p);
  return served;
}

void find_served_model(Params& p, const ModelSpec& spec, ServedModel& served) {
  if (served.has_random_weights) {
    try {
      served.config = shape_of(spec);
    } catch (const InputError& e) {
      p.fail_at("weights", e.what());
    }
    return;
  }
  served.folder = find_folder(p, spec);
  served.config = read_model_config(served.folder);
  check_shape(p, served.config, spec);
}

const EngineModel& shared_model(const ServedModel& served) {
  return served.has_random_weights ? shared_random_model(served.config, served.backend) : shared_model(served.folder, served.backend);
}

}  // namespace kvlab
