#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/compare/compare.h"
#include "app/export/export_format.h"
#include "app/results/entry_labels.h"
#include "app/results/view.h"
#include "app/runs/report/known_metrics.h"
#include "base/config/params.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

struct PivotCommand {
  std::string folder;
  std::string rows, columns, metric;  // columns of summary.csv, or the last part of an axis' name; columns "": one column
  std::vector<std::string> where;     // "AXIS=VALUE" for further axes
  bool csv = false;
};

class SweepTable {
 public:
  explicit SweepTable(const std::filesystem::path& folder) : table_(read_csv(folder / "summary.csv")), seed_(table_.at("seed")) {}

  [[nodiscard]] const CsvTable& table() const { return table_; }
  [[nodiscard]] std::size_t seed() const { return seed_; }
  // Graded answers have a row per run, task and length.
  [[nodiscard]] bool is_axis(std::size_t column) const {
    return (column > 0 && column < seed_) || table_.columns[column] == "task" || table_.columns[column] == "length";
  }

  // By column, printed heading, or an axis' last part if unique.
  [[nodiscard]] std::size_t find(const std::string& name) const {
    if (table_.has(name)) return table_.at(name);
    std::vector<std::size_t> found;
    for (std::size_t c = 1; c < seed_; ++c)
      if (last_key(table_.columns[c]) == name) found.push_back(c);
    if (found.size() == 1) return found.front();
    if (const std::string column = column_of_heading(name); found.empty() && table_.has(column)) return table_.at(column);
    if (found.empty())
      throw InputError(fmt::format("{}: has no column '{}'{}", table_.file, name, suggestion(name, metrics_and_headings(table_.columns))));
    throw InputError(fmt::format("{}: '{}' may be {} or {}: write the whole name", table_.file, name, table_.columns[found[0]],
                                 table_.columns[found[1]]));
  }

  // "sarathi#2 of FOLDER" for ambiguous labels.
  void tell_apart(const EntryLabels& labels) {
    if (!table_.has(kOriginAxis)) return;
    const std::size_t origin = table_.at(kOriginAxis);
    for (std::size_t c = 1; c < seed_; ++c)
      for (auto& row : table_.rows)
        if (labels.is_ambiguous(table_.columns[c], row[c])) row[c] += " of " + row[origin];
  }

 private:
  CsvTable table_;
  std::size_t seed_;
};

std::vector<std::size_t> chosen_rows(const SweepTable& sweep, const std::vector<std::string>& where) {
  const CsvTable& table = sweep.table();
  std::vector<std::size_t> rows = all_rows(table);
  for (const std::string& condition : where) {
    const auto [axis, value] = axis_and_value(condition);
    const std::size_t column = sweep.find(axis);
    const std::vector<std::string> known = values_of(table, rows, column);
    std::erase_if(rows, [&, &wanted = value](std::size_t r) { return table.rows[r][column] != wanted; });
    if (rows.empty())
      throw InputError(
          fmt::format("{}: no run has {} = '{}'; its values: {}", table.file, table.columns[column], value, join(known, ", ")));
  }
  return rows;
}

// Averages over an axis are never implicit.
void refuse_varying(const SweepTable& sweep, const std::vector<std::size_t>& cell, std::size_t rows, std::size_t columns) {
  for (std::size_t c = 1; c < sweep.table().columns.size(); ++c) {
    if (!sweep.is_axis(c)) continue;
    const std::vector<std::string> values = values_of(sweep.table(), cell, c);
    if (c == rows || c == columns || values.size() < 2) continue;
    throw InputError(fmt::format("{}: {} varies within a cell ({}): make it --rows or --columns, or choose one by --where {}={}",
                                 sweep.table().file, sweep.table().columns[c], join(values, ", "), sweep.table().columns[c], values[0]));
  }
}

struct PivotCell {
  double mean = 0;
  std::optional<double> half_width;  // nullopt: one seed, or equal seeds
  std::string text;                  // of a metric that is not a number
  std::size_t seeds = 0;
};

