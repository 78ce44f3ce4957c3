#include <algorithm>

#include "kernels/merge/merge_into/merge_into.h"
#include "kernels/merge/nearest_kept/nearest_kept.h"
#include "policies/kv/disposal/key_links_op.h"
#include "policies/kv/disposal/merge_gate_op.h"
#include "policies/kv/disposal/merging.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

constexpr float kNoThreshold = -2.0F;  // below any cosine: no token was dropped yet

// Deletes dropped tokens without a similar enough key.
class MergeNearest final : public InPlaceDisposal {
  using Combine = MergeInto::Combine;
  using Weight = MergeInto::Weight;
  enum class Threshold : std::uint8_t { kRunningMean, kFixed, kNone };

 public:
  explicit MergeNearest(Params& p)
      : InPlaceDisposal(p),
        merges_keys_(p.choice("merges", {{"keys_and_values", true}, {"values", false}}, true,
                              "what is merged; keys stay exact under RoPE where only values are")),
        combine_(p.choice("combine", {{"mean", Combine::kMean}, {"pivot", Combine::kPivot}, {"weighted_mean", Combine::kWeightedMean}},
                          Combine::kWeightedMean, "how a kept token and those that join it become one")),
        weight_(p.choice("weight",
                         {{"one", Weight::kOne},
                          {"similarity", Weight::kSimilarity},
                          {"softmax", Weight::kSoftmax},
                          {"norm_share", Weight::kNormShare},
                          {"attention_share", Weight::kMassShare}},
                         Weight::kSoftmax, "of a joining token; the kept one has 1")),
        threshold_(p.choice("threshold",
                            {{"running_mean", Threshold::kRunningMean}, {"fixed", Threshold::kFixed}, {"none", Threshold::kNone}},
                            Threshold::kRunningMean, "cosine below which a token is deleted instead of merged")),
        fixed_(p.optional<float>("min_cosine", 0, -1, 1, "the fixed threshold")),
        share_(p.optional<float>("new_share_frac", 0.5, 0, 1, "weight of the newest mean in the running one")),
        heads_vote_(p.choice("vote", {{"head_mean", true}, {"own", false}}, true,
                             "whose similarity meets the threshold: the heads' mean, or each token's own")) {}
  [[nodiscard]] bool merges() const override { return true; }
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  void forget(std::int32_t index) override {
    for (std::vector<float>& layer : thresholds_)
      if (static_cast<std::size_t>(index) < layer.size()) layer[static_cast<std::size_t>(index)] = kNoThreshold;
  }

  [[nodiscard]] Needs needs() const override { return weighs_attention() ? attention_mass::needs() : Needs{}; }
  [[nodiscard]] std::int32_t num_words() const override { return weighs_attention() ? 1 : 0; }
  void observe(LayerStep& step) override {
    if (weighs_attention()) attention_mass::observe(step, first_word());
  }

  void dispose(LayerStep& step, const Kept& kept) override {
    let_go(step, kept);
    compact(step, kept);
  }
  void let_go(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = part_rows(step, kept);
    std::int32_t* const target = step.ops.ints(rows.total_dropped());
    float* const similarity = step.ops.floats(rows.total_dropped());
    step.ops(NearestKept{rows, target, similarity});
    if (threshold_ != Threshold::kNone) {
      MergeGate gate{rows, similarity, target, threshold_ == Threshold::kRunningMean, nullptr, nullptr, share_, fixed_, heads_vote_};
      if (gate.running) read_thresholds(step, gate);
      step.ops(gate);
    }
    MergeInto merge{rows, target, similarity};
    merge.combine = combine_;
    merge.weight = weight_;
    merge.keys = merges_keys_;
    if (weighs_attention()) merge.mass = attention_mass::sum(step, first_word(), true);
    step.ops(merge);
  }

 private:
  [[nodiscard]] bool weighs_attention() const { return weight_ == Weight::kMassShare; }

  void read_thresholds(LayerStep& step, MergeGate& gate) {
    std::int32_t* const lines = step.ops.host_ints(step.kv.num_sequences());
    std::int32_t most = -1;
    for (std::size_t s = 0; s < step.seqs.size(); ++s) most = std::max(most, lines[s] = step.seqs[s].index);
    gate.threshold_of = lines;
    const auto layer = static_cast<std::size_t>(step.layer), needed = static_cast<std::size_t>(most + 1);
    if (thresholds_.size() <= layer) thresholds_.resize(layer + 1);
    if (thresholds_[layer].size() < needed) thresholds_[layer].resize(needed, kNoThreshold);
    gate.thresholds = thresholds_[layer].data();
  }

  bool merges_keys_;
  Combine combine_;
  Weight weight_;
  Threshold threshold_;
  float fixed_, share_;
  bool heads_vote_;
  std::vector<std::vector<float>> thresholds_;  // [layer][batch index]
};

KVLAB_REGISTER(Disposal, MergeNearest, "merge_nearest", "merges dropped tokens into the kept ones with the most similar keys",
               "D2O: Wan et al. 2025, arXiv:2406.13035, section 3.3; LOOK-M: Wan et al. 2024, arXiv:2406.18139, section 3.3");

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
