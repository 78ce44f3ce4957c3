#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/safetensors.h"

namespace kvlab {

// RoPE frequencies, which older files carry: config.json says them, so they are not read.
bool is_rope_buffer(const std::string& tensor);

// The tensors of a model's folder: DIR/model.safetensors or, where that is not there, the shards that DIR/model.safetensors.index.json
// names. Mapped into memory while the object lives.
class WeightFiles {
 public:
  // Errors (InputError): neither file; the safetensors reader's for each file; an index that is not JSON or has no `weight_map` of file
  // names; shards that are missing; a tensor that the index places in another shard or in none, or that is not where the index says (but
  // for a buffer of RoPE frequencies, which is then passed over).
  explicit WeightFiles(const std::string& dir);

  [[nodiscard]] bool has(const std::string& tensor) const { return places_.contains(tensor); }
  [[nodiscard]] const SafetensorsFile& file_of(const std::string& tensor) const { return files_.at(places_.at(tensor)); }
  [[nodiscard]] std::vector<std::string> names() const;
  // Stops with "FILE: message", FILE being the only one or the index.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  void open_shards(const std::string& dir);

  std::string name_;                              // of the only file or of the index
  std::map<std::string, SafetensorsFile> files_;  // by name within the folder
  std::map<std::string, std::string> places_;     // tensor -> file
};

}  // namespace kvlab
