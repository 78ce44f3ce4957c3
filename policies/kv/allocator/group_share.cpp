#include <numbers>

#include "policies/kv/allocator/layer_allocator.h"
#include "policies/kv/recent_groups.h"

namespace kvlab {

namespace {

// A cut keeps the share ratio (decay + (1 - decay) (cos(pi l / L) + 1) / 2) of a group.
class GroupShare final : public LayerAllocator {
 public:
  explicit GroupShare(Params& p)
      : group_(RecentGroups::group_of(p)),
        ratio_(p.optional<double>("ratio", 0.9, 0, 1, "share of a group that stays in layer 0")),
        decay_(p.optional<double>("decay", 0.1, 0, 1, "part of it that the deepest layers would keep")) {}

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t) const override {
    const double share = ratio_ * (decay_ + (1 - decay_) * (std::cos(std::numbers::pi * layer / model.num_layers) + 1) / 2);
    return std::max(0, target - group_ + static_cast<std::int32_t>(std::floor(group_ * share + 1e-9)));
  }

  std::int32_t group_;
  double ratio_, decay_;
};

KVLAB_REGISTER(Allocator, GroupShare, "group_share", "of one group a share stays, in deeper layers less",
               "PyramidInfer: Yang et al. 2024, arXiv:2405.12532");

}  // namespace

}  // namespace kvlab
