#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>

#include "base/config/config_file.h"
#include "base/text.h"
#include "sim/cost/collectives.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;
constexpr const char* kBundleAxes[] = {"n", "skew_rate", "kv_big", "kp"};

struct Column {
  std::vector<SampleGrid::Sample> samples;
  std::vector<std::string> places;
};

// dense.csv, per_sequence.csv.
void read_layers(const std::string& file, OpFamily axis, std::vector<ProfileOp>& ops) {
  const MeasuredTable csv(file);
  const std::size_t layer = csv.column("layer"), count = csv.column(columns_of(axis).front()), time = csv.column("time_us");
  std::vector<std::string> known;
  for (const Operation& op : kOperations)
    if (op.family == axis && !op.part_of) known.emplace_back(op.name);
  std::map<std::string, Column> columns;
  for (std::size_t row = 0; row < csv.num_rows(); ++row) {
    const std::string& name = csv.text(row, layer);
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw InputError(csv.place(row) + ": unknown layer '" + name + "'" + suggestion(name, known));
    columns[name].samples.push_back({{csv.count(row, count)}, csv.time(row, time, TimeUnit::kUs), 0});
    columns[name].places.push_back(csv.place(row));
  }
  for (const std::string& name : known) {
    const auto found = columns.find(name);
    if (found == columns.end()) continue;
    const int per_layer =
        std::find_if(kOperations.begin(), kOperations.end(), [&](const Operation& op) { return op.name == name; })->per_layer;
    ops.push_back({name, name, axis, per_layer, checked_grid(1, std::move(found->second.samples), found->second.places)});
  }
}

SampleGrid read_time_grid(const std::string& file, OpFamily family) {
  return MeasuredTable(file).grid(columns_of(family), "time_us", TimeUnit::kUs);
}

std::vector<std::string> labels(const YAML::Node& node) {
  std::vector<std::string> all;
  for (const auto& item : node) all.push_back(item.Scalar());
  return all;
}

SkewAxis read_axis(const YAML::Node& axes, const std::string& name, const std::string& file) {
  SkewAxis axis{{}, labels(axes[name + "_labels"])};
  for (const std::string& text : labels(axes[name + "_bins"])) {
    double edge = 0;
    if (!parse_real(text, edge)) throw InputError(file + ": skew_fit.bucket_axes." + name + "_bins: not a number: '" + text + "'");
    axis.edges.push_back(edge);
  }
  if (axis.labels.empty() || axis.edges.size() != axis.labels.size() + 1 || !std::is_sorted(axis.edges.begin(), axis.edges.end()))
    throw InputError(file + ": skew_fit.bucket_axes needs ascending " + name + "_bins, one more than " + name + "_labels");
  return axis;
}

std::size_t bin_of(const MeasuredTable& csv, std::size_t row, const std::string& column, const SkewAxis& axis) {
  const std::string& label = csv.text(row, csv.column(column));
  const auto at = std::find(axis.labels.begin(), axis.labels.end(), label);
  if (at == axis.labels.end())
    throw InputError(csv.place(row) + ": '" + column + "' = '" + label + "' is not among the labels of meta.yaml");
  return static_cast<std::size_t>(at - axis.labels.begin());
}

// A bundle may carry a table that it says not to use.
std::optional<SkewTable> read_skew(const YAML::Node& meta, const std::string& folder, int tp, const std::string& meta_file) {
  const YAML::Node fit = meta["skew_fit"];
  if (!fit || !fit["enabled"] || fit["enabled"].Scalar() != "true") return std::nullopt;
  const YAML::Node mine = fit["per_tp"] ? fit["per_tp"][std::to_string(tp)] : YAML::Node(YAML::NodeType::Undefined);
  if (!mine || !mine["alpha_default"] || !mine["bucket_table"]) {
    throw InputError(meta_file + ": skew_fit is enabled but per_tp has no entry with alpha_default and bucket_table for tp " +
                     std::to_string(tp));
  }
  const YAML::Node axes = fit["bucket_axes"];
  if (!axes) throw InputError(meta_file + ": skew_fit is enabled but has no bucket_axes");
  std::vector<SkewAxis> all;
  for (const char* name : kBundleAxes) all.push_back(read_axis(axes, name, meta_file));
  double alpha_default = 0;
  if (!parse_real(mine["alpha_default"].Scalar(), alpha_default)) throw InputError(meta_file + ": alpha_default is not a number");
  const MeasuredTable csv(folder + "/" + mine["bucket_table"].Scalar());
  const std::size_t pc = csv.column("pc"), alpha = csv.column("alpha");
  std::vector<SkewTable::Entry> entries;
  for (std::size_t row = 0; row < csv.num_rows(); ++row) {
    const auto bin = [&](std::size_t axis) { return bin_of(csv, row, std::string(kBundleAxes[axis]) + "_label", all[axis]); };
    entries.push_back({csv.count(row, pc), bin(0), bin(1), bin(2), bin(3), csv.real(row, alpha)});
  }
  return SkewTable(std::move(all), alpha_default, std::move(entries));
}

