#include "app/runs/run.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "app/results/run_files.h"
#include "app/results/run_manifest.h"
#include "app/runs/progress.h"
#include "app/runs/replay_run.h"
#include "app/runs/search.h"
#include "app/runs/served_run.h"
#include "app/runs/summary_row.h"
#include "sim/hit_ratio.h"

namespace kvlab {

namespace {

using Json = nlohmann::ordered_json;

// Passes a run's records on, counts them for the progress bar, and ends the run when the user asks.
class WatchedSink final : public RunSink {
 public:
  WatchedSink(RunSink* files, RunOptions options, ServingProgress* progress = nullptr)
      : files_(files), options_(std::move(options)), progress_(progress) {}
  void check_stop() const {
    if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) throw Interrupted{};
  }
  void request(const RequestRecord& record) override {
    check_stop();
    if (options_.requests_done != nullptr) options_.requests_done->fetch_add(1, std::memory_order_relaxed);
    if (progress_ != nullptr) progress_->request_done();
    if (files_ != nullptr) files_->request(record);
  }
  void sample(const TimelineSample& sample) override {
    if (files_ != nullptr) files_->sample(sample);
  }
  [[nodiscard]] bool wants_steps() const override { return files_ != nullptr && files_->wants_steps(); }
  void step(const StepRecord& step) override { files_->step(step); }
  void event(const RequestEventRecord& event) override {
    if (files_ != nullptr) files_->event(event);
  }

