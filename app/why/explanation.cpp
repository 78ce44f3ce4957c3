#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "app/results/run_folder.h"
#include "app/runs/plan/slo.h"
#include "app/runs/report/known_metrics.h"
#include "app/runs/sweep/experiment.h"
#include "app/why/why.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

double number_at(const RunSettings& settings, const std::string& path, double absent) {
  const YAML::Node node = node_at(settings.tree, path);
  return node.IsDefined() && node.IsScalar() ? real_or(node.Scalar(), absent) : absent;
}

// Per request by "ttft", "tpot", "tbt", "e2e".
std::map<std::string, double> limits_of(const fs::path& run, const RunSettings& settings) {
  std::map<std::string, double> limits;
  for (const char* name : {"ttft", "tpot", "tbt", "e2e"})
    if (const double ms = number_at(settings, fmt::format("slo.{}_ms", name), 0); ms > 0) limits[name] = ms;
  const YAML::Node slo = node_at(settings.tree, "slo");
  if (!slo.IsDefined() || !limits.empty()) return limits;
  try {
    const Experiment e = load_experiment((run / "resolved.yaml").string(), {});
    for (const auto& [name, ms] : preset_limits_ms(e.params(e.runs.at(0)))) limits[name] = ms;
  } catch (const InputError&) {  // it names a missing file
  }
  return limits;
}
// Requests that have the latency, slowest first.
std::vector<std::pair<double, const RequestRow*>> by_latency(const RunTimes& times, WhyFamily family) {
  std::vector<std::pair<double, const RequestRow*>> found;
  for (const RequestRow& r : times.requests)
    if (const double ms = latency_ms(r, family); ms >= 0) found.emplace_back(ms, &r);
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return found;
}

// For goodput and searches, that of the binding limit.
WhyFamily explained_family(const WhyMetric& metric, const std::string& binding) {
  if (metric.is_latency()) return metric.family;
  if (binding.starts_with("tpot")) return WhyFamily::kTpot;
  if (binding.starts_with("tbt") || binding.starts_with("itl")) return WhyFamily::kItl;
  return binding.starts_with("e2e") ? WhyFamily::kE2e : WhyFamily::kTtft;
}

void add_parts(const RunTimes& times, WhyFamily family, Explanation& e) {
  const auto slowest = by_latency(times, family);
  const double tail = e.metric.is_latency() ? e.metric.tail_frac : 0.01;
  const auto count = static_cast<std::size_t>(std::ceil(tail * static_cast<double>(slowest.size())));
  e.num_requests = slowest.size();
  e.num_slowest = std::min(std::max<std::size_t>(count, slowest.empty() ? 0 : 1), slowest.size());
  e.arrived = {std::numeric_limits<double>::max(), 0};
  for (std::size_t i = 0; i < slowest.size(); ++i) {
    const RequestRow& r = *slowest[i].second;
    const auto cuts = times.cuts.find(r.request);
    const TimeParts own = parts_of(r, cuts == times.cuts.end() ? std::vector<CutInterval>{} : cuts->second, family);
    for (std::size_t p = 0; p < own.size(); ++p) e.all_parts[p] += own[p], e.parts[p] += i < e.num_slowest ? own[p] : 0;
    if (i >= e.num_slowest) continue;
    const double arrival = ns_of(r.arrival_ns);
    e.arrived.begin_ns = std::min(e.arrived.begin_ns, arrival);
    e.arrived.end_ns = std::max(e.arrived.end_ns, arrival);
    if (r.preemptions > 0 && !times.knows_preemptions) e.knows_preemptions = false;
  }
}

WhyWindow lives_of(const RunTimes& times, const Explanation& e, WhyFamily family) {
  WhyWindow window = e.arrived;
  const auto slowest = by_latency(times, family);
  for (std::size_t i = 0; i < e.num_slowest; ++i) {
    const RequestRow& r = *slowest[i].second;
    window.end_ns = std::max({window.end_ns, ns_of(r.first_token_ns), family == WhyFamily::kTtft ? 0 : ns_of(r.last_token_ns)});
  }
  return window;
}

// The latency met by the wanted share of requests.
void add_limit_uses(const RunTimes& times, const std::map<std::string, double>& limits, Explanation& e) {
  const std::pair<const char*, WhyFamily> families[] = {{"ttft", WhyFamily::kTtft}, {"tpot", WhyFamily::kTpot}, {"e2e", WhyFamily::kE2e}};
  for (const auto& [name, family] : families) {
    const auto limit = limits.find(name);
    const auto latencies = by_latency(times, family);
    if (limit == limits.end() || latencies.empty()) continue;
    const auto over = static_cast<std::size_t>(std::floor((1 - e.wanted) * static_cast<double>(latencies.size())));
    const double value = latencies[std::min(over, latencies.size() - 1)].first;
    const WhyMetric title = parse_why_metric(name);
    e.limits.push_back({title.title().substr(4), value, limit->second});
  }
  std::sort(e.limits.begin(), e.limits.end(),
            [](const LimitUse& a, const LimitUse& b) { return a.value_ms / a.limit_ms > b.value_ms / b.limit_ms; });
}

bool is_end_of_range(const RunSettings& settings, const Explanation& e) {
  if (e.metric.family != WhyFamily::kSearch || !e.metric.column.starts_with("search_")) return false;
  constexpr std::size_t kPrefix = 7;
  std::string key = e.metric.column.substr(kPrefix);
  if (key.starts_with("rate")) key = "rate";
  const YAML::Node range = node_at(settings.tree, "search." + key);
  double end = 0;
  return range.IsDefined() && range.IsSequence() && range.size() == 2 && parse_real(range[e.metric.rises() ? 1 : 0].Scalar(), end) &&
         std::abs(e.value - end) <= 1e-6 * std::abs(end);
}

