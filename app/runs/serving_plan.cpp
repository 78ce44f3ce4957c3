#include "app/runs/serving_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "app/runs/kv_memory.h"
#include "app/runs/served_model.h"
#include "app/runs/slo.h"
#include "app/runs/step_time.h"
#include "base/name_number.h"
#include "base/open_error.h"
#include "base/spec_file.h"
#include "base/text.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

constexpr double kMaxSeconds = 9e6;
constexpr double kMuch = 0.1;  // of step time, without a measurement: a remark

// A maker of one kind of policy. The policy is made once here, so that its errors come before any run starts.
template <class Registry>
auto policy_factory(Params& p, const std::string& key, const std::string& fallback, const std::string& kind, const std::string& meaning,
                    const std::function<void(const std::string& name, Params& own)>& prepare = {}) {
  auto chosen = p.named(key, fallback, meaning);
  require_known<Registry>(p, key, chosen.first, kind);
  if (prepare) prepare(chosen.first, chosen.second);
  auto make = [name = chosen.first, params = chosen.second, kind] {
    Params own = params;
    return Registry::make(name, own, kind);
  };
  make();
  return make;
}

// Reads `order` and `predictor`. First come, first served stays without a maker: nothing is asked of it.
void read_order(Params& p, ServingPlan& plan) {
  SimSetup& setup = plan.setup;
  setup.make_predictor = policy_factory<PredictorRegistry>(p, "predictor", "exact", "predictor",
                                                           "estimates output lengths for orders and schedulers that ask for them");
  setup.make_order = policy_factory<OrderRegistry>(p, "order", "fcfs", "order", "whose turn it is, and who gives way");
  const std::unique_ptr<Order> order = setup.make_order();
  if (order->overtaking() && !setup.make_scheduler()->lets_overtake()) {
    p.fail_at("order",
              "this order preempts running requests for better waiting ones, which this scheduler never does: choose 'scheduler: vllm_v1', "
              "'sarathi' or 'fastgen', or an order that lets running requests stay (docs/orders.md)");
  }
  if (p.has("predictor") && !uses_predictor(setup))
    plan.remarks.emplace_back("'predictor' changes nothing: neither the order nor the scheduler asks for output lengths");
}

