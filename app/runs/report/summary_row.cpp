#include "app/runs/report/summary_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/csv.h"
#include "base/text.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

double energy_j(const PowerSpec& power, double gpu_s, double peak_s, double gpus) {
  return power.idle_w * gpu_s + (power.peak_w - power.idle_w) * peak_s * gpus;
}

double dollars(double price_per_hour, double gpu_s) {
  constexpr double kSecondsPerHour = 3600;
  return price_per_hour * gpu_s / kSecondsPerHour;
}

double dollars_per_million(double dollars, double tokens) {
  constexpr double kMillion = 1e6;
  return dollars / tokens * kMillion;
}

std::vector<MissingFigure> missing_figures(const HardwareSpec& hardware) {
  std::vector<MissingFigure> missing;
  if (!hardware.power) missing.push_back({"energy", "'power: {idle_w: WATTS, peak_w: WATTS}'"});
  if (!hardware.price_per_hour) missing.push_back({"price", "'price_per_hour: USD'"});
  return missing;
}

namespace {

double gpu_seconds(Span duration, const PoolUse& pool) { return to_s(duration) * pool.num_replicas * pool.cost.parallel.gpus(); }

// "": no missing keys.
std::string remark_on(const HardwareSpec& hardware) {
  std::vector<std::string> figures, keys;
  for (const MissingFigure& m : missing_figures(hardware)) {
    figures.push_back(m.figure);
    keys.push_back(m.key);
  }
  if (figures.empty()) return "";
  return fmt::format("no {}{} for {}: add {} to {}", join(figures, " and "), hardware.price_per_hour ? "" : " of tokens", hardware.name,
                     join(keys, " and "), hardware.file);
}

// nullopt if either is.
std::optional<double> add(std::optional<double> sum, std::optional<double> own) {
  return sum && own ? std::optional(*sum + *own) : std::nullopt;
}

constexpr std::array kPartNames = {"linear", "attention", "head", "collective", "policy"};
constexpr std::array kFootingNames = {"inside", "interpolated", "extrapolated"};

std::string real(double value) { return fmt::format("{:.6f}", value); }
std::string real_if(bool exists, double value) { return exists ? real(value) : ""; }
std::string real_if(const std::optional<double>& value) { return value ? real(*value) : ""; }

// From ns (or ns per token) to ms.
void add_distribution(Fields& f, const std::string& name, const std::string& unit, const Distribution& d) {
  const std::array<std::pair<const char*, double>, 6> parts = {
      {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90}, {"p95", d.p95}, {"p99", d.p99}, {"max", d.max}}};
  for (const auto& [statistic, value] : parts) f.emplace_back(name + "_" + statistic + unit, real_if(d.count > 0, value * 1e-6));
}

void add_latencies(Fields& f, const MetricsCollector::Latencies& l) {
  add_distribution(f, "ttft", "_ms", l.ttft);
  add_distribution(f, "tpot", "_ms", l.tpot);
  add_distribution(f, "itl", "_ms", l.itl);
  add_distribution(f, "e2e", "_ms", l.e2e);
  add_distribution(f, "queueing", "_ms", l.queueing);
  add_distribution(f, "normalized_latency", "_ms_per_token", l.normalized);
}

// Low quantiles of quality are high quantiles of loss.
void add_qoe(Fields& f, const Distribution& loss) {
  const std::array<std::pair<const char*, double>, 5> parts = {
      {{"qoe_mean", loss.mean}, {"qoe_p50", loss.p50}, {"qoe_p10", loss.p90}, {"qoe_p1", loss.p99}, {"qoe_min", loss.max}}};
  for (const auto& [name, lost] : parts) f.emplace_back(name, real_if(loss.count > 0, 1 - lost * 1e-6));
}

void add_steps(Fields& f, const RunSummary& s) {
  const bool has_steps = s.steps > 0;
  f.emplace_back("batch_mean_requests", real_if(has_steps, s.batch_mean_requests));
  f.emplace_back("batch_mean_tokens", real_if(has_steps, s.batch_mean_tokens));
  f.emplace_back("kv_used_mean_frac", real_if(has_steps, s.kv_used_mean_frac));
  f.emplace_back("kv_used_peak_frac", real(s.kv_used_peak_frac));
}

