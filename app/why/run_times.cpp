#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "app/why/why.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

struct FamilyText {
  const char *name, *title;
};
constexpr std::array<FamilyText, 4> kLatencies = {{{"ttft", "TTFT"}, {"tpot", "TPOT"}, {"itl", "ITL"}, {"e2e", "end-to-end"}}};
// Share of requests that decide it.
constexpr std::array<std::pair<const char*, double>, 6> kStatistics = {
    {{"p99", 0.01}, {"p95", 0.05}, {"p90", 0.1}, {"p50", 0.5}, {"mean", 1}, {"max", 0}}};
constexpr std::array kRates = {"goodput_per_s", "slo_attainment_frac"};
constexpr std::array kSearched = {"search_rate_per_s", "search_concurrency", "search_replicas", "search_tp"};

std::string long_name(const std::string& name) {
  if (name == "tbt") return "itl_p99_ms";
  if (name == "goodput") return "goodput_per_s";
  if (name == "attainment") return "slo_attainment_frac";
  for (const FamilyText& family : kLatencies)
    if (name == family.name) return name + "_p99_ms";
  return name;
}

void read_transfers(const fs::path& file, RunTimes& times) {
  if (!fs::exists(file)) return;
  const CsvTable table = read_csv(file);
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    times.cuts[table.rows[i][table.at("request")]].push_back(
        {TimePart::kTransfer, ns_of(table.whole_if_any(i, "ready_ns")), ns_of(table.whole_if_any(i, "end_ns"))});
}
// The request's number at the start of a text.
std::string number_in(const std::string& text) { return text.substr(0, text.find_first_not_of("0123456789")); }

// Steps, preemptions and swaps by request, from a Perfetto trace; ns.
struct TracedSteps {
  std::map<std::string, std::vector<std::pair<double, double>>> steps;  // planned, begin
  std::vector<std::pair<std::string, double>> lost;

  void add(const nlohmann::json& event) {
    const std::string kind = event.value("ph", "");
    const double at = 1000 * event.value("ts", 0.0);
    if (kind == "i") return add_event(event.value("name", ""), at);
    if (kind != "X" || !event.contains("args") || !event["args"].contains("batch")) return;
    const double planned = 1000 * event["args"].value("planned_us", 0.0);
    std::istringstream entries(event["args"]["batch"].get<std::string>());
    for (std::string entry; entries >> entry;) steps[number_in(entry)].emplace_back(planned, at);
  }
  void add_event(const std::string& name, double at) {
    for (const std::string title : {"preempted ", "swapped out "})
      if (name.starts_with(title)) lost.emplace_back(number_in(name.substr(title.size())), at);
  }
};

// From each preemption to the next step planned with the request.
void read_preemptions(const fs::path& file, RunTimes& times) {
  const nlohmann::json trace = nlohmann::json::parse(read_file(file), nullptr, false);
  if (!trace.is_object() || !trace.contains("traceEvents")) throw InputError(file.string() + ": is no Perfetto trace");
  TracedSteps traced;
  for (const auto& event : trace["traceEvents"]) traced.add(event);
  for (const auto& [request, at] : traced.lost) {
    double next = -1;
    for (const auto& [planned, begin] : traced.steps[request])
      if (planned > at && (next < 0 || begin < next)) next = begin;
    if (next >= 0) times.cuts[request].push_back({TimePart::kPreempted, at, next});
  }
}

bool is_over(const std::vector<CutInterval>& cuts, TimePart part, double a, double b) {
  return std::any_of(cuts.begin(), cuts.end(), [&](const CutInterval& c) { return c.part == part && c.begin <= a && b <= c.end; });
}

std::pair<double, double> interval_of(const RequestRow& r, WhyFamily family) {
  const double arrival = ns_of(r.arrival_ns), first = ns_of(r.first_token_ns), last = ns_of(r.last_token_ns);
  if (family == WhyFamily::kTtft) return {arrival, first};
  if (family == WhyFamily::kTpot || family == WhyFamily::kItl) return {first, last};
  return {arrival, last};
}

// The KV policy's time is no part of a phase.
void take_policy(TimeParts& parts, TimePart phase, double policy) {
  double& whole = parts[static_cast<std::size_t>(phase)];
  const double own = std::clamp(policy, 0.0, whole);
  whole -= own;
  parts[static_cast<std::size_t>(TimePart::kPolicy)] += own;
}

}  // namespace

std::vector<std::string> why_metric_columns() {
  std::vector<std::string> columns;
  for (const FamilyText& family : kLatencies)
    for (const auto& [statistic, tail] : kStatistics) columns.push_back(fmt::format("{}_{}_ms", family.name, statistic));
  columns.insert(columns.end(), kRates.begin(), kRates.end());
  columns.insert(columns.end(), kSearched.begin(), kSearched.end());
  return columns;
}