std::string scalar(const YAML::Node& meta, const std::string& key) {
  const YAML::Node node = meta[key];
  return node && node.IsScalar() ? node.Scalar() : "";
}

class BundleFormat final : public ProfileFormat {
 public:
  explicit BundleFormat(Params& /*p*/) {}
  [[nodiscard]] std::pair<std::string, std::string> mark() const override { return {"tp<N>/dense.csv", "a bundle"}; }
  [[nodiscard]] Profile read(const std::string& folder, int tp) const override { return read_bundle(folder, tp); }
};

KVLAB_REGISTER(ProfileFormat, BundleFormat, "bundle", "tables of the LLMServingSim profiler", "LLMServingSim 2.0: arXiv:2408.05499");

}  // namespace

std::string tp_folder(const std::string& folder, int tp) {
  const std::string mine = folder + "/tp" + std::to_string(tp);
  std::error_code error;
  if (fs::is_directory(mine, error)) return mine;
  std::vector<std::string> present;
  for (const int degree : profile_tp_degrees(folder)) present.push_back("tp" + std::to_string(degree));
  throw InputError(folder + ": no folder tp" + std::to_string(tp) + "; there is " + (present.empty() ? "none" : join(present, ", ")));
}

std::vector<int> profile_tp_degrees(const std::string& folder) {
  std::vector<int> degrees;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    long long degree = 0;
    if (name.starts_with("tp") && parse_integer(name.substr(2), degree) && degree > 0) degrees.push_back(static_cast<int>(degree));
  }
  std::sort(degrees.begin(), degrees.end());
  return degrees;
}

Profile read_bundle(const std::string& folder, int tp) {
  const std::string meta_file = folder + "/meta.yaml";
  const YAML::Node meta = load_config(meta_file)->root;
  const std::string tables = tp_folder(folder, tp);
  Profile p = empty_profile(folder, "bundle", tp);
  p.device = scalar(meta, "gpu");
  p.hardware = scalar(meta, "hardware");
  p.model = scalar(meta, "model");
  p.measured = scalar(meta, "profiled_at");
  p.source = "LLMServingSim profiler " + scalar(meta, "profiler_version") + ", vLLM " + scalar(meta, "vllm_version");
  if (const YAML::Node engine = meta["engine_effective"]; engine && engine.IsMap()) {
    for (const auto& item : engine)
      if (item.second.IsScalar()) p.options[item.first.Scalar()] = item.second.Scalar();
  }
  p.options["vllm_version"] = scalar(meta, "vllm_version");
  read_layers(tables + "/dense.csv", OpFamily::kTokens, p.ops);
  read_layers(tables + "/per_sequence.csv", OpFamily::kSequences, p.ops);
  p.attention = read_time_grid(tables + "/attention.csv", OpFamily::kAttention);
  for (const std::string& place : {tables, folder + "/tp1"}) {  // experts are measured uncut
    std::error_code error;
    if (p.moe.empty() && fs::exists(place + "/moe.csv", error)) p.moe = read_time_grid(place + "/moe.csv", OpFamily::kMoe);
  }
  read_collective_tables(tables, tp, p.collectives);
  try {
    p.skew = read_skew(meta, folder, tp, meta_file);
  } catch (const YAML::Exception& e) {
    throw InputError(meta_file + ": skew_fit: " + e.msg);
  }
  return p;
}

}  // namespace kvlab
