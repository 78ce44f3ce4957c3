#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
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

std::vector<CollectiveTable> read_file_of_tables(Params& p, const std::string& file, const std::string& card) {
  const auto config = load_config(file);
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
  return read_tables(*config, config->root["tables"]);
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