void read_policies(Params& p, const CostSetup& cost, SimSetup& setup) {
  const EngineSetting setting{cost.hardware.is_large(),   cost.engine.host.overlaps, cost.model.layers, setup.seed,
                              cost.hardware.memory_bytes, cost.parallel.tp};
  const std::string own_scheduler = cost.engine.engine.name == "sglang" ? "sglang" : "";  // without 'scheduler'
  setup.make_scheduler =
      policy_factory<SchedulerRegistry>(p, "scheduler", own_scheduler, "scheduler", "plans each step of a replica",
                                        [&](const std::string& name, Params& own) { prefer_engine_defaults(name, setting, own); });
  setup.make_dispatcher = policy_factory<DispatcherRegistry>(p, "router", "round_robin", "dispatcher", "sends requests to replicas");
  const bool steps_together = cost.parallel.dp > 1 && cost.model.is_moe();
  if (setup.make_scheduler()->plans_layers() && (cost.parallel.pp > 1 || steps_together))
    p.fail_at("scheduler",
              fmt::format("this scheduler plans some of the layers, and {} run whole steps: leave '{}' out of 'parallel', or choose "
                          "a scheduler of whole steps, for example vllm_v1",
                          cost.parallel.pp > 1 ? "stages of a pipeline" : "ranks that step together", cost.parallel.pp > 1 ? "pp" : "dp"));
  setup.make_block_cache =
      policy_factory<BlockCacheRegistry>(p, "block_cache", "lru", "block cache", "which unreferenced block is given up");
  if (setup.make_block_cache()->needs_future()) {  // what it is told of comes from a first pass
    Params none = Params::empty("block cache 'lru'");
    BlockCacheRegistry::make("lru", none, "block cache");
  }
  if (setup.make_block_cache()->needs_future() && setup.num_replicas * setup.ranks != 1) {
    p.fail_at("block_cache", fmt::format("an oracle block cache needs one replica, since its future is that of one pool; 'replicas' = {}{}",
                                         setup.num_replicas, setup.ranks > 1 ? fmt::format(" of {} ranks", setup.ranks) : ""));
  }
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

// Reads `validate`.
Comparisons read_comparisons(Params& p) {
  Params validate = p.optional_child("validate", "validate");
  Comparisons asked;
  if (p.has("validate") && !validate.has("max_diff_frac")) {
    asked.requests = validate.resolve_file(validate.text("requests", "requests.jsonl of a real engine"));
    std::error_code error;
    if (!std::filesystem::exists(asked.requests, error)) validate.fail_at("requests", open_error(asked.requests));
  }
  asked.max_diff_frac = validate.optional<double>(
      "max_diff_frac", 0, 0, 100, "with 'host: [sim, engine]': an error when a median over the seeds differs by more; 0: never");
  refuse_pipe(validate, "requests");
  validate.reject_unread();
  return asked;
}

std::vector<std::string> remarks_on(const Parallel& parallel, const ModelSpec& model) {
  std::vector<std::string> remarks;
  if (const int ranks = parallel.data_ranks(); ranks > 1)
    remarks.push_back(
        fmt::format("parallel: ep = {} with tp = {} makes {} data-parallel ranks for attention, which share the tokens of one scheduler "
                    "evenly: its limits are of the whole replica, {} times those of a rank; 'dp: {}' gives each rank its own scheduler and "
                    "KV cache, as vLLM does",
                    parallel.ep, parallel.tp, ranks, ranks, ranks));
  if (parallel.dp > 1 && !model.is_moe())
    remarks.push_back(
        fmt::format("parallel: dp = {} with {}, which has no experts: ranks share arrivals and do not wait for each other, as "
                    "in vLLM",
                    parallel.dp, model.name));
  return remarks;
}

// Reads the model, GPU and profile.
void read_costs(Params& p, ServingPlan& plan) {
  plan.cost = read_cost_setup(p);
  if (plan.cost.profile) plan.lint = lint_command(p, plan.cost.profile->file);
  for (const std::string& remark : hardware_remarks(plan.cost.hardware))
    plan.remarks.push_back(fmt::format("hardware {}: {}", plan.cost.hardware.name, remark));
  const Parallel& parallel = plan.cost.parallel;
  plan.setup.ranks = static_cast<std::uint32_t>(parallel.dp);
  plan.setup.steps_together = plan.cost.model.is_moe();
  for (const std::string& remark : remarks_on(parallel, plan.cost.model)) plan.remarks.push_back(remark);
  plan.setup.make_cost_model = [cost = plan.cost] { return make_cost_model(cost); };
  plan.setup.make_cost_model();
}

void read_load(Params& p, ServingPlan& plan) {
  plan.has_load_frac = p.has("load_frac");
  plan.load_frac = p.optional<double>("load_frac", 0, 0, 1000,
                                      "arrival rate as a share of what a simulation completes when all requests come at once; 0: the "
                                      "trace's own");
  if (plan.search && plan.load_frac > 0) p.fail_at("load_frac", "'load_frac' and 'search' both set the arrival rate: give one");
}

// Reads the keys that only the engine uses.
void read_engine_keys(Params& p, ServingPlan& plan) {
  plan.served = read_served_model(p);
  plan.temperature = p.optional<double>("temperature", 0, 0, 100, "of the tokens drawn, with 'host: engine'; 0: the likeliest");
  plan.stays_awake =
      p.choice("idle", {"awake", "asleep"}, 0,
               "what cores do between steps, with 'host: engine' and 'backend: cpu'; awake: they wait busily and stay fast") == 0;
}

// Notes if the trace has optional columns, and refuses one whose first request lacks what the order or the predictor needs.
void read_first_facts(Params& p, ServingPlan& plan) {
  const std::unique_ptr<Order> order = plan.setup.make_order();
  std::vector<Fact> needed = order->needs();
  if (uses_predictor(plan.setup)) {
    for (const Fact fact : plan.setup.make_predictor()->needs()) needed.push_back(fact);
  }
  const std::unique_ptr<TraceSource> trace = plan.trace.open();
  TraceRequest first;
  if (!trace->next(first)) return;
  plan.has_facts = first.facts != nullptr;
  for (const Fact fact : needed) {
    if (has_fact(first.facts, fact)) continue;
    p.fail_at("order",
              fmt::format("this order needs the column '{}', which request 0 of the trace does not have: add it to the file, or let "
                          "'generate' make it (docs/orders.md)",
                          column_of(fact)));
  }
}

// Refuses clients that the order names and the trace does not have. Reads the whole trace, if the order names any.
void check_named_clients(Params& p, const ServingPlan& plan) {
  std::map<std::int64_t, std::string> missing;
  for (const std::string& name : plan.setup.make_order()->named_clients()) missing.emplace(number_of_name(name), name);
  if (missing.empty()) return;
  std::set<std::int64_t> known;
  const std::unique_ptr<TraceSource> trace = plan.trace.open();
  for (TraceRequest request; !missing.empty() && trace->next(request);) {
    if (!has_fact(request.facts, Fact::kClient)) continue;
    missing.erase(request.facts->client);
    if (known.size() < 8) known.insert(request.facts->client);
  }
  if (missing.empty()) return;
  std::string names;
  for (const std::int64_t number : known) names += (names.empty() ? "" : ", ") + std::to_string(number);
  p.fail_at("order", fmt::format("this order names the client '{}', which no request of the trace has in its column 'client'; the first "
                                 "clients of the trace, by number (of a text: its hash): {}",
                                 missing.begin()->second, names));
}

}  // namespace

