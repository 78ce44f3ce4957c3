#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "sim/cost/collectives.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;
constexpr int kMaxRanks = 1 << 20;

// For lists of mappings, which Params does not read.
class TableNode {
 public:
  TableNode(const ConfigFile& config, const YAML::Node& node) : config_(config), node_(node) {
    if (!node.IsMap()) fail(node, "a table is a mapping: {op, library, version, ranks, points}");
    const std::vector<std::string> known{"op", "library", "version", "ranks", "points"};
    for (const auto& item : node)
      if (const std::string key = item.first.Scalar(); std::find(known.begin(), known.end(), key) == known.end())
        fail(item.first, "unknown key '" + key + "' of a table of collectives" + suggestion(key, known));
  }

  [[nodiscard]] CollectiveTable read() const {
    CollectiveTable t;
    std::vector<std::string> ops;
    for (const Collective op : kAllCollectives) ops.emplace_back(collective_name(op));
    const std::string op = text("op");
    if (!collective_of(op)) fail(node_["op"], "unknown collective '" + op + "'" + suggestion(op, ops));
    t.op = *collective_of(op);
    t.library = text("library");
    t.version = text("version");
    const YAML::Node ranks = needed("ranks");
    t.ranks = static_cast<int>(number(ranks, 2, kMaxRanks, "'ranks'"));
    read_points(t);
    return t;
  }

 private:
  [[noreturn]] void fail(const YAML::Node& at, const std::string& what) const {
    throw InputError(place(config_.name, at.Mark()) + ": " + what);
  }
  [[nodiscard]] std::string text(const char* key) const { return node_[key] && node_[key].IsScalar() ? node_[key].Scalar() : ""; }
  [[nodiscard]] YAML::Node needed(const char* key) const {
    const YAML::Node value = node_[key];
    if (!value) fail(node_, fmt::format("a table of collectives needs '{}'", key));
    return value;
  }
  [[nodiscard]] double number(const YAML::Node& node, double least, double most, const std::string& what) const {
    double value = 0;
    if (!node.IsScalar() || !parse_real(node.Scalar(), value)) fail(node, what + " is not a number");
    if (!(value >= least && value <= most)) fail(node, fmt::format("{} = {} is outside [{:g}, {:g}]", what, node.Scalar(), least, most));
    return value;
  }

  void read_points(CollectiveTable& t) const {
    constexpr double kMostBytes = 1e15, kMostNs = 1e12;
    std::vector<SampleGrid::Sample> samples;
    const YAML::Node points = needed("points");
    if (!points.IsSequence() || points.size() == 0) fail(points, "'points' is a list of [bytes, ns]");
    for (const auto& point : points) {
      if (!point.IsSequence() || point.size() != 2) fail(point, "a point is [bytes, ns]");
      const double bytes = number(point[0], 1, kMostBytes, "bytes"), ns = number(point[1], 1e-3, kMostNs, "ns");
      samples.push_back({{std::llround(bytes)}, ps_of_ns(ns), 0});
      t.places.push_back(place(config_.name, point.Mark()));
    }
    t.points = checked_grid(1, std::move(samples), t.places);
  }

  const ConfigFile& config_;
  YAML::Node node_;
};

void require_keys(const Params& p, const std::vector<std::string>& known) {
  for (const std::string& key : p.keys())
    if (std::find(known.begin(), known.end(), key) == known.end()) p.fail_at(key, "unknown key '" + key + "'" + suggestion(key, known));
}

std::vector<CollectiveTable> read_tables(const ConfigFile& config, const YAML::Node& tables) {
  if (!tables.IsSequence())
    throw InputError(place(config.name, tables.Mark()) + ": 'tables' is a list of {op, library, version, ranks, points}");
  std::vector<CollectiveTable> all;
  for (const auto& table : tables) all.push_back(TableNode(config, table).read());
  return all;
}

// Lines of the form `  - {op: OP, library: LIBRARY, version: "VERSION", ranks: N, points: [[BYTES, NS], ...]}`, for which YAML takes far
// longer than all else of a short run.
class TableLines {
 public:
  // `line`: number of the first one.
  TableLines(const std::string& file, std::string_view text, std::size_t line) : file_(file), rest_(text), line_(line) {}

  // nullopt: YAML has to read or to judge them.
  std::optional<std::vector<CollectiveTable>> read() {
    std::vector<CollectiveTable> all;
    for (; is_plain_ && !rest_.empty(); ++line_) all.push_back(next());
    return is_plain_ && !all.empty() ? std::optional(std::move(all)) : std::nullopt;
  }

