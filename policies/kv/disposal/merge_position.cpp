#include "kernels/merge/merge_into/merge_into.h"
#include "policies/kv/disposal/key_links_op.h"
#include "policies/kv/disposal/merging.h"

namespace kvlab {

namespace {

class MergePosition final : public Disposal {
 public:
  explicit MergePosition(Params&) {}
  [[nodiscard]] bool merges() const override { return true; }

  void dispose(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = part_rows(step, kept);
    std::int32_t* const target = step.ops.ints(rows.total_dropped());
    step.ops(KeyLinks{.parts = rows, .kind = KeyLinks::Kind::kNearest, .target = target});
    step.ops(MergeInto{rows, target});
    compact(step, kept);
  }
};

KVLAB_REGISTER(Disposal, MergePosition, "merge_position", "averages dropped tokens into the kept ones nearest in the sequence",
               "Elastic Cache: Liu et al. 2024, arXiv:2407.18121, section 3.2");

}  // namespace

}  // namespace kvlab