void add_step_time(Fields& f, const RunSummary& s, bool is_simulated) {
  const bool has_steps = s.steps > 0 && is_simulated;
  f.emplace_back("steps", std::to_string(s.steps));
  f.emplace_back("busy_frac", real(s.busy_frac));
  for (std::size_t i = 0; i < kPartNames.size(); ++i)
    f.emplace_back(fmt::format("step_{}_frac", kPartNames[i]), real_if(has_steps, s.part_frac[i]));
  f.emplace_back("mfu_frac", real_if(has_steps && s.mfu_frac > 0, s.mfu_frac));
  f.emplace_back("mbu_frac", real_if(has_steps && s.mbu_frac > 0, s.mbu_frac));
  for (std::size_t i = 0; i < kFootingNames.size(); ++i)
    f.emplace_back(fmt::format("{}_frac", kFootingNames[i]), real_if(has_steps, s.footing_frac[i]));
  f.emplace_back("overload_frac", real(s.overload_frac));
}

// "8192/any" if pools differ. "": none.
template <class Text>
std::string by_pool(const SimSetup& setup, Text text_of) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < setup.num_pools(); ++i) texts.push_back(text_of(setup.pool(i)));
  if (std::all_of(texts.begin(), texts.end(), [&](const std::string& text) { return text == texts.front(); })) return texts.front();
  for (std::string& text : texts)
    if (text.empty()) text = "any";
  return join(texts, "/");
}

std::string blocks_source(const SimSetup& setup) {
  return by_pool(setup, [](const PoolSetup& pool) -> std::string { return pool.memory.is_derived ? "derived" : "given"; });
}

std::string limit_of(const SimSetup& setup, std::int32_t StepBounds::*limit) {
  return by_pool(setup, [&](const PoolSetup& pool) {
    const StepBounds bounds = pool.make_scheduler()->step_bounds(pool.max_model_len);
    return bounds.*limit > 0 ? std::to_string(bounds.*limit) : std::string();
  });
}

// Miss shares per limit, rates per GPU, binding limit.
void add_answer(Fields& f, const RunSummary& s, const SimSetup& setup, const Answer& answer) {
  const MetricsCollector::Latencies& l = s.latencies;
  const auto share = [&](std::uint64_t count) { return real_if(l.judged > 0, static_cast<double>(count) / static_cast<double>(l.judged)); };
  for (std::size_t i = 0; i < kSloTermNames.size(); ++i)
    f.emplace_back(fmt::format("slo_{}_miss_frac", kSloTermNames[i]), share(l.missed[i]));
  f.emplace_back("slo_rejected_frac", share(l.judged_rejected));
  f.emplace_back("binding_limit", answer.binding_limit);
  f.emplace_back("waits_for", answer.waits_for);
  f.emplace_back("gpus", std::to_string(answer.gpus));
  const double gpu_s = to_s(s.counted_duration) * static_cast<double>(answer.gpus);
  const auto per_gpu = [&](bool exists, auto amount) { return real_if(exists && gpu_s > 0, static_cast<double>(amount) / gpu_s); };
  f.emplace_back("requests_per_s_per_gpu", per_gpu(true, l.completed));
  f.emplace_back("output_tokens_per_s_per_gpu", per_gpu(true, l.output_tokens));
  f.emplace_back("goodput_per_s_per_gpu", per_gpu(setup.slo.has_targets() || l.judged > 0, l.attained));
}

std::string fixed(double value) { return fmt::format("{:.6f}", value); }
std::string fixed_if(bool exists, double value) { return exists ? fixed(value) : ""; }

// Clamped to 1: a step or copy cut by a stop counts whole.
std::string share(double used_s, double seconds) { return fixed_if(seconds > 0, std::min(1.0, used_s / seconds)); }

// Replicas are numbered over all pools.
const PoolRow& pool_of(const std::vector<PoolRow>& pools, std::uint32_t replica) {
  for (const PoolRow& pool : pools) {
    if (replica < pool.replicas) return pool;
    replica -= pool.replicas;
  }
  throw InternalError("there is no such replica");
}

