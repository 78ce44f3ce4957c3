#include "app/why/why_metric.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

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

}  // namespace kvlab
