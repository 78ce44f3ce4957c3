#include "app/runs/report/expectations.h"

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

}  // namespace kvlab
