#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/safetensors.h"

namespace kvlab {

// RoPE frequencies in older files.
bool is_rope_buffer(const std::string& tensor);

// DIR/model.safetensors or the shards of its index, mapped.
class WeightFiles {
 public:
  // Throws InputError for missing or invalid files, or a tensor (except RoPE buffers) not in its indexed shard.
  explicit WeightFiles(const std::string& dir);

  [[nodiscard]] bool has(const std::string& tensor) const { return places_.contains(tensor); }
  [[nodiscard]] const SafetensorsFile& file_of(const std::string& tensor) const { return files_.at(places_.at(tensor)); }
  [[nodiscard]] std::vector<std::string> names() const;
  // Throws "FILE: message", FILE the only file or the index.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  void open_shards(const std::string& dir);

  std::string name_;                              // the only file or the index
  std::map<std::string, SafetensorsFile> files_;  // by file name
  std::map<std::string, std::string> places_;     // tensor -> file
};

}  // namespace kvlab
