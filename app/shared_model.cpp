#include "app/shared_model.h"

#include <map>
#include <memory>
#include <mutex>

namespace kvlab {

const Transformer& shared_model(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Transformer>> known;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Transformer>& model = known[folder];
  if (!model) model = std::make_unique<const Transformer>(Transformer::load(folder));
  return *model;
}

}  // namespace kvlab