 private:
  CollectiveTable next() {
    constexpr std::int64_t kMost = 1'000'000'000'000;
    const std::size_t begin = rest_.size();
    const std::optional<Collective> op = collective_of(word("  - {op: "));
    is_plain_ = is_plain_ && op.has_value();
    CollectiveTable t{op.value_or(Collective::kAllReduce), 0, word(", library: "), word(", version: \""), {}, {}};
    t.ranks = static_cast<int>(whole("\", ranks: ", 2, kMaxRanks));
    std::vector<SampleGrid::Sample> samples;
    for (take(", points: ["); is_plain_ && (samples.empty() || rest_.starts_with(',')); take("]")) {
      if (!samples.empty()) take(", ");
      t.places.push_back(fmt::format("{}:{}:{}", file_, line_, begin - rest_.size() + 1));
      const std::int64_t bytes = whole("[", samples.empty() ? 1 : samples.back().at[0] + 1, kMost), ns = whole(", ", 1, kMost);
      samples.push_back({{bytes}, ps_of_ns(static_cast<double>(ns)), 0});
    }
    take("]}\n");
    if (is_plain_) t.points = SampleGrid(1, std::move(samples));
    return t;
  }
  void take(std::string_view text) {
    is_plain_ = is_plain_ && rest_.starts_with(text);
    if (is_plain_) rest_.remove_prefix(text.size());
  }
  std::string word(std::string_view before) {
    take(before);
    const std::string_view text = rest_.substr(0, rest_.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._"));
    is_plain_ = is_plain_ && !text.empty();
    rest_.remove_prefix(text.size());
    return std::string(text);
  }
  std::int64_t whole(std::string_view before, std::int64_t least, std::int64_t most) {
    take(before);
    const std::string_view digits = rest_.substr(0, rest_.find_first_not_of("0123456789"));
    long long value = 0;
    is_plain_ = is_plain_ && parse_integer(digits, value) && value >= least && value <= most;
    rest_.remove_prefix(digits.size());
    return value;
  }

  const std::string& file_;
  std::string_view rest_;
  std::size_t line_;
  bool is_plain_ = true;
};

std::vector<CollectiveTable> read_file_of_tables(Params& p, const std::string& file, const std::string& card) {
  constexpr std::string_view kTables = "\ntables:\n";
  const std::string text = read_file(file, "a YAML file");
  const std::string head = text.substr(0, text.find(kTables));
  const auto line = static_cast<std::size_t>(std::count(head.begin(), head.end(), '\n')) + 3;
  auto tables = TableLines(file, std::string_view(text).substr(std::min(text.size(), head.size() + kTables.size())), line).read();
  const auto config = parse_config(tables ? head + "\ntables: []\n" : text, file);
  Params own(config, std::make_shared<Choices>(), "table of collectives '" + file + "'");
  require_keys(own, {"hardware", "source", "licence", "tables"});
  const std::string measured_on = own.text("hardware", "'name' of the card it was measured on");
  own.text("source", "where the figures come from");
  own.text("licence", "", "of the figures");
  if (!own.has("tables")) own.fail("a file of collectives needs 'tables'");
  const std::string stated = p.text("measured_on", card, "card that the table was measured on, where it is another one");
  if (measured_on != stated)
    throw InputError(fmt::format("{}: measured on '{}', and the hardware is '{}'; 'measured_on: \"{}\"' takes it all the same",
                                 place(file, config->root["hardware"].Mark()), measured_on, card, measured_on));
  return tables ? std::move(*tables) : read_tables(*config, config->root["tables"]);
}

std::string find_card_collectives(const ConfigFile& hardware, const std::string& named) {
  const std::string own = find_named_file(hardware, named);
  std::error_code error;
  return find_spec_file(fs::exists(own, error) ? own : named, profiles_folder() + "/collectives", "table of collectives");
}

}  // namespace

CollectiveTables read_card_collectives(Params& hardware, const ConfigFile& config, const std::string& card) {
  CollectiveTables all;
  if (!hardware.has("collectives")) return all;
  Params p = hardware.child_or_text("collectives", "file", "collectives");
  require_keys(p, {"file", "tables", "source", "measured_on", "missing"});
  all.falls_back = p.choice("missing", {{"error", false}, {"datasheet", true}}, false, "for ranks that an operation has no table of");
  if (p.has("tables")) {
    p.text("source", "where the figures come from");
    all.tables = read_tables(config, config.root["collectives"]["tables"]);
  } else {
    all.tables = read_file_of_tables(p, find_card_collectives(config, p.text("file", "a name in profiles/collectives, or a file")), card);
  }
  return all;
}

void read_collective_tables(const std::string& folder, int ranks, std::vector<CollectiveTable>& tables) {
  struct Rows {
    std::vector<SampleGrid::Sample> samples;
    std::vector<std::string> places;
  };
  for (const Collective op : kAllCollectives) {
    const std::string file = folder + "/" + collective_name(op) + ".csv";
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    const MeasuredTable csv(file);
    for (const char* elements : {"message_size", "elements"})
      if (!csv.has("bytes") && csv.has(elements))
        throw InputError(
            fmt::format("{}:1: '{}' counts elements in place of bytes? Give 'bytes', for example 2 for each bf16 element", file, elements));
    if (!csv.has("ranks") && ranks < 2) throw InputError(file + ":1: needs a column 'ranks'");
    const bool is_us = csv.has("time_us");
    const std::size_t bytes = csv.column("bytes"), time = csv.column(is_us ? "time_us" : "time_ns");
    const TimeUnit unit = is_us ? TimeUnit::kUs : TimeUnit::kNs;
    std::map<int, Rows> by_ranks;
    for (std::size_t row = 0; row < csv.num_rows(); ++row) {
      const auto over = csv.has("ranks") ? csv.count(row, csv.column("ranks")) : ranks;
      const std::int64_t size = csv.count(row, bytes);
      if (over < 2 || over > kMaxRanks) throw InputError(fmt::format("{}: 'ranks' = {}: 2 or more", csv.place(row), over));
      if (size < 1) throw InputError(csv.place(row) + ": 'bytes' = 0: a message has 1 or more");
      const double spread = csv.has("spread_frac") ? csv.real(row, csv.column("spread_frac")) : 0;
      Rows& rows = by_ranks[static_cast<int>(over)];
      rows.samples.push_back({{size}, csv.time(row, time, unit), spread});
      rows.places.push_back(csv.place(row));
    }
    for (auto& [over, rows] : by_ranks) {
      SampleGrid points = checked_grid(1, std::move(rows.samples), rows.places);
      tables.push_back({op, over, "", "", std::move(points), std::move(rows.places)});
    }
  }
}

}  // namespace kvlab
