#include "traces/write_safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/half.h"
#include "base/safetensors.h"
#include "traces/bytes.h"

namespace kvlab {

namespace {

std::size_t num_elements(const TensorToWrite& tensor) {
  std::size_t count = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0) throw InternalError("tensor '" + tensor.name + "' has the shape " + shape_text(tensor.shape));
    count *= static_cast<std::size_t>(extent);
  }
  return count;
}

void check_floats(const std::string& path, const TensorToWrite& tensor) {
  constexpr float kMostF16 = 65504;
  const auto* values = static_cast<const float*>(tensor.data);
  const bool is_half = tensor.dtype == "F16";
  for (std::size_t i = 0; i < num_elements(tensor); ++i) {
    if (std::isfinite(values[i]) && !(is_half && std::fabs(values[i]) > kMostF16)) continue;
    const std::string what = std::isnan(values[i]) ? "a NaN" : std::isinf(values[i]) ? "an infinity" : fmt::format("{}", values[i]);
    throw InputError(fmt::format("{}: tensor '{}' has {} at {}{}", path, tensor.name, what, index_text(tensor.shape, i),
                                 std::isfinite(values[i]) ? ", beyond F16's 65504" : ""));
  }
}

void check(const std::string& path, const std::vector<TensorToWrite>& tensors) {
  if (path.ends_with(".gz") || path.ends_with(".zst"))
    throw InputError(path + ": safetensors files are not compressed; choose another name");
  std::set<std::string> names;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      throw InputError(path + ": two tensors are named '" + tensor.name + "'");
    }
    if (tensor.dtype == "F32" || tensor.dtype == "F16") {
      check_floats(path, tensor);
    } else if (tensor.dtype != "I32" && tensor.dtype != "U8") {
      throw InternalError("tensors of dtype '" + tensor.dtype + "' are not written");
    }
  }
}

std::string header_of(const std::string& path, const std::vector<TensorToWrite>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t end = at + num_elements(tensor) * safetensors_element_bytes(tensor.dtype);
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  try {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
  } catch (const nlohmann::json::type_error&) {
    throw InputError(path + ": a name or a metadata text is not UTF-8");
  }
}

void write_halves(ByteSink& file, const float* values, std::size_t count) {
  std::array<std::uint16_t, 8192> buffer;
  for (std::size_t done = 0; done < count;) {
    const std::size_t n = std::min(buffer.size(), count - done);
    std::transform(values + done, values + done + n, buffer.begin(), float_to_half);
    file.write({reinterpret_cast<const char*>(buffer.data()), n * sizeof(std::uint16_t)});
    done += n;
  }
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  check(path, tensors);
  std::vector<TensorToWrite> order = tensors;
  std::stable_sort(order.begin(), order.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return safetensors_element_bytes(a.dtype) > safetensors_element_bytes(b.dtype);
  });
  const std::string header = header_of(path, order, metadata);
  const std::unique_ptr<ByteSink> file = create_file(path);
  const std::uint64_t length = header.size();
  file->write({reinterpret_cast<const char*>(&length), sizeof length});
  file->write(header);
  for (const TensorToWrite& tensor : order) {
    const std::size_t count = num_elements(tensor);
    if (tensor.dtype == "F16") {
      write_halves(*file, static_cast<const float*>(tensor.data), count);
    } else if (count > 0) {
      file->write({static_cast<const char*>(tensor.data), count * safetensors_element_bytes(tensor.dtype)});
    }
  }
  file->close();
}

}  // namespace kvlab
