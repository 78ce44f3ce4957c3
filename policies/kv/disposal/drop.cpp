#include "kernels/storage/compact/compact.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/disposal/disposal.h"
#include "policies/kv/disposal/merging.h"

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

// FlexGen-style H2O: a later turn may restore the tokens.
class Offload final : public CountingDisposal {
 public:
  explicit Offload(Params& p) : CountingDisposal(p) {}

  void let_go(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = count_dropped(step, kept);
    const std::int64_t n = rows.total_dropped();
    float* const vectors = step.ops.floats(n * 2 * step.kv.head_dim);
    const TokenCopy packed = copy_dropped(rows, vectors, step.ops.ints(n));
    step.ops(packed);
    if (step.keeper != nullptr) step.keeper->keep(step, packed);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      if (const std::int32_t dropped = rows.num_dropped(r); dropped > 0) moved_.push_back({step.layer, dropped});
  }

  Traffic take_traffic(const ModelShape& model, const Format& format) override {
    Traffic traffic;
    for (const Moved& m : moved_) traffic.stored_bytes += format.transfer_bytes(model, m.layer, m.tokens);
    moved_.clear();
    return traffic;
  }

 private:
  [[nodiscard]] TierBytes bytes_of(const ModelShape& model, std::int32_t layer, const Format& format, std::int32_t count) const override {
    return {.host = format.transfer_bytes(model, layer, count)};
  }

  struct Moved {
    std::int32_t layer = 0, tokens = 0;  // of one row at once
  };
  std::vector<Moved> moved_;
};

KVLAB_REGISTER(Disposal, Offload, "offload", "moves dropped tokens to host memory, where nothing attends to them",
               "FlexGen: Sheng et al. 2023, arXiv:2303.06865");

}  // namespace

}  // namespace kvlab
