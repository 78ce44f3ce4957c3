#include "app/record.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "app/text_file.h"
#include "base/error.h"
#include "base/text.h"
#include "engine/model/record.h"

namespace kvlab {

namespace {

// In the vocabulary of a byte-level model the 256 bytes come first, then <s>.
constexpr std::int32_t kByteLevelBos = 256;

std::vector<std::int32_t> ids_of_text(const std::string& path, const ModelConfig& model) {
  if (model.bos_id != kByteLevelBos)
    throw InputError(fmt::format("--text needs a byte-level model, whose <s> is token {}; model '{}' has {}", kByteLevelBos, model.name,
                                 model.bos_id < 0 ? "none" : std::to_string(model.bos_id)));
  std::vector<std::int32_t> ids{kByteLevelBos};
  for (const char c : read_text(path)) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::vector<std::int32_t> ids_of_json(const std::string& path, const ModelConfig& model) {
  const nlohmann::json list = nlohmann::json::parse(read_text(path), nullptr, false);
  if (!list.is_array()) throw InputError(path + ": not a JSON list of token ids");
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= model.vocab_size)
      throw InputError(fmt::format("{}: entry {} is {}, no token id in [0, {}) of model '{}'", path, ids.size(),
                                   id.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 40), model.vocab_size,
                                   model.name));
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

RecordOptions options_of(const RecordCommand& c, const ModelConfig& model) {
  RecordOptions options;
  options.decode_tokens = c.decode_tokens;
  options.chunk_tokens = c.chunk_tokens;
  options.pre_rope = c.pre_rope;
  options.hidden = c.hidden;
  options.w_o = c.w_o;
  options.passes = c.passes;
  const bool repeats = std::find(c.passes.begin(), c.passes.end(), "reconstruct") != c.passes.end();
  if (repeats && model.bos_id != kByteLevelBos)
    throw InputError(fmt::format("pass 'reconstruct' writes its instruction as bytes, which model '{}' does not read", model.name));
  return options;
}

}  // namespace

int record_trace(const RecordCommand& c, std::ostream& out) {
  const Transformer model = Transformer::load(c.model);
  RecordOptions options = options_of(c, model.config());
  std::vector<std::int32_t> ids = c.text_file.empty() ? ids_of_json(c.ids_file, model.config()) : ids_of_text(c.text_file, model.config());
  if (c.prompt_tokens > 0) {
    const auto prompt_tokens = static_cast<std::size_t>(c.prompt_tokens);
    if (prompt_tokens > ids.size())
      throw InputError(fmt::format("--prompt-tokens {} is more than the {} tokens there are", prompt_tokens, ids.size()));
    options.continuation.assign(ids.begin() + c.prompt_tokens, ids.end());
    ids.resize(prompt_tokens);
  }
  const AttentionTrace trace = record(model, ids, options);
  write_attention_trace(c.output, trace, c.dtype == "f32" ? TraceFloat::kF32 : TraceFloat::kF16);
  out << fmt::format("wrote {}: {} prompt tokens, {} more, {} layers, {} bytes\n", c.output, trace.prompt_tokens,
                     trace.num_tokens - trace.prompt_tokens, trace.num_layers, std::filesystem::file_size(c.output));
  return 0;
}

}  // namespace kvlab
