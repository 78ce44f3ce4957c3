#include "app/commands/logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <ostream>
#include <span>

#include "base/error.h"
#include "base/safetensors.h"
#include "engine/backend/engine_model.h"
#include "traces/bytes.h"
#include "traces/write_safetensors.h"

namespace kvlab {

namespace {

struct IdsTensor {
  std::string key;  // name without ".ids"
  std::vector<std::int32_t> ids;
};

void check_ids(const SafetensorsFile& file, const std::string& name, const std::vector<std::int32_t>& ids, const ModelConfig& model) {
  if (ids.empty()) file.fail(fmt::format("tensor '{}' holds no ids", name));
  if (std::ssize(ids) > model.max_tokens)
    file.fail(fmt::format("tensor '{}' has {} ids, model '{}' takes at most {} tokens", name, ids.size(), model.name, model.max_tokens));
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= model.vocab_size)
      file.fail(fmt::format("tensor '{}' has id {} at [{}], outside [0, {}) of model '{}'", name, ids[i], i, model.vocab_size, model.name));
}

std::vector<IdsTensor> read_ids_tensors(const std::string& path, const ModelConfig& model) {
  static const std::string kEnding = ".ids";
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<IdsTensor> tensors;
  for (const auto& [name, info] : file.tensors()) {
    if (!name.ends_with(kEnding) || name.size() == kEnding.size()) continue;
    tensors.push_back({name.substr(0, name.size() - kEnding.size()), file.ints(name, {-1})});
    check_ids(file, name, tensors.back().ids, model);
  }
  if (tensors.empty()) file.fail("has no tensor with token ids; they are named '0.ids', '1.ids', ... and are I32 or I64");
  return tensors;
}

// [ids, vocabulary].
void check_finite(const LogitsCommand& c, const IdsTensor& prompt, std::span<const float> logits) {
  const auto bad = std::find_if_not(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  if (bad == logits.end()) return;
  const std::size_t vocabulary = logits.size() / prompt.ids.size();
  throw InputError(fmt::format("{}: the logits of tensor '{}.ids' at [{}] are not finite; weights or RoPE scaling go beyond {}", c.model,
                               prompt.key, static_cast<std::size_t>(bad - logits.begin()) / vocabulary,
                               c.backend == "cuda" ? "the GPU's number format" : "float32"));
}

// Before hours of work.
void check_output(const LogitsCommand& c) {
  if (c.output.empty()) throw InputError("--out: a file's name is expected");
  check_replaceable(c.output);
  std::error_code error;
  const std::filesystem::path out(c.output), folder = std::filesystem::absolute(out).parent_path();
  if (!std::filesystem::is_directory(folder, error)) throw InputError(c.output + ": its folder does not exist");
  if (std::filesystem::equivalent(out, c.ids_file, error)) throw InputError(c.output + ": --out would replace the file of --ids");
}

}  // namespace

int write_logits(const LogitsCommand& c, std::ostream& out) {
  require_backend(c.backend);
  const ModelConfig config = read_model_config(c.model);
  const std::vector<IdsTensor> prompts = read_ids_tensors(c.ids_file, config);
  check_output(c);
  const std::unique_ptr<EngineModel> model = make_engine_model(c.backend, c.model);
  std::vector<std::vector<float>> logits;
  std::vector<TensorToWrite> tensors;
  std::size_t tokens = 0;
  for (const IdsTensor& prompt : prompts) {
    logits.push_back(model->logits(prompt.ids, c.chunk_tokens));
    check_finite(c, prompt, logits.back());
    tensors.push_back({prompt.key + ".logits", "F32", {std::ssize(prompt.ids), config.vocab_size}, logits.back().data()});
    tokens += prompt.ids.size();
  }
  write_safetensors(c.output, tensors, {{"model", config.name}, {"backend", c.backend}});
  out << fmt::format("wrote {}: {} prompts, {} tokens, vocabulary of {}\n", c.output, prompts.size(), tokens, config.vocab_size);
  return 0;
}

}  // namespace kvlab
