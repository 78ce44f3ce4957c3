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

// Gaussian weights of the distance to the kept key. Deletes dropped tokens in runs without a kept token.
class MergeRuns final : public Disposal {
 public:
  explicit MergeRuns(Params& p)
      : min_cosine_(p.optional<float>("min_cosine", 0.75, -1, 1, "similarity of neighbouring keys that continues a run")),
        sigma_(p.optional<float>("sigma", 5, 1e-3F, 1e6F, "width of the gaussian over key distances")),
        counts_(p.flag("values_times_count", true, "values grow with the tokens merged, in place of their lost softmax weight")),
        runs_first_(p.choice(
            "order", {{"tokens_first", false}, {"runs_first", true}}, false,
            "the budget picks tokens, and those dropped join the nearest; or runs are formed first, and it picks among their pivots")) {}
  [[nodiscard]] bool merges() const override { return true; }

  void rank(LayerStep& step, float* scores) override {
    if (runs_first_) step.ops(KeyLinks{{step.kv}, KeyLinks::Kind::kPivots, min_cosine_, nullptr, scores});
  }

  void dispose(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = part_rows(step, kept);
    std::int32_t* const target = step.ops.ints(rows.total_dropped());
    step.ops(KeyLinks{rows, KeyLinks::Kind::kRuns, min_cosine_, target});
    MergeInto merge{rows, target};
    merge.combine = MergeInto::Combine::kWeightedMean;
    merge.weight = MergeInto::Weight::kGaussian;
    merge.sigma = sigma_;
    merge.values_times_count = counts_;
    step.ops(merge);
    compact(step, kept);
  }

 private:
  float min_cosine_, sigma_;
  bool counts_, runs_first_;
};

KVLAB_REGISTER(Disposal, MergeRuns, "merge_runs", "merges runs of neighbouring similar keys into one",
               "KVMerger: Wang et al. 2024, arXiv:2407.08454, algorithm 1, eq. 4-6");

}  // namespace

}  // namespace kvlab