bool uses_predictor(const HostSetup& setup) { return setup.make_order()->uses_predictor() || setup.make_scheduler()->uses_predictor(); }

ServingPlan read_serving_plan(Params& p, std::uint64_t seed) {
  ServingPlan plan;
  SimSetup& setup = plan.setup;
  setup.seed = seed;
  read_costs(p, plan);
  setup.num_replicas = p.optional<std::uint32_t>("replicas", 1, 1, 100'000, "copies of the model, each with its own scheduler and memory");
  read_policies(p, plan.cost, setup);
  read_order(p, plan);
  read_limits(p, plan.cost, setup);
  const std::int64_t host_bytes = read_memory(p, plan);
  read_kv_policy(p, plan);
  setup.memory.host_blocks = host_bytes / setup.memory.block_bytes;  // of the size that the policy's format gives them
  setup.slo = read_slo(p);
  setup.expected_text = read_expected_text(p);
  plan.search = read_search(p, setup.slo.has_targets());
  read_engine_keys(p, plan);
  read_load(p, plan);
  plan.has_samples = p.has("samples");
  p.optional_child("samples", "samples");
  p.optional<std::int32_t>("kv_bytes", 2, 1, 8, "bytes of a stored element of the uncompressed cache, in the replay of `samples`");
  plan.comparisons = read_comparisons(p);
  return plan;
}

void read_requests(Params& p, ServingPlan& plan) {
  plan.trace = read_trace(p, plan.setup.seed);
  if (!plan.trace.remark.empty()) plan.remarks.push_back(plan.trace.remark);
  const char* const key = plan.search ? "search" : "load_frac";
  if ((plan.search || plan.load_frac > 0) && plan.trace.open()->concurrency() > 0)
    p.fail_at(key, fmt::format("'{}' sets the arrival rate, but the trace is a closed loop: it has none", key));
  read_first_facts(p, plan);
  check_named_clients(p, plan);
  check_slo_groups(p, plan.setup.slo, plan.trace.open);
  p.reject_unread();
}

std::string calibration_failure_of(const ServingPlan& plan) {
  if (plan.cost.profile == nullptr) return "";
  const auto found = plan.cost.profile->options.find("calibration_failure");
  return found == plan.cost.profile->options.end() ? "" : found->second;
}

std::string describe_cost_source(const ServingPlan& plan) {
  const CostSetup& cost = plan.cost;
  std::string text = "profile " + cost.profile_name;
  if (!cost.profile_date.empty()) text += ", " + cost.profile_date;
  if (!cost.profile_hash.empty()) text += ", " + cost.profile_hash;
  if (cost.profile != nullptr && !cost.profile->notes.empty())
    text += fmt::format(" ({} remarks: {})", cost.profile->notes.size(), plan.lint);
  if (const std::string failure = calibration_failure_of(plan); !failure.empty())
    text += "; the profile FAILED its calibration: " + failure;
  for (const CollectiveUse& use : collectives_of(cost.model, cost.parallel)) text += "; " + cost.collectives->basis(use);
  if (cost.overlap) text += fmt::format("; all-reduces beside the computation in steps of {} tokens and more", cost.overlap->min_tokens);
  if (cost.engine.is_known()) text += "; times of " + cost.engine.basis;
  for (const std::string& remark : cost.model.remarks) text += "; " + cost.model.name + ": " + remark;
  return text;
}

std::string remark_on_roofline(const CostSetup& cost, const RunSummary& summary) {
  const double share = share_with(summary.step_shares, Basis::kRoofline);
  if (cost.parallel.tp == 1 || !(share > kMuch)) return "";
  return fmt::format(
      "{:.0f} % of step time at tp = {} is by the roofline, which is unverified there: no log of an engine on several GPUs was compared "
      "with it, and public measurements are mostly slower (docs/fidelity.md); 'profile' takes measured tables (docs/cost-model.md)",
      100 * share, cost.parallel.tp);
}

std::string remark_on_collectives(const CostSetup& cost, const RunSummary& summary) {
  const double share = summary.step_shares[static_cast<std::size_t>(CostPart::kCollective)][static_cast<std::size_t>(Basis::kDatasheet)];
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

}  // namespace kvlab
