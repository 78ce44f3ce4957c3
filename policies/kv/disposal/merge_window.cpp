#include "policies/kv/disposal/merge_window_op.h"
#include "policies/kv/disposal/merging.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Probabilities follow from relative accumulated attention.
class MergeIntoWindow final : public Disposal {
 public:
  explicit MergeIntoWindow(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 1 << 20, "kept tokens that follow, over which a value is spread")),
        per_query_(p.choice("mass", {{"sum", false}, {"per_query", true}}, false,
                            "attention of a token: its sum, or its mean over the queries that saw it")) {}
  [[nodiscard]] bool merges() const override { return true; }

  [[nodiscard]] Needs needs() const override { return attention_mass::needs(); }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void observe(LayerStep& step) override { attention_mass::observe(step, first_word()); }

  void dispose(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = part_rows(step, kept);
    const float* const mass = attention_mass::sum(step, first_word(), per_query_);
    step.ops(MergeWindow{rows, window_, mass, sequence_seeds(step)});
    compact(step, kept);
  }

 private:
  std::int32_t window_;
  bool per_query_;
};

KVLAB_REGISTER(Disposal, MergeIntoWindow, "merge_window", "spreads values of dropped tokens over the kept ones that follow, by chance",
               "CaM: Zhang et al. 2024, section 3");

}  // namespace

}  // namespace kvlab
