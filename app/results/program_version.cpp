#include "app/results/code_version.h"

namespace kvlab {

std::string program_version() {
  const std::string commit = KVLAB_COMMIT;
  return std::string(KVLAB_VERSION) + (commit.empty() ? "" : " (" + commit + ")");
}

}  // namespace kvlab
