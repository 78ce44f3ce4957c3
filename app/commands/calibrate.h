#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace kvlab {

// `kvlab calibrate`: writes a profile of this machine.
struct CalibrateCommand {
  bool cpu = false;
  std::optional<int> gpu;
  double minutes = 10;
  std::string model;     // "": llama-3.1-8b on a GPU, the probe on the CPU
  std::string hardware;  // "": the datasheet of the GPU's name, else measured rates
  std::string out;       // "": profiles/DEVICE
  std::uint64_t seed = 1;
  std::vector<std::string> kv_policies;  // their operations are timed
};
// Returns 0, or 130 if Ctrl-C came before the profile was written.
int calibrate_device(const CalibrateCommand& command, std::ostream& out, std::ostream& err);

}  // namespace kvlab
