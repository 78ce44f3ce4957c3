#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

// One run of a results folder, by its id.
struct RunPlace {
  std::filesystem::path folder;
  std::string id;
};

// Sentences on what else differs between two runs that are compared: model, hardware, profile, and the contents of the trace (of a file by
// its fingerprint, whatever its name; of a generator by its settings), from their manifest.json and resolved.yaml. Empty: nothing, or the
// folders keep no such files.
std::vector<std::string> remarks_on_settings(const RunPlace& a, const RunPlace& b);

// A line on the model that a log names, where the run simulates another, or where that cannot be told; "": the same, or one of the two
// is not named.
std::string remark_on_model(const std::string& logged, const RunPlace& simulated);

}  // namespace kvlab
