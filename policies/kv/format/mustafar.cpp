#include <algorithm>
#include <cmath>

#include "kernels/storage/sparsify_op.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"

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

}  // namespace

}  // namespace kvlab