// busy_frac, steps, output_tokens, kv_used_mean_frac, kv_used_peak_frac, mfu_frac, mbu_frac.
std::vector<std::string> work_of(const PoolRow& pool, const PoolTotals& totals, const PoolCosts& costs, double rank_s) {
  const bool has_steps = totals.steps > 0;
  return {share(static_cast<double>(totals.busy) * 1e-12, rank_s),
          std::to_string(totals.steps),
          std::to_string(totals.output_tokens),
          fixed_if(has_steps && !pool.encodes(), totals.kv_used_mean_frac),
          fixed_if(!pool.encodes(), totals.kv_used_peak_frac),
          fixed_if(has_steps && costs.mfu_frac > 0, costs.mfu_frac),
          fixed_if(has_steps && costs.mbu_frac > 0, costs.mbu_frac)};
}

// KV and tokens stay 0.
PoolTotals totals_of(const EncodeTotals& own) {
  PoolTotals totals;
  totals.busy = own.busy;
  totals.steps = own.passes;
  totals.images = own.images;
  return totals;
}

PoolCosts costs_of(const PoolRow& pool, const EncodeTotals& own) {
  PoolCosts costs;
  const double busy_s = static_cast<double>(own.busy) * 1e-12;
  if (busy_s > 0) costs.mfu_frac = static_cast<double>(own.flops) / (busy_s * pool.peak_flops);
  if (busy_s > 0) costs.mbu_frac = static_cast<double>(own.bytes) / (busy_s * pool.peak_bytes);
  return costs;
}

// Above 10 preemptions per request, else "".
std::string remark_on_preemptions(const ServingSummary& s) {
  constexpr std::uint64_t kMany = 10;
  const std::uint64_t requests = s.latencies.counted;
  if (s.preemptions <= kMany * requests || requests == 0) return "";
  std::string text = fmt::format("{:.0f} preemptions per request", static_cast<double>(s.preemptions) / static_cast<double>(requests));
  if (s.recompute_fallbacks > 0)
    text += fmt::format("; {:.0f} % of them compute their KV again, since the CPU memory for swaps is full",
                        100 * static_cast<double>(s.recompute_fallbacks) / static_cast<double>(s.preemptions));
  return text;
}

}  // namespace

std::optional<double> energy_j(Span duration, const PoolUse& pool) {
  if (!pool.cost.hardware.power) return std::nullopt;
  return energy_j(*pool.cost.hardware.power, gpu_seconds(duration, pool), pool.peak_s, pool.cost.parallel.gpus_of_rank());
}

Bill bill_of(const ServingSummary& summary, const std::vector<PoolUse>& pools) {
  const auto tokens = static_cast<double>(summary.output_tokens);
  std::optional<double> joules = 0.0, usd = 0.0;
  std::vector<std::string> remarks;
  for (const PoolUse& pool : pools) {
    const std::optional<double> price = pool.cost.hardware.price_per_hour;
    joules = add(joules, energy_j(summary.duration, pool));
    usd = add(usd, price ? std::optional(dollars(*price, gpu_seconds(summary.duration, pool))) : std::nullopt);
    const std::string remark = remark_on(pool.cost.hardware);
    if (!remark.empty() && std::find(remarks.begin(), remarks.end(), remark) == remarks.end()) remarks.push_back(remark);
  }
  Bill bill;
  bill.energy_j = joules;
  if (joules && tokens > 0) bill.energy_j_per_token = *joules / tokens;
  if (usd && tokens > 0) bill.dollars_per_million_tokens = dollars_per_million(*usd, tokens);
  bill.remark = join(remarks, "; ");
  return bill;
}

void take_price(Bill& bill) {
  if (!bill.dollars_per_million_tokens) return;
  bill.dollars_per_million_tokens.reset();
  bill.remark += (bill.remark.empty() ? "" : "; ") + std::string("no price, since the SLO is not attained");
}

