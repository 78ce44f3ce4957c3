#include "app/why/why_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "app/results/entry_labels.h"
#include "app/results/other_runs.h"
#include "app/runs/sweep/student_t.h"
#include "app/why/explanation.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// A value per seed.
struct Configuration {
  WhyRun first;      // title without the seed
  std::string seed;  // of `first`
  std::vector<double> values;
  bool attains = true;  // in every seed

  [[nodiscard]] double mean() const { return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()); }
  // Half the 95 % t-interval; 0 for one seed.
  [[nodiscard]] double half_width() const {
    if (values.size() < 2) return 0;
    double squares = 0;
    for (const double v : values) squares += (v - mean()) * (v - mean());
    const auto n = static_cast<double>(values.size());
    return student_t_975(values.size() - 1) * std::sqrt(squares / (n - 1) / n);
  }
};

std::string short_axis(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// By the varying columns 1 to `end`.
class RowTitles {
 public:
  RowTitles(const CsvTable& summary, std::size_t end) : summary_(summary) {
    for (std::size_t c = 1; c < end; ++c)
      if (std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return row[c] != summary.rows[0][c]; }))
        varying_.push_back(c);
  }
  [[nodiscard]] std::string of(const std::vector<std::string>& row) const {
    std::vector<std::string> parts;
    for (const std::size_t c : varying_) parts.push_back(fmt::format("{}={}", short_axis(summary_.columns[c]), row[c]));
    return join(parts, " ");
  }

 private:
  const CsvTable& summary_;
  std::vector<std::size_t> varying_;
};

CsvTable shown_summary(const fs::path& folder) {
  CsvTable summary = read_csv(folder / "summary.csv");
  EntryLabels::of_folder(folder).show_in(summary);
  return summary;
}

// Or has no SLO.
bool attains(const CsvTable& summary, const std::vector<std::string>& row, double wanted) {
  double share = 0;
  return !summary.has("slo_attainment_frac") || !parse_real(row[summary.at("slo_attainment_frac")], share) || share >= wanted;
}

std::vector<Configuration> configurations_of(const fs::path& folder, const std::vector<WhyRun>& runs, const WhyMetric& metric) {
  const CsvTable summary = shown_summary(folder);
  const std::size_t seed = summary.at("seed");
  std::map<std::string, WhyRun> by_id;
  for (const WhyRun& run : runs) by_id.emplace(run.id, run);
  std::vector<Configuration> all;
  std::map<std::vector<std::string>, std::size_t> places;
  if (!summary.has(metric.column) || runs.empty()) return all;
  const RowTitles titles(summary, seed);
  const double wanted = wanted_share_of(runs.front().folder);
  for (const auto& row : summary.rows) {
    double value = 0;
    const auto run = by_id.find(row[0]);
    if (run == by_id.end() || !parse_real(row[summary.at(metric.column)], value)) continue;
    const std::vector<std::string> labels(row.begin() + 1, row.begin() + static_cast<std::ptrdiff_t>(seed));
    const auto [place, is_new] = places.emplace(labels, all.size());
    if (is_new) all.push_back({{row[0], titles.of(row), run->second.folder}, row[seed], {}, true});
    Configuration& own = all[place->second];
    own.values.push_back(value);
    own.attains = own.attains && attains(summary, row, wanted);
  }
  return all;
}

std::string best_text(const std::vector<Configuration>& all, const Configuration& best, const WhyMetric& metric) {
  std::vector<std::string> near;
  for (const Configuration& other : all)
    if (&other != &best && std::abs(other.mean() - best.mean()) <= other.half_width() + best.half_width())
      near.push_back(other.first.title);
  constexpr std::size_t kMostNamed = 4;
  const std::size_t more = near.size() > kMostNamed ? near.size() - kMostNamed : 0;
  near.resize(near.size() - more);
  std::string text = fmt::format("Best of {}: {}, {} {}", all.size(), best.first.title, metric.title(), metric.text_of(best.mean()));
  if (best.half_width() > 0) text += fmt::format(" +- {}", metric.text_of(best.half_width()));
  if (!near.empty())
    text += fmt::format("; {}: {}{}", best.values.size() > 1 ? "within its error" : "equal to it", join(near, ", "),
                        more > 0 ? fmt::format(" and {} more", more) : "");
  return text + ".";
}

// Explained seed and mean over all; "" for one seed.
std::string seed_text(const Configuration& c, const WhyMetric& metric) {
  if (c.values.size() < 2) return "";
  return fmt::format("Seed {} of {} is explained; {} over all is {} +- {}.", c.seed, c.values.size(), metric.title(),
                     metric.text_of(c.mean()), metric.text_of(c.half_width()));
}

}  // namespace

WhyMetric usual_metric_of(const std::vector<WhyRun>& runs) {
  for (const WhyRun& run : runs)  // a search without a result lacks the others' column
    if (const WhyMetric metric = usual_metric(run.folder); metric.family == WhyFamily::kSearch) return metric;
  return usual_metric(runs.front().folder);
}

std::vector<WhyRun> runs_to_explain(const fs::path& folder) {
  const View view = view_of_folder(folder).view;
  const CsvTable summary = shown_summary(folder);
  const RowTitles rows(summary, summary.at("seed") + 1);
  std::map<std::string, std::string> titles;
  for (const auto& row : summary.rows) titles.emplace(row[0], rows.of(row));
  std::vector<WhyRun> runs;
  std::set<std::string> seen;
  for (const ViewRow& row : view.rows)
    if (seen.insert(row.id).second) runs.push_back({row.id, titles[row.id], row.run});
  return runs;
}

WhyChoice choose_run(const fs::path& folder, const std::vector<WhyRun>& runs, const WhyMetric& metric) {
  const std::vector<Configuration> all = configurations_of(folder, runs, metric);
  if (all.empty()) return {runs.front(), ""};
  const auto best_of = [&](bool only_missing) -> const Configuration* {
    const Configuration* best = nullptr;
    for (const Configuration& c : all) {
      if (only_missing && c.attains) continue;
      if (best == nullptr || (metric.rises() ? c.mean() > best->mean() : c.mean() < best->mean())) best = &c;
    }
    return best;
  };
  const Configuration* const best = best_of(false);
  const Configuration* const missing = best->attains ? best_of(true) : nullptr;
  // The table names the cheapest hardware.
  const bool is_sizing = metric.column == "search_replicas" || metric.column == "search_tp";
  const Configuration& chosen = missing != nullptr ? *missing : *best;
  const std::string texts[] = {all.size() > 1 && !is_sizing ? best_text(all, *best, metric) : "", seed_text(chosen, metric)};
  return {chosen.first, texts[0] + (texts[0].empty() || texts[1].empty() ? "" : " ") + texts[1]};
}

}  // namespace kvlab
