#include <algorithm>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "policies/kv/selector/lsh_tables/lsh_tables.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// Section 4, per query head. First tokens, the prompt's last and decoded ones are exact.
class LshSampling final : public TierSelector {
 public:
  explicit LshSampling(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 4, 0, 1 << 20, "first tokens, on the GPU")),
        local_(p.optional<std::int32_t>("local_tokens", 64, 0, 1 << 24, "last tokens of the prompt, on the GPU as are decoded ones")),
        shape_{p.optional<std::int32_t>("bits", 10, 1, 16, "signs that make a bucket of a table"),
               p.optional<std::int32_t>("tables", 150, 2, 4096, "a key is sampled if it is in the query's bucket in two of them")},
        dense_every_(
            p.optional<std::int32_t>("dense_every", 16, 0, 4096, "layer 0 and every that many layers on are dense, on the GPU; 0: none")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .cpu_only = "has hash tables in CPU memory"}; }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (model.group() <= 32) return "";
    return "selector 'lsh_sampling' takes at most 32 query heads per KV head, the model has " + std::to_string(model.group()) +
           ": choose another selector";
  }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return is_dense(layer) ? 0 : 1; }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver); }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }

  [[nodiscard]] Lower lower(std::int32_t layer) const override { return is_dense(layer) ? Lower::kNothing : Lower::kKeysAndValues; }

  void update(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* covered = progress_.advance(step);
    LshBuild build{.kv = step.kv, .shape = shape_, .projections = projections(step)};
    std::int32_t *begin = step.ops.host_ints(n), *end = step.ops.host_ints(n);
    build.begin = begin, build.end = end;
    for (std::int32_t r = 0; r < n; ++r) {
      const SeqStep& seq = seq_of(step, r);
      Row& row = rows_.at(step, r);
      if (seq.seen_tokens == 0) row = {};
      begin[r] = end[r] = 0;
      if (is_dense(step.layer) || (!seq.completes_prompt() && !(seq.decoding() && covered[r] == 0))) continue;
      const std::int32_t tail = std::max(0, held_prompt_tokens(step, r) - local_);
      row = {std::min(sinks_, tail), tail};
      begin[r] = row.begin, end[r] = row.end;
    }
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
    if (std::equal(begin, begin + n, end)) return;
    build.center = centers(step), build.table = tables(step);
    step.ops(build);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* keys = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).keys(); });
    weights_ = nullptr, weighs_ = false;
    if (traffic_.reads_all(step, all_whole(step, keys))) return {};
    LshSample sample = sample_keys(step, keys);
    CopyUnits tokens;
    tokens.lists.first = sample.first, tokens.lists.unit = sample.unit, tokens.lists.count = sample.count;
    tokens.base = tokens.head = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).begin; });
    tokens.tail = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).end; });
    const Selection selection = expand(step, tokens);
    step.fetch(selection);
    LshWeights weights;
    weights.kv = step.kv, weights.shape = shape_, weights.queries = step.in.step.data();
    weights.center = centers(step);
    weights.sample = tokens.lists, weights.heads = sample.heads;
    weights.index_first = selection.index_first, weights.index = selection.index, weights.head = tokens.head;
    weights.log_weight = step.ops.floats(selection.index_first[n] * step.kv.group);
    step.ops(weights);
    weights_ = weights.log_weight, weighs_ = true;
    traffic_.track(step, in_row(step, selection, tokens.head, sample.count), lists_of(selection),
                   2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection;
  }

  void add_segments(LayerStep&, std::vector<Segment>& segments) override {
    segments.front().token_log_weight = weights_, segments.front().weighs_tokens = weighs_;
  }

  // Shared projections are not counted.
  [[nodiscard]] TierBytes resident_in_layer(std::int32_t layer, const ModelShape& model, const KvRows& kv,
                                            const TierBytes& held) const override {
    if (is_dense(layer)) return held;
    std::int64_t on_gpu = 0, extra = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t keys = std::max(0, kv.len[r] - sinks_ - local_);
      on_gpu += kv.len[r] - keys;
      if (keys > 0) extra += 4 * (shape_.table_size(keys) + model.head_dim);
    }
    TierBytes bytes = keep_on_gpu(held, on_gpu, kv.total());
    bytes.host += extra;
    return bytes;
  }

 private:
  // Tokens [begin, end) are in tables.
  struct Row {
    std::int32_t begin = 0, end = 0;
    [[nodiscard]] std::int32_t keys() const { return end - begin; }
  };
  [[nodiscard]] bool is_dense(std::int32_t layer) const { return dense_every_ > 0 && layer % dense_every_ == 0; }
  std::int32_t head_of(const LayerStep& step, std::int32_t r) override { return rows_.at(step, r).begin; }
  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    const Row& row = rows_.at(step, r);
    return row.keys() == 0 ? 0 : row.end;
  }
  float* const* centers(const LayerStep& step) {
    return centers_.rows(step, [&](std::int32_t r) { return rows_.at(step, r).keys() == 0 ? 0 : step.kv.head_dim; });
  }
  std::int32_t* const* tables(const LayerStep& step) {
    return tables_.rows(step, [&](std::int32_t r) {
      const std::int32_t keys = rows_.at(step, r).keys();
      return keys == 0 ? 0 : shape_.table_size(keys);
    });
  }

  LshSample sample_keys(LayerStep& step, const std::int32_t* keys) {
    const std::int32_t n = step.kv.num_rows;
    LshSample sample;
    sample.kv = step.kv, sample.shape = shape_, sample.queries = step.in.step.data();
    sample.projections = projections(step);
    sample.keys = keys, sample.table = tables(step);
    sample.first = prefix_sums(step, [&](std::int32_t r) { return keys[r]; });
    sample.unit = step.ops.ints(sample.first[n]);
    sample.heads = reinterpret_cast<std::uint32_t*>(step.ops.ints(sample.first[n]));
    sample.count = per_row(step, [&](std::int32_t r) { return keys[r]; });
    sample.looked_at = per_row(step, [&](std::int32_t r) {
      return static_cast<std::int32_t>(std::min<std::int64_t>(std::int64_t{keys[r]} * shape_.tables * step.kv.group, 1 << 30));
    });
    step.ops(sample);
    settle_rows(step, "sampled_tokens", sample.count);
    settle_rows(step, "bucket_entries", sample.looked_at);
    const std::int64_t looked_at = std::accumulate(sample.looked_at, sample.looked_at + n, std::int64_t{0});
    step.ops.timed(
        {.op = "lsh_buckets", .rows = n, .tokens = looked_at, .bytes = 4 * looked_at, .flops = looked_at}, [] {}, true);
    return sample;
  }

  // Standard normal; null if nothing is computed.
  const float* projections(const LayerStep& step) {
    if (!step.ops.computes()) return nullptr;
    const auto size = static_cast<std::size_t>(shape_.projections() * step.kv.head_dim);
    for (std::size_t i = projections_.size(); i < size; ++i)
      projections_.push_back(static_cast<float>(Draw{step.seed, Purpose::kPolicy, i}.normal()));
    return projections_.data();
  }

  std::int32_t sinks_, local_;
  LshShape shape_;
  std::int32_t dense_every_;
  std::vector<float> projections_;
  RowMemory<float> centers_{*this};
  RowMemory<std::int32_t> tables_{*this};
  PerRow<Row> rows_{*this};
  RowProgress progress_{*this};
  // Valid within a step.
  const float* weights_ = nullptr;
  bool weighs_ = false;
};

KVLAB_REGISTER(Selector, LshSampling, "lsh_sampling",
               "a sample of the prompt's tokens by hash tables, weighed by the inverse of their probabilities",
               "MagicPIG: Chen et al. 2024, arXiv:2410.16179, section 4");

}  // namespace

}  // namespace kvlab
