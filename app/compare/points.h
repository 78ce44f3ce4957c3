#pragma once

#include <yaml-cpp/yaml.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/csv.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// profiles/points_names.yaml.
struct PointNames {
  struct System {
    std::string hardware;  // in profiles/hardware
    int gpus = 0;          // joined by fast links
  };
  struct Model {
    std::string name;             // in profiles/models
    bool has_own_format = false;  // weights are stored as in that file, whatever the row's modes
  };
  std::map<std::string, System> systems;
  std::map<std::string, Model> models;
  std::map<std::string, YAML::Node> formats;    // mode of matrices -> quantization_config; a scalar: not quantized
  std::map<std::string, std::string> kv_types;  // precision -> type of cached keys and values; absent: as in the model's file
  std::map<std::string, std::string> schedulers;
};

// Throws InputError.
PointNames load_point_names(const std::string& file);

class PointLeftOut : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A closed loop of identical requests.
struct PointExperiment {
  std::string id;
  std::string group;  // GPU, parallelism, engine and model
  double real_tpot_ms = 0;
  std::uint64_t concurrency = 0, requests = 0;
  std::string yaml, basis;
};

struct PointOptions {
  std::string profile;       // YAML; $column is the row's value; "": roofline
  double shortest_frac = 1;  // lengths are drawn from this share of isl and osl up to all
};

// Columns: docs/experiments.md.
class PointRows {
 public:
  // Throws InputError for an unreadable file or a missing column. Writes models with other weight formats to `models_folder`.
  PointRows(const std::string& file, const PointOptions& options, std::filesystem::path models_folder);

  [[nodiscard]] std::size_t size() const { return table_.rows.size(); }
  [[nodiscard]] const std::string& id(std::size_t row) const { return text(row, "id"); }
  // Throws PointLeftOut; InputError for a text instead of a number.
  PointExperiment experiment(std::size_t row);
  [[nodiscard]] const PointNames& names() const { return names_; }

 private:
  struct Loaded {
    std::optional<ModelSpec> spec;
    std::string refusal;
  };
  [[nodiscard]] const std::string& text(std::size_t row, const char* column) const { return table_.rows[row][table_.at(column)]; }
  // `absent` if empty or 0.
  [[nodiscard]] std::int64_t whole(std::size_t row, const char* column, std::int64_t absent) const;
  [[nodiscard]] std::int64_t length(std::size_t row, const char* column) const;
  [[nodiscard]] double tpot_ms(std::size_t row) const;
  [[nodiscard]] std::uint64_t concurrency(std::size_t row) const;
  const PointNames::Model& named_model(std::size_t row) const;
  const ModelSpec& model(const std::string& name);
  // Name, or the file of a variant.
  std::string model_file(std::size_t row, const PointNames::Model& named, const ModelSpec& spec);
  [[nodiscard]] std::string parallel(std::size_t row, const ModelSpec& spec, const PointNames::System& system) const;
  [[nodiscard]] std::string group(std::size_t row) const;
  [[nodiscard]] std::string profile(std::size_t row) const;
  [[nodiscard]] std::string engine(std::size_t row) const;
  [[nodiscard]] std::string lengths(std::int64_t tokens) const;

  CsvTable table_;
  PointOptions options_;
  std::filesystem::path models_folder_;
  PointNames names_;
  std::map<std::string, Loaded> models_;
  std::map<std::string, std::string> variants_;
};

struct PointsCommand {
  std::string file, out;
  PointOptions options;
  bool quiet = false, shows_progress = false;
};

// Writes points.csv, groups.csv and left_out.csv (docs/results.md). Returns 0, or 130 after Ctrl-C without writing.
int validate_points(const PointsCommand& command, std::ostream& out, std::ostream& err);

}  // namespace kvlab
