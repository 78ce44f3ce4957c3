#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "app/runs/report/known_metrics.h"
#include "app/runs/report/report.h"
#include "base/text.h"

namespace kvlab {

namespace {

struct GradedRow {
  std::string run, recipe, budget;
  std::vector<std::string> others;                         // other varying axes
  std::map<std::string, std::pair<double, double>> tasks;  // (right, total)
  double answers = 0, kl = 0, resident = 0;
};

double number_at(const CsvTable& t, std::size_t row, std::size_t column) {
  double value = 0;
  parse_real(t.rows[row][column], value);
  return value;
}

bool varies(const CsvTable& t, std::size_t column) {
  return std::any_of(t.rows.begin(), t.rows.end(), [&](const auto& row) { return row[column] != t.rows[0][column]; });
}

// Varying ones without their own column.
std::vector<std::size_t> other_axes(const CsvTable& summary) {
  std::vector<std::size_t> axes;
  for (std::size_t c = 1; c <= summary.at("seed"); ++c) {
    const std::string& name = summary.columns[c];
    const bool is_shown = name == "kv_policy" || name == "kv_policy.recipe" || name == "kv_policy.budget_tokens";
    if (!is_shown && varies(summary, c)) axes.push_back(c);
  }
  return axes;
}

// With a listed policy's changes to its recipe: '512 allocator pyramid'.
std::string budget_of(const CsvTable& summary, const std::vector<std::string>& row, const std::string& recipe) {
  std::string budget = summary.has("kv_policy.budget_tokens") ? row[summary.at("kv_policy.budget_tokens")] : "";
  const std::string policy = summary.has("kv_policy") ? row[summary.at("kv_policy")] : "";
  if (policy.find(' ') == std::string::npos) return budget;
  return budget + (budget.empty() ? "" : " ") + (policy.starts_with(recipe + " ") ? policy.substr(recipe.size() + 1) : policy);
}

std::vector<GradedRow> rows_of(const CsvTable& summary, const std::vector<std::size_t>& others) {
  const std::size_t task = summary.at("task"), answers = summary.at("num_answers"), right = summary.at("exact_match_frac"),
                    kl = summary.at("kl_to_full"), resident = summary.at("resident_bytes_frac");
  std::vector<GradedRow> runs;
  for (std::size_t i = 0; i < summary.rows.size(); ++i) {
    const std::vector<std::string>& row = summary.rows[i];
    if (runs.empty() || runs.back().run != row[0]) {
      const std::string& recipe = row[summary.at("recipe")];
      runs.push_back({row[0], recipe, budget_of(summary, row, recipe), {}, {}});
      for (const std::size_t axis : others) runs.back().others.push_back(row[axis]);
    }
    GradedRow& r = runs.back();
    const double n = number_at(summary, i, answers);
    r.tasks[row[task]].first += n * number_at(summary, i, right);
    r.tasks[row[task]].second += n;
    r.answers += n;
    r.kl += n * number_at(summary, i, kl);
    r.resident += n * number_at(summary, i, resident);
  }
  return runs;
}

std::vector<std::string> tasks_of(const CsvTable& summary) {
  std::vector<std::string> tasks;
  for (const auto& row : summary.rows)
    if (const std::string& task = row[summary.at("task")]; std::find(tasks.begin(), tasks.end(), task) == tasks.end())
      tasks.push_back(task);
  return tasks;
}

// A task without samples is a dash and not in the mean.
std::vector<std::string> cells_of(const GradedRow& r, const std::vector<std::string>& tasks) {
  std::vector<std::string> cells{r.run, r.recipe, r.budget};
  cells.insert(cells.end(), r.others.begin(), r.others.end());
  cells.push_back(fmt::format("{:.2f}", r.resident / r.answers));
  cells.push_back(fmt::format("{:.3f}", r.kl / r.answers));
  double mean = 0;
  for (const std::string& task : tasks) {
    const auto found = r.tasks.find(task);
    if (found == r.tasks.end()) {
      cells.emplace_back("-");
      continue;
    }
    const auto [right, all] = found->second;
    mean += right / all / static_cast<double>(r.tasks.size());
    cells.push_back(fmt::format("{:.2f}", right / all));
  }
  cells.push_back(fmt::format("{:.3f}", mean));
  return cells;
}

}  // namespace

void print_accuracy(const CsvTable& summary, std::ostream& out) {
  if (summary.rows.empty()) return;
  const std::vector<std::size_t> others = other_axes(summary);
  const std::vector<std::string> tasks = tasks_of(summary);
  std::vector<std::string> header{"run", "recipe", "budget"};
  for (const std::size_t axis : others) header.push_back(last_key(summary.columns[axis]));
  header.insert(header.end(), {"bytes", "kl"});
  header.insert(header.end(), tasks.begin(), tasks.end());
  header.emplace_back("mean");
  std::vector<std::vector<std::string>> rows;
  for (const GradedRow& r : rows_of(summary, others)) rows.push_back(cells_of(r, tasks));
  out << text_table(header, rows);
  out << "shares of right answers, lengths pooled; bytes: resident share of the full cache; kl: nats per token to the full cache, a mean "
         "of tasks and lengths weighted by their answers\n";
}

}  // namespace kvlab
