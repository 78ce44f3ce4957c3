#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/storage/channel_stats_op.h"
#include "policies/kv/disposal/merging.h"
#include "policies/kv/disposal/row_states_op.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Mean key (after RoPE) and value of dropped tokens, with weight n exp(q k / sqrt(d)) in the softmax.
class Compensation final : public CountingDisposal {
 public:
  explicit Compensation(Params& p) : CountingDisposal(p) {}

  void let_go(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = count_dropped(step, kept);
    step.ops(ChannelStats{.kv = rows.kv,
                          .kind = ChannelStats::Kind::kRunningMean,
                          .listed = {rows.kv, rows.dropped_first, rows.dropped},
                          .line = state_rows(step),
                          .out = k_mean_.lines(step, step.kv.head_dim),
                          .before = per_row(step, [&](std::int32_t r) { return dropped_before(step, r); }),
                          .values_out = v_mean_.lines(step, step.kv.head_dim)});
  }

  [[nodiscard]] bool adds_segments() const override { return true; }
  void add_segments(LayerStep& step, std::vector<Segment>& segments) override {
    Segment s;
    s.kv = step.kv;
    s.kv.len = per_row(step, [&](std::int32_t r) { return dropped_before(step, r) > 0 ? 1 : 0; });
    s.kv.first = prefix_sums(step, [&](std::int32_t r) { return s.kv.len[r]; });
    if (s.kv.total() == 0) return;
    s.kv.page_begin = per_row(step, [](std::int32_t r) { return r; });
    s.kv.page = state_rows(step);
    s.kv.page_tokens = 1, s.kv.pool_tokens = 1 + *std::max_element(s.kv.page, s.kv.page + step.kv.num_rows);
    if (step.ops.computes()) {
      position_.settle_in(step.memory());
      position_.resize(std::max(position_.size(), s.kv.pool_tokens), 0);  // seen by every query
    }
    s.kv.k = k_mean_.lines(step, step.kv.head_dim), s.kv.v = v_mean_.lines(step, step.kv.head_dim);
    s.kv.type = ElementType::kF32;
    s.kv.position = position_.data(), s.kv.words = nullptr, s.kv.num_words = 0;
    log_weight_.assign(static_cast<std::size_t>(step.kv.num_rows), 0.0F);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      if (s.kv.len[r] > 0) log_weight_[static_cast<std::size_t>(r)] = std::log(static_cast<float>(dropped_before(step, r)));
    s.log_weight = log_weight_.data();
    segments.push_back(s);
  }

 private:
  [[nodiscard]] TierBytes bytes_of(const ModelShape& model, std::int32_t, const Format&, std::int32_t count) const override {
    return {.gpu = count > 0 ? 2LL * model.head_dim * model.kv_bytes + 4 : 0};
  }

  RowTable k_mean_{*this, 0.0F}, v_mean_{*this, 0.0F};
  TensorArray<std::int32_t> position_;
  std::vector<float> log_weight_;
};

KVLAB_REGISTER(Disposal, Compensation, "compensation", "one token per KV head represents the dropped ones: their mean, with their count",
               "RazorAttention: Tang et al. 2024, arXiv:2407.15891, eq. 3-4");

// Tensors as in the authors' code, after layers.L. With grouped heads, which the paper lacks, state and key map are per KV head, query maps
// per query head. Omits the code's lower bound of 1e-6 on the state's weight.
class KernelState final : public CountingDisposal {
 public:
  explicit KernelState(Params& p)
      : CountingDisposal(p),
        features_(p.optional<std::int32_t>("features", 8, 1, 1024, "numbers per query and key; priced where no weights are given")),
        mid_dim_(p.optional<std::int32_t>("middle_dim", 512, 1, 1 << 16,
                                          "width between the two layers of a map; priced where no weights are given")) {}