PivotCell cell_of(const CsvTable& table, const std::vector<std::size_t>& rows, std::size_t metric) {
  PivotCell cell;
  std::vector<double> values;
  for (const std::size_t r : rows) {
    double value = 0;
    if (parse_real(table.rows[r][metric], value)) values.push_back(value);
  }
  if (values.size() < rows.size()) {  // a missing seed leaves no mean
    cell.text = values.empty() ? join(values_of(table, rows, metric), "/") : "";
    return cell;
  }
  cell.seeds = values.size();
  const PairedDifference of = paired_difference(std::vector<double>(values.size(), 0.0), values);
  cell.mean = of.mean;
  if (std::isfinite(of.half_width) && of.half_width > 0) cell.half_width = of.half_width;
  return cell;
}

std::string text_of(const PivotCell& cell, bool csv) {
  if (cell.seeds == 0) return cell.text;
  if (csv) return number_text(cell.mean);
  return short_number(cell.mean) + (cell.half_width ? " +- " + short_number(*cell.half_width) : "");
}

// By the values of both axes.
using Cells = std::map<std::pair<std::string, std::string>, std::vector<std::size_t>>;

struct Pivot {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> lines;
  std::size_t fewest_seeds = SIZE_MAX, most_seeds = 0;
  bool has_interval = false;
};

void add_line(Pivot& pivot, const CsvTable& table, const Cells& cells, const std::string& row, const std::vector<std::string>& columns,
              std::size_t metric, bool csv) {
  std::vector<std::string> line{row};
  for (const std::string& column : columns) {
    const auto found = cells.find({row, column});
    const PivotCell cell = found == cells.end() ? PivotCell{} : cell_of(table, found->second, metric);
    line.push_back(text_of(cell, csv));
    pivot.has_interval = pivot.has_interval || cell.half_width;
    if (cell.seeds == 0) continue;
    pivot.fewest_seeds = std::min(pivot.fewest_seeds, cell.seeds);
    pivot.most_seeds = std::max(pivot.most_seeds, cell.seeds);
  }
  pivot.lines.push_back(std::move(line));
}

std::string seeds_text(const Pivot& pivot) {
  if (pivot.most_seeds < 2) return "n = 1 seed";
  const std::string n = pivot.fewest_seeds == pivot.most_seeds ? std::to_string(pivot.most_seeds)
                                                               : fmt::format("{} to {}", pivot.fewest_seeds, pivot.most_seeds);
  return fmt::format("mean over n = {} seeds{}", n, pivot.has_interval ? ", +- half of the 95 % t-interval" : "; they change nothing");
}

// A cell is the mean over seeds; text adds the half width of its 95 % t-interval if seeds differ. Throws InputError for an unknown column
// or value, or an axis that varies within a cell.
std::string pivot_table(const PivotCommand& c) {
  SweepTable sweep(c.folder);
  const CsvTable& table = sweep.table();
  const std::size_t rows = sweep.find(c.rows), columns = c.columns.empty() ? rows : sweep.find(c.columns), metric = sweep.find(c.metric);
  const std::vector<std::size_t> chosen = chosen_rows(sweep, c.where);
  const EntryLabels labels = EntryLabels::of_folder(c.folder);
  sweep.tell_apart(labels);
  const bool is_flat = c.columns.empty();
  Cells cells;
  for (const std::size_t r : chosen) cells[{table.rows[r][rows], is_flat ? "" : table.rows[r][columns]}].push_back(r);
  for (const auto& [key, cell] : cells) refuse_varying(sweep, cell, rows, columns);
  const std::vector<std::string> across = is_flat ? std::vector<std::string>{""} : values_of(table, chosen, columns);
  const auto shown = [&](std::size_t column, const std::string& value) {
    return c.csv ? value : labels.shown(table.columns[column], value);
  };
  Pivot pivot;
  pivot.header = {table.columns[rows]};
  for (const std::string& value : across) pivot.header.push_back(is_flat ? table.columns[metric] : shown(columns, value));
  for (const std::string& row : values_of(table, chosen, rows)) {
    add_line(pivot, table, cells, row, across, metric, c.csv);
    pivot.lines.back()[0] = shown(rows, row);
  }
  if (c.csv) {
    std::string text = csv_line(pivot.header);
    for (const auto& line : pivot.lines) text += csv_line(line);
    return text;
  }
  const std::string over = is_flat ? "" : fmt::format(" over {}", table.columns[columns]);
  return fmt::format("{}{}; {}\n{}", table.columns[metric], over, seeds_text(pivot), text_table(pivot.header, pivot.lines));
}