 private:
  RunSink* files_;
  RunOptions options_;
  ServingProgress* progress_;
};

// Of a simulation beside the run's own: its requests are neither written nor counted.
WatchedSink unseen(const RunOptions& options) { return {nullptr, {options.fast_forward, options.stop, nullptr, {}, false}}; }

using OpenTrace = std::function<std::unique_ptr<TraceSource>()>;

// An oracle block cache is run twice: what the first pass looks up is the future that the second is told.
RunSummary simulate_with_oracle(SimSetup setup, const OpenTrace& open, WatchedSink& sink, const RunOptions& options) {
  if (setup.make_block_cache()->needs_future()) {
    SimSetup first = setup;
    std::vector<std::uint64_t> lookups;
    first.make_block_cache = [] {
      Params none = Params::empty("block cache 'lru'");
      return BlockCacheRegistry::make("lru", none, "block cache");
    };
    first.record_lookups = &lookups;
    WatchedSink nothing = unseen(options);
    simulate(first, *open(), nothing);
    setup.future_keys = std::move(lookups);
  }
  return simulate(setup, *open(), sink);
}

// What a run has to say beside its files.
struct Findings {
  Fields fields;
  std::string label, note, skipped, not_served;
};

// Sets the trace's rate to the plan's share of what is completed when every request is there from the start.
void apply_load(RunPlan& plan, Fields& fields, const RunOptions& options) {
  if (plan.load_frac <= 0) {
    if (plan.has_load_frac) fields.emplace_back("capacity_per_s", "");  // of a sweep other runs have one
    return;
  }
  SimSetup burst = plan.setup;
  burst.timeline_interval = Span{0};
  burst.slo = {};
  burst.warmup = Span{0};  // all arrive at once
  WatchedSink nothing = unseen(options);
  const OpenTrace open = plan.open_trace;
  const RunSummary all = simulate_with_oracle(
      burst, [&] { return std::make_unique<RescaledTrace>(open(), 0.0); }, nothing, options);
  const double native_per_s = mean_rate(*open(), plan.setup.stop.after_requests);
  const double capacity_per_s = static_cast<double>(all.latencies.completed) / to_s(all.duration);
  if (!(capacity_per_s > 0)) throw InputError("'load_frac': no request completes when all come at once, so there is no capacity to share");
  plan.open_trace = [open, factor = native_per_s / (plan.load_frac * capacity_per_s)] {
    return std::make_unique<RescaledTrace>(open(), factor);
  };
  fields.emplace_back("capacity_per_s", fmt::format("{:.6f}", capacity_per_s));
}

// A rate at which nothing is judged would pass for one that does not attain.
void refuse_unjudged(const RunSummary& s, double rate) {
  if (s.requests > 0 && s.latencies.counted == 0)
    throw InputError(
        fmt::format("'warmup_ms': at {:.4g} requests per second all of them arrive during the warm-up, so nothing is counted; shorten the "
                    "warm-up, lengthen the trace, or search lower rates",
                    rate));
  if (s.requests > 0 && s.latencies.judged == 0)
    throw InputError(
        fmt::format("'stop': at {:.4g} requests per second it cuts every request off before one completes or misses a limit, so nothing is "
                    "judged; stop later, or search other rates",
                    rate));
}

// Looks for the highest rate that attains, and answers with the run at that rate.
RunSummary simulate_search(const RunPlan& plan, const RunSpec& run, RunFiles& files, const RunOptions& options, Findings& findings) {
  const double native_per_s = mean_rate(*plan.open_trace(), plan.setup.stop.after_requests);
  const auto at_rate = [&](double rate) -> OpenTrace {
    return [&plan, factor = native_per_s / rate] { return std::make_unique<RescaledTrace>(plan.open_trace(), factor); };
  };
  const SearchResult found = search_rate(*plan.search, [&](double rate) {
    WatchedSink sink(nullptr, options);
    const RunSummary s = simulate_with_oracle(plan.setup, at_rate(rate), sink, options);
    refuse_unjudged(s, rate);
    const double duration_s = to_s(s.counted_duration);
    return Probe{rate, s.latencies.slo_attainment_frac, duration_s > 0 ? static_cast<double>(s.latencies.attained) / duration_s : 0, false};
  });
  files.add_file("search.csv", search_csv(run.id, found));
  findings.note = found.note;
  WatchedSink sink(&files, options);
  const bool any = found.best_per_s > 0;
  const RunSummary summary = simulate_with_oracle(plan.setup, at_rate(any ? found.best_per_s : plan.search->low_per_s), sink, options);
  findings.fields = summary_fields(summary, plan.setup);
  findings.fields.emplace_back("search_rate_per_s", any ? fmt::format("{:.6f}", found.best_per_s) : "");
  return summary;
}

Findings run_simulation(RunPlan& plan, const RunSpec& run, RunFiles& files, const RunOptions& options) {
  plan.setup.fast_forward = options.fast_forward && !plan.wants_perfetto;
  Findings findings;
  Fields load;
  apply_load(plan, load, options);
  RunSummary summary;
  if (plan.search) {
    summary = simulate_search(plan, run, files, options, findings);
  } else {
    WatchedSink sink(&files, options);
    summary = simulate_with_oracle(plan.setup, plan.open_trace, sink, options);
    findings.fields = summary_fields(summary, plan.setup);
    findings.fields.insert(findings.fields.end(), load.begin(), load.end());
  }
  const std::string remarks = remarks_on(summary);
  findings.note += (findings.note.empty() || remarks.empty() ? "" : "; ") + remarks;
  findings.label = credibility_label(summary, plan.setup, describe_cost_source(plan));
  if (const std::string remark = remark_on_collectives(plan.cost, summary); !remark.empty()) plan.remarks.push_back(remark);
  for (const std::string& remark : plan.remarks) findings.note += (findings.note.empty() ? "" : "; ") + remark;
  findings.skipped = summary.skipped;
  findings.not_served = not_served(summary);
  return findings;
}

// By a simulation of the same requests. An estimate that cannot be made ends no run.
ServingProgress expected_progress(const RunPlan& plan, const RunSpec& run, const RunOptions& options) {
  double seconds = 0;
  std::int64_t requests = 0;
  try {
    SimSetup setup = plan.setup;
    setup.timeline_interval = Span{0};
    WatchedSink watched = unseen(options);
    const RunSummary summary = options.say ? simulate_with_oracle(setup, plan.open_trace, watched, options) : RunSummary{};
    seconds = to_s(summary.duration);
    requests = static_cast<std::int64_t>(summary.requests);
  } catch (const std::exception&) {
  }
  return {options.say, run.id, seconds, requests, options.says_progress};
}

Findings run_engine(RunPlan& plan, const RunSpec& run, RunFiles& files, const RunOptions& options) {
  Fields load;
  apply_load(plan, load, options);
  ServingProgress progress = expected_progress(plan, run, options);
  WatchedSink sink(&files, options, &progress);
  ServedFindings served = serve_run(plan, run.id, sink, [&] { sink.check_stop(); });
  files.add_file("engine_steps.csv", served.steps_csv);
  Findings findings;
  findings.fields = std::move(served.fields);
  findings.fields.insert(findings.fields.end(), load.begin(), load.end());
  findings.label = served.label;
  findings.note = served.note;
  if (const std::string failure = calibration_failure_of(plan); !failure.empty())
    findings.note += (findings.note.empty() ? "" : "; ") + ("the profile FAILED its calibration: " + failure);
  findings.skipped = served.skipped;
  findings.not_served = served.not_served;
  return findings;
}

// Every point of a hit-ratio sweep reads the same trace: it is kept between runs.
std::shared_ptr<const HitRatioTrace> shared_hit_ratio_trace(const RunPlan& plan, const std::string& trace_key,
                                                            const std::function<void()>& each_turn) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const HitRatioTrace>> kept;
  static std::shared_ptr<const HitRatioTrace> last;  // keeps it alive from one run to the next
  const std::lock_guard lock(mutex);
  std::shared_ptr<const HitRatioTrace> trace = kept[trace_key].lock();
  if (!trace) {
    trace = std::make_shared<const HitRatioTrace>(load_hit_ratio_trace(*plan.open_trace(), plan.block_tokens, each_turn));
    kept[trace_key] = trace;
  }
  last = trace;
  return trace;
}

