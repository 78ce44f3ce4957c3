#include "sim/replay/replay.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "app/results/code_version.h"
#include "app/results/run_files.h"
#include "app/runs/accuracy/attention_samples.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/kv_memory.h"
#include "base/csv.h"

namespace kvlab {

namespace {

constexpr const char* kKeptFile = "kept.jsonl";
constexpr const char* kKeptStepsFile = "kept_steps.jsonl";
constexpr const char* kPromptsFile = "prompts.csv";

std::string share(double x) { return fmt::format("{:.6f}", x); }

// In summary.csv of serving runs.
constexpr std::string_view kServingColumns = " recipe budget_tokens attention_mass output_rel_err topk_recall resident_bytes_frac family ";
constexpr const char* kFidelityColumns = "attention_mass,output_rel_err,topk_recall,kl_nats,needle_kept,attended_tokens";

std::string fidelity_text(const Fidelity& f) {
  return fmt::format("{:.6f},{:.6g},{:.6f},{:.6g},{:.6f},{:.2f}", f.attention_mass, f.output_rel_err, f.topk_recall, f.kl, f.needle,
                     f.attended_tokens);
}

// Sums, then means over samples. Traffic is per decode step.
struct Means {
  Fidelity fidelity;
  double budget = 0, found = 0, kept = 0, resident = 0, host = 0, disk = 0, peak = 0, fetched = 0, stored = 0, asked = 0, hit = 0,
         steps = 0;

  void add(const ReplayResult& r) {
    fidelity += r.mean;
    budget += r.budget_tokens, found += finds_needles(r.by_step) ? 1 : 0, kept += r.kept_tokens;
    resident += r.resident_bytes_frac, host += r.host_bytes_frac, disk += r.disk_bytes_frac, peak += r.peak_prefill_frac;
    fetched += static_cast<double>(r.traffic.fetched_bytes) / std::max(1, r.num_steps);
    stored += static_cast<double>(r.traffic.stored_bytes) / std::max(1, r.num_steps);
    asked += static_cast<double>(r.traffic.asked_units), hit += static_cast<double>(r.traffic.hit_units);
    steps += r.num_steps;
  }
};

Fields fields_of(const Recipe& recipe, Means m, double samples) {
  m.fidelity *= 1 / samples;
  Fields fields;
  const auto add = [&](const char* name, const std::string& value) { fields.emplace_back(name, value); };
  add("recipe", recipe.name);
  add("budget_tokens", fmt::format("{:.0f}", m.budget / samples));
  add("attention_mass", share(m.fidelity.attention_mass));
  add("output_rel_err", fmt::format("{:.6g}", m.fidelity.output_rel_err));
  add("topk_recall", share(m.fidelity.topk_recall));
  add("resident_bytes_frac", share(m.resident / samples));
  add("kl_nats", fmt::format("{:.6g}", m.fidelity.kl));
  add("needle_kept", share(m.fidelity.needle));
  add("kept_tokens", fmt::format("{:.2f}", m.kept / samples));
  add("attended_tokens", fmt::format("{:.2f}", m.fidelity.attended_tokens));
  add("host_bytes_frac", share(m.host / samples));
  add("disk_bytes_frac", share(m.disk / samples));
  add("peak_prefill_frac", share(m.peak / samples));
  add("fetched_bytes_per_step", fmt::format("{:.0f}", m.fetched / samples));
  add("stored_bytes_per_step", fmt::format("{:.0f}", m.stored / samples));
  add("unit_hit_frac", m.asked > 0 ? share(m.hit / m.asked) : "");
  add("samples", fmt::format("{:.0f}", samples));
  add("decode_steps", fmt::format("{:.0f}", m.steps));
  add("far_mass_kept", share(m.fidelity.far_share()));
  add("needle_mass_kept", share(m.fidelity.needle_mass_share()));
  add("needle_found_frac", share(m.found / samples));
  add("family", family_of(recipe));
  return fields;
}

ReplayOptions read_options(Params& p, std::uint64_t seed) {
  ReplayOptions options;
  options.seed = seed;
  options.kv_bytes = p.optional<std::int32_t>("kv_bytes", 2, 1, 8, "bytes of a stored element of the uncompressed cache");
  return options;
}

class KeptLines {
 public:
  KeptLines(std::string run, std::string recipe) : run_(std::move(run)), recipe_(std::move(recipe)) {}