  [[nodiscard]] Needs needs() const override {
    return {.step_queries = true, .weights = weights_ == nullptr, .cpu_only = "weighs its states by each query in attention"};
  }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kAlways; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    const std::vector<std::int64_t>& shape = weights->shape(name(0, "kernel_k_mat2"));
    if (shape.size() == 3) mid_dim_ = static_cast<std::int32_t>(shape[1]), features_ = static_cast<std::int32_t>(shape[2]);
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (weights_ == nullptr) return "";
    if (std::string why = weights_->refuses_more_layers(name(model.num_layers, "kernel_k_mat2"), model.num_layers); !why.empty())
      return why;
    const std::int64_t q = model.q_heads, kv = model.kv_heads, d = model.head_dim, m = mid_dim_, f = features_;
    const std::pair<const char*, std::vector<std::int64_t>> tensors[] = {
        {"kernel_q_mat1", {q, d, m}},  {"kernel_q_mat2", {q, m, f}}, {"kernel_k_mat1", {kv, d, m}}, {"kernel_k_mat2", {kv, m, f}},
        {"interaction_k", {kv, f, f}}, {"scalingD", {1, kv, 1, f}},  {"scalingD2", {1, kv, 1, f}},
    };
    for (std::int32_t l = 0; l < model.num_layers; ++l)
      for (const auto& [tensor, shape] : tensors)
        if (std::string why = weights_->refuses(name(l, tensor), shape, "heads, inputs, outputs"); !why.empty()) return why;
    return "";
  }

  void let_go(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = count_dropped(step, kept);
    step.ops(RowStates{rows, maps(step), state_rows(step), state(step)});
  }

  [[nodiscard]] bool adds_segments() const override { return true; }
  void add_segments(LayerStep& step, std::vector<Segment>& segments) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* const len = per_row(step, [&](std::int32_t r) { return dropped_before(step, r) > 0 ? features_ : 0; });
    const std::int64_t* const first = prefix_sums(step, [&](std::int32_t r) { return len[r]; });
    if (first[n] == 0) return;
    position_.settle_in(step.memory());
    if (step.ops.computes()) position_.resize(std::max(position_.size(), std::int64_t{n} * features_), 0);  // seen by every query
    const std::int64_t numbers = std::int64_t{n} * features_ * step.kv.head_dim;
    Segment s;
    s.kv = step.kv;
    s.kv.len = len, s.kv.first = first;
    s.kv.page_begin = s.kv.page = per_row(step, [](std::int32_t r) { return r; });
    s.kv.page_tokens = features_, s.kv.pool_tokens = std::int64_t{n} * features_;
    s.kv.k = step.ops.floats(numbers), s.kv.v = step.ops.floats(numbers), s.kv.type = ElementType::kF32;
    s.kv.position = position_.data(), s.kv.words = nullptr, s.kv.num_words = 0;
    step.ops.zero(s.kv.k, numbers);
    s.weighs_tokens = true;
    for (const Queries& q : step.in.step) s.weighed_queries = std::max(s.weighed_queries, q.count);
    float* const log_weight = step.ops.floats(first[n] * s.weighed_queries * step.kv.group);
    s.token_log_weight = log_weight;
    RowStates read{{step.kv}, maps(step), state_rows(step), state(step), RowStates::Kind::kRead, step.in.step.data(), len, first};
    read.most_queries = s.weighed_queries, read.log_weight = log_weight, read.values = s.kv.v;
    step.ops(read);
    s.read_bytes = 4 * first[n] * step.kv.head_dim;  // keys of zeros are not read
    segments.push_back(s);
  }

 private:
  // S and z in float32 for each KV head that lost tokens.
  [[nodiscard]] TierBytes bytes_of(const ModelShape& model, std::int32_t, const Format&, std::int32_t count) const override {
    return {.gpu = count > 0 ? 4LL * features_ * (model.head_dim + 1) : 0};
  }
  static std::string name(std::int32_t layer, const char* tensor) { return fmt::format("layers.{}.{}", layer, tensor); }
  float* state(LayerStep& step) { return state_.lines(step, features_ * (step.kv.head_dim + 1)); }
  [[nodiscard]] StateMaps maps(const LayerStep& step) const {
    StateMaps m{mid_dim_, features_};
    if (weights_ == nullptr || !step.ops.computes()) return m;
    const auto data = [&](const char* tensor) { return weights_->floats(name(step.layer, tensor)).data(); };
    m.a1 = data("kernel_q_mat1"), m.a2 = data("kernel_q_mat2"), m.b1 = data("kernel_k_mat1"), m.b2 = data("kernel_k_mat2");
    m.c = data("interaction_k"), m.s1 = data("scalingD"), m.s2 = data("scalingD2");
    return m;
  }

  std::int32_t features_, mid_dim_;
  std::shared_ptr<const TrainedTensors> weights_;
  RowTable state_{*this, 0.0F};
  TensorArray<std::int32_t> position_;
};

KVLAB_REGISTER(Disposal, KernelState, "kernel_state",
               "dropped tokens are added to a small state per KV head, which attention reads through trained maps of queries and keys",
               "LESS: Dong et al. 2024, arXiv:2402.09398");

}  // namespace

}  // namespace kvlab