Findings run_mrc(Params& p, const Experiment& experiment, const RunPlan& plan, const RunSpec& run, const RunOptions& options) {
  const YAML::Node trace = experiment.resolved_tree(run)["trace"];
  const WatchedSink watch = unseen(options);
  const auto check = [&] { watch.check_stop(); };
  const auto shared = shared_hit_ratio_trace(plan, fmt::format("{} {} {}", run.seed, plan.block_tokens, YAML::Dump(trace)), check);
  const HitRatioRow row = run_hit_ratio(p, *shared, check);
  Findings findings;
  const auto add = [&](const char* name, const std::string& value) { findings.fields.emplace_back(name, value); };
  add("block_cache", row.cache);
  add("capacity_blocks", std::to_string(row.capacity_blocks));
  add("requests", std::to_string(row.result.requests));
  add("lookups", std::to_string(row.result.lookups));
  add("hits", std::to_string(row.result.hits));
  add("hit_frac", fmt::format("{:.6f}", row.result.hit_frac()));
  add("token_hit_frac", fmt::format("{:.6f}", row.result.token_hit_frac()));
  add("evictions", std::to_string(row.result.evictions));
  add("capacity_gib", row.capacity_gib > 0 ? fmt::format("{:.6f}", row.capacity_gib) : "");
  return findings;
}

Json full_manifest(const RunSpec& run, const RunPlan& plan, const Findings& findings, const RunOrigin& origin, double wall_s) {
  Json m = run_manifest(run, origin);
  if (plan.kind == RunKind::kServing) {
    m["host"] = "engine";
    m["served_model"] = plan.served.text();
  }
  if (plan.kind == RunKind::kSimulation || plan.kind == RunKind::kServing) {
    m["credibility"] = findings.label;
    m["cost_source"] = describe_cost_source(plan);
    m["profile"] = {{"name", plan.cost.profile_name}, {"hash", plan.cost.profile_hash}, {"date", plan.cost.profile_date}};
    m["model"] = plan.cost.model.name;
    m["hardware"] = plan.cost.hardware.name;
  }
  if (!findings.note.empty()) m["note"] = findings.note;
  if (!findings.skipped.empty()) m["skipped"] = findings.skipped;
  if (!findings.not_served.empty()) m["not_served"] = findings.not_served;
  m["wall_s"] = wall_s;
  return m;
}

