#include "app/why/run_times.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/csv.h"
#include "base/error.h"
#include "base/read_file.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

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
