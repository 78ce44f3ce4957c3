#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "base/text.h"
#include "sim/cost/collectives.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;
const std::vector<std::string> kReads{"stored", "decoded", "unpacked"};  // of KvReads
const std::vector<std::string> kSkewAxes{"rows", "skew", "longest", "before"};

const std::vector<OpFamily> kAxes{OpFamily::kTokens, OpFamily::kSequences};

std::string file_of(const std::string& folder, OpFamily family) { return folder + "/" + std::string(table_of(family)) + ".csv"; }

void write_grid(const std::string& file, const std::vector<std::string>& columns, const SampleGrid& grid) {
  if (grid.empty()) return;
  std::string text = join(columns, ",") + ",time_ns,spread_frac\n";
  for (const SampleGrid::Sample& s : grid.samples()) {
    for (std::size_t i = 0; i < columns.size(); ++i) text += std::to_string(s.at[i]) + ",";
    text += ns_text(s.time) + "," + number_text(s.spread_frac) + "\n";
  }
  write_file(file, text);
}

void write_collectives(const std::vector<CollectiveTable>& all, const std::string& folder) {
  for (const Collective op : kAllCollectives) {
    std::string text;
    for (const CollectiveTable& t : all)
      for (const SampleGrid::Sample& s : t.points.samples())
        if (t.op == op) text += fmt::format("{},{},{},{}\n", t.ranks, s.at[0], ns_text(s.time), number_text(s.spread_frac));
    if (!text.empty()) write_file(folder + "/" + collective_name(op) + ".csv", "ranks,bytes,time_ns,spread_frac\n" + text);
  }
}

SampleGrid read_grid(const std::string& file, const std::vector<std::string>& columns) {
  return MeasuredTable(file).grid(columns, "time_ns", TimeUnit::kNs, "spread_frac");
}

SampleGrid read_grid_if_there(const std::string& file, const std::vector<std::string>& columns) {
  std::error_code error;
  return fs::exists(file, error) ? read_grid(file, columns) : SampleGrid();
}

std::string quoted(const std::string& text) {
  std::string safe = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') safe += '\\';
    safe += c;
  }
  return safe + "\"";
}

std::string meta_text(const Profile& p) {
  std::string text = fmt::format("schema_version: {}\ntime_unit: ns\n", kProfileSchema);
  text += fmt::format("device: {}\nhardware: {}\nmodel: {}\nmeasured: {}\nsource: {}\n", quoted(p.device), quoted(p.hardware),
                      quoted(p.model), quoted(p.measured), quoted(p.source));
  if (p.tile_rows != Profile{}.tile_rows) text += fmt::format("tile_rows: {}\n", p.tile_rows);
  if (!p.attention_has_append) text += "attention_has_append: false\n";
  if (p.kv_reads != KvReads::kStored) text += fmt::format("kv_reads: {}\n", kReads[static_cast<std::size_t>(p.kv_reads)]);
  text += "host_time_ns: " + ns_text(p.host_time) + "\noptions:\n";
  for (const auto& [key, value] : p.options) text += "  " + key + ": " + quoted(value) + "\n";
  return text;
}

// tp<N>/ops.yaml, in the order of sums.
std::string ops_text(const Profile& p) {
  std::string text;
  for (const ProfileOp& op : p.ops)
    text += fmt::format("{}: {{covers: {}, axis: {}, per_layer: {}}}\n", op.name, op.covers, columns_of(op.axis).front(), op.per_layer);
  return text.empty() ? "{}\n" : text;
}

std::string skew_meta_text(const SkewTable& skew) {
  std::string text = "alpha_default: " + number_text(skew.alpha_default()) + "\n";
  for (std::size_t i = 0; i < kSkewAxes.size(); ++i) {
    std::vector<std::string> edges, labels;
    for (const double edge : skew.axis(i).edges) edges.push_back(number_text(edge));
    for (const std::string& label : skew.axis(i).labels) labels.push_back(quoted(label));
    text += kSkewAxes[i] + ": {edges: [" + join(edges, ", ") + "], labels: [" + join(labels, ", ") + "]}\n";
  }
  return text;
}

void write_skew(const SkewTable& skew, const std::string& folder) {
  write_file(folder + "/skew.yaml", skew_meta_text(skew));
  std::string text = "prompt_tokens,rows,skew,longest,before,alpha\n";
  for (const SkewTable::Entry& e : skew.entries())
    text += fmt::format("{},{},{},{},{},{}\n", e.prompt_tokens, e.rows, e.skew, e.longest, e.before, number_text(e.alpha));
  write_file(folder + "/skew.csv", text);
}

SkewAxis read_axis(Params& p, const YAML::Node& root, const std::string& name) {
  SkewAxis axis;
  Params child = p.child(name, "skew axis '" + name + "'");
  axis.edges = child.numbers("edges", -1e18, 1e18, "ascending edges of the bins");
  for (const auto& label : root[name]["labels"]) axis.labels.push_back(label.Scalar());
  if (axis.labels.empty() || axis.edges.size() != axis.labels.size() + 1 || !std::is_sorted(axis.edges.begin(), axis.edges.end()))
    child.fail("'" + name + "' needs ascending edges, one more than labels");
  return axis;
}

