#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "kernels/storage/low_rank/low_rank.h"
#include "kernels/storage/vector_code/vector_code.h"
#include "policies/kv/format/coded_vectors.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"
#include "policies/kv/format/main_directions/main_directions.h"
#include "policies/kv/recipe/trained_tensors.h"

namespace kvlab {

namespace {

// fp16 coordinates on `bases` [kv_heads, rank, head_dim], or on the row's parameter, main directions of the prompt's vectors.
class LatentCode final : public VectorCode {
 public:
  LatentCode(double rank_frac, bool values, std::span<const float> bases = {})
      : rank_frac_(rank_frac), is_of_values_(values), bases_(bases) {}
  [[nodiscard]] std::string_view encode_name() const override { return "project_latents"; }
  [[nodiscard]] std::string_view decode_name() const override { return "rebuild_latents"; }
  [[nodiscard]] std::int32_t rank(std::int32_t d) const { return std::max(1, static_cast<std::int32_t>(std::lround(rank_frac_ * d))); }
  [[nodiscard]] std::int64_t bytes(std::int32_t d) const override { return 2LL * rank(d); }
  [[nodiscard]] std::int64_t encode_flops(std::int32_t d) const override { return (2LL * rank(d) + (is_of_values_ ? 0 : 3)) * d; }
  [[nodiscard]] std::int64_t decode_flops(std::int32_t d) const override { return encode_flops(d); }
  [[nodiscard]] std::int32_t num_parameters(std::int32_t d) const override { return bases_.empty() ? rank(d) * d : 0; }
  [[nodiscard]] std::int64_t fit_flops(std::int32_t d) const override { return 2LL * d * d; }

  // For K = W_k h the SVD of W_k whitened by the hidden states.
  void fit(std::span<const float> x, std::int32_t d, std::span<const std::int32_t> positions, const float* frequencies,
           float* parameters) const override {
    std::vector<float> sources;
    for (std::size_t t = 0; t < positions.size(); ++t) {
      const std::vector<float> y = source(x.data() + t * static_cast<std::size_t>(d), d, {nullptr, frequencies, positions[t]});
      sources.insert(sources.end(), y.begin(), y.end());
    }
    main_directions(sources.data(), static_cast<std::int64_t>(positions.size()), d, rank(d), parameters);
  }
  void encode(const float* x, std::int32_t d, const Place& place, std::uint8_t* code) const override {
    const std::vector<float> y = source(x, d, place);
    const float* const basis = basis_of(place, d);
    for (std::int32_t i = 0; i < rank(d); ++i) {
      float sum = 0;
      for (std::int32_t c = 0; c < d; ++c) sum += basis[i * d + c] * y[static_cast<std::size_t>(c)];
      put_half(code + 2LL * i, sum);
    }
  }
  void decode(const std::uint8_t* code, std::int32_t d, const Place& place, float* x) const override {
    std::vector<float> y(static_cast<std::size_t>(d), 0.0F);
    const float* const basis = basis_of(place, d);
    for (std::int32_t i = 0; i < rank(d); ++i) {
      const float latent = half_at(code + 2LL * i);
      for (std::int32_t c = 0; c < d; ++c) y[static_cast<std::size_t>(c)] += latent * basis[i * d + c];
    }
    if (!is_of_values_) y = turned_vector(y.data(), d, place, 1.0F);
    std::copy(y.begin(), y.end(), x);
  }

 private:
  [[nodiscard]] std::vector<float> source(const float* x, std::int32_t d, const Place& place) const {
    return is_of_values_ ? std::vector<float>(x, x + d) : turned_vector(x, d, place, -1.0F);
  }
  [[nodiscard]] const float* basis_of(const Place& place, std::int32_t d) const {
    return bases_.empty() ? place.parameters : bases_.data() + std::int64_t{place.head} * rank(d) * d;
  }

  double rank_frac_;
  bool is_of_values_;
  std::span<const float> bases_;
};

// Tensors layers.L.k.basis and layers.L.v.basis [kv_heads, rank, head_dim], orthonormal rows, replace the paper's folded weights; without
// them each prompt gives its basis.
class Palu final : public CodedVectors {
 public:
  explicit Palu(Params& p) : Palu(p.optional<double>("rank_frac", 0.5, 0.001, 1, "latent numbers as a share of head_dim")) {}

  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kIfGiven; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    weights->require(name(0, false));
    weights_ = weights;
    for (std::int32_t l = 0; weights->has(name(l, false)); ++l)
      for (const bool values : {false, true}) {
        const std::vector<std::int64_t>& shape = weights->shape(name(l, values));
        const double frac = shape.size() == 3 ? static_cast<double>(shape[1]) / static_cast<double>(shape[2]) : 1.0;
        layers_.push_back(std::make_shared<LatentCode>(frac, values, weights->floats(name(l, values))));
      }
  }
  // Ranks of the file may differ.
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return weights_ == nullptr ? 0 : layer; }
  [[nodiscard]] std::string refuses(const ModelShape& m) const override {
    for (std::int32_t l = 0; l < (weights_ == nullptr ? 1 : m.num_layers); ++l)
      for (const bool values : {false, true})
        if (const std::string why = refuses(m, l, values); !why.empty()) return why;
    if (weights_ == nullptr || !weights_->has(name(m.num_layers, false))) return "";
    return fmt::format("{} has more than the model's {} layers; take the file of this model", weights_->name(), m.num_layers);
  }

