#pragma once

#include <gtest/gtest.h>

#include "kernels/kv_rows.h"
#include "kernels/select/unit_lists_op.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {

// Which tokens of each row stay, from one list per row.
struct KeptLists {
  explicit KeptLists(std::initializer_list<std::vector<std::int32_t>> rows) : KeptLists(std::span(rows.begin(), rows.size())) {}
  explicit KeptLists(std::span<const std::vector<std::int32_t>> rows) {
    first.push_back(0);
    for (const auto& row : rows) {
      index.insert(index.end(), row.begin(), row.end());
      count.push_back(static_cast<std::int32_t>(row.size()));
      first.push_back(static_cast<std::int64_t>(index.size()));
    }
  }
  [[nodiscard]] Kept kept() const { return {first.data(), index.data(), count.data()}; }
  // The same lists where there is no data.
  [[nodiscard]] Kept shapes() const { return {first.data(), nullptr, count.data()}; }

  std::vector<std::int64_t> first;
  std::vector<std::int32_t> index, count;
};

// One layer, one sequence: token i of every head has key keys[i] and value values[i] plus 100 times the head.
class SmallLayer {
 public:
  using Vectors = std::vector<std::vector<float>>;
  SmallLayer(const Vectors& keys, const Vectors& values, std::int32_t kv_heads = 1, std::int32_t num_words = 0)
      : model{1, kv_heads, kv_heads, static_cast<std::int32_t>(keys.front().size()), 16}, store(model, 1, num_words, true) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::vector<float> k, v;
      for (std::int32_t h = 0; h < kv_heads; ++h) {
        k.insert(k.end(), keys[i].begin(), keys[i].end());
        for (const float x : values[i]) v.push_back(x + 100.0F * static_cast<float>(h));
      }
      store.append(0, k.data(), v.data(), 1, static_cast<std::int32_t>(i));
    }
    seq = {0, 0, static_cast<std::int32_t>(keys.size()), static_cast<std::int32_t>(keys.size()), -1};
  }

  void dispose(Disposal& disposal, const KeptLists& lists) {
    const Ops::Frame frame(ops);
    LayerStep step{ops, model, 0, {&seq, 1}, store.rows(), {}, 7};
    disposal.dispose(step, lists.kept());
    for (std::int32_t r = 0; r < store.num_rows() && disposal.shrinks(); ++r) store.shrink(r, nth(lists.count, r));
  }
  std::vector<float> key(std::int32_t row, std::int32_t i) { return vector(store.rows().key(row, i)); }
  std::vector<float> value(std::int32_t row, std::int32_t i) { return vector(store.rows().value(row, i)); }
  std::vector<float> vector(const float* x) const { return {x, x + model.head_dim}; }

  ModelShape model;
  KvStore store;
  Ops ops{Ops::Backend::kCpu};
  SeqStep seq;
};

// A layer with its tokens parted.
struct Parted {
  Parted(SmallLayer& layer, const KeptLists& lists) {
    rows.kv = layer.store.rows();
    rows.kept_first = lists.first.data(), rows.kept = lists.index.data();
    for (std::int32_t r = 0; r <= rows.kv.num_rows; ++r) first.push_back(rows.kv.first[r] - nth(lists.first, r));
    rows.dropped_first = first.data();
    dropped.resize(static_cast<std::size_t>(first.back()));
    run_cpu(CopyUnits{
        rows.kv.num_rows, {rows.kept_first, rows.kept}, CopyUnits::Kind::kOthers, nullptr, rows.dropped_first, nullptr, dropped.data()});
    rows.dropped = dropped.data();
    target.resize(dropped.size());
    similarity.resize(dropped.size());
  }
  PartedRows rows;
  std::vector<std::int64_t> first;
  std::vector<std::int32_t> dropped, target;
  std::vector<float> similarity;
};

// Attention of one query over all that is left of a row and what the disposal adds; [head_dim].
inline std::vector<float> attend_row0(SmallLayer& layer, Disposal* disposal, std::vector<float> query) {
  const Ops::Frame frame(layer.ops);
  LayerStep step{layer.ops, layer.model, 0, {&layer.seq, 1}, layer.store.rows(), {}, 7};
  std::vector<Segment> segments(1);
  segments[0].kv = step.kv;
  if (disposal != nullptr) disposal->add_segments(step, segments);
  query.resize(static_cast<std::size_t>(layer.model.q_heads * layer.model.head_dim));
  const Queries q{query.data(), 1, 1 << 20};
  std::vector<float> out(query.size());
  float* outs[] = {out.data()};
  layer.ops(Attend{segments.data(), static_cast<std::int32_t>(segments.size()), &q, outs, nullptr});
  out.resize(static_cast<std::size_t>(layer.model.head_dim));
  return out;
}

// Attention of the last `count` tokens' queries of each sequence over rows and state; every query sees all of them.
inline std::vector<std::vector<float>> attend_with(RandomLayer& layer, Disposal& disposal, std::int32_t count) {
  const Ops::Frame frame(layer.ops);
  LayerStep step = layer.prompt_step(count);
  for (Queries& q : layer.window_queries) q.first_position = 1 << 20;
  step.in.step = layer.window_queries;
  std::vector<Segment> segments(1);
  segments[0].kv = step.kv;
  disposal.add_segments(step, segments);
  const auto width = static_cast<std::size_t>(layer.model.q_heads * layer.model.head_dim);
  std::vector<std::vector<float>> out(layer.seqs.size(), std::vector<float>(static_cast<std::size_t>(count) * width));
  std::vector<float*> outs;
  for (auto& o : out) outs.push_back(o.data());
  layer.ops(Attend{segments.data(), static_cast<std::int32_t>(segments.size()), layer.window_queries.data(), outs.data()});
  return out;
}

inline void drop_others(RandomLayer& layer, Disposal& disposal, const KeptLists& lists) {
  const Ops::Frame frame(layer.ops);
  LayerStep step = layer.prompt_step(1);
  disposal.observe(step);
  disposal.dispose(step, lists.kept());
  for (std::int32_t r = 0; r < layer.store.num_rows(); ++r) layer.store.shrink(r, nth(lists.count, r));
}

}  // namespace kvlab::test
