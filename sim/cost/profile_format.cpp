#include "sim/cost/profile_format.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

class RooflineFormat final : public ProfileFormat {
 public:
  explicit RooflineFormat(Params& /*p*/) {}
  [[nodiscard]] bool has_tables() const override { return false; }
  [[nodiscard]] bool is_form_of(const std::string& /*folder*/) const override { return false; }
  [[nodiscard]] Profile read(const std::string& /*folder*/, int /*tp*/) const override { return {}; }
};

KVLAB_REGISTER(ProfileFormat, RooflineFormat, "roofline", "datasheet figures and fitted efficiencies", "docs/cost-model.md");

}  // namespace

std::string ProfileFormat::read_folder(Params& p) const { return p.resolve_file(p.text("path", "folder of the profile")); }

std::unique_ptr<ProfileFormat> make_profile_format(const std::string& name) {
  Params none = Params::empty("profile format");
  return Registry<ProfileFormat>::table_view().at(name).make(none);
}

std::vector<std::string> profile_format_names() {
  std::vector<std::string> names = Registry<ProfileFormat>::names();
  std::erase_if(names, [](const std::string& name) { return !make_profile_format(name)->has_tables(); });
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name == kOwnProfileFormat; });
  return names;
}

bool some_degree_has(const std::string& folder, const std::string& file) {
  const std::vector<int> degrees = profile_tp_degrees(folder);
  return std::any_of(degrees.begin(), degrees.end(), [&](int tp) {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::path(folder) / ("tp" + std::to_string(tp)) / file, error);
  });
}

std::string profile_format_of(const std::string& folder) {
  std::vector<std::string> marks;
  for (const std::string& name : profile_format_names()) {
    const std::unique_ptr<ProfileFormat> format = make_profile_format(name);
    if (format->is_form_of(folder)) return name;
    const auto [file, rest] = format->mark();
    if (!file.empty()) marks.push_back(file + (marks.empty() ? " would make it " : " ") + rest);
  }
  throw InputError(folder + ": holds no profile: " + join(marks, ", "));
}

}  // namespace kvlab
