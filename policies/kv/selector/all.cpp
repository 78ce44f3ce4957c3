#include "policies/kv/part.h"

namespace kvlab {

namespace {

// Attends to every token that is held.
class All final : public Selector {
 public:
  explicit All(Params&) {}
  Selection select(LayerStep&) override { return {}; }
  [[nodiscard]] bool selects_all() const override { return true; }
};

KVLAB_REGISTER(Selector, All, "all", "attends to every token held", "Vaswani et al. 2017");

}  // namespace

}  // namespace kvlab
