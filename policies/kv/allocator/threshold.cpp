#include "kernels/count_above/count_above.h"
#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

// Tokens stay whose score reaches a threshold, however many these are; there is no budget. Threshold eviction as in KVzap and in
// DMS-style eviction without the training (Lancucki et al. 2025, arXiv:2506.05345); the window in which tokens wait is the scorer's
// or the trigger's protection. A threshold means something for one scorer and one model only.
class Threshold final : public Allocator {
 public:
  explicit Threshold(Params& p)
      : least_score_(p.required<double>("least_score", -1e30, 1e30, "tokens that score less go, in units of the scorer")) {}

  [[nodiscard]] bool depends_on_data() const override { return true; }

  void allocate(Ops& ops, const ModelShape&, std::span<const SeqStep>, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers) {
      std::copy_n(l.kv.len, l.kv.num_rows, l.keep);  // bound
      ops(CountAbove{l.kv.num_rows, l.kv.first, l.scores, static_cast<float>(least_score_), l.keep});
      ops.settle("threshold", l.layer, all_counts(l));
    }
  }
  // The bound.
  [[nodiscard]] std::int32_t expected(const ModelShape&, std::int32_t, std::int32_t, std::int32_t, std::int32_t n) const override {
    return n;
  }

 private:
  double least_score_;
};

[[maybe_unused]] const bool registered = AllocatorRegistry::add<Threshold>(
    {"threshold", "tokens that reach a score stay, however many", "DMS: Lancucki et al. 2025, arXiv:2506.05345"});

}  // namespace

}  // namespace kvlab