 protected:
  [[nodiscard]] bool keys_turn() const override { return true; }
  [[nodiscard]] const std::shared_ptr<const VectorCode>& code(std::int32_t layer, bool values) const override {
    return weights_ == nullptr ? CodedVectors::code(layer, values) : layers_.at(static_cast<std::size_t>(2 * layer + (values ? 1 : 0)));
  }

 private:
  explicit Palu(double rank_frac)
      : CodedVectors({std::make_shared<LatentCode>(rank_frac, false), std::make_shared<LatentCode>(rank_frac, true)}, {0, 1}) {}
  static std::string name(std::int32_t layer, bool values) { return fmt::format("layers.{}.{}.basis", layer, values ? "v" : "k"); }
  [[nodiscard]] std::string refuses(const ModelShape& m, std::int32_t layer, bool values) const {
    if (weights_ != nullptr)
      if (const std::string why = weights_->refuses(name(layer, values), {m.kv_heads, -1, m.head_dim}, "KV heads, rank, channels");
          !why.empty())
        return why;
    const std::int64_t latent = code(layer, values)->bytes(m.head_dim) / 2;
    if (latent < m.head_dim) return "";
    return fmt::format("rank {} of format 'palu' saves nothing on heads of {} channels; write a smaller rank_frac", latent, m.head_dim);
  }

  std::shared_ptr<const TrainedTensors> weights_;
  std::vector<std::shared_ptr<const VectorCode>> layers_;  // with weights: [layer][K, V]
};

KVLAB_REGISTER(Format, Palu, "palu", "K before RoPE and V as coordinates on a basis of low rank, one per KV head",
               "Palu: Chang et al. 2024, arXiv:2407.21118");

// ShadowKV's part on the GPU: K before RoPE, all KV heads together. V and decoded tokens are unchanged.
class LowRankKeys final : public Format {
 public:
  explicit LowRankKeys(Params& p)
      : rank_(p.optional<std::int32_t>("rank", 0, 0, 1 << 14, "of the keys of all KV heads together; 0: rank_frac says it")),
        rank_frac_(p.optional<double>("rank_frac", 0.15625, 0.001, 1, "rank as a share of kv_heads * head_dim channels")),
        rounds_(p.optional<std::int32_t>("rounds", 4, 1, 32, "of subspace iteration")),
        is_pre_rope_(p.choice("keys", {{"before_rope", true}, {"after_rope", false}}, true,
                              "which keys are factored; before RoPE they must be observed")) {}

  [[nodiscard]] Needs needs() const override { return {.pre_rope_keys = is_pre_rope_}; }
  [[nodiscard]] std::string refuses(const ModelShape& m) const override {
    const std::int32_t width = m.kv_heads * m.head_dim;
    if (rank(m) < width) return "";
    return fmt::format("rank {} of format 'low_rank_keys' saves nothing on keys of {} x {} = {} channels", rank(m), m.kv_heads, m.head_dim,
                       width);
  }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  [[nodiscard]] bool leaves_exact() const override { return true; }
  [[nodiscard]] bool stores_prompt_keys_alone() const override { return true; }
  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kLeft; }

  // Exact keys are factored with the others, and also stay.
  void store(LayerStep& step) override {
    LowRankFactor factor;
    factor.tokens = due_.take(step, first_word());
    if (factor.tokens.total() == 0) return;
    factor.joint_heads = true;
    check_heads(factor);
    factor.rank = rank(step.model);
    factor.rounds = rounds_;
    factor.seed = step.seed + static_cast<std::uint64_t>(step.layer);
    factor.is_pre_rope = is_pre_rope_;
    factor.pre_rope = is_pre_rope_ ? step.in.pre_rope_keys.data() : nullptr;
    factor.left = reinterpret_cast<std::uint16_t*>(step.ops.ints((left_numbers(factor) + 1) / 2));
    factor.right = reinterpret_cast<std::uint16_t*>(step.ops.ints((right_numbers(factor) + 1) / 2));
    step.ops(factor);
    factor.unpacks = true, factor.exact_first = step.exact.index_first, factor.exact = step.exact.index;
    step.ops(factor);
  }

  // V, this head's share of the left factor (rounded up) and its columns of the right one. Decoded tokens are counted like the prompt's.
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const override {
    if (tokens == 0) return 0;
    const std::int64_t left = 2LL * tokens * rank(m);
    return static_cast<std::int64_t>(tokens) * m.head_dim * m.kv_bytes + ceil_div(left, m.kv_heads) + 2LL * rank(m) * m.head_dim;
  }

 private:
  [[nodiscard]] std::int32_t rank(const ModelShape& m) const {
    return rank_ > 0 ? rank_ : std::max(1, static_cast<std::int32_t>(std::lround(rank_frac_ * m.kv_heads * m.head_dim)));
  }

  std::int32_t rank_;
  double rank_frac_;
  std::int32_t rounds_;
  bool is_pre_rope_;
  DueTokens due_{*this, {0, 1, false, true}};
};

KVLAB_REGISTER(Format, LowRankKeys, "low_rank_keys", "the prompt's K of a layer as a product of two thin matrices",
               "ShadowKV: Sun et al. 2024, arXiv:2410.21465, section 4.1");

}  // namespace

}  // namespace kvlab
