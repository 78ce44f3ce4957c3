#include <cmath>

#include "kernels/allocate/pool_numbers_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/allocator/counts.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Sequences with unknown head kinds, in all layers.
class Picked {
 public:
  Picked(Ops& ops, std::span<const SeqStep> seqs, std::span<const ScoredLayer> all, const std::vector<std::int32_t>& which) {
    for (const std::int32_t s : which) seqs_.push_back(seqs[static_cast<std::size_t>(s)]);
    observed_.resize(all.size()), windows_.resize(all.size());
    for (std::size_t l = 0; l < all.size(); ++l) {
      ScoredLayer& some = layers_.emplace_back(all[l]);
      const std::int32_t heads = some.kv.kv_heads, rows = static_cast<std::int32_t>(which.size()) * heads;
      std::int32_t *len = ops.host_ints(rows), *page_begin = ops.host_ints(rows), *target = ops.host_ints(rows / heads);
      std::int64_t* first = ops.host_longs(rows + 1);
      first[0] = 0;
      for (std::int32_t r = 0; r < rows; ++r) {
        const std::int32_t from = which[static_cast<std::size_t>(r / heads)] * heads + r % heads;
        len[r] = all[l].kv.len[from], page_begin[r] = all[l].kv.page_begin[from];
        first[r + 1] = first[r] + len[r];
        target[r / heads] = all[l].target[from / heads];
      }
      some.kv.num_rows = rows, some.kv.len = len, some.kv.page_begin = page_begin, some.kv.first = first;
      some.scores = nullptr, some.target = target, some.keep = ops.host_ints(rows);
      for (const std::int32_t s : which) windows_[l].push_back(all[l].in->window[static_cast<std::size_t>(s)]);
      observed_[l].window = windows_[l];
      some.in = &observed_[l];
    }
  }

  [[nodiscard]] std::span<const SeqStep> seqs() const { return seqs_; }
  [[nodiscard]] std::span<ScoredLayer> layers() { return layers_; }

 private:
  std::vector<SeqStep> seqs_;
  std::vector<ScoredLayer> layers_;
  std::vector<Observed> observed_;
  std::vector<std::vector<Queries>> windows_;
};

