#include "app/why/why.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>
#include <set>
#include <vector>

#include "app/results/entry_labels.h"
#include "app/results/run_folder.h"
#include "app/results/safe_files.h"
#include "app/results/view.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/report/report.h"
#include "app/runs/sweep/progress.h"
#include "app/runs/sweep/score_interval.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

struct WhyRun {
  std::string id, title;  // title: "scheduler=sarathi seed=2"; "" for a single run
  std::filesystem::path folder;
};

// The best configuration's first run, or if that attains its SLO, the best run that does not. best: "Best of 5: scheduler=sarathi, P99 TTFT
// 1.2 s; ...", or "".
struct WhyChoice {
  WhyRun run;
  std::string best;
};

namespace fs = std::filesystem;

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

// For the first run, or the result of the first successful search.
WhyMetric usual_metric_of(const std::vector<WhyRun>& runs) {
  for (const WhyRun& run : runs)  // a search without a result lacks the others' column
    if (const WhyMetric metric = usual_metric(run.folder); metric.family == WhyFamily::kSearch) return metric;
  return usual_metric(runs.front().folder);
}

// Newest sweep in grid order, without repetition. Throws InputError without results or a finished run.
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

const WhyRun& find_run(const std::vector<WhyRun>& runs, const WhyCommand& command) {
  std::vector<std::string> ids;
  for (const WhyRun& run : runs) {
    if (run.id == command.run) return run;
    ids.push_back(run.id);
  }
  throw InputError(fmt::format("--run: {} has no run '{}'{}; the first column of its summary.csv has them", command.folder, command.run,
                               did_you_mean(command.run, ids)));
}

std::pair<std::vector<WhyRun>, std::string> chosen_runs(const WhyCommand& command) {
  const std::vector<WhyRun> runs = runs_to_explain(command.folder);
  if (command.every) return {runs, ""};
  if (!command.run.empty()) return {{find_run(runs, command)}, ""};
  const WhyMetric metric = command.metric.empty() ? usual_metric_of(runs) : parse_why_metric(command.metric);
  WhyChoice choice = choose_run(command.folder, runs, metric);
  return {{choice.run}, choice.best};
}

Explanation explain_one(const WhyRun& run, const WhyCommand& command) {
  const WhyMetric metric = command.metric.empty() ? usual_metric(run.folder) : parse_why_metric(command.metric);
  Explanation e = explain(run.folder, run.title, metric, command.tries);
  if (command.tries) add_tries(run.folder, command.seconds, e);
  return e;
}

std::string text_of(const Explanation& e, const std::string& folder) {
  std::string text = e.title.empty() ? "" : fmt::format("{} ({}):\n", e.title, e.run);
  for (const std::string& line : lines_of(e)) text += line + "\n";
  if (e.tried.empty() && e.skipped.empty() && !e.is_end_of_range)
    text += fmt::format("What would help: kvlab why {} --run {}\n", folder, e.run);
  return text;
}

void write_to(const std::string& path, const std::string& text, std::ostream& out) {
  if (path.empty()) {
    out << text;
    return;
  }
  replace_file(path, text);
  out << "wrote " << path << "\n";
}

bool is_asked(const fs::path& run) {
  const RunSettings settings = read_run_settings(run);
  return settings.has("slo") || settings.has("search");
}

}  // namespace

int explain_results(const WhyCommand& command, std::ostream& out) {
  if (!command.metric.empty()) static_cast<void>(parse_why_metric(command.metric));
  const StopSignals signals;
  const auto [runs, best] = chosen_runs(command);
  std::string text = best.empty() || command.json ? "" : best + "\n";
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  try {
    for (const WhyRun& run : runs) {
      const Explanation e = explain_one(run, command);
      if (command.json)
        all.push_back(json_of(e));
      else
        text += text_of(e, command.folder);
    }
  } catch (const Interrupted&) {
    return 130;
  }
  if (command.json) text = nlohmann::ordered_json{{"best", best}, {"runs", all}}.dump(1) + "\n";
  write_to(command.out, text, out);
  return 0;
}

void print_short_explanation(const fs::path& folder, std::ostream& out) {
  constexpr std::uintmax_t kMostBytes = 64 << 20;  // of requests.csv
  try {
    const std::vector<WhyRun> runs = runs_to_explain(folder);
    if (!is_asked(runs.front().folder)) return;
    const WhyChoice choice = choose_run(folder, runs, usual_metric_of(runs));
    const fs::path requests = choice.run.folder / "requests.csv";
    if (!fs::exists(requests) || fs::file_size(requests) > kMostBytes) return;
    const Explanation e = explain(choice.run.folder, choice.run.title, usual_metric(choice.run.folder), false);
    if (!choice.best.empty()) out << choice.best << "\n";
    const std::vector<std::string> lines = lines_of(e);
    out << fmt::format("why{}: {}\n", e.title.empty() ? "" : fmt::format(" ({})", e.title), join(lines, "\n  "));
    out << fmt::format("  What would help: kvlab why {}{}\n", folder.string(), runs.size() > 1 ? " --run " + e.run : "");
  } catch (const InputError&) {  // a file cannot be read; the table was printed
  }
}

}  // namespace kvlab
