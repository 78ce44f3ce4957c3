#include "app/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "app/named_recipe.h"
#include "app/tokenize.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/text.h"
#include "engine/backend/policy_record.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvlab {

namespace {

// In the vocabulary of a byte-level model the 256 bytes come first, then <s>.
constexpr std::int32_t kByteLevelBos = 256;

// What is recorded, and what is known about it.
struct Sample {
  std::vector<std::int32_t> ids, continuation;
  std::string task;
  std::vector<std::pair<std::int32_t, std::int32_t>> needles;
  std::int32_t question_begin = -1;
};

Sample sample_of_text(const std::string& path, const std::string& dir, const ModelConfig& model) {
  const std::string text = read_file(path);
  check_utf8(text, path);
  Sample sample;
  sample.ids = Tokenizer::load(dir).encode_prompt(text, model.bos_id);
  return sample;
}

// Reads a sample's JSON; every message begins with the file's name.
class SampleFile {
 public:
  SampleFile(const std::string& path, const ModelConfig& model) : path_(path), model_(model) {}

  Sample read() const {
    const std::string text = read_file(path_);
    refuse_deep_json(text, path_);
    const nlohmann::json root = nlohmann::json::parse(text, nullptr, false);
    Sample sample;
    if (root.is_array()) sample.ids = ids("ids", root);
    if (root.is_array()) return sample;
    if (!root.is_object()) fail("neither a JSON list of token ids nor an object");
    static const std::vector<std::string> kKeys{"ids", "continuation", "task", "needles", "question_begin"};
    for (const auto& [key, value] : root.items())
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) fail("unknown key '" + key + "'" + suggestion(key, kKeys));
    if (!root.contains("ids")) fail("missing key 'ids'");
    sample.ids = ids("ids", root["ids"]);
    if (root.contains("continuation")) sample.continuation = ids("continuation", root["continuation"]);
    if (root.contains("task")) sample.task = task(root["task"]);
    if (root.contains("needles")) sample.needles = needles(root["needles"]);
    if (root.contains("question_begin"))
      sample.question_begin = integer("'question_begin'", root["question_begin"], model_.max_tokens, "position");
    return sample;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw InputError(path_ + ": " + message); }
  std::int32_t integer(const std::string& where, const nlohmann::json& value, std::int32_t end, const char* kind) const {
    if (!value.is_number_integer() || value < 0 || value >= end)
      fail(fmt::format("{} is {}, no {} in [0, {}) of model '{}'", where, short_json(value), kind, end, model_.name));
    return value.get<std::int32_t>();
  }
  std::vector<std::int32_t> ids(const std::string& key, const nlohmann::json& list) const {
    if (!list.is_array()) fail("'" + key + "' is not a list of token ids");
    std::vector<std::int32_t> ids;
    for (const nlohmann::json& id : list)
      ids.push_back(integer(fmt::format("entry {} of '{}'", ids.size(), key), id, model_.vocab_size, "token id"));
    return ids;
  }
  std::string task(const nlohmann::json& value) const {
    if (!value.is_string()) fail("'task' is not a text");
    return value.get<std::string>();
  }
  std::vector<std::pair<std::int32_t, std::int32_t>> needles(const nlohmann::json& list) const {
    const bool pairs =
        list.is_array() && std::all_of(list.begin(), list.end(), [](const auto& one) { return one.is_array() && one.size() == 2; });
    if (!pairs) fail("'needles' is not a list of [begin, end]");
    std::vector<std::pair<std::int32_t, std::int32_t>> needles;
    for (const nlohmann::json& one : list)
      needles.emplace_back(integer("a needle's begin", one[0], model_.max_tokens, "position"),
                           integer("a needle's end", one[1], model_.max_tokens + 1, "position"));
    return needles;
  }

  const std::string& path_;
  const ModelConfig& model_;
};

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

void cut(Sample& sample, std::size_t tokens) {
  if (tokens > sample.ids.size())
    throw InputError(fmt::format("--prompt-tokens {} is more than the {} tokens there are", tokens, sample.ids.size()));
  if (!sample.continuation.empty() && tokens < sample.ids.size())
    throw InputError(fmt::format("--prompt-tokens {} would cut a gap before the continuation", tokens));
  sample.ids.resize(tokens);
}

AttentionTrace recorded(const RecordCommand& c, const EngineModel& model, std::span<const std::int32_t> ids, const RecordOptions& options,
                        std::int32_t question_begin) {
  if (c.kv_policy.empty() && c.budget_tokens > 0) throw InputError("--budget-tokens needs --kv-policy");
  if (c.kv_policy.empty()) return record(model, ids, options);
  if (!options.passes.empty()) throw InputError("--pass and --kv-policy exclude each other: a policy runs the pass it observes itself");
  return record_with_policy(model, ids, options, named_recipe(c.kv_policy, c.budget_tokens), {}, question_begin).trace;
}

}  // namespace

int record_trace(const RecordCommand& c, std::ostream& out) {
  const std::unique_ptr<EngineModel> model = make_engine_model(c.backend, c.model);
  const ModelConfig& config = model->config();
  RecordOptions options = options_of(c, config);
  Sample sample = c.text_file.empty() ? SampleFile(c.ids_file, config).read() : sample_of_text(c.text_file, c.model, config);
  options.continuation = sample.continuation;
  if (c.prompt_tokens > 0) cut(sample, static_cast<std::size_t>(c.prompt_tokens));
  AttentionTrace trace = recorded(c, *model, sample.ids, options, sample.question_begin);
  trace.task = sample.task;
  trace.needles = sample.needles;
  trace.question_begin = sample.question_begin;
  check_attention_trace(trace, c.text_file.empty() ? c.ids_file : c.text_file);
  write_attention_trace(c.output, trace, c.dtype == "f32" ? TraceFloat::kF32 : TraceFloat::kF16);
  out << fmt::format("wrote {}: {} prompt tokens, {} more, {} layers, {} bytes\n", c.output, trace.prompt_tokens,
                     trace.num_tokens - trace.prompt_tokens, trace.num_layers, std::filesystem::file_size(c.output));
  return 0;
}

}  // namespace kvlab
