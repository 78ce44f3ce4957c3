#include "app/why/run_times.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/csv.h"
#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

class NumberColumn {
 public:
  NumberColumn(const CsvTable& table, const char* name, double absent) : absent_(absent) {
    if (table.has(name)) at_ = static_cast<std::ptrdiff_t>(table.at(name));
  }
  [[nodiscard]] double operator()(const std::vector<std::string>& row) const {
    double value = 0;
    return at_ >= 0 && parse_real(row[static_cast<std::size_t>(at_)], value) ? value : absent_;
  }

 private:
  std::ptrdiff_t at_ = -1;
  double absent_;
};

void read_requests(const fs::path& file, double warmup_ns, RunTimes& times) {
  const CsvTable table = read_csv(file);
  const NumberColumn number(table, "request", 0), arrival(table, "arrival_ns", -1), scheduled(table, "scheduled_ns", -1),
      first(table, "first_token_ns", -1), last(table, "last_token_ns", -1), prefill_policy(table, "prefill_policy_ns", 0),
      decode_policy(table, "decode_policy_ns", 0), output(table, "output_tokens", 0), preemptions(table, "preemptions", 0);
  const std::size_t state = table.at("state");
  for (const auto& row : table.rows) {
    if (arrival(row) < warmup_ns) continue;
    times.requests.push_back({static_cast<std::uint64_t>(number(row)), arrival(row), scheduled(row), first(row), last(row),
                              prefill_policy(row), decode_policy(row), static_cast<std::int64_t>(output(row)),
                              static_cast<std::int64_t>(preemptions(row)), row[state] == "completed"});
  }
}

void read_transfers(const fs::path& file, RunTimes& times) {
  if (!fs::exists(file)) return;
  const CsvTable table = read_csv(file);
  const NumberColumn request(table, "request", 0), ready(table, "ready_ns", -1), end(table, "end_ns", -1);
  for (const auto& row : table.rows)
    times.cuts[static_cast<std::uint64_t>(request(row))].push_back({TimePart::kTransfer, ready(row), end(row)});
}

// By request, from a Perfetto trace; ns.
struct TracedSteps {
  std::map<std::uint64_t, std::vector<std::pair<double, double>>> steps;  // planned, begin
  std::vector<std::pair<std::uint64_t, double>> lost;

  void add(const nlohmann::json& event) {
    const std::string kind = event.value("ph", "");
    const double at = 1000 * event.value("ts", 0.0);
    if (kind == "i") return add_event(event.value("name", ""), at);
    if (kind != "X" || !event.contains("args") || !event["args"].contains("batch")) return;
    const double planned = 1000 * event["args"].value("planned_us", 0.0);
    std::istringstream entries(event["args"]["batch"].get<std::string>());
    for (std::string entry; entries >> entry;) steps[std::stoull(entry)].emplace_back(planned, at);
  }
  void add_event(const std::string& name, double at) {
    for (const std::string title : {"preempted ", "swapped out "})
      if (name.starts_with(title)) lost.emplace_back(std::stoull(name.substr(title.size())), at);
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

std::pair<double, double> interval_of(const RequestTimes& r, WhyFamily family) {
  if (family == WhyFamily::kTtft) return {r.arrival, r.first_token};
  if (family == WhyFamily::kTpot || family == WhyFamily::kItl) return {r.first_token, r.last_token};
  return {r.arrival, r.last_token};
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
  read_requests(run / "requests.csv", warmup_ns, times);
  read_transfers(run / "transfers.csv", times);
  const bool has_any = std::any_of(times.requests.begin(), times.requests.end(), [](const RequestTimes& r) { return r.preemptions > 0; });
  if (!has_any) return times;
  times.knows_preemptions = fs::exists(run / "trace.json");
  if (times.knows_preemptions) read_preemptions(run / "trace.json", times);
  return times;
}

double latency_ms(const RequestTimes& r, WhyFamily family) {
  const auto [begin, end] = interval_of(r, family);
  if (begin < 0 || end < 0 || (family != WhyFamily::kTtft && !r.is_completed)) return -1;
  const bool is_per_token = family == WhyFamily::kTpot || family == WhyFamily::kItl;
  if (is_per_token && r.output_tokens < 2) return -1;
  return (end - begin) * 1e-6 / (is_per_token ? static_cast<double>(r.output_tokens - 1) : 1.0);
}

TimeParts parts_of(const RequestTimes& r, const std::vector<CutInterval>& cuts, WhyFamily family) {
  const auto [begin, end] = interval_of(r, family);
  TimeParts parts{};
  if (begin < 0 || end < 0) return parts;
  std::set<double> ends{begin, end};
  const auto add = [&, begin = begin, end = end](double t) { ends.insert(std::clamp(t, begin, end)); };
  add(r.scheduled), add(r.first_token);
  for (const CutInterval& cut : cuts) add(cut.begin), add(cut.end);
  for (auto a = ends.begin(), b = std::next(a); b != ends.end(); ++a, ++b) {
    const TimePart part = is_over(cuts, TimePart::kPreempted, *a, *b)  ? TimePart::kPreempted
                          : is_over(cuts, TimePart::kTransfer, *a, *b) ? TimePart::kTransfer
                          : *a < r.scheduled                           ? TimePart::kQueued
                          : *a < r.first_token                         ? TimePart::kPrefill
                                                                       : TimePart::kDecode;
    parts[static_cast<std::size_t>(part)] += *b - *a;
  }
  take_policy(parts, TimePart::kPrefill, r.prefill_policy);
  take_policy(parts, TimePart::kDecode, r.decode_policy);
  return parts;
}

}  // namespace kvlab
