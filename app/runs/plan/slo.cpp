#include "app/runs/plan/slo.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/text.h"
#include "traces/row_reader.h"

namespace kvlab {

namespace {

using Latencies = MetricsCollector::Latencies;

struct NamedMetric {
  const char* name;
  Distribution Latencies::*metric;
};
constexpr std::array<NamedMetric, 4> kLimitedMetrics = {
    {{"ttft", &Latencies::ttft}, {"tpot", &Latencies::tpot}, {"itl", &Latencies::itl}, {"e2e", &Latencies::e2e}}};

struct NamedStatistic {
  const char* name;
  double Distribution::*statistic;
  std::uint64_t percent;
};
constexpr std::array<NamedStatistic, 6> kLimitedStatistics = {{{"mean", &Distribution::mean, 100},
                                                               {"p50", &Distribution::p50, 50},
                                                               {"p90", &Distribution::p90, 90},
                                                               {"p95", &Distribution::p95, 95},
                                                               {"p99", &Distribution::p99, 99},
                                                               {"max", &Distribution::max, 100}}};

// Without values.
std::vector<LatencyLimit> all_latency_limits() {
  std::vector<LatencyLimit> all;
  for (const NamedMetric& m : kLimitedMetrics)
    for (const NamedStatistic& s : kLimitedStatistics)
      all.push_back({fmt::format("{}_{}_ms", m.name, s.name), m.metric, s.statistic, s.percent, m.metric != &Latencies::itl, 0});
  return all;
}

constexpr double kNoLimitMs = 9e9;

// "p99.9": 999000 ppm; -1: not a percentile.
std::int32_t percentile_ppm(const std::string& name) {
  double percent = 0;
  if (!name.starts_with('p') || !parse_real(name.substr(1), percent) || !(percent > 0 && percent <= 100)) return -1;
  return static_cast<std::int32_t>(std::lround(percent * 1e4));
}

// `tbt_ms: 100` (every gap) or `tbt_ms: {p99: 100}`.
void read_tbt(Params& slo, SloTarget& target) {
  if (!slo.has("tbt_ms")) return;
  if (!slo.inline_text("tbt_ms", "").starts_with('{')) {
    target.tbt = slo.milliseconds("tbt_ms", kNoLimitMs, 0, kNoLimitMs, "limit of every gap between tokens; absent: none");
    return;
  }
  Params tbt = slo.optional_child("tbt_ms", "tbt_ms");
  const std::vector<std::string> keys = tbt.keys();
  if (keys.size() != 1) slo.fail_at("tbt_ms", "'tbt_ms': expected a limit of every gap, as 100, or of one percentile, as {p99: 100}");
  target.tbt_ppm = percentile_ppm(keys.front());
  if (target.tbt_ppm <= 0)
    slo.fail_at("tbt_ms", fmt::format("'tbt_ms': '{}' is no percentile: write p50, p99, p99.9 or another up to p100", keys.front()));
  target.tbt = tbt.milliseconds(keys.front(), kNoLimitMs, 0, kNoLimitMs, "limit of that percentile of a request's gaps between tokens");
}

bool names_limit(const Params& slo) { return slo.has("ttft_ms") || slo.has("tpot_ms") || slo.has("tbt_ms") || slo.has("e2e_ms"); }

SloTarget read_target(Params& slo) {
  SloTarget target;
  target.is_set = names_limit(slo);
  target.ttft = slo.milliseconds("ttft_ms", kNoLimitMs, 0, kNoLimitMs, "limit of the time to first token; absent: none");
  target.tpot = slo.milliseconds("tpot_ms", kNoLimitMs, 0, kNoLimitMs, "limit of the time per output token after the first; absent: none");
  target.e2e = slo.milliseconds("e2e_ms", kNoLimitMs, 0, kNoLimitMs, "limit of the time from arrival to the last token; absent: none");
  read_tbt(slo, target);
  return target;
}

Params read_preset(Params& slo) {
  const std::string name = slo.text("preset", "limits of this name in profiles/slo (kvlab list slos), or of a file");
  if (double limit = 0; parse_real(name, limit))
    slo.fail_at("preset", fmt::format("'slo': {0} does not say what it limits; write 'slo: {{ttft_ms: {0}}}', or 'tpot_ms', 'tbt_ms' or "
                                      "'e2e_ms' for another limit",
                                      name));
  return read_slo_file(slo.reading("preset", [&] { return find_spec_file(file_or_name(slo, name), slo_folder(), "SLO"); }));
}

// Also if given as a name.
Params slo_of(Params& p) { return p.has("slo") ? p.child_or_text("slo", "preset", "slo") : p.optional_child("slo", "slo"); }

// `slo: NAME` or `slo: {preset: NAME, ...}`; the preset fills in missing limits.
void fall_back_on_preset(Params& slo) {
  if (slo.has("preset")) slo.fall_back_on(read_preset(slo), {"ttft_ms", "tpot_ms", "tbt_ms", "e2e_ms"});
}

// Calls add(name, targets) per name below `key`.
template <class Add>
void read_groups(Params& slo, const std::string& key, const std::string& kind, const std::string& example, Add add) {
  if (!slo.has(key)) return;
  Params groups = slo.optional_child(key, key);
  if (groups.keys().empty()) slo.fail_at(key, fmt::format("'{}' needs at least one {}, as '{}: {{ttft_ms: 500}}'", key, kind, example));
  for (const std::string& name : groups.keys()) {
    Params own = groups.optional_child(name, fmt::format("{} '{}'", kind, name));
    add(name, read_target(own), groups);
    own.reject_unread();
  }
}

ClassName class_named(const std::string& name, const Params& classes) {
  if (name.empty() || name.size() > ClassName::kMaxBytes)
    classes.fail_at(name, fmt::format("'{}' cannot name a class: a name has 1 to {} bytes", name, ClassName::kMaxBytes));
  return ClassName(name);
}

struct Known {
  static constexpr std::size_t kMostClients = 10;
  std::set<std::string> classes;
  std::set<std::int64_t> clients;     // at most kMostClients of a trace that is read
  std::int64_t numbered_clients = 0;  // of a generator: [0, numbered_clients)

