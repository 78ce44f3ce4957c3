#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <ostream>
#include <vector>

#include "app/runs/report/known_metrics.h"
#include "app/runs/report/report.h"
#include "base/text.h"

namespace kvlab {

namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kMaxTableRows = 40;

bool follows_from_recipe(const CsvTable& summary, std::size_t axis) {
  std::map<std::string, std::string> value_of;  // recipe -> value
  const std::size_t recipe = summary.at("recipe");
  return std::all_of(summary.rows.begin(), summary.rows.end(),
                     [&](const auto& row) { return value_of.emplace(row[recipe], row[axis]).first->second == row[axis]; });
}

// Varying axes and seed, then metrics with values.
std::vector<std::size_t> shown_columns(const CsvTable& summary, std::size_t num_axes, const std::vector<std::string>& metrics) {
  const auto varies = [&](std::size_t c) {
    return std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return row[c] != summary.rows[0][c]; });
  };
  const auto has_value = [&](std::size_t c) {
    return std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return !row[c].empty(); });
  };
  std::vector<std::size_t> shown{0};
  const bool has_recipe = summary.has("recipe");
  if (has_recipe) shown.push_back(summary.at("recipe"));
  for (std::size_t c = 1; c <= num_axes + 1; ++c) {
    const bool is_policy = summary.columns[c] == "kv_policy" || summary.columns[c] == "kv_policy.recipe";
    if (has_recipe && is_policy && follows_from_recipe(summary, c)) continue;
    if (varies(c) || summary.rows[0][c].find(" seed") != std::string::npos) shown.push_back(c);
  }
  for (const std::string& column : metrics) {
    if (summary.has(column) && has_value(summary.at(column))) shown.push_back(summary.at(column));
  }
  return shown;
}

bool are_equal_from(std::size_t column, const CsvTable& table, const std::vector<std::size_t>& rows) {
  const auto from = static_cast<std::ptrdiff_t>(column);
  return std::all_of(rows.begin(), rows.end(), [&](std::size_t r) {
    return std::equal(table.rows[r].begin() + from, table.rows[r].end(), table.rows[rows[0]].begin() + from);
  });
}

// The seed column has the number of seeds.
CsvTable mean_over_seeds(const CsvTable& summary, std::size_t num_axes) {
  CsvTable means{summary.file, summary.columns, {}, {}};
  std::map<std::vector<std::string>, std::vector<std::size_t>> groups;
  std::vector<std::vector<std::string>> order;
  for (std::size_t r = 0; r < summary.rows.size(); ++r) {
    const std::vector<std::string> key(summary.rows[r].begin() + 1, summary.rows[r].begin() + 1 + static_cast<std::ptrdiff_t>(num_axes));
    if (!groups.contains(key)) order.push_back(key);
    groups[key].push_back(r);
  }
  for (const auto& key : order) {
    const std::vector<std::size_t>& rows = groups[key];
    std::vector<std::string> mean = summary.rows[rows[0]];
    const bool are_alike = rows.size() > 1 && are_equal_from(num_axes + 2, summary, rows);
    mean[num_axes + 1] = fmt::format("{} seed{}{}", rows.size(), rows.size() == 1 ? "" : "s", are_alike ? ", alike: n = 1" : "");
    if (are_alike) {
      means.rows.push_back(std::move(mean));
      continue;
    }
    for (std::size_t c = num_axes + 2; c < mean.size(); ++c) {
      double sum = 0, value = 0;
      bool all = true, some = false;
      for (const std::size_t r : rows) {
        const bool is_number = parse_real(summary.rows[r][c], value);
        all = all && is_number, some = some || is_number;
        sum += value;
      }
      // A seed without a value leaves no mean.
      std::vector<std::string> texts = values_of(summary, rows, c);
      std::erase(texts, "");
      mean[c] = !some ? join(texts, "/") : all ? number_text(sum / static_cast<double>(rows.size())) : "";
    }
    means.rows.push_back(std::move(mean));
  }
  return means;
}

// If unique.
std::string short_title(const std::vector<std::string>& columns, std::size_t at) {
  const std::string heading = heading_of(columns[at]);
  return heading != columns[at] ? heading : short_path(columns[at], columns);
}

// Columns index summary.csv.
class PrintedTable {
 public:
  PrintedTable(const CsvTable& summary, std::size_t num_axes, std::vector<std::size_t> shown)
      : summary_(summary), num_axes_(num_axes), shown_(std::move(shown)) {}

  // From the end; columns on the binding limit stay. Returns the dropped names.
  std::vector<std::string> narrow_to(std::size_t most) {
    std::vector<std::string> left_out;
    while (width() > most) {
      const auto at = std::find_if(shown_.rbegin(), shown_.rend(), [&](std::size_t c) { return is_metric(c); });
      if (at == shown_.rend()) break;
      left_out.insert(left_out.begin(), summary_.columns[*at]);
      shown_.erase(std::next(at).base());
    }
    return left_out;
  }

  [[nodiscard]] std::string text() const {
    std::vector<std::string> header;
    for (const std::size_t c : shown_) header.push_back(short_title(summary_.columns, c));
    std::vector<std::vector<std::string>> rows;
    for (std::size_t r = 0; r < num_rows(); ++r) {
      std::vector<std::string> row;
      for (const std::size_t c : shown_) row.push_back(cell(r, c));
      rows.push_back(std::move(row));
    }
    return text_table(header, rows);
  }

