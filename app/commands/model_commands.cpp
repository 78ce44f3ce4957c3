
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>

#include "app/commands/command.h"
#include "base/error.h"
#include "base/hugging_face.h"
#include "base/json_node.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/safetensors.h"
#include "base/text.h"
#include "engine/backend/engine_model.h"
#include "engine/model/record.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include "policies/kv/recipe/recipe.h"
#include "traces/bytes.h"
#include "traces/write_safetensors.h"

namespace kvlab {

namespace {

// Runs a model on a prompt and writes its attention inputs. Either ids_file, a JSON list of token ids or {ids, continuation, task, needles:
// [[begin, end]], question_begin}, or text_file, for the model's tokenizer (byte-level models: bytes after <s>).
struct RecordCommand {
  std::string model, ids_file, text_file, output, dtype = "f16", backend = "cpu";
  std::int32_t prompt_tokens = 0;  // taken from the input; 0: all
  std::int32_t decode_tokens = 0, chunk_tokens = 0;
  bool pre_rope = false, hidden = false, w_o = false, w_q = false;
  std::string kv_policy;           // active recipe; "": none
  std::int32_t budget_tokens = 0;  // of the recipe; 0: as in its file
  std::vector<std::string> passes;
};

// For each tensor `i.ids` (int32 or int64 [n]) writes `i.logits` (float32 [n, vocab_size]), the logits at every position.
struct LogitsCommand {
  std::string model, ids_file, output, backend = "cpu";
  std::int32_t chunk_tokens = 0;  // of the prefill; 0: the whole prompt
};

// One of two files; "-": standard input. text_file: prints ids as a JSON list, or with shows_tokens "id token" lines. ids_file (JSON list):
// prints the text.
struct TokenizeCommand {
  std::string model, text_file, ids_file;
  bool shows_tokens = false, without_special = false;
};

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

struct Input {
  explicit Input(const std::string& file) : name(file == "-" ? "standard input" : file) {
    text = file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_file(file);
  }
  std::string name, text;
};

std::vector<std::int32_t> read_ids(const Input& input) {
  const nlohmann::json list = parse_json(input.text, input.name);
  if (!list.is_array()) throw InputError(input.name + ": not a JSON list of token ids");
  return JsonNode(list, input.name).integers(0, std::numeric_limits<std::int32_t>::max());
}

void record_trace(RecordCommand c, std::ostream& out) {
  c.model = weights_folder(c.model);
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
}

void write_logits(LogitsCommand c, std::ostream& out) {
  c.model = weights_folder(c.model);
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
}

std::string tokenized(TokenizeCommand c) {
  c.model = weights_folder(c.model);
  const Tokenizer tokenizer = Tokenizer::load(c.model);
  if (!c.ids_file.empty()) return tokenizer.decode(read_ids(Input(c.ids_file)), c.without_special);
  const Input input(c.text_file);
  check_utf8(input.text, input.name);
  const std::vector<std::int32_t> ids = tokenizer.encode(input.text, !c.without_special);
  if (!c.shows_tokens) return fmt::format("[{}]\n", fmt::join(ids, ", "));
  std::string lines;  // JSON keeps a line break on one line
  for (const std::int32_t id : ids) lines += fmt::format("{} {}\n", id, nlohmann::json(tokenizer.token(id).value_or("")).dump());
  return lines;
}

}  // namespace

Recipe named_recipe(const std::string& name, std::int32_t budget_tokens) {
  const std::vector<std::string> names = recipe_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw InputError("unknown recipe '" + name + "'" + suggestion(name, names));
  return load_recipe(name, budget_tokens);
}

void check_utf8(std::string_view text, const std::string& file) {
  if (const std::size_t at = tokenization::first_invalid_utf8(text); at != std::string_view::npos)
    throw InputError(fmt::format("{}: byte {} is not UTF-8, which a tokenizer reads", file, at));
}

void add_record_command(CLI::App& trace, Command& chosen) {
  CLI::App* record = trace.add_subcommand("record", "run a model on a prompt and record its attention (safetensors)");
  auto& c = arguments_of<RecordCommand>(*record);
  record->add_option("--model", c.model, "folder in Hugging Face layout: config.json and safetensors")
      ->required()
      ->check(offers(Offer::kFolders));
  CLI::Option_group* input = record->add_option_group("prompt");
  input->add_option("--ids", c.ids_file, "JSON list of token ids, or {ids, continuation, task, needles, question_begin}");
  input->add_option("--text", c.text_file, "text, for the model's tokenizer; of a byte-level model the bytes are the tokens, after <s>");
  input->require_option(1);
  record->add_option("--out", c.output, "file to write")->required();
  record->add_option("--prompt-tokens", c.prompt_tokens, "number of tokens of the input to take; default: all")
      ->check(CLI::Range(1, 1 << 28));
  record->add_option("--decode-tokens", c.decode_tokens, "tokens to decode greedily after them")->check(CLI::Range(0, 1 << 28));
  record->add_option("--chunk-tokens", c.chunk_tokens, "tokens of a prefill chunk; default: in one piece")->check(CLI::Range(1, 1 << 28));
  record->add_flag("--pre-rope", c.pre_rope, "also queries and keys before RoPE");
  record->add_flag("--hidden", c.hidden, "also the inputs of the attention layers");
  record->add_flag("--w-o", c.w_o, "also the output projections");
  record->add_flag("--w-q", c.w_q, "also the projections to queries");
  repeated(record->add_option("--pass", c.passes, "also an extra pass: " + join(extra_pass_names(), ", ") + "; may be repeated"),
           Offer::kWords, join(extra_pass_names(), " "));
  record->add_option("--kv-policy", c.kv_policy, "recipe that acts on the cache meanwhile: what is recorded is what it left")
      ->check(offers(Offer::kNames, "recipes"));
  record->add_option("--budget-tokens", c.budget_tokens, "of the recipe; default: as its file says")->check(CLI::Range(1, 1 << 28));
  record->add_option("--backend", c.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  record->add_option("--dtype", c.dtype, "of the floats in the file; default: f16")->check(CLI::IsMember({"f16", "f32"}));
  choose(record, chosen, c, record_trace);
}

void add_logits_command(CLI::App& app, Command& chosen) {
  CLI::App* logits = app.add_subcommand("logits", "run a model and write its logits");
  auto& c = arguments_of<LogitsCommand>(*logits);
  logits->add_option("--model", c.model, "folder in Hugging Face layout: config.json and safetensors")
      ->required()
      ->check(offers(Offer::kFolders));
  logits->add_option("--ids", c.ids_file, "safetensors with token ids '0.ids', '1.ids', ...")->required();
  logits->add_option("--out", c.output, "safetensors to write: '0.logits', '1.logits', ..., one row for each token")->required();
  logits->add_option("--chunk-tokens", c.chunk_tokens, "tokens of a prefill chunk; default: in one piece")->check(CLI::Range(1, 1 << 28));
  logits->add_option("--backend", c.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  choose(logits, chosen, c, write_logits);
}

void add_tokenize_command(CLI::App& app, Command& chosen) {
  CLI::App* one = app.add_subcommand("tokenize", "print a text's token ids as a model's tokenizer.json gives them, or the text of ids");
  auto& c = arguments_of<TokenizeCommand>(*one);
  one->add_option("--model", c.model, "folder with tokenizer.json")->required()->check(offers(Offer::kFolders));
  CLI::Option_group* input = one->add_option_group("input");
  input->add_option("--text", c.text_file, "text to tokenize; -: standard input");
  input->add_option("--ids", c.ids_file, "JSON list of ids whose text to print; -: standard input");
  input->require_option(1);
  one->add_flag("--tokens", c.shows_tokens, "--text: print one id and its token a line")->excludes("--ids");
  one->add_flag("--no-special", c.without_special, "--text: without what the tokenizer adds (<s>); --ids: without special tokens");
  choose(one, chosen, c, tokenized);
}

}  // namespace kvlab
