#include "policies/kv/recipe/trained_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/read_file.h"
#include "base/safetensors.h"
#include "base/text.h"
#include "base/usage.h"

namespace kvlab {

std::shared_ptr<const TrainedTensors> TrainedTensors::open(const std::string& path) {
  const std::shared_ptr<TrainedTensors> tensors(new TrainedTensors(path));
  if (std::filesystem::path(path).extension() == ".tsv") {
    tensors->read_table(path);
  } else {
    tensors->file_ = std::make_shared<SafetensorsFile>(SafetensorsFile::open(path));
    for (const auto& [tensor, info] : tensors->file_->tensors()) tensors->tensors_[tensor] = info.shape;
  }
  UsageLog::note_file(path);
  return tensors;
}

void TrainedTensors::read_table(const std::string& path) {
  std::vector<float> values;
  std::int64_t rows = 0, columns = 0;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    const std::size_t before = values.size();
    for (std::string word; words >> word;) {
      double value = 0;
      if (!parse_real(word, value)) throw InputError(fmt::format("{}:{}: not a number: '{}'", path, rows + 1, word));
      values.push_back(static_cast<float>(std::clamp(value, 0.0, 1.0)));
    }
    const auto count = static_cast<std::int64_t>(values.size() - before);
    if (count == 0 || (rows > 0 && count != columns))
      throw InputError(fmt::format("{}:{}: {} numbers, expected {}: a row per layer, a number per KV head", path, rows + 1, count,
                                   rows > 0 ? std::to_string(columns) : "at least one"));
    columns = count, ++rows;
  }
  if (rows == 0) throw InputError(path + ": is empty; expected a row of numbers per layer, one per KV head");
  tensors_["gates"] = {rows, columns};
  values_["gates"] = std::move(values);
}

std::vector<std::string> TrainedTensors::names() const {
  std::vector<std::string> all;
  for (const auto& [tensor, shape] : tensors_) all.push_back(tensor);
  return all;
}

void TrainedTensors::require(const std::string& tensor) const {
  if (has(tensor)) return;
  constexpr std::size_t kMost = 8;
  std::vector<std::string> some = names();
  const std::string more = some.size() > kMost ? fmt::format(" and {} more", some.size() - kMost) : "";
  some.resize(std::min(some.size(), kMost));
  throw InputError(fmt::format("{}: has no tensor '{}'; it has {}{}", name_, tensor, fmt::join(some, ", "), more));
}

const std::vector<std::int64_t>& TrainedTensors::shape(const std::string& tensor) const {
  require(tensor);
  return tensors_.at(tensor);
}

std::span<const float> TrainedTensors::floats(const std::string& tensor) const {
  require(tensor);
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(tensor);
  if (found != values_.end()) return found->second;
  return values_.emplace(tensor, file_->floats(tensor)).first->second;
}

std::string TrainedTensors::refuses(const std::string& tensor, const std::vector<std::int64_t>& wanted, const std::string& of) const {
  const std::vector<std::int64_t>& found = shape(tensor);
  const bool fits = found.size() == wanted.size() &&
                    std::equal(found.begin(), found.end(), wanted.begin(), [](std::int64_t a, std::int64_t b) { return b < 0 || a == b; });
  if (fits) return "";
  return fmt::format("tensor '{}' of {} has shape {}, the model needs {} ({}); take the file of this model", tensor, name_,
                     shape_text(found), shape_text(wanted), of);
}

std::string TrainedTensors::refuses_more_layers(const std::string& tensor, std::int32_t num_layers) const {
  return has(tensor) ? fmt::format("{} has more than the model's {} layers; take the file of this model", name_, num_layers) : "";
}

const float* PlacedTensors::floats(const TrainedTensors& file, const std::string& tensor, const TensorMemory& memory) {
  const std::span<const float> values = file.floats(tensor);
  if (memory.on_host()) return values.data();
  TensorArray<float>& copy = copies_.try_emplace(tensor, memory).first->second;
  if (copy.size() == 0) copy.append_from_host(values.data(), static_cast<std::int64_t>(values.size()));
  return copy.data();
}

}  // namespace kvlab