 private:
  [[nodiscard]] std::size_t num_rows() const { return std::min(summary_.rows.size(), kMaxTableRows); }
  [[nodiscard]] bool is_metric(std::size_t c) const {
    const std::string& name = summary_.columns[c];
    return c > num_axes_ + 1 && name != "recipe" && name != "binding_limit" && name != "waits_for";
  }
  [[nodiscard]] std::string cell(std::size_t r, std::size_t c) const {
    return c <= num_axes_ + 1 ? summary_.rows[r][c] : short_number(summary_.rows[r][c]);
  }
  [[nodiscard]] std::size_t width() const {
    std::size_t sum = 0;
    for (const std::size_t c : shown_) {
      std::size_t widest = short_title(summary_.columns, c).size();
      for (std::size_t r = 0; r < num_rows(); ++r) widest = std::max(widest, cell(r, c).size());
      sum += widest + 2;
    }
    return sum - 2;
  }

  const CsvTable& summary_;
  std::size_t num_axes_;
  std::vector<std::size_t> shown_;
};

struct GradedRow {
  std::string run, recipe, budget;
  std::vector<std::string> others;                         // other varying axes
  std::map<std::string, std::pair<double, double>> tasks;  // (right, total)
  double answers = 0, kl = 0, resident = 0;
};

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
    const double n = real_or(row[answers], 0);
    r.tasks[row[task]].first += n * real_or(row[right], 0);
    r.tasks[row[task]].second += n;
    r.answers += n;
    r.kl += n * real_or(row[kl], 0);
    r.resident += n * real_or(row[resident], 0);
  }
  return runs;
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

RowTitles::RowTitles(const CsvTable& summary, std::size_t end) : summary_(summary) {
  for (std::size_t c = 1; c < end; ++c)
    if (std::any_of(summary.rows.begin(), summary.rows.end(), [&](const Row& row) { return row[c] != summary.rows[0][c]; }))
      varying_.push_back(c);
}

std::string RowTitles::of(const Row& row) const {
  std::vector<std::string> parts;
  for (const std::size_t c : varying_) parts.push_back(fmt::format("{}={}", last_key(summary_.columns[c]), row[c]));
  return join(parts, " ");
}

std::string put_answer_first(CsvTable& summary, std::size_t num_axes) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const auto number = [&](const Row& row, const char* column) {
    return summary.has(column) ? real_or(row[summary.at(column)], kNone) : kNone;
  };
  const auto attains = [&](const Row& row) { return std::min(number(row, "search_replicas"), number(row, "search_tp")) < kNone; };
  const auto attaining = std::count_if(summary.rows.begin(), summary.rows.end(), attains);
  if (summary.rows.size() < 2 || attaining == 0) return "";  // no search for hardware
  std::stable_sort(summary.rows.begin(), summary.rows.end(), [&](const Row& a, const Row& b) {
    if (attains(a) != attains(b)) return attains(a);
    const double price_a = number(a, "dollars_per_million_tokens"), price_b = number(b, "dollars_per_million_tokens");
    return price_a != price_b ? price_a < price_b : number(a, "gpus") < number(b, "gpus");
  });
  const Row& best = summary.rows.front();
  const auto field = [&](const char* column) { return summary.has(column) ? short_number(best[summary.at(column)]) : std::string(); };
  const bool has_price = !field("dollars_per_million_tokens").empty();
  std::vector<std::string> facts{RowTitles(summary, num_axes + 1).of(best)};
  if (!field("search_replicas").empty()) facts.push_back(field("search_replicas") + " replicas");
  if (!field("search_tp").empty()) facts.push_back("tp " + field("search_tp"));
  facts.push_back(field("gpus") + " GPUs");
  if (has_price) facts.push_back(fmt::format("${} per 1M tokens", field("dollars_per_million_tokens")));
  return fmt::format("answer: {} of {} attain; {}: {}\n", attaining, summary.rows.size(),
                     has_price ? "the cheapest" : "with the fewest GPUs", join(facts, ", "));
}

void print_table(const SweepReport& report, const std::vector<std::string>& metrics, std::ostream& out) {
  constexpr std::size_t kMostWidth = 160;
  const std::size_t num_axes = report.num_axes;
  CsvTable summary = report.has_seeds ? mean_over_seeds(report.summary, num_axes) : report.summary;
  const std::string answer = put_answer_first(summary, num_axes);
  PrintedTable table(summary, num_axes, shown_columns(summary, num_axes, metrics));
  const std::vector<std::string> left_out = table.narrow_to(kMostWidth);
  out << table.text() << answer;
  if (!left_out.empty()) out << fmt::format("also in summary.csv: {}\n", join(left_out, ", "));
  if (summary.rows.size() > kMaxTableRows) out << fmt::format("... {} more runs in summary.csv\n", summary.rows.size() - kMaxTableRows);
}

void print_accuracy(const CsvTable& summary, std::ostream& out) {
  if (summary.rows.empty()) return;
  const std::vector<std::size_t> others = other_axes(summary);
  const std::vector<std::string> tasks = values_of(summary, all_rows(summary), summary.at("task"));
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