std::optional<SkewTable> read_skew(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder + "/skew.yaml", error)) return std::nullopt;
  const auto config = load_config(folder + "/skew.yaml");
  Params p(config, std::make_shared<Choices>(), "skew rule");
  std::vector<SkewAxis> axes;
  for (const std::string& name : kSkewAxes) axes.push_back(read_axis(p, config->root, name));
  const double alpha_default = p.required<double>("alpha_default", -10, 10, "alpha of buckets without an entry");
  const MeasuredTable csv(folder + "/skew.csv");
  std::vector<SkewTable::Entry> entries;
  const auto bin = [&](std::size_t row, std::size_t axis) {
    const std::size_t column = csv.column(kSkewAxes[axis]);
    const auto value = static_cast<std::size_t>(csv.count(row, column));
    if (value >= axes[axis].labels.size())
      throw InputError(csv.place(row) + ": '" + kSkewAxes[axis] + "' is beyond the last bin of skew.yaml");
    return value;
  };
  for (std::size_t row = 0; row < csv.num_rows(); ++row) {
    entries.push_back({csv.count(row, csv.column("prompt_tokens")), bin(row, 0), bin(row, 1), bin(row, 2), bin(row, 3),
                       csv.real(row, csv.column("alpha"))});
  }
  return SkewTable(std::move(axes), alpha_default, std::move(entries));
}

void read_ops(const std::string& folder, Profile& p) {
  Params ops(load_config(folder + "/ops.yaml"), std::make_shared<Choices>(), "profile '" + folder + "'");
  for (const std::string& name : ops.keys()) {
    Params one = ops.child(name, "operation '" + name + "'");
    ProfileOp op;
    op.name = name;
    op.covers = one.text("covers", "operation of the model whose time this is");
    op.axis = kAxes[one.choice("axis", {columns_of(kAxes[0]).front(), columns_of(kAxes[1]).front()}, 0, "what the table is over")];
    op.per_layer = one.required<int>("per_layer", 0, 1000, "calls in a layer; 0: once per step");
    one.reject_unread();
    op.times = read_grid(folder + "/" + name + ".csv", columns_of(op.axis));
    p.ops.push_back(std::move(op));
  }
}

class OwnFormat final : public ProfileFormat {
 public:
  explicit OwnFormat(Params& /*p*/) {}
  [[nodiscard]] std::pair<std::string, std::string> mark() const override { return {"tp<N>/ops.yaml", "one of kvlab"}; }
  [[nodiscard]] Profile read(const std::string& folder, int tp) const override { return read_kvlab_profile(folder, tp); }
};

KVLAB_REGISTER(ProfileFormat, OwnFormat, kOwnProfileFormat, "tables that calibrate writes", "docs/cost-model.md");

}  // namespace

Profile read_kvlab_profile(const std::string& folder, int tp) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    throw InputError(
        fmt::format("there is no profile '{}'; './kvlab calibrate --cpu' measures this machine into profiles/cpu, "
                    "'./kvlab calibrate --gpu 0 --out DIR' its GPU",
                    folder));
  Params meta = read_profile_meta(folder);
  Profile p = empty_profile(folder, kOwnProfileFormat, tp);
  p.device = meta.text("device", "the GPU as its driver names it");
  p.hardware = meta.text("hardware", "", "name in profiles/hardware");
  p.model = meta.text("model", "", "model it was measured with");
  p.measured = meta.text("measured", "", "date of the measurement");
  p.source = meta.text("source", "", "tool and version that measured it");
  p.tile_rows = meta.optional<int>("tile_rows", p.tile_rows, 1, 1024, "rows of a tile of matrix products; 1: none");
  p.attention_has_append = meta.flag("attention_has_append", true, "the attention table's times include the write of new K and V");
  p.kv_reads = static_cast<KvReads>(meta.choice("kv_reads", kReads, 0, "what attention reads of packed KV"));
  p.host_time = ps_of_ns(meta.optional<double>("host_time_ns", 0, 0, 1e9, "time to plan and launch a step"));
  if (meta.has("options")) {
    Params options = meta.optional_child("options", "options");
    for (const std::string& key : options.keys()) p.options[key] = options.text(key, "engine option");
  }
  meta.reject_unread();
  const std::string tables = tp_folder(folder, tp);
  read_ops(tables, p);
  for (const OpFamily family : kGridFamilies) p.*grid_of(family) = read_grid_if_there(file_of(tables, family), columns_of(family));
  read_collective_tables(tables, tp, p.collectives);
  read_collective_tables(folder, 0, p.collectives);
  p.policy = read_policy_times(tables);
  p.skew = read_skew(tables);
  return p;
}

void write_kvlab_profile(const Profile& profile, const std::string& folder) {
  const std::string tables = folder + "/tp" + std::to_string(profile.tp), meta_file = folder + "/meta.yaml", meta = meta_text(profile);
  std::error_code error;
  if (fs::exists(tables, error)) throw InputError(tables + ": exists already; remove it or choose another folder");
  if (fs::exists(meta_file, error)) {
    if (read_if_there(meta_file) != meta) throw InputError(meta_file + ": describes another profile; choose another folder");
  }
  fs::create_directories(tables, error);
  if (error) throw InputError(tables + ": cannot be created: " + error.message());
  write_file(tables + "/ops.yaml", ops_text(profile));
  for (const ProfileOp& op : profile.ops) write_grid(tables + "/" + op.name + ".csv", columns_of(op.axis), op.times);
  for (const OpFamily family : kGridFamilies) write_grid(file_of(tables, family), columns_of(family), profile.*grid_of(family));
  write_collectives(profile.collectives, tables);
  write_policy_times(profile.policy, tables);
  if (profile.skew) write_skew(*profile.skew, tables);
  write_file(meta_file, meta);
}

}  // namespace kvlab
