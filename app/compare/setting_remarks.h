#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

struct RunPlace {
  std::filesystem::path folder;
  std::string id;
};

// Differences in model, hardware, profile or trace, from manifest.json and resolved.yaml. Empty if equal or unknown.
std::vector<std::string> remarks_on_settings(const RunPlace& a, const RunPlace& b);

// If the simulated model differs, or may differ; "" if equal or unnamed.
std::string remark_on_model(const std::string& logged, const RunPlace& simulated);

}  // namespace kvlab
