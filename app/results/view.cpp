#include "app/results/view.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "app/results/safe_files.h"
#include "app/results/text_file.h"
#include "app/runs/kinds/run_kind.h"
#include "base/csv.h"

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
  std::vector<char> chunk(1 << 20);
  while (stream) {
    stream.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    out.write({chunk.data(), static_cast<std::size_t>(stream.gcount())});
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

}  // namespace kvlab
