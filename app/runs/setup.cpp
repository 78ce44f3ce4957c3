#include "app/runs/setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "app/runs/experiment.h"
#include "app/runs/kv_memory.h"
#include "app/runs/served_model.h"
#include "base/error.h"
#include "base/file_kind.h"
#include "base/open_error.h"
#include "base/spec_file.h"
#include "base/text.h"
#include "policies/kv/policy.h"
#include "sim/cost/profile.h"
#include "sim/hit_ratio.h"
#include "traces/make_trace.h"

namespace kvlab {

namespace {

constexpr double kMaxSeconds = 9e6;

// An unknown name is refused here, where the file names it.
template <class Registry>
void check_known(const Params& p, const std::string& key, const std::string& name, const std::string& kind) {
  if (!Registry::table_view().contains(name)) p.fail_at(key, "unknown " + kind + " '" + name + "'" + suggestion(name, Registry::names()));
}

// A maker of one kind of policy. The policy is made once here, so that its errors come before any run starts.
template <class Registry>
auto policy_factory(Params& p, const std::string& key, const std::string& fallback, const std::string& kind, const std::string& meaning,
                    const std::function<void(const std::string& name, Params& own)>& prepare = {}) {
  auto chosen = p.named(key, fallback, meaning);
  check_known<Registry>(p, key, chosen.first, kind);
  if (prepare) prepare(chosen.first, chosen.second);
  auto make = [name = chosen.first, params = chosen.second, kind] {
    Params own = params;
    return Registry::make(name, own, kind);
  };
  make();
  return make;
}

void read_policies(Params& p, const HardwareSpec& hardware, SimSetup& setup) {
  setup.make_scheduler = policy_factory<SchedulerRegistry>(
      p, "scheduler", "", "scheduler", "plans each step of a replica",
      [&](const std::string& name, Params& own) { prefer_engine_defaults(name, hardware.is_large(), own); });
  setup.make_router = policy_factory<RouterRegistry>(p, "router", "round_robin", "router", "sends requests to replicas");
  setup.make_block_cache =
      policy_factory<BlockCacheRegistry>(p, "block_cache", "lru", "block cache", "which unreferenced block is given up");
  if (setup.make_block_cache()->needs_future()) {  // what it is told of comes from a first pass
    Params none = Params::empty("block cache 'lru'");
    BlockCacheRegistry::make("lru", none, "block cache");
  }
  if (setup.make_block_cache()->needs_future() && setup.num_replicas != 1) {
    p.fail_at("block_cache", fmt::format("an oracle block cache needs one replica, since its future is that of one pool; 'replicas' = {}",
                                         setup.num_replicas));
  }
}

void read_slo(Params& p, SimSetup& setup) {
  setup.slo.is_set = p.has("slo");
  Params slo = p.optional_child("slo", "slo");
  constexpr double kNoLimitMs = kMaxSeconds * 1e3;
  if (setup.slo.is_set && !slo.has("ttft_ms") && !slo.has("tpot_ms") && !slo.has("e2e_ms"))
    slo.fail("slo needs 'ttft_ms', 'tpot_ms' or 'e2e_ms'");
  setup.slo.ttft = slo.milliseconds("ttft_ms", kNoLimitMs, 0, kNoLimitMs, "limit of the time to first token; absent: none");
  setup.slo.tpot =
      slo.milliseconds("tpot_ms", kNoLimitMs, 0, kNoLimitMs, "limit of the time per output token after the first; absent: none");
  setup.slo.e2e = slo.milliseconds("e2e_ms", kNoLimitMs, 0, kNoLimitMs, "limit of the time from arrival to the last token; absent: none");
  slo.reject_unread();
}

// A pipe can be read once.
void refuse_pipe(const Params& p, const std::string& key) {
  const std::string path = p.resolve_file(p.inline_text(key, ""));
  if (special_file(path) == "a pipe")
    p.fail_at(key, fmt::format("'{}' is a pipe, and a run reads it more than once: save it to a file", path));
}

// Shipped samples have the recipe that made them beside them: azure_like.csv, azure_like.yaml.
std::string remark_on_sample(const Params& trace) {
  const std::filesystem::path file = trace.resolve_file(trace.inline_text("file", ""));
  if (!trace.has("file") || file.parent_path().filename() != "samples") return "";
  const std::string name = file.filename().string();
  const std::filesystem::path recipe = file.parent_path() / (name.substr(0, name.find('.')) + ".yaml");
  if (!std::filesystem::exists(recipe)) return "";
  return fmt::format("{} is a generated sample and no recording: traces/samples/README.md", name);
}

std::optional<SearchPlan> read_search(Params& p, bool has_slo) {
  Params s = p.optional_child("search", "search");
  if (!p.has("search")) return std::nullopt;
  if (!has_slo) p.fail_at("search", "'search' needs 'slo: {ttft_ms, tpot_ms, e2e_ms}' to know what is good enough");
  if (!s.has("rate")) s.fail("search needs 'rate': [low, high] in requests per second");
  const std::vector<double> rate = s.numbers("rate", 1e-6, 1e9, "lowest and highest arrival rate to try, requests per second");
  if (rate.size() != 2 || rate[0] >= rate[1]) s.fail_at("rate", "'rate': expected [low, high] with low < high");
  SearchPlan plan{rate[0], rate[1], 0.9, 0.02};
  plan.attainment = s.optional<double>("attainment", 0.9, 0.01, 1, "share of requests that must meet the SLO");
  plan.tolerance_frac = s.optional<double>("tolerance_frac", 0.02, 1e-4, 0.5, "width of the final bracket, relative to its upper end");
  s.reject_unread();
  return plan;
}

void read_limits(Params& p, const CostSetup& cost, SimSetup& setup) {
  const std::int64_t longest = cost.model.max_tokens > 0 ? cost.model.max_tokens : 1 << 20;
  setup.max_model_len = p.optional<std::int32_t>("max_model_len", static_cast<std::int32_t>(longest), 2, 1 << 30,
                                                 "most tokens of a request, prompt and output; at most the model's own");
  if (cost.model.max_tokens > 0 && setup.max_model_len > cost.model.max_tokens && !p.is_describing())
    p.fail_at("max_model_len",
              fmt::format("'max_model_len' = {} is more than the {} tokens of {} (max_position_embeddings and RoPE scaling)",
                          setup.max_model_len, cost.model.max_tokens, cost.model.name));
  Params stop = p.optional_child("stop", "stop");
  setup.stop.after_time = stop.seconds("after_s", 0, 0, kMaxSeconds, "end the run at this time; 0: at the trace's end");
  setup.stop.after_requests =
      stop.optional<std::uint64_t>("after_requests", 0, 0, std::uint64_t{1} << 40, "take this many requests of the trace; 0: all");
  stop.reject_unread();
  setup.warmup = p.milliseconds("warmup_ms", 0, 0, kMaxSeconds * 1e3, "requests that arrive before are simulated and not counted");
  setup.timeline_interval =
      p.milliseconds("timeline_interval_ms", 1000, 0, kMaxSeconds * 1e3, "time between samples of timeline.csv; 0: none");
}

// With the model and hardware that the experiment names: the profile need not say any.
std::string lint_command(const Params& p, const std::string& folder) {
  std::string command = "kvlab profile lint " + folder;
  for (const char* key : {"model", "hardware"}) {
    if (!p.has(key)) continue;
    const std::string named = p.inline_text(key, ""), file = p.resolve_file(named);
    std::error_code error;
    command += fmt::format(" --{} {}", key, std::filesystem::exists(file, error) ? file : named);
  }
  return command;
}

void read_simulation(Params& p, RunPlan& plan) {
  SimSetup& setup = plan.setup;
  plan.cost = read_cost_setup(p);
  if (plan.cost.profile) plan.lint = lint_command(p, plan.cost.profile->file);
  for (const std::string& remark : hardware_remarks(plan.cost.hardware))
    plan.remarks.push_back(fmt::format("hardware {}: {}", plan.cost.hardware.name, remark));
  if (const Parallel& parallel = plan.cost.parallel; parallel.data_ranks() > 1)
    plan.remarks.push_back(
        fmt::format("parallel: ep = {} with tp = {} makes {} data-parallel ranks for attention; the scheduler's tokens and sequences per "
                    "step are limits "
                    "of the whole replica here and of each rank in vLLM, so give {} times the engine's values to compare with it",
                    parallel.ep, parallel.tp, parallel.data_ranks(), parallel.data_ranks()));
  setup.make_cost_model = [cost = plan.cost] { return make_cost_model(cost); };
  setup.make_cost_model();
  setup.num_replicas = p.optional<std::uint32_t>("replicas", 1, 1, 100'000, "copies of the model, each with its own scheduler and memory");
  read_policies(p, plan.cost.hardware, setup);
  read_limits(p, plan.cost, setup);
  const std::int64_t host_bytes = read_memory(p, plan.cost, setup);
  read_kv_policy(p, plan);
  setup.memory.host_blocks = host_bytes / setup.memory.block_bytes;  // of the size that the policy's format gives them
  read_slo(p, setup);
  plan.search = read_search(p, setup.slo.is_set);
  plan.served = read_served_model(p);
  plan.temperature = p.optional<double>("temperature", 0, 0, 100, "of the tokens drawn, with 'host: engine'; 0: the likeliest");
  plan.stays_awake =
      p.choice("idle", {"awake", "asleep"}, 0,
               "what cores do between steps, with 'host: engine' and 'backend: cpu'; awake: they wait busily and stay fast") == 0;
  plan.has_load_frac = p.has("load_frac");
  plan.load_frac = p.optional<double>("load_frac", 0, 0, 1000,
                                      "arrival rate as a share of what a simulation completes when all requests come at once; 0: the "
                                      "trace's own");
  if (plan.search && plan.load_frac > 0) p.fail_at("load_frac", "'load_frac' and 'search' both set the arrival rate: give one");
  plan.has_samples = p.has("samples");
  p.optional_child("samples", "samples");
  p.optional<std::int32_t>("kv_bytes", 2, 1, 8, "bytes of a stored element of the uncompressed cache, in the replay of `samples`");
  Params validate = p.optional_child("validate", "validate");
  const bool compares_hosts = validate.has("max_diff_frac");
  if (p.has("validate") && !compares_hosts)
    plan.validate_requests = validate.resolve_file(validate.text("requests", "requests.jsonl of a real engine"));
  std::error_code error;
  if (p.has("validate") && !compares_hosts && !std::filesystem::exists(plan.validate_requests, error)) {
    validate.fail_at("requests", open_error(plan.validate_requests));
  }
  plan.max_diff_frac = validate.optional<double>(
      "max_diff_frac", 0, 0, 100, "with 'host: [sim, engine]': an error when a median over the seeds differs by more; 0: never");
  refuse_pipe(validate, "requests");
  validate.reject_unread();
}

void read_mrc(Params& p, RunPlan& plan) {
  plan.block_tokens = p.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "tokens per block");
  check_known<BlockCacheRegistry>(p, "block_caches", p.named("block_caches", "lru", "which block is given up").first, "block cache");
  run_hit_ratio(p, HitRatioTrace{});  // reads and checks the keys; an empty trace costs nothing
}

void check_served_recipe(const Params& p, const RunPlan& plan) {
  const ModelConfig& c = plan.served.config;
  const Needs needs =
      KvPolicy(*plan.recipe, {c.layers, c.q_heads, c.kv_heads, c.head_dim, c.hidden_dim, 4, {c.rope_base, c.rope_scaling}}).needs();
  try {
    require_recipe(plan.served.backend, *plan.recipe, needs);
  } catch (const InputError& e) {
    p.fail_at("kv_policy", e.what());
  }
}

// What serving by the engine needs beyond a simulation.
void read_serving(Params& p, RunPlan& plan) {
  plan.kind = RunKind::kServing;
  if (plan.setup.num_replicas != 1) p.fail_at("replicas", "the engine serves one replica; 'host: engine' needs 'replicas: 1'");
  if (plan.cost.parallel.gpus() != 1) p.fail_at("parallel", "the engine runs on one device; leave 'parallel' out");
  if (plan.search) p.fail_at("search", "'search' is done by simulation; 'host: engine' runs one rate, for example with 'load_frac'");
  check_backend(p, plan.served.backend);
  if (!plan.recipe->runs_in("engine"))
    p.fail_at("kv_policy", fmt::format("recipe '{}' does not run in the engine; it runs in: {}", plan.recipe->name,
                                       fmt::join(plan.recipe->hosts, ", ")));
  if (plan.setup.make_block_cache()->needs_future())
    p.fail_at("block_cache", "the engine cannot know the future, which this cache asks for");
  static_cast<void>(load_recipe("full"));  // which the engine runs to get ready
  find_served_model(p, plan.cost.model, plan.served);
  check_served_recipe(p, plan);
}

void read_graded(Params& p, RunPlan& plan, std::uint64_t seed) {
  plan.kind = RunKind::kAccuracy;
  plan.accuracy = read_accuracy(p, seed);
  static_cast<void>(load_recipe("full"));  // which answers are compared with
  if (!p.has("kv_policy")) p.fail("missing key 'kv_policy': which recipe to grade (kvlab list kv)");
  Params policy = p.child_or_text("kv_policy", "recipe", "kv_policy");
  plan.recipe = read_recipe(policy);
  if (!plan.recipe->runs_in("engine"))
    p.fail_at("kv_policy", fmt::format("recipe '{}' does not run in the engine; it runs in: {}", plan.recipe->name,
                                       fmt::join(plan.recipe->hosts, ", ")));
  p.reject_unread();
}

}  // namespace

RunPlan read_run_plan(Params& p, std::uint64_t seed) {
  RunPlan plan;
  p.text("name", "", "name of the results folder; default: the file's name");
  if (p.has(kPathsFrom)) p.child(kPathsFrom, kPathsFrom);  // read with the experiment
  p.optional<std::int64_t>("seed", 1, 0, std::numeric_limits<std::int64_t>::max(), "seed of every random draw");
  p.optional<std::int64_t>("seeds", 1, 1, 100'000, "repetitions with seed, seed + 1, ...");
  plan.kind = static_cast<RunKind>(p.choice("kind", {"simulation", "block_cache_mrc"}, 0, "what a run does"));
  const std::size_t host =
      p.choice("host", {"sim", "replay", "engine"}, 0, "where policies run: in simulated serving, on recorded attention, in a real model");
  const bool replays = host == 1;
  if (host != 0 && plan.kind != RunKind::kSimulation)
    p.fail_at("host", "'host: replay' and 'host: engine' exclude 'kind: block_cache_mrc'");
  plan.setup.seed = seed;
  if (replays) {  // samples are read where they are replayed
    plan.kind = RunKind::kReplay;
    if (!p.has("kv_policy")) p.fail("missing key 'kv_policy': which recipe to replay (kvlab list kv)");
    Params policy = p.child_or_text("kv_policy", "recipe", "kv_policy");
    plan.recipe = read_recipe(policy);
    return plan;
  }
  if (host == 2 && !p.has("trace")) {
    read_graded(p, plan, seed);
    return plan;
  }
  Params output = p.optional_child("output", "output");
  plan.wants_perfetto = output.flag("perfetto", false, "write trace.json for ui.perfetto.dev");
  output.reject_unread();
  if (plan.kind == RunKind::kSimulation)
    read_simulation(p, plan);
  else
    read_mrc(p, plan);
  if (host == 2) read_serving(p, plan);
  Params trace = p.child("trace", "trace");
  if (trace.flag("perfetto", false, "write trace.json for ui.perfetto.dev")) plan.wants_perfetto = true;
  refuse_pipe(trace, "file");
  if (const std::string remark = remark_on_sample(trace); !remark.empty()) plan.remarks.push_back(remark);
  plan.open_trace = [trace, seed] {
    Params own = trace;
    return make_trace(own, seed);
  };
  const std::unique_ptr<TraceSource> source = plan.open_trace();
  TraceRequest first;
  source->next(first);  // what is wrong with the first row is wrong with the file or its options
  if ((plan.search || plan.load_frac > 0) && source->concurrency() > 0)
    p.fail_at(plan.search ? "search" : "load_frac",
              fmt::format("'{}' sets the arrival rate, but the trace is a closed loop: it has none", plan.search ? "search" : "load_frac"));
  p.reject_unread();
  return plan;
}

std::string calibration_failure_of(const RunPlan& plan) {
  if (plan.cost.profile == nullptr) return "";
  const auto found = plan.cost.profile->options.find("calibration_failure");
  return found == plan.cost.profile->options.end() ? "" : found->second;
}

std::string remark_on_collectives(const CostSetup& cost, const RunSummary& summary) {
  constexpr double kMuch = 0.1;
  const double share = summary.part_frac[static_cast<std::size_t>(CostPart::kCollective)] *
                       cost.collectives->datasheet_frac(cost.model, cost.parallel, std::llround(std::ceil(summary.batch_mean_tokens)));
  if (!(share > kMuch)) return "";
  std::vector<std::string> missing;
  for (const CollectiveUse& use : collectives_of(cost.model, cost.parallel))
    if (!cost.collectives->is_measured(use.op, use.ranks))
      missing.push_back(fmt::format("{} over {} ranks", collective_name(use.op), use.ranks));
  return fmt::format(
      "{:.0f} % of step time is {} by the datasheet of {}; measured times may differ by half or more: add them under "
      "'collectives' in {}, or as {}/NAME.csv to a profile (docs/cost-model.md)",
      100 * share, join(missing, " and "), cost.hardware.name, cost.hardware.file, fmt::format("tp{}", cost.parallel.tp));
}

std::string describe_cost_source(const RunPlan& plan) {
  const CostSetup& cost = plan.cost;
  std::string text = "profile " + cost.profile_name;
  if (!cost.profile_date.empty()) text += ", " + cost.profile_date;
  if (!cost.profile_hash.empty()) text += ", " + cost.profile_hash;
  if (cost.profile != nullptr && !cost.profile->notes.empty())
    text += fmt::format(" ({} remarks: {})", cost.profile->notes.size(), plan.lint);
  if (const std::string failure = calibration_failure_of(plan); !failure.empty())
    text += "; the profile FAILED its calibration: " + failure;
  for (const CollectiveUse& use : collectives_of(cost.model, cost.parallel)) text += "; " + cost.collectives->basis(use);
  for (const std::string& remark : cost.model.remarks) text += "; " + cost.model.name + ": " + remark;
  return text;
}

}  // namespace kvlab