  void add(const AttentionSample& sample, const ReplayResult& r) {
    add_rows(of_prompt, sample, r.budget_tokens, r.kept_of_prompt, std::nullopt);
    for (const KeptAtStep& kept : r.kept_of_steps) add_rows(of_steps, sample, r.budget_tokens, kept.rows, kept.step);
  }

  std::string of_prompt, of_steps;

 private:
  void add_rows(std::string& lines, const AttentionSample& sample, std::int32_t budget_tokens,
                const std::vector<std::vector<std::int32_t>>& rows, std::optional<std::int32_t> step) const {
    const auto heads = static_cast<std::size_t>(sample.trace.kv_heads);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      nlohmann::ordered_json line;
      line["run"] = run_, line["recipe"] = recipe_, line["budget_tokens"] = budget_tokens, line["sample"] = sample.name;
      if (step) line["step"] = *step;
      line["layer"] = i / heads, line["kv_head"] = i % heads;
      line["kept"] = rows[i];
      lines += line.dump() + "\n";
    }
  }

  std::string run_, recipe_;
};

// Adds the policy's place to an error.
ReplayResult replay_or_fail(const Params& p, const AttentionSample& sample, const Recipe& recipe, const ReplayOptions& options) {
  try {
    return replay(sample.trace, sample.reference, recipe, options);
  } catch (const InputError& e) {
    p.fail_at("kv_policy", e.what());
  }
}

// Samples are read on replay.
class ReplayRun final : public PreparedRun {
 public:
  ReplayRun(RunKind& kind, Params& p, std::uint64_t seed) : PreparedRun(kind), p_(p), seed_(seed), recipe_(read_named_recipe(p, "replay")) {
    refuse_orders(p);
    if (!recipe_.runs_in("replay"))
      p.fail_at("kv_policy",
                fmt::format("recipe '{}' does not run in replay: {}", recipe_.name,
                            recipe_.prunes() ? fmt::format("it {} prompts, and recordings have the tensors of whole ones; write "
                                                           "'host: engine' or 'host: sim'",
                                                           recipe_.rewrites() ? "rewrites" : "prunes")
                                             : fmt::format("it runs in: {}", fmt::join(recipe_.hosts, ", "))));
    Params output = p_.optional_child("output", "output");
    lists_kept_ = output.flag(kKeptKey, false, "write kept.jsonl: the positions that each KV head keeps of the prompt");
    if (output.has(kKeptStepsKey) || output.is_describing())
      lists_kept_steps_ =
          output.flag(kKeptStepsKey, false,
                      "write kept_steps.jsonl: the positions that each KV head holds after each decode step in which tokens left");
    output.reject_unread();
  }

  Findings run(RunFiles& files, const RunOptions& /*options*/) override {
    ReplayOptions replay_options = read_options(p_, seed_);
    replay_options.lists_kept = lists_kept_;
    replay_options.lists_kept_steps = lists_kept_steps_;
    Params samples = p_.child("samples", "samples");
    const auto all = read_attention_samples(samples, seed_);
    p_.reject_unread();
    std::string heads_csv = fmt::format("run,sample,layer,kv_head,{}\n", kFidelityColumns);
    std::string steps_csv = fmt::format("run,sample,step,{}\n", kFidelityColumns);
    KeptLines kept(files.id(), recipe_.name);
    std::string prompts_csv = "run,sample,mass_kept,output_rel_err,pairs_frac\n";
    Means means;
    std::uint64_t over_budget = 0;
    for (const auto& sample : all) {
      const ReplayResult r = replay_or_fail(p_, *sample, recipe_, replay_options);
      means.add(r);
      over_budget += r.exceeds_budget ? 1 : 0;
      const std::string name = csv_field(sample->name);
      for (std::size_t i = 0; i < r.by_head.size(); ++i) {
        const auto heads = static_cast<std::size_t>(sample->trace.kv_heads);
        heads_csv += fmt::format("{},{},{},{},{}\n", files.id(), name, i / heads, i % heads, fidelity_text(r.by_head[i]));
      }
      for (std::size_t i = 0; i < r.by_step.size(); ++i)
        steps_csv += fmt::format("{},{},{},{}\n", files.id(), name, i, fidelity_text(r.by_step[i]));
      if (r.prompt)
        prompts_csv +=
            fmt::format("{},{},{:.6f},{:.6g},{:.6f}\n", files.id(), name, r.prompt->mass, r.prompt->output_rel_err, r.prompt->pairs_frac);
      kept.add(*sample, r);
    }
    files.add_file("heads.csv", heads_csv);
    files.add_file("steps.csv", steps_csv);
    if (lists_kept_) files.add_file(kKeptFile, kept.of_prompt);
    if (lists_kept_steps_) files.add_file(kKeptStepsFile, kept.of_steps);
    if (recipe_.selects_in_prompts()) files.add_file(kPromptsFile, prompts_csv);
    Findings findings;
    findings.rows = {fields_of(recipe_, means, static_cast<double>(all.size()))};
    findings.add_note(remark_on_budget(over_budget, all.size(), "samples"));
    return findings;
  }

