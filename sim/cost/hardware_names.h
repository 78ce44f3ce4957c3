#pragma once

#include <string>
#include <vector>

namespace kvlab {

// As cards, drivers and shops write it: "NVIDIA A100-SXM4-80GB", "H100 80GB HBM3", "GeForce RTX 4090".
struct GpuName {
  std::string chip;      // lower case, no separators: "a100", "rtx4090"
  std::string form;      // "sxm", "pcie", "nvl"; "": not said
  std::string memory;    // "hbm3"; "": not said
  int gigabytes = 0;     // 0: not said
  std::string spelling;  // letters and digits, lower case
};
GpuName gpu_name(const std::string& text);

// Files in `folder` of cards that the name may mean. A form or size in the name never means another's.
std::vector<std::string> hardware_meant(const std::string& name, const std::string& folder);

// A file, a name in `folder`, or another name of a card. Throws InputError with the cards if ambiguous.
std::string find_hardware(const std::string& name_or_path, const std::string& folder);

}  // namespace kvlab
