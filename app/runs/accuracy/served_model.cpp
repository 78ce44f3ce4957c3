#include "app/runs/accuracy/served_model.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "app/runs/plan/input_files.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "calibrate/recipe_ops.h"

namespace kvlab {

namespace {

// `name`: a folder, or a shape in angle brackets.
template <class F>
const EngineModel& made_once(const std::string& name, std::string_view backend, F&& make) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, std::unique_ptr<const EngineModel>> known;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const EngineModel>& model = known[{name, std::string(backend)}];
  if (!model) model = make();
  return *model;
}

constexpr GpuOptions kServing{.graphs = true};

// A shipped name is not a folder.
std::string named_folder(Params& p) { return read_model_folder(p, p.text("model", "model")); }

std::string find_folder(Params& p, const ModelSpec& spec) {
  std::error_code error;
  const std::string named = p.has("model") ? named_folder(p) : "";
  if (std::filesystem::is_directory(named, error)) return named;
  const std::filesystem::path probe = std::filesystem::path(profiles_folder()).parent_path() / "engine" / "probe";
  if (spec.name == "probe" && std::filesystem::is_directory(probe, error)) return probe.string();
  p.fail_at(p.has("model") ? "model" : "host",
            fmt::format("'host: engine' runs real weights, and {} names none: 'model: FOLDER' with config.json and safetensors, or "
                        "'weights: random' where only times matter",
                        spec.name));
}

void check_shape(const Params& p, const ModelConfig& c, const ModelSpec& m) {
  if (c.layers == m.layers && c.q_heads == m.q_heads && c.kv_heads == m.kv_heads && c.head_dim == m.head_dim && c.hidden_dim == m.hidden)
    return;
  p.fail_at(p.has("model") ? "model" : "profile",
            fmt::format("the model in {} has another shape than {}, for which the profile was measured: kvlab calibrate --model FOLDER",
                        c.name, m.name));
}

}  // namespace

const EngineModel& shared_model(const std::string& folder, std::string_view backend) {
  return made_once(folder, backend, [&] { return make_engine_model(backend, folder, kServing); });
}

const EngineModel& shared_random_model(const ModelConfig& config, std::string_view backend) {
  return made_once("<" + config.name + ">", backend, [&] { return make_random_model(backend, config, kServing); });
}

void check_backend(const Params& p, std::string_view backend) {
  try {
    require_backend(backend);
  } catch (const InputError& e) {
    p.fail_at("backend", e.what());
  }
}

void find_served_model(Params& p, const ModelSpec& spec, ServedModel& served) {
  if (served.has_random_weights) {
    try {
      served.config = engine_shape(spec);
    } catch (const InputError& e) {
      p.fail_at("weights", e.what());
    }
    return;
  }
  served.folder = find_folder(p, spec);
  served.config = read_model_config(served.folder);
  check_shape(p, served.config, spec);
}

const EngineModel& shared_model(const ServedModel& served) {
  return served.has_random_weights ? shared_random_model(served.config, served.backend) : shared_model(served.folder, served.backend);
}

}  // namespace kvlab
