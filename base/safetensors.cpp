#include "base/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <simdjson.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/half.h"
#include "base/json_words.h"
#include "base/read_file.h"
#include "base/text.h"

static_assert(std::endian::native == std::endian::little, "the format is little-endian and is read as it lies in memory");

namespace kvlab {

namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the format's limit

// For one-line messages; longer than quoted().
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 160;
  std::string out = "'";
  for (const char c : text.substr(0, kMost)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kMost ? "...'" : "'");
}

struct CloseDescriptor {
  int file;
  ~CloseDescriptor() { ::close(file); }
};

// False if the product exceeds 64 bits.
bool multiply(const std::vector<std::int64_t>& shape, std::uint64_t unit, std::uint64_t& product) {
  product = unit;
  bool fits = true, is_empty = false;
  for (const std::int64_t extent : shape) {
    is_empty = is_empty || extent == 0;
    fits = fits && !__builtin_mul_overflow(product, static_cast<std::uint64_t>(extent), &product);
  }
  if (is_empty) product = 0;
  return fits || is_empty;
}

class HeaderReader {
 public:
  HeaderReader(const std::string& file, std::map<std::string, TensorInfo>& tensors, std::map<std::string, std::string>& metadata)
      : file_(file), tensors_(tensors), metadata_(metadata) {}

