#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace kvlab {

// Trained or calibrated tensors of a file that a recipe names (`weights: FILE`), shared by the parts of all runs. Floats of any width
// (F16, BF16, F32, F64), as float32.
class TrainedTensors {
 public:
  // A safetensors file, or FILE.tsv: a row of numbers per layer, one per KV head, as DuoAttention publishes its gates. The table is the
  // tensor "gates" [layers, kv_heads], and its values are clipped to [0, 1]. Errors (InputError): no such file, or one that is neither.
  static std::shared_ptr<const TrainedTensors> open(const std::string& path);

  [[nodiscard]] const std::string& name() const { return name_; }  // of the file
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  // Errors (InputError) of the next three: there is no such tensor; the message lists those that there are.
  void require(const std::string& tensor) const;
  [[nodiscard]] const std::vector<std::int64_t>& shape(const std::string& tensor) const;
  // Row-major, read at the first call. Errors also: another dtype, a NaN or infinity.
  [[nodiscard]] std::span<const float> floats(const std::string& tensor) const;
  // "" or why the tensor does not fit the model, which needs `shape`; an extent of -1 is any.
  [[nodiscard]] std::string refuses(const std::string& tensor, const std::vector<std::int64_t>& shape, const std::string& of) const;
  // "" or an error text for a file with tensors of more layers: it has `tensor`, which belongs to the layer after the model's last.
  [[nodiscard]] std::string refuses_more_layers(const std::string& tensor, std::int32_t num_layers) const;

  TrainedTensors(const TrainedTensors&) = delete;
  TrainedTensors& operator=(const TrainedTensors&) = delete;

 private:
  struct Source;
  explicit TrainedTensors(std::string name);
  void read_table(const std::string& path);
  void read_safetensors(const std::string& path);

  std::string name_;
  std::map<std::string, std::vector<std::int64_t>> tensors_;  // shapes by name
  std::shared_ptr<const Source> file_;                        // null: all values are in values_
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<float>> values_;  // of tensors that were read
};

}  // namespace kvlab
