#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor_memory.h"

namespace kvlab {

class SafetensorsFile;

// `weights: FILE`, shared by all runs; F16, BF16, F32, F64 as float32.
class TrainedTensors {
 public:
  // A safetensors file, or FILE.tsv with a row per layer and a column per KV head (DuoAttention's gates): "gates" [layers, kv_heads],
  // clipped to [0, 1]. Throws InputError.
  static std::shared_ptr<const TrainedTensors> open(const std::string& path);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  // These throw InputError for an unknown tensor.
  void require(const std::string& tensor) const;
  [[nodiscard]] const std::vector<std::int64_t>& shape(const std::string& tensor) const;
  // Row-major, read at the first call. Throws also for another dtype, NaN or infinity.
  [[nodiscard]] std::span<const float> floats(const std::string& tensor) const;
  // "" or why the shape differs; -1: any extent.
  [[nodiscard]] std::string refuses(const std::string& tensor, const std::vector<std::int64_t>& shape, const std::string& of) const;
  // "" or an error if `tensor` of the layer after the model's last exists.
  [[nodiscard]] std::string refuses_more_layers(const std::string& tensor, std::int32_t num_layers) const;

  TrainedTensors(const TrainedTensors&) = delete;
  TrainedTensors& operator=(const TrainedTensors&) = delete;

 private:
  explicit TrainedTensors(std::string name) : name_(std::move(name)) {}
  void read_table(const std::string& path);

  std::string name_;
  std::map<std::string, std::vector<std::int64_t>> tensors_;
  std::shared_ptr<const SafetensorsFile> file_;  // null: all in values_
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<float>> values_;
};

class PlacedTensors {
 public:
  // TrainedTensors::floats(), copied to a GPU's memory at the first call, always from the same file.
  const float* floats(const TrainedTensors& file, const std::string& tensor, const TensorMemory& memory);

 private:
  std::map<std::string, TensorArray<float>> copies_;
};

}  // namespace kvlab
