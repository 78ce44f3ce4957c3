#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

class Never final : public Trigger {
 public:
  explicit Never(Params&) {}
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep&, const Held&, const Budget&) const override { return std::nullopt; }
  [[nodiscard]] bool acts() const override { return false; }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep&, const Budget&) const override { return std::nullopt; }
};

KVLAB_REGISTER(Trigger, Never, "never", "every token is kept", "Vaswani et al. 2017, arXiv:1706.03762");

}  // namespace

}  // namespace kvlab
