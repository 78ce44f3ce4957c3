#include "app/results/view.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "app/results/run_folder.h"
#include "app/results/safe_files.h"
#include "app/runs/kinds/run_kind.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/json_text.h"

namespace kvlab {

namespace fs = std::filesystem;

std::string axis_column(const std::string& path) { return path == "block_caches" ? "block_cache" : path; }

bool is_joined(const std::string& table, std::size_t num_runs) {
  return table.ends_with(".csv") || table.ends_with(".jsonl") || num_runs == 1;
}

bool has_tables_of(const ResultsFolder& folder, const std::vector<std::string>& run_ids) {
  std::vector<std::string> found;
  const auto add = [](std::vector<std::string>& ids, const std::string& id) {
    if (ids.empty() || ids.back() != id) ids.push_back(id);
  };
  try {
    for (const auto& row : read_csv(folder.path() / "summary.csv").rows) add(found, row[0]);
  } catch (const InputError&) {  // missing or broken
    return false;
  }
  std::vector<std::string> wanted;
  for (const std::string& id : run_ids) add(wanted, id);
  return found == wanted;
}

std::string runs_are(std::size_t count, const std::string& of) {
  return fmt::format("{} {}{} {}", count, count == 1 ? "run" : "runs", of.empty() ? "" : " of " + of, count == 1 ? "is" : "are");
}

std::set<std::string> included_runs(const fs::path& folder) {
  std::set<std::string> ids;
  const auto manifest = read_json_object<nlohmann::json>(folder / "manifest.json");
  if (!manifest.contains("runs") || !manifest["runs"].is_array()) return ids;
  for (const auto& run : manifest["runs"])
    if (run.is_object() && run.value("state", "") == "included") ids.insert(run.value("run", ""));
  return ids;
}

namespace {

constexpr const char* kOtherColumns = ": has other columns than the runs before it; tables join runs of one kind";

std::string first_line(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string line;
  std::getline(stream, line);
  return line;
}

// The longest; others must be prefixes of it.
std::string joined_header(const std::vector<fs::path>& parts) {
  std::vector<std::string> headers;
  std::transform(parts.begin(), parts.end(), std::back_inserter(headers), first_line);
  const std::string most =
      *std::max_element(headers.begin(), headers.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!headers[i].empty() && !(most + ",").starts_with(headers[i] + ",")) throw InputError(parts[i].string() + kOtherColumns);
  return most;
}

// A quoted field may span lines.
void append_padded(TextFile& out, std::ifstream& rows, const std::string& padding) {
  bool is_quoted = false;
  for (std::string line; std::getline(rows, line);) {
    if (std::count(line.begin(), line.end(), '"') % 2 == 1) is_quoted = !is_quoted;
    out.write(line + (is_quoted ? "" : padding) + "\n");
  }
}

// Pads rows to `header`; of other files, all lines.
void append_rows(TextFile& out, const fs::path& path, const std::string& header) {
  std::ifstream stream(path, std::ios::binary);
  std::string first;
  if (!std::getline(stream, first)) return;
  if (header.empty()) out.write(first + "\n");
  if (const auto lacks = std::count(header.begin(), header.end(), ',') - std::count(first.begin(), first.end(), ',');
      !header.empty() && lacks > 0)
    return append_padded(out, stream, std::string(static_cast<std::size_t>(lacks), ','));
  constexpr std::size_t kPiece = 1 << 20;
  const auto piece = std::make_unique_for_overwrite<char[]>(kPiece);
  while (stream) {
    stream.read(piece.get(), kPiece);
    out.write({piece.get(), static_cast<std::size_t>(stream.gcount())});
  }
}

// Order: run, axes, seed, other columns.
class SummaryJoin {
 public:
  SummaryJoin(const fs::path& path, std::vector<std::string> axes) : out_(path), axes_(std::move(axes)) {}

  void add(const ViewRow& run, const CsvTable& table) {
    std::vector<std::string> header = table.columns;
    if (header != columns_) choose(header, table.file);
    for (const auto& row : table.rows) {
      std::vector<std::string> joined{row[0]};
      joined.insert(joined.end(), run.labels.begin(), run.labels.end());
      for (const std::size_t c : kept_) joined.push_back(row[c]);
      out_.write(csv_line(joined));
    }
  }
  void close() { out_.close(); }

