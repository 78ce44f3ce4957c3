#include "app/accuracy_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "base/text.h"

namespace kvlab {

namespace {

struct GradedRow {
  std::string run, recipe, budget;
  std::map<std::string, std::pair<double, double>> tasks;  // right answers, answers
  double answers = 0, kl = 0, resident = 0;
};

double number_at(const CsvTable& t, std::size_t row, const char* column) {
  double value = 0;
  parse_real(t.rows[row][t.at(column)], value);
  return value;
}

}  // namespace

void print_accuracy(const CsvTable& summary, std::ostream& out) {
  std::vector<GradedRow> runs;
  std::vector<std::string> tasks;
  for (std::size_t i = 0; i < summary.rows.size(); ++i) {
    const std::string& run = summary.rows[i][0];
    const std::string& task = summary.rows[i][summary.at("task")];
    if (runs.empty() || runs.back().run != run) {
      const bool has_axis = summary.has("kv_policy.budget_tokens");
      GradedRow& r = runs.emplace_back();
      r.run = run;
      r.recipe = summary.rows[i][summary.at("recipe")];
      if (has_axis) r.budget = summary.rows[i][summary.at("kv_policy.budget_tokens")];
    }
    if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(task);
    GradedRow& r = runs.back();
    const double n = number_at(summary, i, "num_answers");
    r.tasks[task].first += n * number_at(summary, i, "exact_match_frac");
    r.tasks[task].second += n;
    r.answers += n;
    r.kl += n * number_at(summary, i, "kl_to_full");
    r.resident += n * number_at(summary, i, "resident_bytes_frac");
  }
  std::vector<std::string> header{"run", "recipe", "budget", "bytes", "kl"};
  header.insert(header.end(), tasks.begin(), tasks.end());
  header.emplace_back("mean");
  std::vector<std::vector<std::string>> rows;
  for (const GradedRow& r : runs) {
    std::vector<std::string> row{r.run, r.recipe, r.budget, fmt::format("{:.2f}", r.resident / r.answers),
                                 fmt::format("{:.3f}", r.kl / r.answers)};
    double mean = 0;
    for (const std::string& task : tasks) {
      const auto [right, all] = r.tasks.at(task);
      mean += right / all / static_cast<double>(tasks.size());
      row.push_back(fmt::format("{:.2f}", right / all));
    }
    row.push_back(fmt::format("{:.3f}", mean));
    rows.push_back(std::move(row));
  }
  out << text_table(header, rows);
  out << "shares of right answers, lengths pooled; bytes: resident share of the full cache; kl: nats per answer token to the full cache\n";
}

}  // namespace kvlab
