#include <fmt/format.h>
#include <sys/stat.h>

#include <cctype>

#include "app/export/export_format.h"
#include "app/results/run_folder.h"
#include "app/results/safe_files.h"
#include "base/text.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestParam = 6000;  // MLflow's limit

// MLflow's form (experiments: 18 digits, runs: 32 hexadecimal digits), determined by the names.
std::string mlflow_experiment_id(const std::string& experiment) {
  return fmt::format("{:018}", 100'000'000'000'000'000 + fingerprint_of_text(experiment) % 900'000'000'000'000'000);
}
std::string mlflow_run_id(const std::string& experiment, const std::string& run) {
  return hex(fingerprint_of_text(run)) + hex(fingerprint_of_text(experiment + "\n" + run));
}

// Keeps letters, digits, '_', '-', '.', ' '.
std::string mlflow_key(std::string name) {
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::string_view("_-. ").find(c) == std::string_view::npos) c = '_';
  return name;
}

// In ms since 1970, or 0.
std::int64_t written_ms(const fs::path& file) {
  struct stat s {};
  if (::stat(file.c_str(), &s) != 0) return 0;
  return static_cast<std::int64_t>(s.st_mtim.tv_sec) * 1000 + s.st_mtim.tv_nsec / 1'000'000;
}

std::string yaml_text(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text;
  for (const auto& [key, value] : entries) text += fmt::format("{}: {}\n", key, value);
  return text;
}

std::string quoted_yaml(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "''" : std::string(1, c);
  return out + "'";
}

class MlflowRun {
 public:
  MlflowRun(const ExportSource& source, const ExportedRun& run, ExportFolder& out)
      : source_(source),
        run_(run),
        out_(out),
        experiment_id_(mlflow_experiment_id(source.experiment)),
        id_(mlflow_run_id(source.experiment, run.id)),
        end_ms_(written_ms(run.folder / "manifest.json")) {}

  void write() {
    write_meta();
    write_params();
    write_metrics();
    write_tags();
    for (const auto& [name, digest] : read_run_manifest(run_.folder).files) out_.copy(place("artifacts") / name, run_.folder / name);
    out_.copy(place("artifacts") / "manifest.json", run_.folder / "manifest.json");
  }

 private:
  [[nodiscard]] fs::path place(const char* folder) const { return fs::path(experiment_id_) / id_ / folder; }

  // Axes, or the id.
  [[nodiscard]] std::string name() const {
    std::string text;
    for (const auto& [axis, label] : run_.axes)
      if (!label.empty()) text += (text.empty() ? "" : " ") + axis + "=" + label;
    if (const std::string seed = run_.text("seed"); !seed.empty()) text += (text.empty() ? "" : " ") + ("seed=" + seed);
    return text.empty() ? run_.id : text;
  }

  void write_meta() {
    const double wall_s = run_.manifest.value("wall_s", 0.0);
    const fs::path artifacts = fs::absolute(out_.path() / place("artifacts"));
    out_.write(fs::path(experiment_id_) / id_ / "meta.yaml",
               yaml_text({{"artifact_uri", quoted_yaml("file://" + artifacts.string())},
                          {"end_time", std::to_string(end_ms_)},
                          {"entry_point_name", "''"},
                          {"experiment_id", quoted_yaml(experiment_id_)},
                          {"lifecycle_stage", "active"},
                          {"run_id", quoted_yaml(id_)},
                          {"run_name", quoted_yaml(name())},
                          {"run_uuid", quoted_yaml(id_)},
                          {"source_name", "''"},
                          {"source_type", "4"},
                          {"source_version", "''"},
                          {"start_time", std::to_string(end_ms_ - static_cast<std::int64_t>(wall_s * 1e3))},
                          {"status", "3"},
                          {"tags", "[]"},
                          {"user_id", "''"}}));
  }

  void write_params() {
    for (const auto& [path, value] : run_.settings)
      if (!path.starts_with("paths_from") && !value.empty() && value.size() <= kLongestParam)
        out_.write(place("params") / mlflow_key(path), value);
  }

  // At step 0, when the run ended. Skips columns without a number.
  void write_metrics() {
    for (const auto& [column, field] : run_.summary)
      if (const auto value = run_.number(column); value && column != "seed")
        out_.write(place("metrics") / mlflow_key(column), fmt::format("{} {} 0\n", end_ms_, number_text(*value)));
  }

  void write_tags() {
    out_.write(place("tags") / "mlflow.runName", name());
    out_.write(place("tags") / "kvlab.run", run_.id);
    out_.write(place("tags") / "kvlab.results", source_.folder.string());
    for (const char* const key : {"credibility", "note", "skipped", "not_served"})
      if (run_.manifest.contains(key) && run_.manifest[key].is_string())
        out_.write(place("tags") / (std::string("kvlab.") + key), run_.manifest[key].get<std::string>());
  }

  const ExportSource& source_;
  const ExportedRun& run_;
  ExportFolder& out_;
  std::string experiment_id_, id_;
  std::int64_t end_ms_;
};

// MLflow's file store: a folder per experiment, with one per run.
class Mlflow final : public ExportFormat {
 public:
  explicit Mlflow(Params& /*none*/) {}
  [[nodiscard]] bool is_per_run() const override { return false; }
  void write(const ExportSource& source, const ExportOptions& /*options*/, ExportFolder& out) const override {
    const std::string id = mlflow_experiment_id(source.experiment);
    const fs::path meta = fs::path(id) / "meta.yaml";
    const std::int64_t now_ms = written_ms(source.folder / "manifest.json");
    if (!out.has(meta))
      out.write(meta, yaml_text({{"artifact_location", quoted_yaml("file://" + fs::absolute(out.path() / id).string())},
                                 {"creation_time", std::to_string(now_ms)},
                                 {"experiment_id", quoted_yaml(id)},
                                 {"last_update_time", std::to_string(now_ms)},
                                 {"lifecycle_stage", "active"},
                                 {"name", quoted_yaml(source.experiment)}}));
    for (const ExportedRun& run : source.runs) MlflowRun(source, run, out).write();
  }
};

KVLAB_REGISTER(ExportFormat, Mlflow, "mlflow", "a file store of MLflow: --out mlruns, then mlflow ui --backend-store-uri mlruns", "");

}  // namespace

}  // namespace kvlab
