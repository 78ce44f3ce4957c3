#include "sim/cost/profile.h"

namespace kvlab {

namespace {

// Step times from the datasheet, without measured tables.
class RooflineFormat final : public ProfileFormat {
 public:
  explicit RooflineFormat(Params& /*p*/) {}
  [[nodiscard]] bool has_tables() const override { return false; }
  [[nodiscard]] Profile read(const std::string& /*folder*/, int /*tp*/) const override { return {}; }
};

KVLAB_REGISTER(ProfileFormat, RooflineFormat, "roofline", "datasheet figures and fitted efficiencies", "docs/cost-model.md");

}  // namespace

}  // namespace kvlab
