#include "app/runs/kinds/simulation.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/plan/serving_plan.h"
#include "app/runs/plan/slo.h"
#include "app/runs/report/summary_row.h"
#include "base/text.h"
#include "base/time.h"
#include "policies/scheduler/layer_ranges.h"

namespace kvlab {

RunSummary simulate_with_oracle(SimSetup setup, const OpenTrace& open, RunSink& sink, const RunOptions& options) {
  if (setup.pool(0).make_block_cache()->needs_future()) {  // only one replica then
    SimSetup first = setup;
    std::vector<std::uint64_t> lookups;
    (first.pools.empty() ? first : first.pools[0]).make_block_cache = [] {
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

SimulationRun::SimulationRun(RunKind& kind, Params& p, std::uint64_t seed, const std::function<void(Params&, ServingPlan&)>& check)
    : PreparedRun(kind), plan_(read_serving_plan(p, seed)), p_(p) {
  if (check) check(p, plan_);
  read_requests(p, plan_);
  if (plan_.trace.keeps_summary && !plan_.comparisons.requests.empty())
    p.fail_at("output", "'keep: summary' keeps no requests, which 'validate' compares: keep all");
}

bool SimulationRun::writes(const std::string& table) const {
  if (plan_.trace.keeps_summary && kTablesOfMany.contains(table)) return false;
  if (table == "search.csv") return plan_.search.has_value();
  if (table == "service.csv" || table == "request_groups.csv") return plan_.has_facts;
  if (table == "transfers.csv" || table == "links.csv" || table == "pools.csv") return !plan_.setup.pools.empty();
  if (table == "stores.csv") return plan_.setup.store.is_on();
  return table != "trace.json" || plan_.trace.wants_perfetto;
}

bool SimulationRun::times_policy() const {
  return std::any_of(plan_.pools.begin(), plan_.pools.end(), [](const PoolPlan& pool) { return !pool.recipe.keeps_everything(); });
}

namespace {

enum WaitCause : std::size_t { kSlots, kMemory, kSteps };
constexpr std::array kWaitCauses = {"request_slots", "kv_memory", "steps"};

// A scheduler may draw by the seed.
bool draws_by_seed(const SimSetup& setup) {
  for (std::size_t i = 0; i < setup.num_pools(); ++i)
    if (dynamic_cast<const DrawsBySeed*>(setup.pool(i).make_scheduler().get()) != nullptr) return true;
  return false;
}

constexpr double kBytesPerBlock = 115, kGiB = 1024.0 * 1024 * 1024;  // simulator memory per used block

std::string out_of_memory_of_pools(const std::vector<PoolPlan>& pools) {
  double blocks = 0;
  for (const PoolPlan& pool : pools)
    blocks += static_cast<double>(pool.num_replicas) * pool.ranks * static_cast<double>(pool.memory.num_blocks);
  return fmt::format(
      "out of memory: the KV blocks of all pools ('memory.num_blocks' times 'replicas' of each) take up to {:.3g} GiB; lower one of them, "
      "or "
      "run fewer at a time with --jobs",
      blocks * kBytesPerBlock / kGiB);
}

nlohmann::ordered_json profile_of(const CostSetup& cost) {
  return {{"name", cost.profile_name}, {"hash", cost.profile_hash}, {"date", cost.profile_date}};
}

std::vector<PoolUse> uses_of(const ServingPlan& plan, const RunSummary& summary) {
  std::vector<PoolUse> uses;
  for (std::size_t i = 0; i < plan.pools.size(); ++i) {
    const PoolPlan& pool = plan.pools[i];
    uses.push_back({pool.cost, pool.num_replicas, summary.pool_costs.empty() ? summary.peak_s : summary.pool_costs[i].peak_s});
  }
  for (std::size_t i = 0; i < plan.encode_pools.size(); ++i) {
    const EncodePoolPlan& pool = plan.encode_pools[i];
    uses.push_back({pool.cost, pool.num_replicas, static_cast<double>(summary.encode_pools[i].at_peak) * 1e-12});
  }
  return uses;
}

PoolRow row_of(const PoolPlan& pool, bool has_images) {
  PoolRow row{pool.name, role_name(pool.roles), pool.num_replicas, pool.ranks, pool.cost.parallel.gpus(), {}, {}};
  const Parallel& parallel = pool.cost.parallel;
  if (has_images)
    row.memory = PoolMemory{weight_bytes(pool.cost.model, parallel.tp, parallel.pp, parallel.expert_ranks()) + pool.encoder_bytes,
                            pool.memory.num_blocks * pool.memory.block_bytes * pool.ranks};
  return row;
}

PoolRow row_of(const EncodePoolPlan& pool, const VisionEncoder& encoder) {
  const HardwareSpec& card = pool.cost.hardware;
  return {pool.name,
          "encode",
          pool.num_replicas,
          1,
          1,
          {},
          PoolMemory{encoder.weight_bytes(), 0},
          card.peak_flops(Dtype::kBf16),
          card.memory_bytes_per_s};
}

// For an encode pool without images, or "".
std::string remark_on_images(const ServingPlan& plan, const RunSummary& summary) {
  std::int64_t images = 0;
  for (const EncodeTotals& pool : summary.encode_pools) images += pool.images;
  if (plan.encode_pools.empty() || images > 0) return "";
  return fmt::format("no request has images, so pool '{}' had nothing to encode", plan.encode_pools.front().name);
}

}  // namespace

WaitWatch::WaitWatch(const HostSetup& setup, RunSink* next) : ForwardingSink(next) {
  for (std::size_t i = 0; i < setup.num_pools(); ++i) {
    const PoolSetup& pool = setup.pool(i);
    pools_.push_back({pool.num_replicas * pool.ranks, pool.make_scheduler()->step_bounds(pool.max_model_len).requests});
  }
}

const WaitWatch::PoolLimits& WaitWatch::limits_of(std::uint32_t rank) const {
  for (const PoolLimits& pool : pools_) {
    if (rank < pool.ranks) return pool;
    rank -= pool.ranks;
  }
  return pools_.back();
}

void WaitWatch::sample(const TimelineSample& s) {
  ForwardingSink::sample(s);
  if (s.waiting <= 0) return;
  constexpr std::int64_t kTenth = 10;
  const std::int64_t available = s.free_blocks + s.cached_blocks, most = limits_of(s.replica).most_running;
  const bool is_full = available * kTenth < available + s.used_blocks;
  ++counts_[most > 0 && s.running >= most ? kSlots : is_full ? kMemory : kSteps];
}

std::string WaitWatch::waits_for() const {
  const auto most = std::max_element(counts_.begin(), counts_.end());
  return *most == 0 ? "" : kWaitCauses[static_cast<std::size_t>(most - counts_.begin())];
}

std::unique_ptr<TraceSource> SimulationRun::only_draws(std::uint64_t seed) const {
  const SimSetup& setup = plan_.setup;
  bool draws_more = plan_.has_samples || draws_by_seed(setup) || (num_replicas(setup) > 1 && setup.make_dispatcher()->is_random());
  for (const PoolPlan& pool : plan_.pools) {
    const bool may_predict = !setup.pools.empty() || uses_predictor(pool);  // so may dispatchers between pools
    draws_more = draws_more || (may_predict && pool.make_predictor()->is_random());
  }
  return draws_more ? nullptr : plan_.trace.open_with(seed);
}

std::string SimulationRun::out_of_memory() const {
  if (!plan_.setup.pools.empty()) return out_of_memory_of_pools(plan_.pools);
  const MemorySetup& memory = plan_.setup.memory;
  const double gib =
      static_cast<double>(plan_.setup.num_replicas) * plan_.setup.ranks * static_cast<double>(memory.num_blocks) * kBytesPerBlock / kGiB;
  return fmt::format(
      "out of memory: 'replicas' = {}{} with {} KV blocks each ('memory.num_blocks', {}) take up to {:.3g} GiB; lower one of "
      "them, or run fewer at a time with --jobs",
      plan_.setup.num_replicas, plan_.setup.ranks > 1 ? fmt::format(" of {} ranks", plan_.setup.ranks) : "", memory.num_blocks,
      memory.is_derived ? "derived" : "given", gib);
}

Fields SimulationRun::apply_load(const RunOptions& options) {
  if (!plan_.has_load_frac) return {};
  if (plan_.load_frac <= 0) return {{"capacity_per_s", ""}};  // for other runs of the sweep
  SimSetup burst = plan_.setup;
  burst.timeline_interval = Span{0};
  burst.slo = {};
  burst.expected_text.reset();
  burst.warmup = Span{0};  // all arrive at once
  WatchedSink nothing = unseen(options);
  const OpenTrace open = plan_.trace.open;
  const RunSummary all = simulate_with_oracle(
      burst, [&] { return std::make_unique<RescaledTrace>(open(), 0.0); }, nothing, options);
  const double native_per_s = mean_rate(*open(), plan_.setup.stop.after_requests);
  const double capacity_per_s = static_cast<double>(all.latencies.completed) / to_s(all.duration);
  if (!(capacity_per_s > 0)) throw InputError("'load_frac': no request completes when all come at once, so there is no capacity to share");
  if (const double over_s = to_s(all.duration) / plan_.load_frac; over_s > kLongestRunS)
    throw InputError(fmt::format("'load_frac' = {:g} spreads the requests over {:.3g} s, and a run has at most {:.3g} s: raise it",
                                 plan_.load_frac, over_s, kLongestRunS));
  plan_.trace.open = [open, factor = native_per_s / (plan_.load_frac * capacity_per_s)] {
    return std::make_unique<RescaledTrace>(open(), factor);
  };
  return {{"capacity_per_s", fmt::format("{:.6f}", capacity_per_s)}};
}

Bill SimulationRun::bill(const RunSummary& summary) const {
  Bill bill = bill_of(summary, uses_of(plan_, summary));
  const MetricsCollector::Latencies& l = summary.latencies;
  const bool misses = plan_.search ? !has_found_ : l.judged > 0 && l.slo_attainment_frac < usual_attainment(p_);
  if (misses) take_price(bill);
  return bill;
}

RunSummary SimulationRun::run_plan(RunFiles& files, const RunOptions& options, const Probe* next, Findings& findings) {
  WaitWatch watch(plan_.setup, &files);
  WatchedSink sink(&watch, options);
  const RunSummary summary = simulate_with_oracle(plan_.setup, plan_.trace.open, sink, options);
  Answer answer{num_gpus(plan_), most_missed_limit(summary.latencies), watch.waits_for()};
  if (plan_.search) answer.binding_limit = next != nullptr ? next->binding_limit : "";
  if (plan_.search) answer.waits_for = next != nullptr ? next->waits_for : "";
  findings.rows = {summary_fields(summary, plan_.setup, bill(summary), answer)};
  return summary;
}

void SimulationRun::describe_costs(const std::string& label, nlohmann::ordered_json& manifest) const {
  manifest["credibility"] = label;
  manifest["cost_source"] = describe_cost_source(plan_);
  if (plan_.setup.pools.empty()) manifest["profile"] = profile_of(plan_.cost);
  manifest["model"] = plan_.cost.model.name;
  if (plan_.setup.pools.empty()) manifest["hardware"] = plan_.cost.hardware.name;
  if (!plan_.system.empty()) manifest["system"] = plan_.system;
  for (const auto& [metric, limit] : preset_limits_ms(p_)) manifest["slo_ms"][metric] = limit;
}

// Source of step times, link to other pools, shares of step time.
nlohmann::ordered_json SimulationRun::pools_of(const RunSummary& summary) const {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < plan_.pools.size(); ++i) {
    const PoolPlan& pool = plan_.pools[i];
    all.push_back({{"name", pool.name},
                   {"role", role_name(pool.roles)},
                   {"replicas", pool.num_replicas},
                   {"hardware", pool.cost.hardware.name},
                   {"gpus_per_replica", pool.cost.parallel.gpus()},
                   {"profile", profile_of(pool.cost)},
                   {"cost_source", describe_cost_source(pool)},
                   {"link", pool.link_name},
                   {"link_bytes_per_s", pool.link.bytes_per_s},
                   {"step_time_by_part", step_time_by_part(summary.pool_costs[i].step_shares)}});
  }
  for (const EncodePoolPlan& pool : plan_.encode_pools)
    all.push_back({{"name", pool.name},
                   {"role", "encode"},
                   {"replicas", pool.num_replicas},
                   {"hardware", pool.cost.hardware.name},
                   {"gpus_per_replica", 1},
                   {"encoder", plan_.images->encoder.name},
                   {"link", pool.link_name},
                   {"link_bytes_per_s", pool.link.bytes_per_s}});
  return all;
}

void SimulationRun::add_cost_remarks(const RunSummary& summary, Findings& findings) const {
  const auto add = [&](const std::string& pool, const std::string& remark) {
    if (!remark.empty()) findings.add_note(pool.empty() ? remark : fmt::format("pool {}: {}", pool, remark));
  };
  const auto shares = [&](std::size_t i) -> const StepShares& {
    return summary.pool_costs.empty() ? summary.step_shares : summary.pool_costs[i].step_shares;
  };
  for (const PoolPlan& pool : plan_.pools) add(pool.name, remark_on_network(pool.cost));
  for (std::size_t i = 0; i < plan_.pools.size(); ++i) add(plan_.pools[i].name, remark_on_collectives(plan_.pools[i].cost, shares(i)));
  for (std::size_t i = 0; i < plan_.pools.size(); ++i) add(plan_.pools[i].name, remark_on_policy(shares(i), plan_.pools[i].recipe.name));
  findings.add_note(bill(summary).remark);
  for (std::size_t i = 0; i < plan_.pools.size(); ++i) add(plan_.pools[i].name, remark_on_roofline(plan_.pools[i].cost, shares(i)));
}

void SimulationRun::add_pool_tables(const RunSummary& summary, RunFiles& files) const {
  std::vector<PoolRow> rows;
  for (const PoolPlan& pool : plan_.pools) rows.push_back(row_of(pool, plan_.images.has_value()));
  for (const EncodePoolPlan& pool : plan_.encode_pools) rows.push_back(row_of(pool, plan_.images->encoder));
  const std::vector<PoolUse> uses = uses_of(plan_, summary);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].energy_j = energy_j(summary.duration, uses[i]);
  files.add_file("pools.csv", pools_csv(files.id(), rows, summary));
  files.add_file("links.csv", links_csv(files.id(), rows, summary));
  if (plan_.setup.store.is_on()) files.add_file("stores.csv", stores_csv(files.id(), rows, summary));
}

Findings SimulationRun::serve(RunFiles& files, const RunOptions& options) {
  plan_.setup.fast_forward = options.fast_forward && !plan_.trace.wants_perfetto;
  Findings findings;
  const Fields load = apply_load(options);
  RunSummary summary;
  if (plan_.search) {
    summary = search(files, options, findings);
  } else {
    summary = run_plan(files, options, nullptr, findings);
    findings.rows[0].insert(findings.rows[0].end(), load.begin(), load.end());
  }
  if (plan_.has_facts) files.add_file("service.csv", service_csv(files.id(), summary.groups, plan_.setup.expected_text.has_value()));
  for (const std::string& remark : remarks_on(summary)) findings.add_note(remark);
  for (const std::string& remark : plan_.remarks) findings.add_note(remark);
  add_cost_remarks(summary, findings);
  describe_costs(credibility_label(summary, plan_.setup, describe_cost_source(plan_)), findings.manifest);
  findings.manifest["step_time_by_part"] = step_time_by_part(summary.step_shares);
  if (!plan_.setup.pools.empty()) {
    findings.manifest["pools"] = pools_of(summary);
    add_pool_tables(summary, files);
    findings.add_note(remark_on_images(plan_, summary));
  }
  findings.skipped = summary.skipped;
  findings.not_served = not_served(summary);
  return findings;
}

Findings SimulationRun::run(RunFiles& files, const RunOptions& options) {
  Findings findings = serve(files, options);
  if (!plan_.has_samples) return findings;
  const Fields fidelity = fidelity_fields(p_, plan_.recipe, plan_.setup.seed);
  findings.rows[0].insert(findings.rows[0].end(), fidelity.begin(), fidelity.end());
  return findings;
}

KVLAB_REGISTER(RunKind, Simulation, "simulation", "a request trace through simulated serving", "");

}  // namespace kvlab
