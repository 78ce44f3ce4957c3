#include "app/why/why.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "app/results/run_settings.h"
#include "app/results/safe_files.h"
#include "app/results/text_file.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/sweep/stop_signals.h"
#include "app/why/explanation.h"
#include "app/why/why_runs.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

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
  return node_at(settings.tree, "slo").IsDefined() || node_at(settings.tree, "search").IsDefined();
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
