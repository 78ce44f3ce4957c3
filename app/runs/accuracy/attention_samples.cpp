#include "app/runs/accuracy/attention_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string_view>

#include "app/results/safe_files.h"
#include "app/runs/accuracy/served_model.h"
#include "base/text.h"
#include "engine/grade/eval_set.h"
#include "engine/model/record.h"
#include "policies/kv/forward_passes.h"
#include "traces/synthetic_attention.h"

namespace kvlab {

namespace {

constexpr std::int32_t kProbeBos = 256;
constexpr const char* kFileMeaning = "attention trace (safetensors); with 'record' or 'synthetic' the file that keeps it";

// For byte-level models (engine/probe/README.md).
struct EvalPrompt {
  std::vector<std::int32_t> ids, answer;
  std::vector<std::pair<std::int32_t, std::int32_t>> needles;
  std::int32_t question_begin = 0;
  std::vector<std::string> settings;
};

// Without `make` it is read from a file.
struct SampleToMake {
  std::function<AttentionTrace()> make;
  std::function<AttentionTrace()> outline;             // facts known in advance: sizes, ids
  std::function<std::vector<std::string>()> settings;  // "name = value" that it depends on
  bool is_drawn = false;                               // depends on the seed
  std::string file;                                    // target or cached file; "": none
};

// Bytes after <s>.
std::vector<std::int32_t> bytes_of(std::string_view text, bool is_start) {
  std::vector<std::int32_t> ids;
  if (is_start) ids.push_back(kProbeBos);
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// Ranges of the answer in the prompt.
std::vector<std::pair<std::int32_t, std::int32_t>> find_needles(const std::vector<std::int32_t>& prompt, std::vector<std::int32_t> answer) {
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  std::vector<std::pair<std::int32_t, std::int32_t>> spans;
  if (answer.size() < 3) return spans;  // too short to search for
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
  if (p.is_describing()) return {};
  EvalChoice choice{{task}, {}, 0};
  if (length > 0) choice.lengths = {length};
  const std::vector<EvalSample> samples = read_eval_set(file, choice, bytes_of);
  if (static_cast<std::size_t>(index) >= samples.size())
    p.fail(fmt::format("{} has {} prompts of task '{}'{}, so there is no number {}", file, samples.size(), task,
                       length > 0 ? fmt::format(" and length {}", length) : "", index));
  const EvalSample& sample = samples[static_cast<std::size_t>(index)];
  const EvalTurn& turn = sample.turns.front();
  EvalPrompt eval{
      sample.context, turn.answer, find_needles(sample.context, turn.answer), static_cast<std::int32_t>(sample.context.size()), {}};
  eval.ids.insert(eval.ids.end(), turn.question.begin(), turn.question.end());
  eval.settings = {"task = " + task, fmt::format("length_tokens = {}", length), fmt::format("index = {}", index)};
  return eval;
}

std::uint64_t fingerprint_of_ids(const std::vector<std::int32_t>& ids, std::uint64_t seed) {
  return fingerprint_of_text({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t)}, seed);
}

constexpr std::string_view kModelUnknown = "model = unknown";

// Computed once per process.
std::string model_setting(const std::string& folder) {
  static std::map<std::string, std::string> known;
  std::string& setting = known[folder];
  if (!setting.empty()) return setting;
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().filename() == "config.json" || entry.path().extension() == ".safetensors") files.push_back(entry.path());
  setting = files.empty() ? std::string(kModelUnknown) : "model = " + hex(fingerprint_of_files(folder, std::move(files)));
  return setting;
}

std::vector<std::string> settings_of(const std::string& folder, const EvalPrompt& eval, bool compresses_question,
                                     const RecordOptions& options) {
  std::vector<std::string> settings{"record"};
  settings.insert(settings.end(), eval.settings.begin(), eval.settings.end());
  settings.push_back(fmt::format("question = {}", compresses_question ? "compressed" : "decoded"));
  settings.push_back(fmt::format("decode_tokens = {}", options.decode_tokens));
  settings.push_back(fmt::format("chunk_tokens = {}", options.chunk_tokens));
  if (std::any_of(options.passes.begin(), options.passes.end(), has_backward)) settings.emplace_back("gradients = recorded");
  settings.push_back("prompt and answer = " + hex(fingerprint_of_ids(eval.answer, fingerprint_of_ids(eval.ids, 0))));
  settings.push_back(model_setting(folder));
  return settings;
}

RecordOptions read_options(Params& p) {
  RecordOptions options;
  options.decode_tokens = p.optional<std::int32_t>("decode_tokens", 16, 0, 1 << 20, "tokens decoded greedily after the true answer");
  options.chunk_tokens = p.optional<std::int32_t>("chunk_tokens", 0, 0, 1 << 26, "prefill chunk; 0: the prompt in one piece");
  options.pre_rope = options.hidden = options.w_o = options.w_q = true;
  options.passes = extra_pass_names();
  const bool gradients =
      p.flag("gradients", false, "record the gradients that 'kvgrad' observes too, which takes about as long as the rest");
  if (!gradients) std::erase_if(options.passes, has_backward);
  return options;
}

SampleToMake read_recording(Params& p) {
  const std::string folder = p.resolve_file(p.text("model", "model folder: config.json and model.safetensors"));
  const EvalPrompt eval = read_eval_prompt(p);
  const bool compresses_question =
      p.choice("question", {"compressed", "decoded"}, 0,
               "is the question part of the prompt that is compressed, or does it come after, unknown to the policy") == 0;
  RecordOptions options = read_options(p);
  options.continuation = eval.answer;
  std::vector<std::int32_t> ids = eval.ids;
  if (!compresses_question) {
    options.continuation.insert(options.continuation.begin(), ids.begin() + eval.question_begin, ids.end());
    ids.resize(static_cast<std::size_t>(eval.question_begin));
  }
  SampleToMake sample;
  sample.outline = [=] {
    AttentionTrace trace;
    trace.prompt_tokens = static_cast<std::int32_t>(ids.size());
    trace.ids = ids;
    trace.ids.insert(trace.ids.end(), options.continuation.begin(), options.continuation.end());
    trace.num_tokens = static_cast<std::int32_t>(trace.ids.size()) + options.decode_tokens;
    return trace;
  };
  sample.settings = [=] { return settings_of(folder, eval, compresses_question, options); };
  sample.make = [=] {
    const Transformer& model = *shared_model(folder).transformer();
    RecordOptions fitting = options;
    const auto prompt_tokens = static_cast<std::int32_t>(ids.size());
    std::erase_if(fitting.passes, [&](const std::string& pass) { return !fits_windows(pass, model.config(), prompt_tokens, options); });
    AttentionTrace trace = record(model, ids, fitting);
    trace.needles = eval.needles;
    trace.question_begin = compresses_question ? eval.question_begin : -1;
    return trace;
  };
  return sample;
}

SampleToMake read_synthetic(Params& r, std::uint64_t seed) {
  const SyntheticAttentionShape shape = read_synthetic_attention(r);
  std::vector<ParamDoc> docs;
  Params described = Params::describing("synthetic", docs);
  read_synthetic_attention(described);
  std::vector<std::string> settings{"synthetic", fmt::format("seed = {}", seed)};
  for (const ParamDoc& doc : docs) settings.push_back(doc.key + " = " + r.inline_text(doc.key, doc.fallback));
  SampleToMake sample;
  sample.make = [=] { return SyntheticAttention(shape, seed).trace(); };
  sample.outline = [=] { return SyntheticAttention(shape, seed).outline(); };
  sample.settings = [=] { return settings; };
  sample.is_drawn = true;
  return sample;
}

SampleToMake read_sample(Params& s, std::uint64_t seed) {
  const int kinds = int{s.has("record")} + int{s.has("synthetic")};
  if (kinds + int{s.has("file")} == 0 || kinds > 1) s.fail("a sample is one of {file: PATH}, {record: {...}}, {synthetic: {...}}");
  SampleToMake sample;
  if (kinds > 0) {
    const char* const kind = s.has("record") ? "record" : "synthetic";
    Params r = s.child(kind, kind);
    sample = s.has("record") ? read_recording(r) : read_synthetic(r, seed);
    r.reject_unread();
  }
  if (!s.has("file")) return sample;
  sample.file = s.resolve_file(s.text("file", kFileMeaning));
  std::error_code error;
  if (!sample.make && !std::filesystem::exists(sample.file, error))
    s.fail_at("file", sample.file + ": cannot be opened; name a 'record' to make it");
  return sample;
}

// "" if equal.
std::string other_settings(const std::string& made_for, const std::vector<std::string>& asked) {
  std::vector<std::string> made;
  std::istringstream lines(made_for);
  for (std::string line; std::getline(lines, line);) made.push_back(line);
  for (std::size_t i = 0; i < std::min(made.size(), asked.size()); ++i)
    if (made[i] != asked[i] && made[i] != kModelUnknown && asked[i] != kModelUnknown)
      return fmt::format("it was made for '{}', and here it is '{}'", made[i], asked[i]);
  return made.size() == asked.size() ? "" : "it was made for other settings";
}

// For traces without settings; "" if equal.
std::string other_sizes(const AttentionTrace& kept, const AttentionTrace& asked) {
  const auto differ = [](const char* what, std::int64_t has, std::int64_t wants) {
    return fmt::format("it has {} {}, and here it is {}", has, what, wants);
  };
  if (kept.prompt_tokens != asked.prompt_tokens) return differ("prompt tokens", kept.prompt_tokens, asked.prompt_tokens);
  if (kept.num_tokens != asked.num_tokens)
    return differ("decoded tokens", kept.num_tokens - kept.prompt_tokens, asked.num_tokens - asked.prompt_tokens);
  const bool same_ids =
      kept.ids.empty() || (kept.ids.size() >= asked.ids.size() && std::equal(asked.ids.begin(), asked.ids.end(), kept.ids.begin()));
  if (!same_ids) return "its tokens are others";
  if (asked.num_layers == 0) return "";  // set by the model
  if (kept.num_layers != asked.num_layers) return differ("layers", kept.num_layers, asked.num_layers);
  if (kept.q_heads != asked.q_heads) return differ("query heads", kept.q_heads, asked.q_heads);
  if (kept.kv_heads != asked.kv_heads) return differ("KV heads", kept.kv_heads, asked.kv_heads);
  if (kept.head_dim != asked.head_dim) return differ("channels per head", kept.head_dim, asked.head_dim);
  return kept.needles == asked.needles ? "" : "its needles are elsewhere";
}

std::string place_of(const SampleToMake& sample) { return sample.file.empty() ? "" : std::filesystem::absolute(sample.file).string(); }

AttentionTrace trace_of(const SampleToMake& sample, const Params& s) {
  std::error_code none;
  if (!sample.file.empty() && std::filesystem::exists(sample.file, none)) {
    AttentionTrace kept = read_attention_trace(sample.file);
    if (!sample.make) return kept;
    const std::string other =
        kept.made_for.empty() ? other_sizes(kept, sample.outline()) : other_settings(kept.made_for, sample.settings());
    if (!other.empty()) s.fail_at("file", fmt::format("{} holds another sample: {}; delete it, or name another file", sample.file, other));
    return kept;
  }
  AttentionTrace trace = sample.make();
  if (sample.file.empty()) return trace;
  trace.made_for = join(sample.settings(), "\n");
  if (const auto folder = std::filesystem::path(sample.file).parent_path(); !folder.empty()) std::filesystem::create_directories(folder);
  write_attention_trace(sample.file, trace, TraceFloat::kF32);
  return trace;
}

}  // namespace

