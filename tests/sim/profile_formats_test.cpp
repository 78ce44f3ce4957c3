// A profile format is one file: this one has all that a format needs.
#include "sim/cost/profile.h"
#include "sim/cost/profile_format.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

using ::testing::Contains;

class OneFile final : public ProfileFormat {
 public:
  explicit OneFile(Params& /*p*/) {}
  [[nodiscard]] std::string parameters() const override { return "path, colour"; }
  [[nodiscard]] std::pair<std::string, std::string> mark() const override { return {"one.csv", "of a test"}; }
  [[nodiscard]] bool is_form_of(const std::string& folder) const override { return std::filesystem::exists(folder + "/one.csv"); }
  [[nodiscard]] Profile read(const std::string& folder, int tp) const override {
    throw InputError("read " + folder + " for tp " + std::to_string(tp));
  }
};

KVLAB_REGISTER(ProfileFormat, OneFile, "one_file", "a test's own", "");

TEST(ProfileFormats, AreNamedByTheRegistryOurOwnFirst) {
  const std::vector<std::string> names = profile_format_names();
  EXPECT_EQ(names.front(), kOwnProfileFormat);
  for (const char* name : {"aisimulate", "bundle", "vidur", "one_file"}) EXPECT_THAT(names, Contains(name));
  EXPECT_EQ(std::find(names.begin(), names.end(), "roofline"), names.end()) << "it has no tables";
}

TEST(ProfileFormats, AFolderHasTheFormatOfItsFiles) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { static_cast<void>(profile_format_of(folder.path())); }), HasSubstr("one.csv of a test"));
  folder.write("one.csv", "");
  EXPECT_EQ(profile_format_of(folder.path()), "one_file");
}

TEST(ProfileFormats, AnExperimentChoosesARegisteredOne) {
  const auto error = [](const std::string& profile) {
    return error_of([&] {
      Params p = Params::from_text("model: llama-3.1-8b\nhardware: h100\nprofile: " + profile + "\n");
      static_cast<void>(read_cost_setup(p));
    });
  };
  EXPECT_THAT(error("{one_file: {path: /there}}"), HasSubstr("read /there for tp 1"));
  EXPECT_THAT(error("{one_fil: {path: /there}}"), HasSubstr("unknown profile format 'one_fil'; did you mean 'one_file'?"));
  std::vector<ParamDoc> docs;
  Params p = Params::describing("experiment", docs);
  static_cast<void>(read_cost_setup(p));
  EXPECT_THAT(docs.front().meaning, HasSubstr("{one_file: {path, colour}}"));
}

}  // namespace
}  // namespace kvlab
