#include "sim/cost/hardware_names.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

const std::set<std::string> kMakers{"nvidia", "amd",     "tesla",       "geforce",  "instinct", "gpu",        "tensor",
                                    "core",   "edition", "accelerator", "graphics", "card",     "generation", "oam"};
const std::set<std::string> kMemories{"hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr6x", "gddr7", "lpddr5x"};

// "80gb", "80gib", "80g": 80; else 0.
int gigabytes_in(const std::string& word) {
  const std::size_t digits = word.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string::npos || digits > 4) return 0;
  const std::string unit = word.substr(digits);
  return unit == "gb" || unit == "gib" || unit == "g" ? std::atoi(word.c_str()) : 0;
}

std::string form_in(const std::string& word) {
  if (word == "hgx" || (word.rfind("sxm", 0) == 0 && word.size() <= 4)) return "sxm";
  return word == "pcie" || word == "nvl" ? word : "";
}

// A card as its file describes it.
struct KnownCard {
  std::string file;
  std::vector<GpuName> names;  // by its file, its `name`, and `also`
  double bytes = 0;
  bool has_nvlink = false;
  std::set<std::string> source;  // words of it

  [[nodiscard]] std::string form() const {
    for (const GpuName& name : names)
      if (!name.form.empty()) return name.form;
    return has_nvlink ? "sxm" : "pcie";
  }
  // 48 GB are 48e9 bytes or 48 * 2^30, less what the driver keeps.
  [[nodiscard]] bool has_memory(int gigabytes) const {
    for (const GpuName& name : names)
      if (name.gigabytes > 0) return name.gigabytes == gigabytes;
    constexpr double kLeast = 0.97e9, kMost = 1.1;
    return bytes >= kLeast * gigabytes / kMost && bytes <= kMost * 1e9 * gigabytes;
  }
  [[nodiscard]] bool has_kind(const std::string& memory) const {
    const bool says = std::any_of(kMemories.begin(), kMemories.end(), [&](const std::string& kind) { return source.count(kind) > 0; });
    return !says || source.count(memory) > 0;
  }
  [[nodiscard]] bool is(const GpuName& wanted) const {
    if (std::none_of(names.begin(), names.end(), [&](const GpuName& own) { return own.chip == wanted.chip; })) return false;
    return (wanted.form.empty() || wanted.form == form()) && (wanted.gigabytes == 0 || has_memory(wanted.gigabytes)) &&
           (wanted.memory.empty() || has_kind(wanted.memory));
  }
  [[nodiscard]] bool is_spelled(const GpuName& wanted) const {
    return std::any_of(names.begin(), names.end(), [&](const GpuName& own) { return own.spelling == wanted.spelling; });
  }
};

KnownCard card_of(const std::string& file) {
  const auto config = parse_config(read_file(file, "a YAML file"), file);
  Params p(config, std::make_shared<Choices>(), "hardware '" + file + "'");
  KnownCard card{file, {gpu_name(std::filesystem::path(file).stem().string())}, 0, p.has("nvlink_bytes_per_s"), {}};
  if (const std::string name = p.text("name", "", "the card"); !name.empty()) card.names.push_back(gpu_name(name));
  std::string also = p.text("also", "", "other names");
  for (std::size_t end = 0; !also.empty(); also.erase(0, end == std::string::npos ? end : end + 1)) {
    end = also.find(',');
    card.names.push_back(gpu_name(also.substr(0, end)));
  }
  card.bytes = static_cast<double>(p.optional<std::int64_t>("memory_bytes", 0, 0, std::int64_t{1} << 50, "memory"));
  for (const std::string& word : lower_words(p.text("source", "", "datasheet"))) card.source.insert(word);
  return card;
}

}  // namespace

GpuName gpu_name(const std::string& text) {
  GpuName name;
  for (const std::string& word : lower_words(text)) {
    name.spelling += word;
    if (const int gigabytes = gigabytes_in(word); gigabytes > 0)
      name.gigabytes = gigabytes;
    else if (const std::string form = form_in(word); !form.empty())
      name.form = form;
    else if (kMemories.count(word) > 0)
      name.memory = word;
    else if (kMakers.count(word) == 0)
      name.chip += word;
  }
  return name;
}

std::vector<std::string> hardware_meant(const std::string& name, const std::string& folder) {
  const GpuName wanted = gpu_name(name);
  std::vector<std::string> meant;
  if (wanted.chip.empty()) return meant;
  for (const std::filesystem::path& file : yaml_files(folder)) {
    const KnownCard card = card_of(file.string());
    if (card.is_spelled(wanted)) return {file.string()};
    if (card.is(wanted)) meant.push_back(file.string());
  }
  return meant;
}

std::string find_hardware(const std::string& name_or_path, const std::string& folder) {
  std::error_code error;
  const std::filesystem::path named = std::filesystem::path(folder) / (name_or_path + ".yaml");
  const bool is_file = std::filesystem::is_regular_file(name_or_path, error) || std::filesystem::is_regular_file(named, error);
  if (is_file || name_or_path.find(".yaml") != std::string::npos) return find_spec_file(name_or_path, folder, "hardware");
  const std::vector<std::string> meant = hardware_meant(name_or_path, folder);
  if (meant.empty()) return find_spec_file(name_or_path, folder, "hardware");
  if (meant.size() == 1) return find_spec_file(meant.front(), folder, "hardware");
  std::vector<std::string> names;
  for (const std::string& file : meant) names.push_back(std::filesystem::path(file).stem().string());
  throw InputError("unknown hardware '" + name_or_path + "': neither a file nor a name in " + folder + offer_of(names));
}

}  // namespace kvlab
