#pragma once

#include <string>
#include <vector>

namespace kvlab {

// A GPU's name as cards, drivers and shops write it: "NVIDIA A100-SXM4-80GB", "H100 80GB HBM3", "GeForce RTX 4090".
struct GpuName {
  std::string chip;      // words in lower case without separators: "a100", "rtx4090"
  std::string form;      // "sxm", "pcie", "nvl"; "": not said
  std::string memory;    // kind of memory: "hbm3"; "": not said
  int gigabytes = 0;     // 0: not said
  std::string spelling;  // all letters and digits, in lower case
};
GpuName gpu_name(const std::string& text);

// The files of `folder` whose card the name may mean. One: it is that card. A form or a size that the name states is never another's.
std::vector<std::string> hardware_meant(const std::string& name, const std::string& folder);

// A file, a name in `folder`, or another name of one of its cards. InputError with the cards that are meant where there are several.
std::string find_hardware(const std::string& name_or_path, const std::string& folder);

}  // namespace kvlab
