#include "app/runs/accuracy/shared_model.h"

#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"

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

}  // namespace kvlab
