#include <fmt/format.h>

#include "policies/kv/allocator/head_labels.h"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"
#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Heads come from `weights` (semantic [layers, q_heads]) or a list, or (ours) are those whose window attends most to middle tokens.
class RetrievalHeadWindow final : public Scorer {
 public:
  explicit RetrievalHeadWindow(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 8, 1, 4096, "last prompt queries that vote; their tokens stay")),
        heads_(read_table(p, "heads", false, 0, 0, "query heads that retrieve, as LAYER.HEAD; layers without any find theirs online")),
        num_heads_(p.optional<std::int32_t>("heads_per_layer", 4, 1, 1024, "query heads chosen where none are listed")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens that tell nothing about retrieval")),
        pool_(p, ScorePooling::kAvg, 5) {
    for (const TableEntry& e : heads_)
      if (e.head < 0) p.fail_at("heads", "'heads' names query heads: LAYER.HEAD");
  }

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer; }
  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kIfGiven; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    if (!heads_.empty()) throw InputError("'heads' and 'weights' exclude each other: delete one of them");
    const std::vector<std::int64_t>& shape = weights->shape(kSemantic);
    if (shape.size() != 2) throw InputError(fmt::format("{}: tensor '{}' is no table [layers, query heads]", weights->name(), kSemantic));
    const auto per_layer = static_cast<std::size_t>(shape[1]);
    for (std::int32_t l = 0; l < shape[0]; ++l) {
      const std::span<const float> layer = weights->floats(kSemantic).subspan(static_cast<std::size_t>(l) * per_layer, per_layer);
      for (const std::int32_t head : largest(layer, static_cast<std::size_t>(num_heads_))) heads_.push_back({l, head, 0});
    }
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (weights_ != nullptr) return weights_->refuses(kSemantic, {model.num_layers, model.q_heads}, "layers, query heads");
    for (const TableEntry& e : heads_)
      if (e.layer >= model.num_layers || e.head >= model.q_heads)
        return fmt::format("'heads' names layer {} head {}, the model has {} layers of {} query heads", e.layer, e.head, model.num_layers,
                           model.q_heads);
    return "";
  }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }
  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kFound; }

  void score(LayerStep& step, float* scores) override {
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    const std::vector<std::int32_t> listed = heads_of(step.layer);
    ChosenHeads chosen;
    chosen.kv = step.kv;
    chosen.queries = window.data();
    chosen.finds_heads = listed.empty();
    chosen.heads = listed.empty() ? nullptr : listed.data();
    chosen.num_heads = listed.empty() ? std::min(num_heads_, step.model.q_heads) : static_cast<std::int32_t>(listed.size());
    chosen.sinks = sinks_, chosen.recent = window_;
    chosen.scores = scores;
    check_heads(chosen);
    step.ops(chosen);
    pool_.smooth(
        step, [&](std::int32_t) { return window_; }, scores);
  }

 private:
  static constexpr const char* kSemantic = "semantic";

  [[nodiscard]] std::vector<std::int32_t> heads_of(std::int32_t layer) const {
    std::vector<std::int32_t> listed;
    for (const TableEntry& e : heads_)
      if (e.layer == layer) listed.push_back(e.head);
    return listed;
  }

  std::int32_t window_;
  std::vector<TableEntry> heads_;
  std::shared_ptr<const TrainedTensors> weights_;
  std::int32_t num_heads_, sinks_;
  ScorePool pool_;
};

KVLAB_REGISTER(Scorer, RetrievalHeadWindow, "retrieval_head_window",
               "attention of the prompt's last queries in retrieval heads alone, for all KV heads alike",
               "CompressKV: Lin et al. 2025, arXiv:2508.02401");

}  // namespace

}  // namespace kvlab