  [[nodiscard]] std::string class_list(const std::string& missing) const {
    if (classes.empty()) return "its requests have no class ('classes' of 'generate', or column 'class', docs/traces.md)";
    const std::vector<std::string> names(classes.begin(), classes.end());
    return fmt::format("its classes are {}{}", join(names, ", "), did_you_mean(missing, names));
  }
  [[nodiscard]] std::string client_list() const {
    if (numbered_clients > 0) return fmt::format("its clients are 0 to {}", numbered_clients - 1);
    if (clients.empty()) return "its requests have no client ('clients' of 'generate', or column 'client', docs/traces.md)";
    std::vector<std::string> names;
    for (const std::int64_t client : clients) names.push_back(std::to_string(client));
    return fmt::format("its clients are {}{}", join(names, ", "), names.size() == kMostClients ? ", ..." : "");
  }
};

Known take_generated(Params generate, Slo& missing) {
  Known known;
  if (generate.has("classes")) {
    for (const std::string& name : generate.child("classes", "classes").keys()) known.classes.insert(name);
  }
  if (generate.has("arrival")) {
    auto [process, stages] = generate.named("arrival", "", "arrivals of sessions");
    if (process == "stages")
      for (const std::string& name : stages.keys()) known.classes.insert(name);
  }
  if (generate.has("clients"))
    known.numbered_clients = generate.child("clients", "clients").required<std::int64_t>("num", 1, 1LL << 40, "different clients");
  std::erase_if(missing.classes, [&](const auto& one) { return known.classes.contains(std::string(one.first.text())); });
  std::erase_if(missing.clients, [&](const auto& one) { return one.first >= 0 && one.first < known.numbered_clients; });
  return known;
}

// Reads until no name is missing.
Known take_read(TraceSource& trace, Slo& missing) {
  Known known;
  TraceRequest request;
  while (!(missing.classes.empty() && missing.clients.empty()) && trace.next(request)) {
    if (has_fact(request.facts, Fact::kClass)) {
      known.classes.insert(std::string(request.facts->request_class.text()));
      missing.classes.erase(request.facts->request_class);
    }
    if (has_fact(request.facts, Fact::kClient)) {
      if (known.clients.size() < Known::kMostClients) known.clients.insert(request.facts->client);
      missing.clients.erase(request.facts->client);
    }
  }
  return known;
}

[[noreturn]] void refuse_without_limit(const Params& slo) {
  const std::vector<std::string> known{"ttft_ms", "tpot_ms", "tbt_ms", "e2e_ms", "classes", "clients", "preset"};
  for (const std::string& key : slo.keys())
    if (std::find(known.begin(), known.end(), key + "_ms") != known.end())
      slo.fail_at(key, fmt::format("unknown key '{0}' in slo; write '{0}_ms', in milliseconds", key));
  slo.fail("slo needs one of '" + join(known, "', '") + "'");
}

}  // namespace

std::vector<std::string> latency_limit_columns() {
  std::vector<std::string> columns;
  for (const LatencyLimit& limit : all_latency_limits()) columns.push_back(limit.column);
  return columns;
}

double LatencyLimit::value_ms(const Latencies& latencies) const { return latencies.*metric.*statistic * 1e-6; }

bool LatencyLimit::is_met(const Latencies& latencies) const {
  if (is_of_requests && latencies.rejected * 100 > (100 - percent) * latencies.counted) return false;
  return value_ms(latencies) <= limit_ms;
}

bool LatencyLimit::is_undecided(const Latencies& latencies) const {
  return (latencies.*metric).count == 0 && (!is_of_requests || latencies.rejected == 0);
}

std::vector<LatencyLimit> read_latency_limits(Params& p) {
  std::vector<LatencyLimit> found;
  std::vector<std::string> known;
  for (LatencyLimit& limit : all_latency_limits()) {
    known.push_back(limit.column);
    if (!p.has(limit.column)) continue;
    limit.limit_ms = p.required<double>(limit.column, 1e-6, 9e9, "limit of this column of summary.csv");
    found.push_back(limit);
  }
  for (const std::string& key : p.keys()) {
    if (!key.ends_with("_ms") || std::find(known.begin(), known.end(), key) != known.end()) continue;
    p.fail_at(key, fmt::format("'{}' is no limit: write ttft, tpot, itl or e2e, then _mean, _p50, _p90, _p95, _p99 or _max, then _ms, for "
                               "example ttft_p99_ms",
                               key));
  }
  return found;
}

std::string slo_folder() { return profiles_folder() + "/slo"; }

Params read_slo_file(const std::string& file) {
  Params preset(shared_config(file), std::make_shared<const Choices>(), "SLO '" + file + "'");
  if (!names_limit(preset)) preset.fail("an SLO needs one of 'ttft_ms', 'tpot_ms', 'tbt_ms', 'e2e_ms'");
  read_target(preset);
  preset.text("summary", "", "one line");
  preset.text("source", "", "where the limits come from");
  preset.optional<double>("attainment", 0, 0, 1, "share of requests that must meet each limit; 0: not said");
  preset.reject_unread();
  return preset;
}

Slo read_slo(Params& p) {
  if (!p.has("slo")) {
    Params none = p.optional_child("slo", "slo");
    return Slo{read_target(none)};
  }
  Params own = p.child_or_text("slo", "preset", "slo");
  fall_back_on_preset(own);
  for (const std::string& column : latency_limit_columns())
    if (own.has_own(column))
      own.fail_at(column, fmt::format("'{}' is a limit of a search: write 'search: {{rate: [LOW, HIGH], {}: ...}}'; 'slo' has limits of "
                                      "each request, as 'ttft_ms' and 'tpot_ms'",
                                      column, column));
  if (!names_limit(own) && !own.has("classes") && !own.has("clients")) refuse_without_limit(own);
  Slo slo{read_target(own)};
  read_groups(own, "classes", "class", "chat", [&](const std::string& name, const SloTarget& target, const Params& classes) {
    slo.classes[class_named(name, classes)] = target;
  });
  read_groups(own, "clients", "client", "7",
              [&](const std::string& name, const SloTarget& target, const Params&) { slo.clients[number_of_name(name)] = target; });
  own.reject_unread();
  return slo;
}

std::vector<std::pair<std::string, double>> preset_limits_ms(Params p) {
  std::vector<std::pair<std::string, double>> limits;
  Params own = slo_of(p);
  if (!own.has("preset")) return limits;
  fall_back_on_preset(own);
  for (const std::string metric : {"ttft", "tpot", "e2e"})
    if (own.has(metric + "_ms")) limits.emplace_back(metric, own.required<double>(metric + "_ms", 0, kNoLimitMs, "limit"));
  return limits;
}

double usual_attainment(Params p) {
  Params own = slo_of(p);
  const double stated = own.has("preset") ? read_preset(own).optional<double>("attainment", 0, 0, 1, "of the file") : 0;
  return stated > 0 ? stated : 0.9;
}

std::optional<ExpectedText> read_expected_text(Params& p) {
  Params own = p.optional_child("qoe", "qoe");
  if (!p.has("qoe")) return std::nullopt;
  ExpectedText text;
  text.ttft = own.milliseconds("ttft_ms", 1000, 0, kNoLimitMs, "expected time to first token of requests without 'ttft_slo_ms'");
  text.per_token =
      from_seconds(1 / own.optional<double>("tokens_per_s", 4.8, 0.01, 1e6, "reading speed of requests without 'tpot_slo_ms'"));
  own.reject_unread();
  return text;
}

void check_slo_groups(Params& p, const Slo& slo, const OpenTrace& open) {
  if (slo.classes.empty() && slo.clients.empty()) return;
  Slo missing = slo;
  Params trace = p.child("trace", "trace");
  const Known known = trace.has("generate") ? take_generated(trace.child("generate", "generate"), missing) : take_read(*open(), missing);
  Params own = p.child_or_text("slo", "preset", "slo");
  Params classes = own.optional_child("classes", "classes"), clients = own.optional_child("clients", "clients");
  for (const std::string& name : classes.keys()) {
    if (missing.classes.contains(ClassName(name)))
      classes.fail_at(name, fmt::format("the trace has no request of class '{}'; {}", name, known.class_list(name)));
  }
  for (const std::string& name : clients.keys()) {
    if (missing.clients.contains(number_of_name(name)))
      clients.fail_at(name, fmt::format("the trace has no request of client '{}'; {}", name, known.client_list()));
  }
}

}  // namespace kvlab