 private:
  [[nodiscard]] bool writes(const std::string& table) const override {
    if (table == kPromptsFile) return recipe_.selects_in_prompts();
    return table == kKeptFile ? lists_kept_ : table != kKeptStepsFile || lists_kept_steps_;
  }

  Params p_;
  std::uint64_t seed_;
  Recipe recipe_;
  bool lists_kept_ = false, lists_kept_steps_ = false;
};

}  // namespace

Fields fidelity_fields(Params& p, const Recipe& recipe, std::uint64_t seed) {
  static std::mutex mutex;
  static std::map<std::string, Fields> known;
  const ReplayOptions options = read_options(p, seed);
  Params samples = p.child("samples", "samples");
  const std::string key = fmt::format("{} {} {} {}{}", seed, options.kv_bytes, recipe.text, samples.text_of_all(), running_sources());
  const std::lock_guard lock(mutex);
  const auto at = known.find(key);
  if (at != known.end()) return at->second;
  const auto all = read_attention_samples(samples, seed);
  Means means;
  for (const auto& sample : all) means.add(replay_or_fail(p, *sample, recipe, options));
  Fields fields = fields_of(recipe, means, static_cast<double>(all.size()));
  std::erase_if(fields, [](const auto& f) { return kServingColumns.find(fmt::format(" {} ", f.first)) == std::string_view::npos; });
  return known.emplace(key, std::move(fields)).first->second;
}

// `host: replay`: heads.csv, steps.csv, kept.jsonl and kept_steps.jsonl on request, prompts.csv for prefill selectors.
class Replay final : public RunKind {
 public:
  using RunKind::RunKind;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) override { return std::make_unique<ReplayRun>(*this, p, seed); }
  [[nodiscard]] std::set<std::string> tables() const override {
    return {"requests.csv", "timeline.csv", "heads.csv", "steps.csv", kKeptFile, kKeptStepsFile, kPromptsFile};
  }

 private:
  [[nodiscard]] std::vector<std::string> metrics() const override {
    return {"attention_mass", "output_rel_err", "needle_kept", "attended_tokens", "resident_bytes_frac"};
  }
};

KVLAB_REGISTER(RunKind, Replay, "replay", "a KV policy on recorded attention", "");

std::string family_of(const Recipe& r) {
  if (r.selector == "top_k_oracle" || r.scorer == "oracle" || r.scorer == "random" || r.keeps_everything()) return "reference";
  if (r.prunes()) return "prompt pruning";
  if (r.selector != "all") return "selection";
  if (r.scorer.empty() && r.format == "native" && r.selects_in_prompts()) return "prefill selection";
  if (r.scorer.empty()) return r.format != "native" ? "format" : "merging";
  if (r.format != "native") return "eviction and format";
  if (r.disposal != "drop") return "merging";
  if (r.scorer == "recency") return "position";
  const Needs needs = r.make_scorer()->needs();
  if (!needs.pass.empty() || needs.pre_rope_queries) return "expected attention";
  return needs.step_queries || needs.window_queries > 0 ? "attention" : "keys and values";
}

}  // namespace kvlab