 private:
  void choose(const std::vector<std::string>& columns, const std::string& file) {
    kept_.clear();
    std::vector<std::string> header{columns[0]};
    header.insert(header.end(), axes_.begin(), axes_.end());
    for (std::size_t c = 1; c < columns.size(); ++c) {
      if (std::find(axes_.begin(), axes_.end(), columns[c]) != axes_.end()) continue;  // also an axis
      kept_.push_back(c);
      header.push_back(columns[c]);
    }
    if (columns_.empty())
      out_.write(csv_line(header));
    else if (header != header_)
      throw InputError(file + kOtherColumns);
    columns_ = columns;
    header_ = header;
  }

  TextFile out_;
  std::vector<std::string> axes_, columns_, header_;
  std::vector<std::size_t> kept_;
};

void join_summaries(const fs::path& fresh, const View& view) {
  SummaryJoin join(fresh, view.axes);
  for (const ViewRow& row : view.rows) join.add(row, read_csv(row.run / "summary.csv"));
  join.close();
}

// False if no run has the table.
bool join_table(const fs::path& fresh, const std::vector<fs::path>& parts) {
  if (parts.empty()) return false;
  std::error_code cannot_link;
  if (parts.size() == 1) fs::create_hard_link(parts[0], fresh, cannot_link);  // saves space
  if (parts.size() == 1 && !cannot_link) return true;
  TextFile out(fresh);
  const std::string header = parts[0].extension() == ".csv" ? joined_header(parts) : "";
  if (!header.empty()) out.write(header + "\n");
  for (const fs::path& part : parts) append_rows(out, part, header);
  out.close();
  return true;
}

std::string left_out_line(std::size_t count, const std::string& folder, const std::string& why) {
  return count == 0 ? "" : runs_are(count, folder) + " " + why + " and " + (count == 1 ? "is" : "are") + " left out\n";
}

// With a known experiment of its name if there is one.
std::string command_for(const std::string& folder) {
  const std::string name = fs::path(folder).filename().string();
  for (const fs::path& file : experiment_files())
    if (file.stem() == name) return fmt::format("kvlab run {}", file.string());
  return fmt::format("kvlab run FILE.yaml --out {}", folder);
}

}  // namespace

View view_of(const ResultsFolder& folder, const Experiment& experiment, const std::vector<std::size_t>& complete) {
  View view;
  for (const std::string& axis : experiment.axes) view.axes.push_back(axis_column(axis));
  for (const std::size_t i : complete) {
    const RunSpec& run = experiment.runs[i];
    view.rows.push_back({run.id, folder.runs() / run.id, run.labels});
  }
  return view;
}

void join_runs(ResultsFolder& folder, const View& view) {
  std::vector<const ViewRow*> runs;  // distinct
  std::set<std::string> seen;
  for (const ViewRow& row : view.rows)
    if (seen.insert(row.id).second) runs.push_back(&row);
  std::map<std::string, fs::path> fresh;
  const auto fresh_of = [&](const std::string& name) {
    const fs::path path = folder.fresh_of(name);
    kind_without_link(path);
    fs::remove(path);
    return path;
  };
  fresh["summary.csv"] = fresh_of("summary.csv");
  join_summaries(fresh["summary.csv"], view);
  for (const std::string& name : all_run_tables()) {
    std::vector<fs::path> parts;
    for (const ViewRow* const row : runs)
      if (const fs::path part = row->run / name; is_joined(name, runs.size()) && kind_of(part) == PathKind::kFile) parts.push_back(part);
    if (join_table(fresh_of(name), parts))
      fresh[name] = folder.fresh_of(name);
    else
      folder.remove(name);
  }
  folder.replace(fresh);
}

FolderView view_of_folder(const fs::path& folder) {
  if (kind_of(folder) != PathKind::kFolder) throw InputError(folder.string() + ": no such folder; kvlab run makes one");
  if (kind_of(folder / "summary.csv") != PathKind::kFile)
    throw InputError(folder.string() + ": holds no summary.csv, so no run of it has finished");
  const CsvTable summary = read_csv(folder / "summary.csv");
  const std::size_t num_axes = summary.at("seed") - 1;
  View view;
  std::size_t num_broken = 0, num_included = 0;
  const std::set<std::string> included = included_runs(folder);
  view.axes.assign(summary.columns.begin() + 1, summary.columns.begin() + 1 + static_cast<std::ptrdiff_t>(num_axes));
  std::set<std::pair<std::string, std::vector<std::string>>> seen;  // graded answers have several rows per run
  for (const auto& row : summary.rows) {
    const fs::path run = folder / "runs" / row[0];
    std::vector<std::string> labels(row.begin() + 1, row.begin() + 1 + static_cast<std::ptrdiff_t>(num_axes));
    if (!seen.insert({row[0], labels}).second) continue;
    if (const RunManifest manifest = read_run_manifest(run); manifest.is_ours() && manifest.is_finished && !manifest.is_numbered)
      view.rows.push_back({row[0], run, std::move(labels)});
    else
      ++(included.contains(row[0]) ? num_included : num_broken);
  }
  if (view.rows.empty()) throw InputError(folder.string() + ": holds no finished run");
  return {view, left_out_line(num_broken, folder.string(), "damaged or gone") +
                    left_out_line(num_included, folder.string(), "of results that it includes (name these folders, too)")};
}

std::size_t ViewUnion::add(const View& view, const std::string& origin) {
  std::set<std::string> known;
  for (const Part& part : parts_)
    for (const ViewRow& row : part.view.rows) known.insert(row.id);
  Part part{{view.axes, {}}, origin};
  for (const ViewRow& row : view.rows)
    if (!known.contains(row.id)) part.view.rows.push_back(row);
  const std::size_t left_out = view.rows.size() - part.view.rows.size();
  parts_.push_back(std::move(part));
  return left_out;
}

View ViewUnion::view() const {
  View all;
  all.axes = {kOriginAxis};
  for (const Part& part : parts_)
    for (const std::string& axis : part.view.axes)
      if (std::find(all.axes.begin(), all.axes.end(), axis) == all.axes.end()) all.axes.push_back(axis);
  for (const Part& part : parts_) {
    const auto& own = part.view.axes;
    const bool has_origin = !own.empty() && own[0] == kOriginAxis;  // already a union
    const bool has_all = own.size() + (has_origin ? 0 : 1) == all.axes.size();
    for (const ViewRow& row : part.view.rows) {
      const YAML::Node settings = has_all ? YAML::Node() : read_run_settings(row.run).tree;
      std::vector<std::string> labels;
      for (const std::string& axis : all.axes) {
        const auto found = std::find(own.begin(), own.end(), axis);
        labels.push_back(found != own.end()    ? row.labels[static_cast<std::size_t>(found - own.begin())]
                         : axis == kOriginAxis ? part.origin
                                               : name_in(node_at(settings, axis)));
      }
      all.rows.push_back({row.id, row.run, std::move(labels)});
    }
  }
  return all;
}

void require_included(const Experiment& experiment, const fs::path& own) {
  for (const IncludedResults& other : experiment.included) {
    std::error_code error;
    if (fs::equivalent(other.path, own, error))
      throw InputError(fmt::format("{}: 'include_results': '{}' is this experiment's own results folder: delete it from the list",
                                   other.place, other.folder));
    if (kind_of(other.path / "summary.csv") != PathKind::kFile)
      throw InputError(fmt::format("{}: 'include_results': there are no results in '{}': '{}' makes them", other.place, other.folder,
                                   command_for(other.folder)));
  }
}

std::string include_results(const Experiment& experiment, View& view) {
  if (experiment.included.empty()) return "";
  ViewUnion all;
  all.add(view, experiment.name);
  std::string remark;
  for (const IncludedResults& other : experiment.included) {
    const FolderView found = view_of_folder(other.path);
    if (!found.remark.empty()) remark += "note: " + found.remark;
    if (const std::size_t left_out = all.add(found.view, other.folder); left_out > 0)
      remark += fmt::format("note: {} in the tables already, and {} no second row\n", runs_are(left_out, other.folder),
                            left_out == 1 ? "has" : "have");
  }
  view = all.view();
  return remark;
}

}  // namespace kvlab
