#include <cmath>

#include "kernels/span_mass/span_mass.h"
#include "kernels/top_k/top_k.h"
#include "policies/kv/allocator/counts.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Retrieval heads keep everything, the others what their scores say (meant: first and latest tokens). RazorAttention, Tang et al. 2024,
// arXiv:2407.15891; DuoAttention, Xiao et al. 2024, arXiv:2410.10819. Which heads retrieve is given as a list, from the papers' offline
// runs, or found online: the share of the model's KV heads whose last prompt queries pay least to the first and latest tokens, which is
// our definition.
class HeadSplit final : public Allocator {
 public:
  explicit HeadSplit(Params& p)
      : retrieval_(read_table(p, "retrieval_heads", false, 0, 0, "KV heads that keep everything, as LAYER.HEAD; empty: found online")),
        frac_(p.optional<double>("retrieval_frac", 0.5, 0, 1, "share of KV heads that keep everything, where none are listed")),
        window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries by which heads are found")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, counted in the budget of the other heads")),
        streaming_frac_(p.optional<double>("streaming_frac", 0, 0, 1,
                                           "share of the sequence that the other heads keep beside the sinks, if more than the budget")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    if (finds_heads()) needs.window_queries = window_;
    return needs;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return refuses_table(retrieval_, "retrieval_heads", model); }
  [[nodiscard]] Scope scope() const override { return finds_heads() ? Scope::kModel : Scope::kLayer; }
  [[nodiscard]] bool depends_on_data() const override { return finds_heads(); }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    if (finds_heads()) return find_heads(ops, model, seqs, layers);
    for (ScoredLayer& l : layers)
      for (std::int32_t r = 0; r < l.kv.num_rows; ++r) set(l, r, seqs, find_entry(retrieval_, l.layer, r % l.kv.kv_heads) != nullptr);
  }
  [[nodiscard]] std::int32_t expected(const ModelShape&, std::int32_t layer, std::int32_t head, std::int32_t target,
                                      std::int32_t n) const override {
    const std::int32_t streaming = std::min(n, streaming_tokens(target, n));
    if (finds_heads()) return static_cast<std::int32_t>(std::lround(frac_ * n + (1 - frac_) * streaming));  // the mean
    return find_entry(retrieval_, layer, head) != nullptr ? n : streaming;
  }

 private:
  [[nodiscard]] bool finds_heads() const { return retrieval_.empty(); }
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
    ops(TopKPooled{sequences, per_sequence, first, nullptr, mass.data(), budget, nullptr, retrieves});
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (std::int32_t r = 0; r < layers[l].kv.num_rows; ++r)
        set(layers[l], r, seqs, retrieves[r / heads * per_sequence + static_cast<std::int32_t>(l) * heads + r % heads] != 0);
      ops.settle("head_split", layers[l].layer, all_counts(layers[l]));
    }
  }

  // Minus the attention that each head's window pays to what a streaming head keeps.
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
    ops(SpanMass{rows, 1, l.kv.first, sums, head_end, tail_begin, l.kv.len, -1.0F, mass});
    return mass;
  }

  std::vector<TableEntry> retrieval_;
  double frac_;
  std::int32_t window_, sinks_;
  double streaming_frac_;
};

[[maybe_unused]] const bool registered = AllocatorRegistry::add<HeadSplit>(
    {"head_split", "retrieval heads keep everything, the other heads the budget",
     "RazorAttention: Tang et al. 2024, arXiv:2407.15891; DuoAttention: Xiao et al. 2024, arXiv:2410.10819"});

}  // namespace

}  // namespace kvlab