struct ExportCommand {
  std::string folder, format, out;
  std::vector<std::string> runs;
  ExportOptions options;
};

void report_written(const ExportFolder& folder, std::ostream& out) {
  constexpr std::size_t kNamed = 4;
  const auto& files = folder.written();
  for (std::size_t i = 0; i < std::min(files.size(), kNamed); ++i) out << "wrote " << files[i].string() << "\n";
  for (const std::string& note : folder.notes()) out << "note: " << note << "\n";
  if (files.size() > kNamed) out << fmt::format("and {} more files in {}\n", files.size() - kNamed, folder.path().string());
}

void export_results(const ExportCommand& command, std::ostream& out) {
  Params none = Params::empty("export");
  const auto format = ExportFormatRegistry::make(command.format, none, "export format");
  const ExportSource source = read_export_source(command.folder, command.runs);
  if (source.num_included > 0)
    out << fmt::format("note: {} of results that it includes, and not exported: export them from their own folder\n",
                       runs_are(source.num_included, command.folder));
  const bool is_own = command.out.empty();
  ExportFolder folder(is_own ? fs::path(command.folder) / "export" / command.format : fs::path(command.out), is_own);
  if (!format->is_per_run() || source.runs.size() == 1) {
    format->write(source, command.options, folder);
    report_written(folder, out);
    return;
  }
  for (const ExportedRun& run : source.runs) {
    ExportFolder below = folder.below(run.id);
    format->write({source.folder, source.experiment, {run}}, command.options, below);
    report_written(below, out);
  }
}

}  // namespace

void add_pivot_command(CLI::App& app, Command& chosen) {
  CLI::App* const pivot = app.add_subcommand("pivot", "one metric of a sweep as a table over two of its axes");
  auto& c = arguments_of<PivotCommand>(*pivot);
  pivot->add_option("folder", c.folder, "results folder")->required()->check(offers(Offer::kResults));
  pivot->add_option("--rows", c.rows, "axis of the sweep, by its column in summary.csv or the last part of that")
      ->required()
      ->check(offers(Offer::kAxes));
  pivot->add_option("--columns", c.columns, "another axis; default: one column")->check(offers(Offer::kAxes));
  pivot->add_option("--metric", c.metric, "column of summary.csv, or its heading in the printed table")
      ->required()
      ->check(offers(Offer::kMetrics));
  repeated(pivot->add_option("--where", c.where, "AXIS=VALUE of the runs to take; may be repeated"), Offer::kAxisValues);
  pivot->add_flag("--csv", c.csv, "as CSV, without intervals");
  choose(pivot, chosen, c, pivot_table);
}

void add_export_command(CLI::App& app, Command& chosen) {
  CLI::App* const one = app.add_subcommand("export", "write results in the format of another tool (docs/exchange.md)");
  auto& c = arguments_of<ExportCommand>(*one);
  one->add_option("folder", c.folder, "results folder")->required()->check(offers(Offer::kResults));
  one->add_option("--format", c.format, join(ExportFormatRegistry::names(), ", "))
      ->required()
      ->check(offers(Offer::kNames, "export_formats"));
  repeated(one->add_option("--run", c.runs, "ID of a run, as in summary.csv; may be repeated; default: all of the newest sweep"),
           Offer::kRuns);
  one->add_option("--out", c.out,
                  "folder to write; files in it are not replaced; default: RESULTS/export/FORMAT, a folder per run of several");
  one->add_option("--start", c.options.start_s, "instant at which the simulation starts, in seconds since 1970; default: 0")
      ->check(CLI::Range(0.0, 9e9));
  choose(one, chosen, c, export_results);
}

}  // namespace kvlab
