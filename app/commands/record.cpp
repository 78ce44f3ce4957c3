#include "app/commands/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "app/commands/tokenize.h"
#include "base/error.h"
#include "base/json_node.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/text.h"
#include "engine/backend/engine_model.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvlab {

namespace {

// Follows the 256 bytes.
constexpr std::int32_t kByteLevelBos = 256;

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

// A list of token ids, or an object.
Sample sample_of_json(const std::string& path, const ModelConfig& model) {
  const nlohmann::json json = parse_json(read_file(path), path);
  const JsonNode root(json, path);
  const auto ids = [&](const JsonNode& list) { return list.integers(0, model.vocab_size - 1); };
  Sample sample;
  if (json.is_array()) sample.ids = ids(root);
  if (json.is_array()) return sample;
  if (!json.is_object()) root.fail("neither a JSON list of token ids nor an object");
  root.only_keys({"ids", "continuation", "task", "needles", "question_begin"});
  sample.ids = ids(root.at("ids"));
  if (json.contains("continuation")) sample.continuation = ids(root.at("continuation"));
  if (json.contains("task")) sample.task = root.text("task");
  if (json.contains("question_begin")) sample.question_begin = root.at("question_begin").integer(0, model.max_tokens - 1);
  if (!json.contains("needles")) return sample;
  for (const JsonNode& needle : root.at("needles").elements()) {
    const std::vector<JsonNode> ends = needle.elements();
    if (ends.size() != 2) needle.fail_value("[begin, end]");
    sample.needles.emplace_back(ends[0].integer(0, model.max_tokens - 1), ends[1].integer(0, model.max_tokens));
  }
  return sample;
}

RecordOptions options_of(const RecordCommand& c, const ModelConfig& model) {
  RecordOptions options;
  options.decode_tokens = c.decode_tokens;
  options.chunk_tokens = c.chunk_tokens;
  options.pre_rope = c.pre_rope;
  options.hidden = c.hidden;
  options.w_o = c.w_o;
  options.w_q = c.w_q;
  if (c.w_q && model.qk_norm)
    throw InputError(fmt::format("--w-q: model '{}' norms its queries, which a trace cannot say; leave it out", model.name));
  if (c.w_q && c.backend != "cpu") throw InputError("--w-q needs --backend cpu");
  options.passes = c.passes;
  const auto repeats =
      std::find_if(c.passes.begin(), c.passes.end(), [](const std::string& name) { return name.starts_with("reconstruct"); });
  if (repeats != c.passes.end() && model.bos_id != kByteLevelBos)
    throw InputError(fmt::format("pass '{}' writes its instruction as bytes, which model '{}' does not read", *repeats, model.name));
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
  Sample sample = c.text_file.empty() ? sample_of_json(c.ids_file, config) : sample_of_text(c.text_file, c.model, config);
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

Recipe named_recipe(const std::string& name, std::int32_t budget_tokens) {
  const std::vector<std::string> names = recipe_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw InputError("unknown recipe '" + name + "'" + suggestion(name, names));
  return load_recipe(name, budget_tokens);
}

}  // namespace kvlab
