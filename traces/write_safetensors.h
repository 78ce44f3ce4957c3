#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvlab {

struct TensorToWrite {
  std::string name;
  std::string dtype;  // F32, F16 (rounded to nearest), I32, U8
  std::vector<std::int64_t> shape;
  const void* data;  // float for F32 and F16, std::int32_t, std::uint8_t
};

// Writes PATH.part and renames it to PATH, so that a file under this name is always whole. Data begin at a multiple of 8 bytes, larger
// elements first, as the format's own library does. Errors: cannot be written, a name twice, a NaN or infinity, a value beyond F16.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace kvlab