// Retrieval heads come from `weights` or a list, or (ours) are found at the first cut: their last prompt queries attend least to first and
// latest tokens, which depends on the prompt's chunks. Later, they are the heads that lost nothing.
class HeadSplit final : public Allocator {
 public:
  explicit HeadSplit(Params& p)
      : retrieval_(read_table(p, "retrieval_heads", false, 0, 0, "KV heads that keep everything, as LAYER.HEAD; empty: found online")),
        frac_(p.optional<double>("retrieval_frac", 0.5, 0, 1, "share of KV heads that keep everything, where none are listed")),
        label_(p.choice("label", kLabels, HeadLabel::kGates,
                        "tensors of 'weights' that rank heads: gates (DuoAttention), or kv_induction and kv_echo (RazorAttention)")),
        echo_frac_(p.optional<double>("echo_frac", 0.01, 0, 1, "share of KV heads taken by kv_echo, of retrieval_frac; label: induction")),
        window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries by which heads are found")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, counted in the budget of the other heads")),
        streaming_frac_(p.optional<double>("streaming_frac", 0, 0, 1,
                                           "share of the sequence that the other heads keep beside the sinks, if more than the budget")) {}
  [[nodiscard]] bool reads_scores() const override { return false; }
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.window_queries = finds_heads() ? window_ : 0}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kIfGiven; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    if (!retrieval_.empty()) throw InputError("'retrieval_heads' and 'weights' exclude each other: delete one of them");
    labels_ = HeadLabels(weights, label_, frac_, echo_frac_);
    retrieval_ = labels_.retrieval_heads();
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (labels_.are_given()) return labels_.refuses(model);
    return refuses_table(retrieval_, "retrieval_heads", model);
  }
  [[nodiscard]] Scope scope() const override { return finds_heads() ? Scope::kModel : Scope::kLayer; }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] bool depends_on_data() const override { return finds_heads(); }
  [[nodiscard]] bool splits_heads() const override { return true; }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers)
      for (std::int32_t r = 0; r < l.kv.num_rows; ++r) set(l, r, seqs, retrieves(l, r, seqs));
    if (!finds_heads()) return;
    std::vector<std::int32_t> unknown;
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(seqs.size()); ++s)
      if (is_whole(seqs[static_cast<std::size_t>(s)], s, layers)) unknown.push_back(s);
    if (unknown.empty()) return;
    const Ops::Frame frame(ops);
    Picked picked(ops, seqs, layers, unknown);
    find_heads(ops, model, picked.seqs(), picked.layers());
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (std::int32_t r = 0; r < picked.layers()[l].kv.num_rows; ++r)
        layers[l].keep[unknown[static_cast<std::size_t>(r / model.kv_heads)] * model.kv_heads + r % model.kv_heads] =
            picked.layers()[l].keep[r];
  }
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                      std::int32_t n) const override {
    const std::int32_t streaming = std::min(n, streaming_tokens(target, n));
    if (finds_heads()) {  // spread evenly
      const std::int64_t row = std::int64_t{layer} * model.kv_heads + head;
      return std::lround(frac_ * static_cast<double>(row + 1)) > std::lround(frac_ * static_cast<double>(row)) ? n : streaming;
    }
    return find_entry(retrieval_, layer, head) != nullptr ? n : streaming;
  }

 private:
  [[nodiscard]] bool finds_heads() const { return retrieval_.empty() && !labels_.are_given(); }
  static bool is_whole(const SeqStep& seq, std::int32_t s, std::span<const ScoredLayer> layers) {
    return std::all_of(layers.begin(), layers.end(), [&](const ScoredLayer& l) {
      const std::int32_t* len = l.kv.len + static_cast<std::ptrdiff_t>(s) * l.kv.kv_heads;
      return std::all_of(len, len + l.kv.kv_heads, [&](std::int32_t n) { return n == seq.end(); });
    });
  }
  [[nodiscard]] bool retrieves(const ScoredLayer& l, std::int32_t row, std::span<const SeqStep> seqs) const {
    if (finds_heads()) return l.kv.len[row] == seqs[static_cast<std::size_t>(l.kv.sequence(row))].end();
    return find_entry(retrieval_, l.layer, row % l.kv.kv_heads) != nullptr;
  }
  [[nodiscard]] std::int32_t streaming_tokens(std::int32_t target, std::int32_t n) const {
    return std::max(target, sinks_ + static_cast<std::int32_t>(streaming_frac_ * n));
  }
  void set(ScoredLayer& l, std::int32_t row, std::span<const SeqStep> seqs, bool retrieves) const {
    const auto s = static_cast<std::size_t>(l.kv.sequence(row));
    l.keep[row] = retrieves ? l.kv.len[row] : std::min(l.kv.len[row], streaming_tokens(l.target[s], seqs[s].end()));
  }

  void find_heads(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) {
    const Ops::Frame frame(ops);
    const auto sequences = static_cast<std::int32_t>(seqs.size()), heads = layers.front().kv.kv_heads;
    const std::int32_t per_sequence = static_cast<std::int32_t>(layers.size()) * heads, rows = sequences * per_sequence;
    std::vector<const float*> mass(static_cast<std::size_t>(rows));
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const float* of_layer = measure(ops, model, seqs, layers[l]);
      for (std::int32_t r = 0; r < sequences * heads; ++r)
        mass[static_cast<std::size_t>(r / heads * per_sequence + static_cast<std::int32_t>(l) * heads + r % heads)] =
            of_layer == nullptr ? nullptr : of_layer + r;
    }
    std::int64_t *first = ops.host_longs(rows + 1), *budget = ops.host_longs(sequences);
    std::int32_t* retrieves = ops.host_ints(rows);
    for (std::int32_t i = 0; i <= rows; ++i) first[i] = i;
    std::fill_n(retrieves, rows, 1);  // bound
    std::fill_n(budget, sequences, std::lround(frac_ * per_sequence));
    ops(TopK{.num_rows = rows,
             .first = first,
             .kind = TopK::Kind::kCounts,
             .rows_per_pool = per_sequence,
             .row_scores = mass.data(),
             .budget = budget,
             .count = retrieves});
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (std::int32_t r = 0; r < layers[l].kv.num_rows; ++r)
        set(layers[l], r, seqs, retrieves[r / heads * per_sequence + static_cast<std::int32_t>(l) * heads + r % heads] != 0);
      ops.settle("head_split", layers[l].layer, all_counts(layers[l]));
    }
  }

  const float* measure(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, ScoredLayer& l) const {
    const std::int32_t rows = l.kv.num_rows;
    float* mass = ops.floats(rows);
    const Ops::Frame frame(ops);
    const std::vector<Queries> window = last_queries(l.in->window, window_, model);
    LayerStep step{ops, model, l.layer, seqs, l.kv, *l.in};
    float* sums = ops.floats(l.kv.total());
    sum_attention(step, window.data(), sums);
    std::int32_t *head_end = ops.host_ints(rows), *tail_begin = ops.host_ints(rows);
    for (std::int32_t r = 0; r < rows; ++r) {
      const auto s = static_cast<std::size_t>(l.kv.sequence(r));
      head_end[r] = std::min(sinks_, l.kv.len[r]);
      tail_begin[r] = std::max(0, l.kv.len[r] - std::max(0, streaming_tokens(l.target[s], seqs[s].end()) - sinks_));
    }
    ops(PoolNumbers{rows, 1, l.kv.first, sums, mass, PoolNumbers::Kind::kMass, head_end, tail_begin, l.kv.len, -1.0F});
    return mass;
  }

  std::vector<TableEntry> retrieval_;
  double frac_;
  HeadLabel label_;
  double echo_frac_;
  HeadLabels labels_;
  std::int32_t window_, sinks_;
  double streaming_frac_;
};

KVLAB_REGISTER(Allocator, HeadSplit, "head_split", "retrieval heads keep everything, the other heads the budget",
               "RazorAttention: Tang et al. 2024, arXiv:2407.15891; DuoAttention: Xiao et al. 2024, arXiv:2410.10819");

}  // namespace

}  // namespace kvlab
