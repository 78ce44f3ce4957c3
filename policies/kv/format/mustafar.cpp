#include <algorithm>
#include <cmath>

#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/sparsify_op.h"
#include "kernels/storage/stored/stored_channels.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Applies after the recent window.
class Mustafar final : public Format {
 public:
  explicit Mustafar(Params& p)
      : k_sparsity_(p.optional<double>("key_sparsity", 0.5, 0, 0.99, "share of channels of K pruned per token")),
        v_sparsity_(p.optional<double>("value_sparsity", 0.5, 0, 0.99, "share of channels of V pruned per token")),
        due_(*this, {p.optional<std::int32_t>("recent_tokens", 32, 0, 1 << 16, "newest tokens that stay dense"), 1}) {}

  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    prune(step, keys, kept(k_sparsity_, step.kv.head_dim));
    prune(step, keys.of_values(), kept(v_sparsity_, step.kv.head_dim));
  }

  // Assumes that numbers spread evenly over tiles, which are padded one by one.
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return due_.rule().lengths(len); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const override {
    const std::int64_t sparse = due_.rule().encoded(tokens), dense = tokens - sparse;
    return sparse * (even_sparse_bytes(m.head_dim, kept(k_sparsity_, m.head_dim)) +
                     even_sparse_bytes(m.head_dim, kept(v_sparsity_, m.head_dim))) +
           2 * dense * m.head_dim * m.kv_bytes;
  }

 private:
  static std::int32_t kept(double sparsity, std::int32_t head_dim) {
    return std::max(1, static_cast<std::int32_t>(std::floor((1 - sparsity) * head_dim + 1e-9)));
  }
  static void prune(LayerStep& step, const ListedTokens& tokens, std::int32_t keep) {
    const std::int64_t bytes = tokens.total() * most_sparse_bytes(step.kv.head_dim, keep);
    auto* const packed = reinterpret_cast<std::uint8_t*>(step.ops.ints((bytes + 3) / 4));
    step.ops(Sparsify{tokens, keep, Sparsify::Kind::kPack, packed});
    step.decode(Sparsify{tokens, keep, Sparsify::Kind::kUnpack, packed});
  }

  double k_sparsity_, v_sparsity_;
  DueTokens due_;
};

KVLAB_REGISTER(Format, Mustafar, "mustafar", "largest channels of each token's K and V, in a bitmap format",
               "Mustafar: Joo et al. 2025, arXiv:2505.22913, section 3");

// ThinK, eq. 7 with one channel at a time: drops K channels of least mean_window(q_c^2) * mean_tokens(k_c^2).
class Think final : public Format {
 public:
  explicit Think(Params& p)
      : ratio_(p.optional<double>("ratio", 0.4, 0, 0.99, "share of K's channels pruned")),
        window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that weigh the channels")),
        due_(*this, p.choice("scope", {{"older", true}, {"prompt", false}}, true,
                             "older: all tokens but the newest window, also in decode; prompt: the whole prompt, once (kvpress)")
                        ? DueRule{window_, 1, false, false}
                        : DueRule{0, 1, false, true}) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    float* const scores = scores_.lines(step, step.kv.head_dim);
    if (const std::int32_t* const completed = prompt_rows(step); completed != nullptr) {
      ChannelStats size{.kv = step.kv, .kind = ChannelStats::Kind::kMeanSquare, .line = completed, .out = scores};
      step.ops(size);
      const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
      size.source = ChannelStats::Source::kQueries;
      size.queries = window.data();
      size.into = ChannelStats::Into::kMultiply;
      step.ops(size);
    }
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    const Sparsify prune{keys, kept(step.kv.head_dim), Sparsify::Kind::kPrune, nullptr, scores, state_rows(step)};
    step.ops(prune);
    if (step.keeper != nullptr) step.keeper->keep(step, PrunedVectors(prune));
  }

  // Kept channels of K, V, a bit per channel. With scope prompt, whole decoded tokens are counted like the prompt's.
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return due_.rule().lengths(len); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const override {
    if (tokens == 0) return 0;
    const std::int64_t pruned = due_.rule().encoded(tokens), whole = tokens - pruned;
    return (pruned * (kept(m.head_dim) + m.head_dim) + whole * 2 * m.head_dim) * m.kv_bytes + (m.head_dim + 7) / 8;
  }

 private:
  [[nodiscard]] std::int32_t kept(std::int32_t head_dim) const {
    return head_dim - static_cast<std::int32_t>(std::floor(ratio_ * head_dim + 1e-9));
  }

  double ratio_;
  std::int32_t window_;
  DueTokens due_;
  RowTable scores_{*this, 0.0F};
};

KVLAB_REGISTER(Format, Think, "think", "channels of K that the prompt's last queries use least are pruned, per KV head",
               "ThinK: Xu et al. 2024, arXiv:2407.21018, eq. 7");

}  // namespace

}  // namespace kvlab
