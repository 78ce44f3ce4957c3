#include "kernels/storage/token_copy_op.h"
#include "policies/kv/disposal/merging.h"
#include "policies/kv/selector/row_state.h"

namespace kvlab {

namespace {

// FlexGen-style H2O: a later turn may restore the tokens.
class Offload final : public InPlaceDisposal {
 public:
  explicit Offload(Params& p) : InPlaceDisposal(p) {}

  // Only evicted tokens leave rows.
  void observe(LayerStep& step) override {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      count_.at(step, r) = step.seqs[static_cast<std::size_t>(step.kv.sequence(r))].end() - step.kv.len[r];
  }

  void dispose(LayerStep& step, const Kept& kept) override {
    let_go(step, kept);
    compact(step, kept);
  }
  void let_go(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = part_rows(step, kept);
    const std::int64_t n = rows.total_dropped();
    float* const vectors = step.ops.floats(n * 2 * step.kv.head_dim);
    const TokenCopy packed = copy_dropped(rows, vectors, step.ops.ints(n));
    step.ops(packed);
    if (step.keeper != nullptr) step.keeper->keep(step, packed);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      const std::int32_t dropped = rows.num_dropped(r);
      count_.at(step, r) += dropped;
      if (dropped > 0) moved_.push_back({step.layer, dropped});
    }
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv,
                                   const Format& format, const TierBytes& rows) const override {
    TierBytes all = rows;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t* count = count_.find(layer, seqs[static_cast<std::size_t>(kv.sequence(r))].index, r % kv.kv_heads);
      if (count != nullptr) all.host += format.transfer_bytes(model, layer, *count);
    }
    return all;
  }

  Traffic take_traffic(const ModelShape& model, const Format& format) override {
    Traffic traffic;
    for (const Moved& m : moved_) traffic.stored_bytes += format.transfer_bytes(model, m.layer, m.tokens);
    moved_.clear();
    return traffic;
  }

 private:
  struct Moved {
    std::int32_t layer = 0, tokens = 0;  // of one row at once
  };
  PerRow<std::int32_t> count_{*this};
  std::vector<Moved> moved_;
};

KVLAB_REGISTER(Disposal, Offload, "offload", "moves dropped tokens to host memory, where nothing attends to them",
               "FlexGen: Sheng et al. 2023, arXiv:2303.06865");

}  // namespace

}  // namespace kvlab
