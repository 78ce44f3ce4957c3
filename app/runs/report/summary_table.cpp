#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "app/runs/report/known_metrics.h"
#include "app/runs/report/report.h"
#include "app/runs/report/sizing_answer.h"
#include "base/text.h"

namespace kvlab {

namespace {

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

// "ttft/tpot".
std::string different_texts(const CsvTable& summary, const std::vector<std::size_t>& rows, std::size_t column) {
  std::vector<std::string> texts;
  for (const std::size_t r : rows) {
    const std::string& text = summary.rows[r][column];
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  }
  return join(texts, "/");
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
      if (some)
        mean[c] = all ? number_text(sum / static_cast<double>(rows.size())) : "";
      else
        mean[c] = different_texts(summary, rows, c);
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

}  // namespace

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

}  // namespace kvlab
