#include <map>

#include "policies/kv/disposal/disposal.h"
#include "policies/kv/disposal/slerp_pairs_op.h"
#include "policies/kv/selector/row_state.h"

namespace kvlab {

namespace {

// Pairs of deep layers store one direction and two magnitudes per token; the most different tokens keep both vectors. The second layer
// merges whole blocks (ours).
class LayerPairs final : public Disposal {
 public:
  explicit LayerPairs(Params& p)
      : begin_frac_(p.optional<double>("begin_frac", 0.5, 0, 1, "share of the layers, from the first on, that stay as they are")),
        t_(p.optional<float>("second_share_frac", 0.6F, 0, 1, "share of the second layer in the common direction")),
        retain_frac_(p.optional<double>("retain_frac", 0.05, 0, 1, "share of tokens, those of largest angle, that keep both vectors")),
        block_(p.optional<std::int32_t>("block_tokens", 20, 1, 1 << 20,
                                        "tokens merged together; the last ones wait until their block is complete")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return Lengths::inside_block(len, block_); }
  [[nodiscard]] bool acts_alone() const override { return true; }
  [[nodiscard]] bool shrinks() const override { return false; }
  void dispose(LayerStep&, const Kept&) override {}

  void observe(LayerStep& step) override {
    const std::int32_t place = place_in_pair(step.model, step.layer);
    if (place < 0 || step.seqs.empty()) return;
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {  // as earlier steps left it
      done_.at(step, r) = done_at(seq_of(step, r).decoding(), step.kv.len[r] - seq_of(step, r).new_tokens);
    }
    KvRows& first = first_[step.seqs.front().index];
    if (place == 0) {
      first = step.kv;
    } else {
      merge(step, first);
    }
  }

  // The second layer holds directions; the first magnitudes and unmerged vectors. 4 bytes for K and V each per token that kept both.
  [[nodiscard]] TierBytes resident(const ModelShape& model, std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv,
                                   const Format& format, const TierBytes& rows) const override {
    TierBytes all = rows;
    const std::int32_t place = place_in_pair(model, layer);
    if (place < 0) return all;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const Done* done = done_.find(layer, seqs[static_cast<std::size_t>(kv.sequence(r))].index, r % kv.kv_heads);
      if (done == nullptr) continue;
      const std::int32_t merged = done->tokens - done->retained;
      all.gpu += 2LL * 2 * merged;
      if (place == 0)
        all.gpu +=
            format.row_bytes(model, layer, kv.len[r] - merged) - format.row_bytes(model, layer, kv.len[r]) + 2LL * 4 * done->retained;
    }
    return all;
  }

 private:
  struct Done {
    std::int32_t tokens = 0, retained = 0;
  };

  // 0 or 1; -1: not in a pair.
  [[nodiscard]] std::int32_t place_in_pair(const ModelShape& model, std::int32_t layer) const {
    const std::int32_t at = layer - static_cast<std::int32_t>(begin_frac_ * model.num_layers);
    return at < 0 || (at % 2 == 0 && layer + 1 == model.num_layers) ? -1 : at % 2;
  }

  [[nodiscard]] Done done_at(bool complete, std::int32_t n) const {
    const std::int32_t tokens = complete ? n - n % block_ : 0;
    return {tokens, share(tokens)};
  }
  [[nodiscard]] std::int32_t share(std::int32_t tokens) const { return static_cast<std::int32_t>(retain_frac_ * tokens); }

  void merge(LayerStep& step, const KvRows& first) {
    const std::int32_t rows = step.kv.num_rows;
    std::int32_t *begin = step.ops.host_ints(rows), *end = step.ops.host_ints(rows), *retain = step.ops.host_ints(rows);
    bool any = false;
    LayerStep before = step;
    before.layer = step.layer - 1;
    for (std::int32_t r = 0; r < rows; ++r) {
      const SeqStep& seq = step.seqs[static_cast<std::size_t>(step.kv.sequence(r))];
      const Done was = done_.at(step, r), now = done_at(seq.end() >= seq.prompt_tokens, step.kv.len[r]);
      begin[r] = was.tokens, end[r] = now.tokens, retain[r] = now.retained - was.retained;
      any |= end[r] > begin[r];
      done_.at(step, r) = done_.at(before, r) = now;
    }
    if (!any) return;
    for (const bool values : {false, true}) step.ops(SlerpPairs{first, step.kv, begin, end, retain, values, t_});
  }

  double begin_frac_;
  float t_;
  double retain_frac_;
  std::int32_t block_;
  PerRow<Done> done_{*this};
  std::map<std::int32_t, KvRows> first_;  // the pair's first layer in this step, by its first sequence
};

KVLAB_REGISTER(Disposal, LayerPairs, "layer_pairs", "neighbouring layers share the directions of keys and values",
               "MiniCache: Liu et al. 2024, arXiv:2405.14366, eq. 2-5");

}  // namespace

}  // namespace kvlab