  void read(std::string_view json) {
    const simdjson::padded_string padded(json);
    simdjson::ondemand::parser parser;
    try {
      simdjson::ondemand::document document = parser.iterate(padded);
      for (simdjson::ondemand::field field : document.get_object()) {
        const std::string key(std::string_view(field.unescaped_key()));
        if (key == "__metadata__") {
          read_metadata(field.value());
        } else {
          read_tensor(key, field.value());
        }
      }
      if (document.current_location().error() == simdjson::SUCCESS)
        fail("the header is not one JSON object: text behind the closing brace");
    } catch (const simdjson::simdjson_error& e) {
      fail(std::string("the header is not one JSON object: ") + syntax_words(e.error()));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw InputError(file_ + ": " + message); }

  void read_metadata(simdjson::ondemand::value value) {
    if (std::exchange(has_metadata_, true)) fail("'__metadata__' appears twice in the header");
    simdjson::ondemand::object object;
    if (value.get_object().get(object) != simdjson::SUCCESS) fail("'__metadata__' is not an object of texts");
    for (simdjson::ondemand::field field : object) {
      const std::string key(std::string_view(field.unescaped_key()));
      std::string_view text;
      if (field.value().get_string().get(text) != simdjson::SUCCESS) fail("metadata " + shown(key) + " is not a text");
      if (!metadata_.emplace(key, text).second) fail("metadata " + shown(key) + " appears twice");
    }
  }

  void read_tensor(const std::string& name, simdjson::ondemand::value value) {
    const auto [place, is_new] = tensors_.try_emplace(name);
    if (!is_new) fail("tensor " + shown(name) + " appears twice in the header");
    TensorInfo& info = place->second;
    simdjson::ondemand::object object;
    if (value.get_object().get(object) != simdjson::SUCCESS) fail("tensor " + shown(name) + " is not an object in the header");
    std::vector<std::int64_t> offsets;
    const std::vector<std::string> known{"dtype", "shape", "data_offsets"};
    std::array<bool, 3> seen{};
    for (simdjson::ondemand::field field : object) {
      const std::string key(std::string_view(field.unescaped_key()));
      const auto which = static_cast<std::size_t>(std::find(known.begin(), known.end(), key) - known.begin());
      if (which == known.size())
        fail("tensor " + shown(name) + " has the unknown field " + shown(key) + suggestion(key.substr(0, 64), known));
      if (std::exchange(seen[which], true)) fail("tensor " + shown(name) + " has '" + key + "' twice");
      if (which == 0) read_dtype(name, field.value(), info.dtype);
      if (which != 0) read_numbers(name, key, field.value(), which == 1 ? info.shape : offsets);
    }
    for (std::size_t i = 0; i < known.size(); ++i) {
      if (!seen[i]) fail("tensor " + shown(name) + " has no '" + known[i] + "'");
    }
    if (offsets.size() != 2) fail("tensor " + shown(name) + ": 'data_offsets' is not [begin, end]");
    info.begin = static_cast<std::uint64_t>(offsets[0]);
    info.end = static_cast<std::uint64_t>(offsets[1]);
  }

  void read_dtype(const std::string& name, simdjson::ondemand::value value, std::string& dtype) const {
    std::string_view text;
    if (value.get_string().get(text) != simdjson::SUCCESS) fail("tensor " + shown(name) + ": 'dtype' is not a text");
    dtype = text;
    if (safetensors_element_bytes(dtype) == 0) fail("tensor " + shown(name) + " has the unknown dtype " + shown(text));
  }

  void read_numbers(const std::string& name, const std::string& key, simdjson::ondemand::value value, std::vector<std::int64_t>& to) const {
    const auto stop = [&] { fail("tensor " + shown(name) + ": '" + key + "' is not a list of whole numbers >= 0"); };
    simdjson::ondemand::array list;
    if (value.get_array().get(list) != simdjson::SUCCESS) stop();
    for (auto item : list) {
      std::int64_t number = 0;
      if (item.get_int64().get(number) != simdjson::SUCCESS || number < 0) stop();
      to.push_back(number);
    }
  }

  const std::string& file_;
  std::map<std::string, TensorInfo>& tensors_;
  std::map<std::string, std::string>& metadata_;
  bool has_metadata_ = false;
};

void check_size(const std::string& file, const std::string& name, const TensorInfo& info) {
  const std::string tensor = file + ": tensor " + shown(name);
  if (info.begin > info.end) throw InputError(fmt::format("{}: its data_offsets [{}, {}] go backwards", tensor, info.begin, info.end));
  std::uint64_t bytes = 0;
  if (!multiply(info.shape, safetensors_element_bytes(info.dtype), bytes)) {
    throw InputError(fmt::format("{} of shape {} is larger than 64 bits can count", tensor, shape_text(info.shape)));
  }
  if (bytes != info.end - info.begin) {
    throw InputError(fmt::format("{} of shape {} and dtype {} takes {} bytes, its data_offsets [{}, {}] span {}", tensor,
                                 shape_text(info.shape), info.dtype, bytes, info.begin, info.end, info.end - info.begin));
  }
}

// Each data byte must belong to exactly one tensor.
void check_layout(const std::string& file, const std::map<std::string, TensorInfo>& tensors, std::uint64_t data_bytes) {
  using Entry = std::pair<const std::string, TensorInfo>;
  std::vector<const Entry*> order;
  for (const Entry& entry : tensors) {
    check_size(file, entry.first, entry.second);
    if (entry.second.end > data_bytes) {
      throw InputError(fmt::format("{}: cut short: tensor {} ends at byte {} of the data, which is {} bytes long", file, shown(entry.first),
                                   entry.second.end, data_bytes));
    }
    order.push_back(&entry);
  }
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  const Entry* before = nullptr;
  std::uint64_t at = 0;
  for (const Entry* entry : order) {
    const std::uint64_t begin = entry->second.begin;
    if (begin < at) {
      throw InputError(fmt::format("{}: tensors {} and {} overlap: one ends at byte {} of the data, the other begins at {}", file,
                                   shown(before->first), shown(entry->first), at, begin));
    }
    if (begin > at) throw InputError(fmt::format("{}: bytes {} to {} of the data belong to no tensor", file, at, begin));
    at = entry->second.end;
    before = entry;
  }
  if (at != data_bytes) throw InputError(fmt::format("{}: bytes {} to {} of the data belong to no tensor", file, at, data_bytes));
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Stored, class To, class Convert>
void convert_all(std::span<const std::byte> bytes, std::span<To> to, Convert&& convert) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = convert(load<Stored>(bytes.data() + i * sizeof(Stored)));
}

}  // namespace

