#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvlab {

struct TensorToWrite {
  std::string name;
  std::string dtype;  // F32, F16 (to nearest), I32, U8
  std::vector<std::int64_t> shape;
  const void* data;  // float for F32 and F16, std::int32_t, std::uint8_t
};

// Writes PATH.part, then renames it. Data begin at multiples of 8 bytes, larger elements first, as in the format's library. Throws
// InputError for repeated names, NaN, infinity, values beyond F16 and write failures.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace kvlab
