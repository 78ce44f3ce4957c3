#include <numeric>

#include "kernels/select/nearest_keys_op.h"
#include "policies/kv/selector/ann_index/ann_index.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// An exact search, priced as reading a share of the keys, or HNSW replaces the paper's graph.
class RetrievalAttention final : public Budgeted<TierSelector> {
 public:
  explicit RetrievalAttention(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 128, 0, 1 << 20, "first tokens, on the GPU")),
        recent_(p.optional<std::int32_t>("recent_tokens", 512, 1, 1 << 24, "newest tokens, on the GPU")),
        top_(p.optional<std::int32_t>("top_tokens", 100, 1, 1 << 24, "keys found per query head; what a KV head reads is their union")),
        visit_frac_(p.optional<double>("visit_frac", 0.02, 1e-6, 1, "share of the keys that an exact search is priced at")),
        graph_(p.choice("search", {{"exact", false}, {"hnsw", true}}, false,
                        "exact, or in a graph of the keys, priced by the keys looked at")),
        sizes_{p.optional<std::int32_t>("links", 16, 2, 512, "of a node of the graph, twice as many in the lowest layer"),
               p.optional<std::int32_t>("build_candidates", 200, 1, 1 << 16, "looked through when a key is inserted")},
        candidates_(p.optional<std::int32_t>("search_candidates", 200, 1, 1 << 20, "looked through in a search, at least top_tokens")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs = QuerySelector::needs();
    if (graph_) needs.run_only_on_cpu("searches a graph (HNSW) in CPU memory");
    return needs;
  }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.end()); }

  [[nodiscard]] Lower lower(std::int32_t) const override { return graph_ ? Lower::kKeysAndValues : Lower::kValues; }

  // Tokens enter the graph when no longer among the newest.
  void update(LayerStep& step) override {
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
    if (!graph_) return;
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* covered = progress_.advance(step);
    AnnAdd add{.kv = step.kv,
               .sizes = sizes_,
               .to = per_row(step, [&](std::int32_t r) { return end_of_older(step, r); }),
               .fresh = per_row(step, [&](std::int32_t r) { return covered[r] == 0 ? 1 : 0; })};
    add.from = per_row(step, [&](std::int32_t r) {
      return std::max(std::min(sizes(step, r).sinks, add.to[r]), covered[r] == 0 ? 0 : indexed_.at(step, r));
    });
    for (std::int32_t r = 0; r < n; ++r) indexed_.at(step, r) = std::max(add.from[r], add.to[r]);
    add.index = indices(step);
    step.ops(add);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows, group = step.kv.group;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return end_of_older(step, r); });
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).sinks, tail[r]); });
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return tail[r] - head[r]; });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).top, tail[r] - head[r]); });
    if (traffic_.reads_all(step, keeps_all(step, first, keep))) return {};
    const std::int64_t* rooms = prefix_sums(step.ops, n * group, [&](std::int32_t i) { return keep[i / group]; });
    const UnitLists lists = graph_ ? search_graph(step, first, keep, rooms) : search_all(step, head, tail, keep, rooms);
    const UnitLists chosen = united(step, lists, first, keep);
    const Selection selection = expand(step, {.lists = chosen, .head = head, .tail = tail});
    traffic_.track(step, chosen, lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection;
  }

  [[nodiscard]] TierBytes resident(const ModelShape&, const KvRows& kv, const TierBytes& held) const override {
    const auto on_gpu = sum_rows(kv, [&](std::int32_t r) {
      const AttendedParts size = sizes(budget_.of(kv.len[r]));
      return std::min(kv.len[r], size.sinks + size.recent);
    });
    TierBytes bytes = keep_on_gpu(held, on_gpu, kv.total());
    if (graph_) bytes.host += (kv.total() - on_gpu) * 2 * sizes_.links * 4;  // edges
    return bytes;
  }

 private:
  [[nodiscard]] AttendedParts sizes(std::int32_t budget) const {
    AttendedParts size = parts_of({sinks_, recent_, top_}, budget_, budget);
    size.top = std::max(1, size.top);
    return size;
  }
  [[nodiscard]] AttendedParts sizes(const LayerStep& step, std::int32_t r) const { return sizes(tokens_of(budget_, step, r)); }

  [[nodiscard]] std::int32_t end_of_older(const LayerStep& step, std::int32_t r) const {
    const bool decodes = seq_of(step, r).decoding();
    return std::min(decodes ? older_tokens(step, r) : step.kv.len[r], std::max(0, step.kv.len[r] - sizes(step, r).recent));
  }
  std::int32_t head_of(const LayerStep& step, std::int32_t r) override { return sizes(step, r).sinks; }
  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    const AttendedParts size = sizes(step, r);
    const std::int32_t tail = std::max(0, step.kv.len[r] - size.recent);
    return tail - std::min(size.sinks, tail) <= size.top ? 0 : tail;
  }
  std::unique_ptr<AnnIndex>* const* indices(const LayerStep& step) {
    pointers_.assign(static_cast<std::size_t>(step.kv.num_rows), nullptr);
    for (std::int32_t pass = 0; pass < 2 && step.ops.computes(); ++pass)  // the first pass may resize
      for (std::int32_t r = 0; r < step.kv.num_rows; ++r) pointers_[static_cast<std::size_t>(r)] = &index_.at(step, r);
    return pointers_.data();
  }

  UnitLists search_all(LayerStep& step, const std::int32_t* head, const std::int32_t* tail, const std::int32_t* keep,
                       const std::int64_t* rooms) {
    NearestKeys nearest;
    nearest.kv = step.kv;
    nearest.queries = step.in.step.data();
    nearest.begin = head, nearest.end = tail, nearest.keep = keep;
    nearest.visit_frac = visit_frac_;
    nearest.index_first = rooms;
    nearest.index = step.ops.ints(rooms[step.kv.num_rows * step.kv.group]);
    step.ops(nearest);
    return {.first = rooms, .unit = nearest.index};
  }

  UnitLists search_graph(LayerStep& step, const std::int64_t* first, const std::int32_t* keep, const std::int64_t* rooms) {
    const std::int32_t n = step.kv.num_rows, group = step.kv.group;
    AnnSearch search{.kv = step.kv,
                     .queries = step.in.step.data(),
                     .keep = keep,
                     .candidates = candidates_,
                     .index = indices(step),
                     .index_first = rooms,
                     .found = step.ops.ints(rooms[n * group]),
                     .count = per_row(step.ops, n * group, [&](std::int32_t i) { return keep[i / group]; }),
                     .visits = per_row(step, [&](std::int32_t r) {
                       return static_cast<std::int32_t>(std::min<std::int64_t>((first[r + 1] - first[r]) * group, 1 << 30));
                     })};
    step.ops(search);
    settle_rows(step, "visited_keys", search.visits);
    step.ops.settle("found_keys", step.layer, {search.count, static_cast<std::size_t>(n * group)});
    const std::int64_t visited = std::accumulate(search.visits, search.visits + n, std::int64_t{0}), d = step.kv.head_dim;
    step.ops.timed(
        {.op = "ann_visits", .rows = n, .tokens = visited, .bytes = visited * d * step.kv.kv_bytes, .flops = visited * 2 * d}, [] {}, true);
    return {.first = rooms, .unit = search.found, .count = search.count};
  }

  std::int32_t sinks_, recent_, top_;
  double visit_frac_;
  bool graph_;
  AnnIndex::Sizes sizes_;
  std::int32_t candidates_;
  RowProgress progress_{*this};
  PerRow<std::int32_t> indexed_{*this};  // earlier tokens are in the graph
  PerRow<std::unique_ptr<AnnIndex>> index_{*this};
  std::vector<std::unique_ptr<AnnIndex>*> pointers_;
};