std::size_t safetensors_element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::size_t> kBytes{{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
                                                         {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
                                                         {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> extents;
  for (const std::int64_t extent : shape) extents.push_back(extent < 0 ? "any" : std::to_string(extent));
  return "[" + join(extents, ", ") + "]";
}

std::string index_text(const std::vector<std::int64_t>& shape, std::size_t element) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    const auto extent = static_cast<std::size_t>(shape[i]);
    index[i] = static_cast<std::int64_t>(element % extent);
    element /= extent;
  }
  return shape_text(index);
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not wait for a pipe's writer
  if (file < 0) throw InputError(open_error(path));
  const CloseDescriptor close{file};
  struct stat status {};
  if (::fstat(file, &status) != 0) throw InputError(path + ": cannot be read: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw InputError(path + ": is not a regular file; a safetensors file is expected");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return {path, nullptr, {}};
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (mapped == MAP_FAILED) throw InputError(path + ": cannot be mapped into memory: " + std::strerror(errno));
  std::shared_ptr<const void> owner(mapped, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  return {path, std::move(owner), {static_cast<const std::byte*>(mapped), size}};
}

SafetensorsFile SafetensorsFile::from_bytes(const std::string& name, std::span<const std::byte> bytes) { return {name, nullptr, bytes}; }

SafetensorsFile::SafetensorsFile(std::string name, std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
    : name_(std::move(name)), owner_(std::move(owner)) {
  if (bytes.size() < kLengthBytes) fail(fmt::format("cut short: {} bytes, and the header's length alone takes 8", bytes.size()));
  const auto header_bytes = load<std::uint64_t>(bytes.data());
  const std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  if (is_lfs_pointer(text)) fail(kLfsPointerError);
  if (header_bytes > kMostHeaderBytes) {
    fail(fmt::format("a header of {} bytes, at most {} are allowed; is it a safetensors file?", header_bytes, kMostHeaderBytes));
  }
  if (header_bytes > bytes.size() - kLengthBytes) {
    fail(fmt::format("cut short: the header ends at byte {}, the file at byte {}", kLengthBytes + header_bytes, bytes.size()));
  }
  data_ = bytes.subspan(kLengthBytes + header_bytes);
  HeaderReader(name_, tensors_, metadata_).read(text.substr(kLengthBytes, header_bytes));
  check_layout(name_, tensors_, data_.size());
}

void SafetensorsFile::fail(const std::string& message) const { throw InputError(name_ + ": " + message); }

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [other, info] : tensors_) known.push_back(other);
  const std::string near = nearest_name(name, known);
  fail("has no tensor " + shown(name) + (near.empty() ? "" : "; the nearest is " + shown(near)));
}

const TensorInfo& SafetensorsFile::checked(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const TensorInfo& found = info(name);
  bool fits = shape.empty() || shape.size() == found.shape.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] == -1 || shape[i] == found.shape[i];
  if (!fits) fail("tensor " + shown(name) + " has shape " + shape_text(found.shape) + ", expected " + shape_text(shape));
  return found;
}

std::span<const std::byte> SafetensorsFile::raw(const std::string& name) const {
  const TensorInfo& found = info(name);
  return data_.subspan(found.begin, found.end - found.begin);
}

std::vector<float> SafetensorsFile::floats(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const TensorInfo& found = checked(name, shape);
  std::vector<float> values((found.end - found.begin) / safetensors_element_bytes(found.dtype));
  copy_floats(name, 0, values);
  return values;
}

void SafetensorsFile::copy_floats(const std::string& name, std::size_t first, std::span<float> to) const {
  const TensorInfo& found = info(name);
  const std::size_t element = safetensors_element_bytes(found.dtype);
  const std::span<const std::byte> bytes = raw(name).subspan(first * element, to.size() * element);
  if (found.dtype == "F32") {
    if (!to.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
  } else if (found.dtype == "F16") {
    convert_all<std::uint16_t>(bytes, to, half_to_float);
  } else if (found.dtype == "BF16") {
    convert_all<std::uint16_t>(bytes, to, bfloat16_to_float);
  } else if (found.dtype == "F64") {
    convert_all<double>(bytes, to, [](double v) { return static_cast<float>(v); });
  } else {
    fail("tensor " + shown(name) + " has dtype " + found.dtype + ", expected F16, BF16, F32 or F64");
  }
  const auto bad = std::find_if_not(to.begin(), to.end(), [](float v) { return std::isfinite(v); });
  if (bad != to.end()) {
    const std::string place = index_text(found.shape, first + static_cast<std::size_t>(bad - to.begin()));
    fail("tensor " + shown(name) + (std::isnan(*bad) ? " has a NaN at " : " has an infinity at ") + place);
  }
}

std::vector<std::int32_t> SafetensorsFile::ints(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const TensorInfo& found = checked(name, shape);
  const std::span<const std::byte> bytes = raw(name);
  std::vector<std::int32_t> values;
  if (found.dtype == "I32") {
    values.resize(bytes.size() / sizeof(std::int32_t));
    convert_all<std::int32_t>(bytes, std::span(values), [](std::int32_t v) { return v; });
    return values;
  }
  if (found.dtype != "I64") fail("tensor " + shown(name) + " has dtype " + found.dtype + ", expected I32 or I64");
  values.resize(bytes.size() / sizeof(std::int64_t));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto wide = load<std::int64_t>(bytes.data() + i * sizeof(std::int64_t));
    values[i] = static_cast<std::int32_t>(wide);
    if (values[i] != wide) fail(fmt::format("tensor {} has {} at {}, beyond 32 bits", shown(name), wide, index_text(found.shape, i)));
  }
  return values;
}

}  // namespace kvlab
