#include "kernels/storage/compact/compact.h"
#include "policies/kv/disposal/disposal.h"

namespace kvlab {

namespace {

class Drop final : public InPlaceDisposal {
 public:
  explicit Drop(Params& p) : InPlaceDisposal(p) {}
  [[nodiscard]] bool keeps_no_state() const override { return true; }
  void dispose(LayerStep& step, const Kept& kept) override { step.ops(CompactRows{step.kv, kept.index_first, kept.index}); }
  [[nodiscard]] bool only_drops() const override { return true; }
};

KVLAB_REGISTER(Disposal, Drop, "drop", "deletes the tokens that were not kept", "H2O: Zhang et al. 2023, arXiv:2306.14048");

}  // namespace

}  // namespace kvlab