KVLAB_REGISTER(Selector, RetrievalAttention, "retrieval_attention",
               "first and newest tokens, and the keys nearest to each query head's query among those on the host",
               "RetrievalAttention: Liu et al. 2024, arXiv:2409.10516, section 4");

// Attention is renormalized over fetched values.
class KCache final : public Budgeted<TierSelector> {
 public:
  explicit KCache(Params& p)
      : Budgeted({p.optional<std::int32_t>("top_tokens", 128, 1, 1 << 24,
                                           "values brought per query head; what a KV head loads is their union")}),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 2, 0, 1024, "first layers whose values stay on the GPU")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }

  [[nodiscard]] Lower lower(std::int32_t layer) const override { return layer < dense_layers_ ? Lower::kNothing : Lower::kValues; }

  void update(LayerStep& step) override {
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return older_tokens(step, r); });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return std::min(tokens_of(budget_, step, r), tail[r]); });
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return tail[r]; });
    if (traffic_.reads_all(step, step.layer < dense_layers_ || keeps_all(step, first, keep))) return {};
    NearestKeys nearest{
        .kv = step.kv, .queries = step.in.step.data(), .begin = per_row(step, [](std::int32_t) { return 0; }), .end = tail, .keep = keep};
    UnitLists lists;
    lists.first = nearest.index_first = prefix_sums(step.ops, n * step.kv.group, [&](std::int32_t i) { return keep[i / step.kv.group]; });
    lists.unit = nearest.index = step.ops.ints(nearest.index_first[n * step.kv.group]);
    step.ops(nearest);
    const UnitLists chosen = united(step, lists, first, keep);
    const Selection selection = expand(step, {.lists = chosen, .tail = tail});
    traffic_.track(step, chosen, lists_of(selection), static_cast<std::int64_t>(step.kv.head_dim) * step.kv.kv_bytes);
    return selection;
  }

  [[nodiscard]] TierBytes resident_in_layer(std::int32_t layer, const ModelShape& model, const KvRows& kv,
                                            const TierBytes& held) const override {
    if (layer < dense_layers_) return held;
    const auto values = sum_rows(
        kv, [&](std::int32_t r) { return std::min<std::int64_t>(kv.len[r], 1LL + std::int64_t{budget_.of(kv.len[r])} * model.group()); });
    return keep_on_gpu(held, kv.total() + values, 2 * kv.total());
  }

 private:
  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    return tokens_of(budget_, step, r) >= step.kv.len[r] ? 0 : step.kv.len[r];
  }

  std::int32_t dense_layers_;
};

KVLAB_REGISTER(Selector, KCache, "k_cache", "exact logits from keys on the GPU; only the values of the largest are brought from the host",
               "KCache: He and Wu 2024, arXiv:2404.18057, section 3");

}  // namespace

}  // namespace kvlab
