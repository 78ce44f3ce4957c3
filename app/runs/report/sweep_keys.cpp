#include "app/runs/report/sweep_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "app/results/results.h"
#include "app/runs/report/known_metrics.h"
#include "base/text.h"

namespace kvlab {

namespace {

std::string known_column(const Params& limits, const std::string& name) {
  const std::string column = column_of_heading(name);
  const std::vector<std::string>& known = known_metrics();
  if (std::find(known.begin(), known.end(), column) == known.end())
    limits.fail_at(name, fmt::format("'expect': no metric '{}'{}", name, did_you_mean(name, metrics_and_headings(known))));
  return column;
}

// Short, unless both would look equal.
std::string shown(double value, double other) {
  const std::string text = short_number(value);
  return text == short_number(other) && value != other ? number_text(value) : text;
}

struct Checked {
  std::string csv = "run,metric,bound,limit,value,met\n";
  std::vector<std::string> unmet;
};

void check_row(const CsvTable& table, const std::vector<std::string>& row, const Expectation& e, Checked& checked) {
  const std::string& text = row[table.at(e.metric)];
  double value = 0;
  const bool has_value = parse_real(text, value), is_met = has_value && (e.is_max ? value <= e.limit : value >= e.limit);
  checked.csv +=
      csv_line({row[0], e.metric, e.is_max ? "max" : "min", number_text(e.limit), has_value ? text : "", is_met ? "true" : "false"});
  if (is_met) return;
  const char* const sign = e.is_max ? ">" : "<";
  checked.unmet.push_back(has_value
                              ? fmt::format("run {}: {} {} {} {}", row[0], e.metric, shown(value, e.limit), sign, shown(e.limit, value))
                              : fmt::format("run {}: {} has no value, and {} is expected", row[0], e.metric,
                                            fmt::format("{} {}", e.is_max ? "at most" : "at least", short_number(e.limit))));
}

bool is_list(const Params& p, const std::string& key) { return p.inline_text(key, "").starts_with('['); }
bool is_mapping(const Params& p, const std::string& key) { return p.inline_text(key, "").starts_with('{'); }

std::vector<std::string> read_one_or_more(Params& p, const std::string& key, const std::string& meaning) {
  if (is_list(p, key)) return p.words(key, meaning);
  return {p.text(key, "", meaning)};
}

void read_pair(Params& p, const std::string& key, double low, double high, const std::string& meaning) {
  const std::vector<double> pair = p.numbers(key, low, high, meaning);
  if (p.has(key) && (pair.size() != 2 || (key != "size" && pair[0] >= pair[1])))
    p.fail_at(key, "'" + key + "': expected two numbers, " + (key == "size" ? "[width, height] in inches" : "the smaller one first"));
}

// {""} if no metrics are given.
std::vector<std::string> read_data(Params& f) {
  std::vector<std::string> metrics = read_one_or_more(f, "metric", "columns of summary.csv, or ttft, tpot, e2e with 'statistic'");
  f.text("statistic", "", "mean, p50, p90, p95, p99 or max over requests, or cdf: their distribution");
  f.text("x", "", "axis or column that runs from left to right");
  read_one_or_more(f, "series", "axes whose values have lines of their own; default: all that vary");
  f.text("panel", "", "axis whose values have panels of their own");
  f.optional<int>("max_lines", 12, 1, 100, "lines of one figure; the others are named in its note");
  if (is_mapping(f, "only")) {
    Params only = f.child("only", "only");
    for (const std::string& axis : only.keys()) read_one_or_more(only, axis, "values of this axis that are drawn");
  } else {
    read_one_or_more(f, "only", "legend entries that are drawn, in this order; or {AXIS: [values]}");
  }
  return metrics;
}

// For figures over two folders.
void read_join(Params& f) {
  f.text("join", "", "results folder of graded answers or of a replay that the figure joins with this experiment");
  f.choice("join_by", {"budget", "share"}, 0, "budgets are joined where they are equal, or keep the same share of the prompt");
}

void read_look(Params& f) {
  constexpr double kMost = 1e18;
  Params names = f.optional_child("names", "names");
  for (const std::string& name : names.keys()) names.text(name, "the name that the figure prints");
  read_pair(f, "size", 0.5, 40, "width and height in inches");
  for (const char* const key : {"title", "x_label", "y_label"}) f.text(key, "", "text in place of the usual one");
  for (const char* const key : {"x_range", "y_range"}) read_pair(f, key, -kMost, kMost, "both ends of the axis");
  for (const char* const key : {"x_scale", "y_scale"}) f.choice(key, {"", "linear", "log"}, 0, "scale of the axis");
  f.flag("slo_lines", true, "lines at the limits of the SLO");
  f.flag("legend", true, "the legend");
  f.flag("draw", true, "false: the figure is left out");
  read_one_or_more(f, "format", "pdf, png, pgf: files that are written");
}

constexpr const char* kAllFigures = "all";

// docs/figures.md. Additional files have a suffix, as `comparison_2`.
const std::vector<std::string>& usual_figures() {
  static const std::vector<std::string> all = words_in(
      "cdf_ttft cdf_tpot cdf_e2e attainment throughput_latency_ttft throughput_latency_tpot throughput_latency_e2e goodput timeline "
      "comparison serving_fidelity hit_ratio hit_ratio_tokens validation_error sim_vs_real validation_throughput validation_steps "
      "point_errors claims fidelity_bytes fidelity_attended fidelity_heads fidelity_steps accuracy_bytes accuracy_tasks frontier "
      "accuracy_serving fidelity_serving prefill_attention replay_predicts needles all");
  return all;
}

// Their data keys can be changed singly.
bool has_usual_data(const std::string& name) {
  return name.starts_with("cdf_") || name.starts_with("throughput_latency_") || name == "goodput" || name == "comparison";
}

// A usual figure, a common prefix of several, or an additional file.
bool is_usual(const std::string& name) {
  return std::any_of(usual_figures().begin(), usual_figures().end(), [&](const std::string& usual) {
    return name == usual || usual.starts_with(name + "_") || name.starts_with(usual + "_");
  });
}

void require_usual_or_own(const Params& figures, const std::string& name) {
  const Params figure = Params(figures).optional_child(name, name);
  if (figure.has("metric")) return;
  const std::string near = did_you_mean(name, usual_figures());
  const std::string known = near.empty() ? "; usual figures: " + join(usual_figures(), ", ") : near;
  for (const char* const key : {"statistic", "x", "series", "panel"})
    if (figure.has(key) && name != kAllFigures && !(is_usual(name) && has_usual_data(name)))
      figures.fail_at(name, fmt::format("a figure of your own, '{}', needs 'metric'{}", name, near));
  if (!is_usual(name)) figures.fail_at(name, fmt::format("no figure '{}'{}; one of your own needs 'metric'", name, known));
}

// Columns of summary.csv, axes, or latencies with a statistic.
void require_known_metrics(const Params& figure, const std::vector<std::string>& metrics, const Params& experiment) {
  if (!figure.has("metric")) return;
  std::vector<std::string> known = known_metrics();
  for (const char* const latency : {"ttft", "tpot", "itl", "e2e", "queueing", "jct"}) known.emplace_back(latency);
  for (const std::string& name : metrics) {
    const bool is_axis = name.find('.') != std::string::npos || experiment.has(name);
    if (is_axis || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = did_you_mean(name, metrics_and_headings(known));
    figure.fail_at("metric", fmt::format("no metric '{}'{}", name, near.empty() ? "; columns of summary.csv: docs/results.md" : near));
  }
}

}  // namespace

std::vector<Expectation> read_expectations(Params experiment) {
  constexpr double kMost = 1e18;
  std::vector<Expectation> all;
  Params limits = experiment.optional_child(kExpect, kExpect);
  for (const std::string& name : limits.keys()) {
    Params bounds = limits.child(name, "'expect: " + name + "'");
    const double least = bounds.optional<double>("min", -kMost, -kMost, kMost, "every run has at least this value");
    const double most = bounds.optional<double>("max", kMost, -kMost, kMost, "every run has at most this value");
    bounds.reject_unread();
    const std::string column = known_column(limits, name);
    if (!bounds.has("min") && !bounds.has("max"))
      limits.fail_at(name, fmt::format("'{}' needs a limit: {{max: 1000}} or {{min: 0.9}}", name));
    if (least > most) limits.fail_at(name, fmt::format("'{}': no value is at least {} and at most {}", name, least, most));
    if (bounds.has("max")) all.push_back({column, true, most});
    if (bounds.has("min")) all.push_back({column, false, least});
  }
  return all;
}

std::vector<Expectation> expectations_of(const Experiment& experiment) {
  const auto config = parse_config(experiment.text, experiment.file, experiment.overrides);
  return read_expectations(Params(config, std::make_shared<const Choices>(), "the experiment"));
}

std::size_t check_expectations(const Experiment& experiment, ResultsFolder& folder, std::ostream& err) {
  const std::vector<Expectation> all = expectations_of(experiment);
  if (all.empty()) {
    folder.remove(kExpectationsTable);
    return 0;
  }
  const CsvTable table = read_csv(folder.path() / "summary.csv");
  for (const Expectation& e : all)
    if (!table.has(e.metric))
      throw InputError(fmt::format("'expect': these runs have no metric '{}'{}", e.metric, did_you_mean(e.metric, table.columns)));
  Checked checked;
  for (const auto& row : table.rows)
    for (const Expectation& e : all) check_row(table, row, e, checked);
  folder.replace_texts({{kExpectationsTable, checked.csv}});
  for (const std::string& line : checked.unmet) err << "kvlab: " << line << "\n";
  return checked.unmet.size();
}

void check_figure_settings(Params experiment) {
  Params figures = experiment.child(kFigures, kFigures);
  for (const std::string& name : figures.keys()) {
    Params figure = figures.child(name, "the figure '" + name + "'");
    const std::vector<std::string> metrics = read_data(figure);
    read_join(figure);
    read_look(figure);
    figure.reject_unread();
    require_usual_or_own(figures, name);
    require_known_metrics(figure, metrics, experiment);
  }
}

}  // namespace kvlab
