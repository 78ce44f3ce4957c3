#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include "tests/kv/kv_fixture.h"
#include "traces/write_safetensors.h"

namespace kvlab::test {

// Tensors by name, of random numbers where a test sets no others.
class TrainedFile {
 public:
  explicit TrainedFile(std::uint64_t seed = 0, float scale = 1) : seed_(seed), scale_(scale) {}

  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    const std::int64_t n = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<float> data = RandomLayer::normals(static_cast<std::size_t>(n), seed_, static_cast<std::int32_t>(tensors_.size()));
    for (float& x : data) x *= scale_;
    add(name, shape, std::move(data));
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape, std::vector<float> data) {
    tensors_[name] = {shape, std::move(data)};
  }
  std::vector<float>& of(const std::string& name) { return tensors_.at(name).second; }
  // The element in column `column` of the lines of a tensor's last dimension.
  [[nodiscard]] double at(const std::string& name, std::int64_t line, std::int64_t column) const {
    const auto& [shape, data] = tensors_.at(name);
    return double{nth(data, line * shape.back() + column)};
  }
  // The path of a file with these tensors; the next file of the process has the same one.
  [[nodiscard]] std::string file() const {
    const auto path = std::filesystem::temp_directory_path() / ("kvlab_trained_" + std::to_string(::getpid()) + ".safetensors");
    std::vector<TensorToWrite> all;
    for (const auto& [name, tensor] : tensors_) all.push_back({name, "F32", tensor.first, tensor.second.data()});
    write_safetensors(path.string(), all, {});
    return path.string();
  }

 private:
  std::uint64_t seed_;
  float scale_;
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::vector<float>>> tensors_;
};

}  // namespace kvlab::test
