#include "policies/kv/allocator/allocator.h"

namespace kvlab {

namespace {

class Uniform final : public Allocator {
 public:
  explicit Uniform(Params&) {}
  [[nodiscard]] bool reads_scores() const override { return false; }
  [[nodiscard]] bool keeps_no_state() const override { return true; }
  void allocate(Ops&, const ModelShape&, std::span<const SeqStep>, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers)
      for (std::int32_t r = 0; r < l.kv.num_rows; ++r) l.keep[r] = std::min(l.kv.len[r], l.target[l.kv.sequence(r)]);
  }
  [[nodiscard]] bool is_uniform() const override { return true; }
  [[nodiscard]] bool has_shares() const override { return false; }  // equal ones
};

KVLAB_REGISTER(Allocator, Uniform, "uniform", "the same budget in every layer and head", "H2O: Zhang et al. 2023, arXiv:2306.14048");

}  // namespace

}  // namespace kvlab
