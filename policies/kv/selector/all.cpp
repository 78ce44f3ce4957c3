#include "policies/kv/selector/selector.h"

namespace kvlab {

namespace {

class All final : public Selector {
 public:
  explicit All(Params&) {}
  Selection select(LayerStep&) override { return {}; }
  [[nodiscard]] bool selects_all() const override { return true; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
};

KVLAB_REGISTER(Selector, All, "all", "attends to every token held", "Vaswani et al. 2017, arXiv:1706.03762");

}  // namespace

}  // namespace kvlab
