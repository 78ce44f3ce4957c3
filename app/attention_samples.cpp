#include "app/attention_samples.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/shared_model.h"
#include "app/text_file.h"
#include "base/error.h"
#include "engine/model/record.h"
#include "traces/synthetic_attention.h"

namespace kvlab {

namespace {

constexpr std::int32_t kProbeBos = 256;

// A prompt of an evaluation file (engine/probe/README.md) for a byte-level model.
struct EvalPrompt {
  std::vector<std::int32_t> ids, answer;
  std::vector<std::pair<std::int32_t, std::int32_t>> needles;
  std::int32_t question_begin = 0;
};

void append_bytes(std::vector<std::int32_t>& ids, const std::string& text) {
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

// Where the answer stands in the prompt: what a policy must not lose.
std::vector<std::pair<std::int32_t, std::int32_t>> find_needles(const std::string& prompt, std::string answer) {
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  std::vector<std::pair<std::int32_t, std::int32_t>> spans;
  if (answer.size() < 3) return spans;  // too short to be found by its text alone
  for (std::size_t at = prompt.find(answer); at != std::string::npos; at = prompt.find(answer, at + answer.size()))
    spans.emplace_back(static_cast<std::int32_t>(at) + 1, static_cast<std::int32_t>(at + answer.size()) + 1);  // <s> comes first
  return spans;
}

EvalPrompt read_eval_prompt(Params& p) {
  const std::string file = p.resolve_file(p.text("eval", "evaluation file, a JSON object per line with task, length, prompt and turns"));
  const std::string task = p.text("task", "which task's prompts");
  const auto length = p.optional<std::int32_t>("length_tokens", 0, 0, 1 << 26, "which length; 0: any");
  const auto index = p.optional<std::int32_t>("index", 0, 0, 1 << 20, "which of the matching prompts");
  std::istringstream lines(read_text(file));
  std::int32_t seen = 0, number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    if (row.is_discarded() || !row.contains("task") || !row.contains("prompt") || !row.contains("turns") || row["turns"].empty())
      throw InputError(fmt::format("{}:{}: not an evaluation prompt with task, length, prompt and turns", file, number));
    if (row["task"] != task || (length > 0 && row["length"] != length) || seen++ != index) continue;
    EvalPrompt eval;
    const auto& turn = row["turns"][0];
    const std::string prompt = row["prompt"];
    eval.ids = {kProbeBos};
    append_bytes(eval.ids, prompt);
    eval.question_begin = static_cast<std::int32_t>(eval.ids.size());
    append_bytes(eval.ids, turn["question"]);
    append_bytes(eval.answer, turn["answer"]);
    eval.needles = find_needles(prompt, turn["answer"]);
    return eval;
  }
  p.fail(fmt::format("{} has {} prompts of task '{}'{}, so there is no number {}", file, seen, task,
                     length > 0 ? fmt::format(" and length {}", length) : "", index));
}

std::function<AttentionTrace()> read_recording(Params& p) {
  const std::string folder = p.resolve_file(p.text("model", "model folder: config.json and model.safetensors"));
  const EvalPrompt eval = read_eval_prompt(p);
  const bool compresses_question =
      p.choice("question", {"compressed", "decoded"}, 0,
               "is the question part of the prompt that is compressed, or does it come after, unknown to the policy") == 0;
  const auto decode = p.optional<std::int32_t>("decode_tokens", 16, 0, 1 << 20, "tokens decoded greedily after the true answer");
  const auto chunk = p.optional<std::int32_t>("chunk_tokens", 0, 0, 1 << 26, "prefill chunk; 0: the prompt in one piece");
  return [=] {
    RecordOptions options;
    options.decode_tokens = decode;
    options.chunk_tokens = chunk;
    options.pre_rope = options.hidden = options.w_o = true;
    options.passes = extra_pass_names();
    options.continuation = eval.answer;
    std::vector<std::int32_t> ids = eval.ids;
    if (!compresses_question) {
      options.continuation.assign(ids.begin() + eval.question_begin, ids.end());
      options.continuation.insert(options.continuation.end(), eval.answer.begin(), eval.answer.end());
      ids.resize(static_cast<std::size_t>(eval.question_begin));
    }
    AttentionTrace trace = record(*shared_model(folder).transformer(), ids, options);
    trace.needles = eval.needles;
    trace.question_begin = compresses_question ? eval.question_begin : -1;
    return trace;
  };
}

std::function<AttentionTrace()> read_sample(Params& s, std::uint64_t seed) {
  const int kinds = int{s.has("record")} + int{s.has("synthetic")};
  if (kinds + int{s.has("file")} == 0 || kinds > 1) s.fail("a sample is one of {file: PATH}, {record: {...}}, {synthetic: {...}}");
  std::function<AttentionTrace()> make;
  if (s.has("record")) {
    Params r = s.child("record", "record");
    make = read_recording(r);
    r.reject_unread();
  } else if (s.has("synthetic")) {
    Params r = s.child("synthetic", "synthetic");
    const SyntheticAttentionShape shape = read_synthetic_attention(r);
    r.reject_unread();
    make = [shape, seed] { return SyntheticAttention(shape, seed).trace(); };
  }
  if (!s.has("file")) return make;
  const std::string file = s.resolve_file(s.text("file", "attention trace (safetensors)"));
  std::error_code error;
  if (!make && !std::filesystem::exists(file, error)) s.fail_at("file", file + ": cannot be opened; name a 'record' to make it");
  return [file, make] {
    std::error_code none;
    if (std::filesystem::exists(file, none)) return read_attention_trace(file);
    AttentionTrace trace = make();
    if (const auto folder = std::filesystem::path(file).parent_path(); !folder.empty()) std::filesystem::create_directories(folder);
    write_attention_trace(file, trace, TraceFloat::kF32);
    return trace;
  };
}

}  // namespace

std::vector<std::shared_ptr<const AttentionSample>> read_attention_samples(Params& samples, std::uint64_t seed) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const AttentionSample>> kept;
  std::vector<std::shared_ptr<const AttentionSample>> all;
  for (const std::string& name : samples.keys()) {
    Params s = samples.child(name, "sample '" + name + "'");
    const std::function<AttentionTrace()> make = read_sample(s, seed);
    s.reject_unread();
    const std::lock_guard lock(mutex);
    std::shared_ptr<const AttentionSample>& sample = kept[fmt::format("{} {} {}", seed, name, s.text_of_all())];
    if (!sample) {
      auto fresh = std::make_shared<AttentionSample>();
      fresh->trace = make();
      fresh->trace.name = fresh->name = name;
      if (fresh->trace.num_tokens == fresh->trace.prompt_tokens)
        s.fail("the sample has no token after the prompt, so there is nothing to measure");
      fresh->reference = full_attention(fresh->trace);
      sample = std::move(fresh);
    }
    all.push_back(sample);
  }
  if (all.empty()) samples.fail("'samples' names no sample");
  return all;
}

}  // namespace kvlab
