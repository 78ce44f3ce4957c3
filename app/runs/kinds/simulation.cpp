#include "app/runs/kinds/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <utility>

#include "app/results/pool_tables.h"
#include "app/runs/cost_source.h"
#include "app/runs/kinds/replay.h"
#include "app/runs/pools.h"
#include "app/runs/report.h"
#include "app/runs/search.h"
#include "app/runs/step_time.h"
#include "base/csv.h"
#include "base/text.h"

namespace kvlab {

RunSummary simulate_with_oracle(SimSetup setup, const OpenTrace& open, RunSink& sink, const RunOptions& options) {
  if (setup.pool(0).make_block_cache()->needs_future()) {  // then it is the only replica's
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

namespace {

// A rate at which nothing is judged would pass for one that does not attain.
void refuse_unjudged(const RunSummary& s, const ServingPlan& plan, double rate) {
  if (s.requests > 0 && s.latencies.counted == 0)
    throw InputError(
        fmt::format("'warmup_ms': at {:.4g} requests per second all of them arrive during the warm-up, so nothing is counted; shorten the "
                    "warm-up, lengthen the trace, or search lower rates",
                    rate));
  if (plan.search->itl_p99_ms > 0 && s.latencies.itl.count == 0)
    throw InputError(fmt::format("'itl_p99_ms': at {:.4g} requests per second no gap between two tokens is counted", rate));
  if (s.requests == 0 || s.latencies.judged > 0 || !plan.search->has_slo) return;
  if (plan.setup.stop.after_time.count() == 0)
    throw InputError(
        fmt::format("'slo': at {:.4g} requests per second no request that is counted has a target, so nothing is judged; give limits for "
                    "all requests, or for classes and clients that arrive after the warm-up",
                    rate));
  throw InputError(
      fmt::format("'stop': at {:.4g} requests per second it cuts every request off before one completes or misses a limit, so nothing is "
                  "judged; stop later, or search other rates",
                  rate));
}

// "21.6 to 25.2": the range of a share over rows, in percent.
std::string percent_range(const CsvTable& summary, const char* column) {
  double lo = 1, hi = 0;
  for (const auto& row : summary.rows) {
    double value = 0;
    if (!parse_real(row[summary.at(column)], value)) continue;
    lo = std::min(lo, value);
    hi = std::max(hi, value);
  }
  const std::string from = fmt::format("{:.1f}", 100 * lo), to = fmt::format("{:.1f}", 100 * hi);
  return lo > hi ? "-" : from == to ? from : from + " to " + to;
}

// Prints the schedulers' limits in force, each pair once with its runs.
void print_limits(const CsvTable& summary, std::ostream& out) {
  if (!summary.has("max_step_tokens")) return;
  std::vector<std::pair<std::string, std::vector<std::string>>> limits;
  for (const auto& row : summary.rows) {
    const std::string &tokens = row[summary.at("max_step_tokens")], &seqs = row[summary.at("max_step_seqs")];
    const std::string text = fmt::format("{} tokens, {} sequences", tokens.empty() ? "any" : tokens, seqs.empty() ? "any" : seqs);
    auto at = std::find_if(limits.begin(), limits.end(), [&](const auto& l) { return l.first == text; });
    if (at == limits.end()) at = limits.insert(at, {text, {}});
    at->second.push_back(row[0]);
  }
  std::string line;
  for (const auto& [text, runs] : limits) {
    line += (line.empty() ? "" : "; ") + text;
    if (limits.size() > 1) line += runs.size() == 1 ? " (run " + runs[0] + ")" : fmt::format(" ({} runs from {})", runs.size(), runs[0]);
  }
  if (!line.empty()) out << "most per step: " << line << "\n";
}

const std::string kMeasured = "step times measured by the engine; ";

// Prints how far to trust the runs: for each source of step times and of the block count the range over its runs, and a line on the parts
// of step time. Each run's own label is in manifest.json.
void print_credibility(const SweepReport& report, std::ostream& out) {
  struct Group {
    CsvTable rows;
    std::vector<nlohmann::ordered_json> step_times;
  };
  std::map<std::string, Group> by_source;
  const CsvTable& summary = report.summary;
  for (const auto& row : summary.rows) {
    const nlohmann::ordered_json m = manifest_of_run(report.folder, row[0]);
    if (!m.contains("credibility")) continue;
    const std::string blocks = fmt::format("KV blocks {}; ", row[summary.at("kv_blocks_source")]);
    const std::string source =
        m.contains("served_model") ? kMeasured + blocks + m.value("served_model", "") : blocks + m.value("cost_source", "");
    Group& group = by_source[source];
    group.rows.columns = summary.columns;
    group.rows.rows.push_back(row);
    if (m.contains("step_time_by_part")) group.step_times.push_back(m["step_time_by_part"]);
  }
  for (const auto& [source, group] : by_source) {
    const CsvTable& rows = group.rows;
    const std::string which = by_source.size() == 1   ? ""
                              : rows.rows.size() == 1 ? " of run " + rows.rows[0][0]
                                                      : fmt::format(" of {} runs from {}", rows.rows.size(), rows.rows[0][0]);
    if (source.starts_with(kMeasured)) {
      out << fmt::format("credibility{}: {}; overload {} % of time\n", which, source, percent_range(rows, "overload_frac"));
      continue;
    }
    out << fmt::format("credibility{}: step time {} % measured, {} % interpolated, {} % extrapolated; overload {} % of time; {}\n", which,
                       percent_range(rows, "inside_frac"), percent_range(rows, "interpolated_frac"),
                       percent_range(rows, "extrapolated_frac"), percent_range(rows, "overload_frac"), source);
    if (const std::string line = step_time_line(group.step_times); !line.empty()) out << line << "\n";
  }
}

}  // namespace

SimulationRun::SimulationRun(RunKind& kind, Params& p, std::uint64_t seed, const std::function<void(Params&, ServingPlan&)>& check)
    : PreparedRun(kind), plan_(read_serving_plan(p, seed)), p_(p) {
  if (check) check(p, plan_);
  read_requests(p, plan_);
}

bool SimulationRun::writes(const std::string& table) const {
  if (table == "search.csv") return plan_.search.has_value();
  if (table == "service.csv" || table == "request_groups.csv") return plan_.has_facts;
  if (table == "transfers.csv" || table == "links.csv" || table == "pools.csv") return !plan_.setup.pools.empty();
  if (table == "stores.csv") return plan_.setup.store.is_on();
  return table != "trace.json" || plan_.trace.wants_perfetto;
}

std::unique_ptr<TraceSource> SimulationRun::only_draws(std::uint64_t seed) const {
  const SimSetup& setup = plan_.setup;
  bool draws_more = plan_.has_samples || (num_replicas(setup) > 1 && setup.make_dispatcher()->is_random());
  for (const PoolPlan& pool : plan_.pools) {
    const bool may_predict = !setup.pools.empty() || uses_predictor(pool);  // dispatchers between pools may ask, too
    draws_more = draws_more || (may_predict && pool.make_predictor()->is_random());
  }
  return draws_more ? nullptr : plan_.trace.open_with(seed);
}

namespace {

constexpr double kBytesPerBlock = 115, kGiB = 1024.0 * 1024 * 1024;  // of the simulator's own memory, while all blocks are in use

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

}  // namespace

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
  if (plan_.load_frac <= 0) return {{"capacity_per_s", ""}};  // other runs of the sweep have one
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
  plan_.trace.open = [open, factor = native_per_s / (plan_.load_frac * capacity_per_s)] {
    return std::make_unique<RescaledTrace>(open(), factor);
  };
  return {{"capacity_per_s", fmt::format("{:.6f}", capacity_per_s)}};
}

// Looks for the highest rate that attains, and returns the run at that rate.
RunSummary SimulationRun::search(RunFiles& files, const RunOptions& options, Findings& findings) {
  const double native_per_s = mean_rate(*plan_.trace.open(), plan_.setup.stop.after_requests);
  const auto at_rate = [&](double rate) -> OpenTrace {
    return [this, factor = native_per_s / rate] { return std::make_unique<RescaledTrace>(plan_.trace.open(), factor); };
  };
  const SearchResult found = search_rate(*plan_.search, [&](double rate) {
    WatchedSink sink(nullptr, options);
    const RunSummary s = simulate_with_oracle(plan_.setup, at_rate(rate), sink, options);
    refuse_unjudged(s, plan_, rate);
    const double duration_s = to_s(s.counted_duration);
    return Probe{rate, s.latencies.slo_attainment_frac, duration_s > 0 ? static_cast<double>(s.latencies.attained) / duration_s : 0, false,
                 s.latencies.itl.p99 * 1e-6};
  });
  files.add_file("search.csv", search_csv(files.id(), found));
  findings.note = found.note;
  WatchedSink sink(&files, options);
  const bool any = found.best_per_s > 0;
  const RunSummary summary = simulate_with_oracle(plan_.setup, at_rate(any ? found.best_per_s : plan_.search->low_per_s), sink, options);
  findings.rows = {summary_fields(summary, plan_.setup, bill(summary))};
  findings.rows[0].emplace_back("search_rate_per_s", any ? fmt::format("{:.6f}", found.best_per_s) : "");
  return summary;
}

namespace {

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

}  // namespace

Bill SimulationRun::bill(const RunSummary& summary) const { return bill_of(summary, uses_of(plan_, summary)); }

void SimulationRun::describe_costs(const std::string& label, nlohmann::ordered_json& manifest) const {
  manifest["credibility"] = label;
  manifest["cost_source"] = describe_cost_source(plan_);
  if (plan_.setup.pools.empty()) manifest["profile"] = profile_of(plan_.cost);
  manifest["model"] = plan_.cost.model.name;
  if (plan_.setup.pools.empty()) manifest["hardware"] = plan_.cost.hardware.name;
  if (!plan_.system.empty()) manifest["system"] = plan_.system;
}

// For each pool: the source of its step times, its link to other pools, and its shares of step time.
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

// Remarks on where step times come from, of each pool.
void SimulationRun::add_cost_remarks(const RunSummary& summary, Findings& findings) const {
  const auto add = [&](const std::string& pool, const std::string& remark) {
    if (!remark.empty()) findings.add_note(pool.empty() ? remark : fmt::format("pool {}: {}", pool, remark));
  };
  const auto shares = [&](std::size_t i) -> const StepShares& {
    return summary.pool_costs.empty() ? summary.step_shares : summary.pool_costs[i].step_shares;
  };
  for (std::size_t i = 0; i < plan_.pools.size(); ++i) add(plan_.pools[i].name, remark_on_collectives(plan_.pools[i].cost, shares(i)));
  findings.add_note(bill(summary).remark);
  for (std::size_t i = 0; i < plan_.pools.size(); ++i) add(plan_.pools[i].name, remark_on_roofline(plan_.pools[i].cost, shares(i)));
}

namespace {

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

// Remark on an encode pool that received no image; "" if one did.
std::string remark_on_images(const ServingPlan& plan, const RunSummary& summary) {
  std::int64_t images = 0;
  for (const EncodeTotals& pool : summary.encode_pools) images += pool.images;
  if (plan.encode_pools.empty() || images > 0) return "";
  return fmt::format("no request has images, so pool '{}' had nothing to encode", plan.encode_pools.front().name);
}

}  // namespace

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
    WatchedSink sink(&files, options);
    summary = simulate_with_oracle(plan_.setup, plan_.trace.open, sink, options);
    findings.rows = {summary_fields(summary, plan_.setup, bill(summary))};
    findings.rows[0].insert(findings.rows[0].end(), load.begin(), load.end());
  }
  if (plan_.has_facts) files.add_file("service.csv", service_csv(files.id(), summary.groups, plan_.setup.expected_text.has_value()));
  findings.add_note(remarks_on(summary));
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

std::vector<std::string> Simulation::metrics() const {
  return {"ttft_p50_ms",    "ttft_p99_ms",       "tpot_p50_ms",        "e2e_p50_ms",      "requests_per_s", "output_tokens_per_s",
          "goodput_per_s",  "search_rate_per_s", "preemptions",        "prefix_hit_frac", "qoe_mean",       "kv_used_mean_frac",
          "attention_mass", "output_rel_err",    "resident_bytes_frac"};
}

void Simulation::report(const SweepReport& report, std::ostream& out) const {
  RunKind::report(report, out);
  print_limits(report.summary, out);
  print_credibility(report, out);
}

KVLAB_REGISTER(RunKind, Simulation, "simulation", "a request trace through simulated serving", "");

}  // namespace kvlab
