#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvlab {

// github.com/huggingface/safetensors: header length (8 bytes, little-endian), JSON header {name: {dtype, shape, data_offsets}}, row-major
// little-endian data without gaps.

struct TensorInfo {
  std::string dtype;                 // "F32", "BF16", ...
  std::vector<std::int64_t> shape;   // {}: scalar
  std::uint64_t begin = 0, end = 0;  // bytes in the data part
};

// Memory-mapped, shared by copies. Do not truncate the file while open.
class SafetensorsFile {
 public:
  // Throws InputError for a missing or truncated file or invalid header (repeated names, unknown dtypes, overlaps, gaps, wrong sizes).
  static SafetensorsFile open(const std::string& path);
  // `bytes` outlives the object.
  static SafetensorsFile from_bytes(const std::string& name, std::span<const std::byte> bytes);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] bool has(const std::string& name) const { return tensors_.contains(name); }
  [[nodiscard]] const TensorInfo& info(const std::string& name) const;  // throws if absent

  // Row-major; `shape` {}: any, extent -1: any. Throws InputError for an absent tensor,
  // another shape or dtype, NaN, infinity, or integers beyond 32 bits.
  [[nodiscard]] std::vector<float> floats(const std::string& name, const std::vector<std::int64_t>& shape = {}) const;  // F16 BF16 F32 F64
  [[nodiscard]] std::vector<std::int32_t> ints(const std::string& name, const std::vector<std::int64_t>& shape = {}) const;  // I32 I64
  // Elements from `first` on. Errors as in floats().
  void copy_floats(const std::string& name, std::size_t first, std::span<float> to) const;
  // As stored; may be unaligned.
  [[nodiscard]] std::span<const std::byte> raw(const std::string& name) const;

  // Throws InputError "FILE: message".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  SafetensorsFile(std::string name, std::shared_ptr<const void> owner, std::span<const std::byte> bytes);
  const TensorInfo& checked(const std::string& name, const std::vector<std::int64_t>& shape) const;

  std::string name_;
  std::shared_ptr<const void> owner_;  // null: bytes in memory
  std::span<const std::byte> data_;    // after the header
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

// 0: unknown dtype.
std::size_t safetensors_element_bytes(const std::string& dtype);
std::string shape_text(const std::vector<std::int64_t>& shape);
// "[5, 2, 17]" for a row-major element.
std::string index_text(const std::vector<std::int64_t>& shape, std::size_t element);

}  // namespace kvlab