Fields summary_fields(const RunSummary& s, const SimSetup& setup, const Bill& bill, const Answer& answer, bool is_simulated) {
  const MetricsCollector::Latencies& l = s.latencies;
  const double duration_s = to_s(s.duration);
  const double counted_s = to_s(s.counted_duration);
  const auto rate = [&](double amount) { return real_if(counted_s > 0, amount / counted_s); };
  Fields f;
  f.emplace_back("requests", std::to_string(l.counted));
  f.emplace_back("completed", std::to_string(l.completed));
  f.emplace_back("rejected", std::to_string(l.rejected));
  f.emplace_back("duration_s", fmt::format("{:.9f}", duration_s));
  f.emplace_back("requests_per_s", rate(static_cast<double>(l.completed)));
  f.emplace_back("prompt_tokens_per_s", rate(static_cast<double>(l.prompt_tokens)));
  f.emplace_back("output_tokens_per_s", rate(static_cast<double>(l.output_tokens)));
  add_latencies(f, l);
  f.emplace_back("slo_attainment_frac", real_if(l.judged > 0, l.slo_attainment_frac));
  f.emplace_back("goodput_per_s", setup.slo.has_targets() || l.judged > 0 ? rate(static_cast<double>(l.attained)) : "");
  f.emplace_back("preemptions", std::to_string(s.preemptions));
  f.emplace_back("swaps", std::to_string(s.swaps));
  f.emplace_back("recompute_fallbacks", std::to_string(s.recompute_fallbacks));
  f.emplace_back("recomputed_tokens", std::to_string(s.recomputed_tokens));
  f.emplace_back("prefix_hit_frac", real_if(s.lookup_tokens > 0, static_cast<double>(s.hit_tokens) / static_cast<double>(s.lookup_tokens)));
  add_steps(f, s);
  f.emplace_back("kv_blocks", by_pool(setup, [](const PoolSetup& pool) { return std::to_string(pool.memory.num_blocks); }));
  f.emplace_back("kv_blocks_source", blocks_source(setup));
  f.emplace_back("max_step_tokens", limit_of(setup, &StepBounds::tokens));
  f.emplace_back("max_step_seqs", limit_of(setup, &StepBounds::requests));
  add_step_time(f, s, is_simulated);
  f.emplace_back("internal_fragmentation_frac", real(s.internal_fragmentation_frac));
  f.emplace_back("external_fragmentation_frac", real(s.external_fragmentation_frac));
  f.emplace_back("energy_j", real_if(bill.energy_j));
  f.emplace_back("energy_j_per_token", real_if(bill.energy_j_per_token));
  f.emplace_back("dollars_per_million_tokens", real_if(bill.dollars_per_million_tokens));
  add_distribution(f, "jct", "_ms", l.jct);
  if (setup.expected_text) add_qoe(f, l.qoe_loss);
  add_answer(f, s, setup, answer);
  return f;
}

std::string service_csv(const std::string& run_id, const GroupSummary& groups, bool has_qoe) {
  std::string text = fmt::format(
      "run,group,name,requests,completed,unfinished,slo_attainment_frac,ttft_mean_ms,ttft_p99_ms,e2e_mean_ms,service_tokens,"
      "service_gap_tokens,ttft_p50_ms,tpot_p50_ms,tpot_p99_ms,prefix_hit_frac{}\n",
      has_qoe ? ",qoe_mean" : "");
  const auto line = [&](std::vector<std::string> cells, const std::string& qoe) {
    if (has_qoe) cells.push_back(qoe);
    text += csv_line(cells);
  };
  double lowest = 1;
  bool is_judged = false;
  const auto add = [&](const char* kind, const GroupRow& g) {
    const bool judged = g.judged > 0, done = g.completed > 0;
    const double attained = judged ? static_cast<double>(g.attained) / static_cast<double>(g.judged) : 0;
    line({run_id, kind, g.name, std::to_string(g.requests), std::to_string(g.completed), std::to_string(g.unfinished),
          real_if(judged, attained), real_if(done, g.ttft.mean * 1e-6), real_if(done, g.ttft.p99 * 1e-6), real_if(done, g.e2e.mean * 1e-6),
          fmt::format("{:.0f}", g.service_tokens), "", real_if(done, g.ttft.p50 * 1e-6), real_if(g.tpot.count > 0, g.tpot.p50 * 1e-6),
          real_if(g.tpot.count > 0, g.tpot.p99 * 1e-6),
          real_if(g.prompt_tokens > 0, static_cast<double>(g.hit_tokens) / static_cast<double>(g.prompt_tokens))},
         real_if(g.followed > 0, g.qoe_sum / static_cast<double>(g.followed)));
    if (!judged || kind != std::string("client")) return;
    is_judged = true;
    lowest = std::min(lowest, attained);
  };
  for (const GroupRow& group : groups.classes) add("class", group);
  for (const GroupRow& group : groups.clients) add("client", group);
  const auto& gap = groups.service_gap_tokens;
  if (!groups.clients.empty())
    line({run_id, "clients", "lowest attainment, widest gap", "", "", "", real_if(is_judged, lowest), "", "", "", "",
          gap ? fmt::format("{:.0f}", *gap) : "", "", "", "", ""},
         "");
  return text;
}