// As comments: some defaults exclude keys that are given, so a config that spelt them out would not run.
std::string defaults_in_force(const Params& p) {
  std::string text = "\n# defaults in force:\n";
  for (const auto& [path, value] : p.defaults()) text += "#   " + path + ": " + value + "\n";
  return text;
}

Findings find_out(Params& p, const Experiment& experiment, const RunSpec& run, RunPlan& plan, RunFiles& files, const RunOptions& options) {
  if (plan.kind == RunKind::kSimulation || plan.kind == RunKind::kServing) {
    Findings findings = plan.kind == RunKind::kServing ? run_engine(plan, run, files, options) : run_simulation(plan, run, files, options);
    if (!plan.has_samples) return findings;
    const Fields fidelity = fidelity_fields(p, *plan.recipe, run.seed);
    findings.fields.insert(findings.fields.end(), fidelity.begin(), fidelity.end());
    return findings;
  }
  if (plan.kind == RunKind::kBlockCacheMrc) return run_mrc(p, experiment, plan, run, options);
  ReplayFindings replay = run_replay(p, *plan.recipe, run.id, run.seed);
  files.add_file("heads.csv", replay.heads_csv);
  files.add_file("steps.csv", replay.steps_csv);
  Findings findings;
  findings.fields = std::move(replay.fields);
  findings.note = std::move(replay.note);
  return findings;
}

// The keys that decide how much memory a run takes.
std::string out_of_memory(const RunPlan& plan) {
  const MemorySetup& memory = plan.setup.memory;
  if (plan.kind == RunKind::kBlockCacheMrc)
    return "out of memory: lower 'capacity_blocks', or take a part of the trace with limit_requests";
  if (plan.kind != RunKind::kSimulation) return "out of memory";
  constexpr double kBytesPerBlock = 115, kGiB = 1024.0 * 1024 * 1024;  // while all of them are in use
  const double gib = static_cast<double>(plan.setup.num_replicas) * static_cast<double>(memory.num_blocks) * kBytesPerBlock / kGiB;
  return fmt::format(
      "out of memory: 'replicas' = {} with {} KV blocks each ('memory.num_blocks', {}) take up to {:.3g} GiB; lower one of "
      "them, or run fewer at a time with --jobs",
      plan.setup.num_replicas, memory.num_blocks, memory.is_derived ? "derived" : "given", gib);
}

}  // namespace

nlohmann::ordered_json run_manifest(const RunSpec& run, const RunOrigin& origin) {
  return {{"kvlab_run", kRunFormat},       {"run", run.id},       {"state", "finished"},    {"seed", run.seed},
          {"input_key", origin.input_key}, {"code", origin.code}, {"inputs", origin.inputs}};
}

void execute_run(const Experiment& experiment, const RunSpec& run, const std::filesystem::path& runs, const RunOrigin& origin,
                 const RunOptions& options, const std::function<void()>& is_valid) {
  const auto began = std::chrono::steady_clock::now();
  Params p = experiment.params(run);
  RunPlan plan = read_run_plan(p, run.seed);
  RunFiles files(runs, run.id, plan.wants_perfetto ? RunFiles::Tables::kPerfetto : RunFiles::Tables::kRequests);
  const Findings findings = [&] {
    try {
      return find_out(p, experiment, run, plan, files, options);
    } catch (const std::bad_alloc&) {
      throw InputError(out_of_memory(plan));
    }
  }();
  files.add_file("summary.csv", summary_csv(run.id, run.seed, findings.fields));
  files.add_file("resolved.yaml", experiment.resolved_in(runs / run.id, run) + defaults_in_force(p));
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  is_valid();
  files.commit(full_manifest(run, plan, findings, origin, wall.count()));
}

}  // namespace kvlab