WhyMetric parse_why_metric(const std::string& given) {
  const std::string name = long_name(given);
  for (std::size_t f = 0; f < kLatencies.size(); ++f)
    for (const auto& [statistic, tail] : kStatistics)
      if (name == fmt::format("{}_{}_ms", kLatencies[f].name, statistic)) return {name, static_cast<WhyFamily>(f), tail};
  if (std::find(kRates.begin(), kRates.end(), name) != kRates.end()) return {name, WhyFamily::kGoodput, 1};
  if (std::find(kSearched.begin(), kSearched.end(), name) != kSearched.end()) return {name, WhyFamily::kSearch, 1};
  throw InputError(
      fmt::format("--metric: '{}' is no metric that can be explained{}: ttft, tpot, itl, tbt or e2e, as ttft_p99_ms or e2e_mean_ms, "
                  "or goodput_per_s",
                  given, did_you_mean(given, why_metric_columns())));
}

bool WhyMetric::rises() const { return family == WhyFamily::kGoodput || column == "search_rate_per_s" || column == "search_concurrency"; }

std::string WhyMetric::title() const {
  if (column == "goodput_per_s") return "Goodput";
  if (column == "slo_attainment_frac") return "SLO attainment";
  if (column == "search_rate_per_s") return "Highest rate";
  if (column == "search_concurrency") return "Most users";
  if (column == "search_replicas") return "Fewest replicas";
  if (column == "search_tp") return "Lowest tp";
  const FamilyText& text = kLatencies[static_cast<std::size_t>(family)];
  std::string statistic = column.substr(std::string(text.name).size() + 1);
  statistic = statistic.substr(0, statistic.find('_'));
  statistic[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(statistic[0])));
  return statistic + " " + text.title;
}

std::string WhyMetric::text_of(double value) const {
  if (is_latency()) return time_text(value);
  if (column == "slo_attainment_frac") return fmt::format("{:.1f} %", 100 * value);
  if (column == "search_concurrency") return fmt::format("{:.0f} users", value);
  if (column == "search_replicas") return fmt::format("{:.0f} replica{}", value, value == 1 ? "" : "s");
  if (column == "search_tp") return fmt::format("tp {:.0f}", value);
  return fmt::format("{:.3g}/s", value);
}

std::string WhyMetric::limit_name() const {
  constexpr std::array kLimits = {"ttft", "tpot", "tbt", "e2e"};  // by WhyFamily
  return is_latency() ? kLimits[static_cast<std::size_t>(family)] : "";
}

std::string time_text(double ms) { return ms >= 1000 ? fmt::format("{:.3g} s", ms / 1000) : fmt::format("{:.3g} ms", ms); }

RunTimes read_run_times(const fs::path& run, double warmup_ns) {
  RunTimes times;
  for (RequestRow& row : read_request_rows(run / "requests.csv"))
    if (ns_of(row.arrival_ns) >= warmup_ns) times.requests.push_back(std::move(row));
  read_transfers(run / "transfers.csv", times);
  const bool has_any = std::any_of(times.requests.begin(), times.requests.end(), [](const RequestRow& r) { return r.preemptions > 0; });
  if (!has_any) return times;
  times.knows_preemptions = fs::exists(run / "trace.json");
  if (times.knows_preemptions) read_preemptions(run / "trace.json", times);
  return times;
}

double latency_ms(const RequestRow& r, WhyFamily family) {
  const auto [begin, end] = interval_of(r, family);
  if (begin < 0 || end < 0 || (family != WhyFamily::kTtft && r.state != "completed")) return -1;
  const bool is_per_token = family == WhyFamily::kTpot || family == WhyFamily::kItl;
  if (is_per_token && r.output_tokens < 2) return -1;
  return (end - begin) * 1e-6 / (is_per_token ? static_cast<double>(r.output_tokens - 1) : 1.0);
}

TimeParts parts_of(const RequestRow& r, const std::vector<CutInterval>& cuts, WhyFamily family) {
  const auto [begin, end] = interval_of(r, family);
  TimeParts parts{};
  if (begin < 0 || end < 0) return parts;
  std::set<double> ends{begin, end};
  const auto add = [&, begin = begin, end = end](double t) { ends.insert(std::clamp(t, begin, end)); };
  const double scheduled = ns_of(r.scheduled_ns), first = ns_of(r.first_token_ns);
  add(scheduled), add(first);
  for (const CutInterval& cut : cuts) add(cut.begin), add(cut.end);
  for (auto a = ends.begin(), b = std::next(a); b != ends.end(); ++a, ++b) {
    const TimePart part = is_over(cuts, TimePart::kPreempted, *a, *b)  ? TimePart::kPreempted
                          : is_over(cuts, TimePart::kTransfer, *a, *b) ? TimePart::kTransfer
                          : *a < scheduled                             ? TimePart::kQueued
                          : *a < first                                 ? TimePart::kPrefill
                                                                       : TimePart::kDecode;
    parts[static_cast<std::size_t>(part)] += *b - *a;
  }
  take_policy(parts, TimePart::kPrefill, r.prefill_policy_ns);
  take_policy(parts, TimePart::kDecode, r.decode_policy_ns);
  return parts;
}

}  // namespace kvlab