std::string not_served(const ServingSummary& s) {
  const MetricsCollector::Latencies& l = s.latencies;
  std::string text;
  if (l.rejected > 0) text = fmt::format("{} of {} requests were rejected; the first: {}", l.rejected, l.counted, s.first_rejection);
  if (l.unfinished > 0)
    text += fmt::format("{}{} of {} requests were unfinished at the stop", text.empty() ? "" : "; ", l.unfinished, l.counted);
  return text;
}

std::vector<std::string> remarks_on(const ServingSummary& s) {
  std::vector<std::string> all{s.remark, s.trace_remark, s.timeline_remark, remark_on_budget(s.over_budget, s.requests, "requests"),
                               remark_on_preemptions(s)};
  if (s.requests > 0 && s.latencies.counted == 0)
    all.push_back(fmt::format("all {} requests arrive during the warm-up, so none is counted; shorten 'warmup_ms'", s.requests));
  std::erase(all, "");
  return all;
}

std::string credibility_label(const RunSummary& s, const SimSetup& setup, const std::string& cost_source) {
  return fmt::format(
      "step time {:.1f} % measured, {:.1f} % interpolated, {:.1f} % extrapolated; KV blocks {}; overload {:.1f} % of time; {}",
      100 * s.footing_frac[0], 100 * s.footing_frac[1], 100 * s.footing_frac[2], blocks_source(setup), 100 * s.overload_frac, cost_source);
}

std::string pools_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary) {
  const bool has_images = pools.front().memory.has_value();
  std::string text =
      "run,pool,role,replicas,gpus,busy_frac,steps,output_tokens,kv_used_mean_frac,kv_used_peak_frac,mfu_frac,mbu_frac,energy_j";
  text += has_images ? ",images,weights_bytes,kv_bytes,embeddings_peak_bytes\n" : "\n";
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const PoolRow& pool = pools[i];
    const EncodeTotals* const encode = pool.encodes() ? &summary.encode_pools.at(i - summary.pools.size()) : nullptr;
    const PoolTotals totals = encode != nullptr ? totals_of(*encode) : summary.pools.at(i);
    const PoolCosts costs = encode != nullptr ? costs_of(pool, *encode) : summary.pool_costs.at(i);
    std::vector<std::string> row{run_id, pool.name, pool.role, std::to_string(pool.replicas),
                                 std::to_string(pool.replicas * static_cast<std::uint32_t>(pool.gpus))};
    const double rank_s = to_s(summary.duration) * pool.replicas * pool.ranks;
    for (std::string& field : work_of(pool, totals, costs, rank_s)) row.push_back(std::move(field));
    row.push_back(fixed_if(pool.energy_j.has_value(), pool.energy_j.value_or(0)));
    if (has_images) {
      row.insert(row.end(), {std::to_string(totals.images), std::to_string(pool.memory->weights_bytes),
                             std::to_string(pool.memory->kv_bytes), encode != nullptr ? std::to_string(encode->peak_held_bytes) : ""});
    }
    text += csv_line(row);
  }
  return text;
}

std::string links_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary) {
  std::string text = "run,pool,replica,direction,transfers,bytes,busy_frac\n";
  for (const LinkUse& use : summary.links)
    text += csv_line({run_id, pool_of(pools, use.replica).name, std::to_string(use.replica), use.is_egress ? "out" : "in",
                      std::to_string(use.transfers), std::to_string(use.bytes),
                      share(static_cast<double>(use.busy.count()) * 1e-12, to_s(summary.duration))});
  return text;
}

std::string stores_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary) {
  std::string text = "run,pool,replica,blocks,block_bytes,kept_blocks,written_blocks,evicted_blocks,no_room_blocks,loaded_bytes\n";
  for (const StoreUse& store : summary.stores)
    text +=
        csv_line({run_id, pool_of(pools, store.replica).name, std::to_string(store.replica), std::to_string(store.num_blocks),
                  std::to_string(store.block_bytes), std::to_string(store.kept_blocks), std::to_string(store.use.written_blocks),
                  std::to_string(store.evicted_blocks), std::to_string(store.use.no_room_blocks), std::to_string(store.use.loaded_bytes)});
  return text;
}

}  // namespace kvlab
