#include "app/attention_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>

#include "app/shared_model.h"
#include "base/error.h"
#include "engine/grade/eval_set.h"
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

// Bytes are the tokens, behind <s>.
std::vector<std::int32_t> bytes_of(std::string_view text, bool is_start) {
  std::vector<std::int32_t> ids;
  if (is_start) ids.push_back(kProbeBos);
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// Where the answer stands in the prompt: what a policy must not lose.
std::vector<std::pair<std::int32_t, std::int32_t>> find_needles(const std::vector<std::int32_t>& prompt, std::vector<std::int32_t> answer) {
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  std::vector<std::pair<std::int32_t, std::int32_t>> spans;
  if (answer.size() < 3) return spans;  // too short to be found by its text alone
  for (auto at = prompt.begin(); (at = std::search(at, prompt.end(), answer.begin(), answer.end())) != prompt.end();
       at += static_cast<std::ptrdiff_t>(answer.size())) {
    const auto begin = static_cast<std::int32_t>(at - prompt.begin());
    spans.emplace_back(begin, begin + static_cast<std::int32_t>(answer.size()));
  }
  return spans;
}

EvalPrompt read_eval_prompt(Params& p) {
  const std::string file = p.resolve_file(p.text("eval", "evaluation file, a JSON object per line with task, length, prompt and turns"));
  const std::string task = p.text("task", "which task's prompts");
  const auto length = p.optional<std::int32_t>("length_tokens", 0, 0, 1 << 26, "which length; 0: any");
  const auto index = p.optional<std::int32_t>("index", 0, 0, 1 << 20, "which of the matching prompts");
  EvalChoice choice{{task}, {}, 0};
  if (length > 0) choice.lengths = {length};
  const std::vector<EvalSample> samples = read_eval_set(file, choice, bytes_of);
  if (static_cast<std::size_t>(index) >= samples.size())
    p.fail(fmt::format("{} has {} prompts of task '{}'{}, so there is no number {}", file, samples.size(), task,
                       length > 0 ? fmt::format(" and length {}", length) : "", index));
  const EvalSample& sample = samples[static_cast<std::size_t>(index)];
  const EvalTurn& turn = sample.turns.front();
  EvalPrompt eval{sample.context, turn.answer, find_needles(sample.context, turn.answer), static_cast<std::int32_t>(sample.context.size())};
  eval.ids.insert(eval.ids.end(), turn.question.begin(), turn.question.end());
  return eval;
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