double rate_of(const RunTimes& times) {
  double first = std::numeric_limits<double>::max(), last = 0;
  for (const RequestRow& r : times.requests) first = std::min(first, ns_of(r.arrival_ns)), last = std::max(last, ns_of(r.arrival_ns));
  return times.requests.size() > 1 && last > first ? static_cast<double>(times.requests.size() - 1) / (last - first) * 1e9 : 0;
}

bool is_kept(const fs::path& run) { return fs::exists(run / "requests.csv"); }

bool lacks_instants(const fs::path& run, const SummaryRow& summary) {
  return summary.number("preemptions") > 0 && !fs::exists(run / "trace.json");
}

// Repeats the run if its files lack something and `again` is set.
RunTimes times_of(const fs::path& run, const RunSettings& settings, const SummaryRow& summary, bool again, Explanation& e) {
  const double warmup_ns = 1e6 * number_at(settings, "warmup_ms", 0);
  const bool is_simulated = !settings.has("host") || node_at(settings.tree, "host").Scalar() == "sim";
  const auto explained_by = [&](const fs::path& files) {
    RunTimes times = read_run_times(files, warmup_ns);
    const WhyFamily family = explained_family(e.metric, e.binding);
    add_parts(times, family, e);
    const WhyWindow window = lives_of(times, e, family);
    e.full = full_in(files, summary, window), e.load = load_in(files, summary);
    return times;
  };
  if (again && is_simulated && (!is_kept(run) || lacks_instants(run, summary))) {
    ScratchRuns scratch;
    std::vector<std::string> set{"trace.perfetto=true"};
    if (settings.has("output")) set.push_back("output={}");
    try {
      const fs::path made = scratch.run(run / "resolved.yaml", set);
      if (!is_kept(run)) e.remarks.push_back("the run kept its summary only and was done again");
      return explained_by(made);
    } catch (const InputError& error) {
      e.remarks.push_back(fmt::format("the run could not be done again: {}", error.what()));
    }
  }
  if (!is_kept(run))
    throw InputError(fmt::format("{}: holds no requests.csv, since the run was made with 'output: {{keep: summary}}'", run.string()));
  return explained_by(run);
}

}  // namespace

double wanted_share_of(const fs::path& run) {
  const RunSettings settings = read_run_settings(run);
  constexpr double kUsual = 0.9;
  if (const double stated = number_at(settings, "search.attainment", 0); stated > 0) return stated;
  const YAML::Node slo = node_at(settings.tree, "slo");
  if (!slo.IsDefined() || (slo.IsMap() && !node_at(slo, "preset").IsDefined())) return kUsual;
  try {
    const Experiment e = load_experiment((run / "resolved.yaml").string(), {});
    return usual_attainment(e.params(e.runs.at(0)));
  } catch (const InputError&) {  // it names a missing file
    return kUsual;
  }
}

WhyMetric usual_metric(const fs::path& run) {
  const SummaryRow summary(run);
  for (const char* column : {"search_rate_per_s", "search_concurrency", "search_replicas", "search_tp"})
    if (!summary.text(column).empty()) return parse_why_metric(column);
  const std::string binding = summary.text("binding_limit");
  for (const char* name : {"ttft", "tpot", "tbt", "e2e"})
    if (binding == name) return parse_why_metric(name);
  if (binding.find("_ms") != std::string::npos) return parse_why_metric(binding.substr(0, binding.find('+')));
  return parse_why_metric("ttft");
}

Explanation explain(const fs::path& run, const std::string& title, const WhyMetric& metric, bool again) {
  const SummaryRow summary(run);
  if (summary.text("ttft_p50_ms").empty() && summary.text("completed").empty())
    throw InputError(run.string() + ": is no run that serves requests, so there is no latency to explain");
  const RunSettings settings = read_run_settings(run);
  Explanation e;
  e.run = run.filename().string(), e.title = title, e.metric = metric;
  e.value = summary.number(metric.column);
  e.attainment = summary.number("slo_attainment_frac"), e.wanted = wanted_share_of(run);
  e.binding = summary.text("binding_limit"), e.waits_for = summary.text("waits_for");
  e.is_search = settings.has("search");
  const std::map<std::string, double> limits = limits_of(run, settings);
  if (const auto limit = limits.find(metric.limit_name()); limit != limits.end()) e.limit_ms = limit->second;
  const RunTimes times = times_of(run, settings, summary, again, e);
  add_limit_uses(times, limits, e);
  e.rate_per_s = rate_of(times);
  if (summary.number("completed") == 0)
    e.remarks.push_back(
        fmt::format("none of the {} requests completed, {} were rejected", summary.text("requests"), summary.text("rejected")));
  e.is_end_of_range = is_end_of_range(settings, e);
  if (e.is_end_of_range)
    e.remarks.push_back(
        fmt::format("{} is the {} value of the range that was searched: no change is tried; a wider range may find a better one",
                    e.metric.text_of(e.value), e.metric.rises() ? "largest" : "smallest"));
  return e;
}

void add_tries(const fs::path& run, double within_s, Explanation& e) {
  if (e.is_end_of_range) return;
  const RunSettings settings = read_run_settings(run);
  const SummaryRow summary(run);
  const std::vector<Change> changes = changes_of(settings, summary, e.metric, {e.rate_per_s, e.attains()});
  e.tried = try_changes(run, changes, e.metric, e.wanted, within_s, e.skipped);
  sort_by_effect(e.tried, e.metric);
}

}  // namespace kvlab
