#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvlab {

// The safetensors format (github.com/huggingface/safetensors): the header's length (8 bytes, little-endian), a JSON header
// {name: {dtype, shape, data_offsets}}, then the data, row-major and little-endian, without gaps.

struct TensorInfo {
  std::string dtype;                 // "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;   // {} is a scalar
  std::uint64_t begin = 0, end = 0;  // bytes of the data part
};

// A file mapped into memory: what is not read costs nothing. Copies share the mapping. The file must not be cut while it is open.
class SafetensorsFile {
 public:
  // Checks the whole header. Errors: no such file, cut short, header too long or not as the format says, a name twice, an
  // unknown dtype, offsets that overlap, leave gaps or do not fit shape and dtype.
  static SafetensorsFile open(const std::string& path);
  // The same for bytes in memory, which must outlive the object. `name` is the file's name in messages.
  static SafetensorsFile from_bytes(const std::string& name, std::span<const std::byte> bytes);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] bool has(const std::string& name) const { return tensors_.contains(name); }
  [[nodiscard]] const TensorInfo& info(const std::string& name) const;  // error: no such tensor

  // The elements in row-major order; `shape` {} is any shape, an extent of -1 any extent. Errors: no such tensor, another
  // shape, another dtype, and for floats a NaN or infinity, for ints a value beyond 32 bits.
  [[nodiscard]] std::vector<float> floats(const std::string& name, const std::vector<std::int64_t>& shape = {}) const;  // F16 BF16 F32 F64
  [[nodiscard]] std::vector<std::int32_t> ints(const std::string& name, const std::vector<std::int64_t>& shape = {}) const;  // I32 I64
  // Fills `to` with the elements from `first` on of a tensor that floats() takes. Errors as of floats().
  void copy_floats(const std::string& name, std::size_t first, std::span<float> to) const;
  // The bytes as stored; not aligned to the element.
  [[nodiscard]] std::span<const std::byte> raw(const std::string& name) const;

  // Stops with "FILE: message".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  SafetensorsFile(std::string name, std::shared_ptr<const void> owner, std::span<const std::byte> bytes);
  const TensorInfo& checked(const std::string& name, const std::vector<std::int64_t>& shape) const;

  std::string name_;
  std::shared_ptr<const void> owner_;  // of the mapping; null for bytes in memory
  std::span<const std::byte> data_;    // after the header
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Bytes of one element; 0 for a dtype that is not known.
std::size_t safetensors_element_bytes(const std::string& dtype);
// "[3, 2, 64]".
std::string shape_text(const std::vector<std::int64_t>& shape);
// The place of a row-major element: "[5, 2, 17]".
std::string index_text(const std::vector<std::int64_t>& shape, std::size_t element);

}  // namespace kvlab
