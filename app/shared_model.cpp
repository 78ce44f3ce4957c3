#include "app/shared_model.h"

#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace kvlab {

const EngineModel& shared_model(const std::string& folder, std::string_view backend) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, std::unique_ptr<const EngineModel>> known;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const EngineModel>& model = known[{folder, std::string(backend)}];
  if (!model) model = make_engine_model(backend, folder, {.graphs = true});
  return *model;
}

std::string read_backend(Params& p) {
  return p.choice("backend", {"cpu", "cuda"}, 0, "what the model runs on, with 'host: engine'") == 1 ? "cuda" : "cpu";
}

void check_backend(const Params& p, std::string_view backend) {
  try {
    require_backend(backend);
  } catch (const InputError& e) {
    p.fail_at("backend", e.what());
  }
}

}  // namespace kvlab