void describe_attention_sample(Params& described) {
  Params recorded = described.child("record", "record"), synthetic = described.child("synthetic", "synthetic");
  read_recording(recorded);
  read_synthetic_attention(synthetic);
  described.text("file", kFileMeaning);
}

std::vector<std::shared_ptr<const AttentionSample>> read_attention_samples(Params& samples, std::uint64_t seed) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const AttentionSample>> kept;
  static std::vector<std::shared_ptr<const AttentionSample>> last;  // keep-alive between runs
  std::vector<std::shared_ptr<const AttentionSample>> all;
  for (const std::string& name : samples.keys()) {
    Params s = samples.child(name, "sample '" + name + "'");
    const SampleToMake to_make = read_sample(s, seed);
    s.reject_unread();
    const std::lock_guard lock(mutex);
    std::weak_ptr<const AttentionSample>& known =
        kept[fmt::format("{} {} {} {}", to_make.is_drawn ? seed : 0, name, place_of(to_make), s.text_of_all())];
    std::shared_ptr<const AttentionSample> sample = known.lock();
    if (!sample) {
      auto fresh = std::make_shared<AttentionSample>();
      fresh->trace = trace_of(to_make, s);
      fresh->trace.name = fresh->name = name;
      if (fresh->trace.num_tokens == fresh->trace.prompt_tokens)
        s.fail("the sample has no token after the prompt, so there is nothing to measure");
      fresh->reference = full_attention(fresh->trace);
      known = sample = std::move(fresh);
    }
    all.push_back(sample);
  }
  if (all.empty()) samples.fail("'samples' names no sample");
  const std::lock_guard lock(mutex);
  return last = all;
}

}  // namespace kvlab
