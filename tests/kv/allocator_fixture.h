#pragma once

#include <limits>
#include <memory>

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {

// A model's layers with random keys and scores, ready for an allocator; the last `protected_tokens` of every row are infinite.
class ScoredModel {
 public:
  ScoredModel(ModelShape shape, std::int32_t num_sequences, std::int32_t tokens, std::int32_t protected_tokens, std::int32_t budget,
              bool with_data = true)
      : model(shape), target(static_cast<std::size_t>(num_sequences), budget) {
    for (std::int32_t l = 0; l < model.num_layers; ++l) {
      layers.push_back(std::make_unique<RandomLayer>(model, num_sequences, tokens, 11 + static_cast<std::uint64_t>(l), 0, with_data));
      const auto n = static_cast<std::size_t>(layers.back()->store.rows().total());
      scores.push_back(RandomLayer::normals(n, 77, l));
      for (std::size_t i = 0; i < n; ++i) {
        float& x = scores.back()[i];
        const auto row = static_cast<std::int32_t>(i) / std::max(1, tokens);
        x = std::exp(x + 0.3F * static_cast<float>(row % model.kv_heads) + 0.2F * static_cast<float>(l));  // heads and layers differ
        if (static_cast<std::int32_t>(i) % tokens >= tokens - protected_tokens) x = std::numeric_limits<float>::infinity();
      }
      keep.emplace_back(static_cast<std::size_t>(layers.back()->store.num_rows()), -1);
    }
  }

  // One layer of the allocator's input; `window` queries are given.
  ScoredLayer scored(std::int32_t layer, std::int32_t window = 8) {
    RandomLayer& l = *nth(layers, layer);
    LayerStep step = l.prompt_step(window);
    observed.resize(layers.size());
    nth(observed, layer) = step.in;
    const float* const data = l.store.has_data() ? nth(scores, layer).data() : nullptr;
    return {layer, step.kv, data, target.data(), nullptr, nth(keep, layer).data(), &nth(observed, layer)};
  }

  // Asks the allocator as a policy would, layer by layer or for all at once. Earlier layers of a cascade are really shortened.
  void allocate(Allocator& allocator, std::int32_t window = 8) {
    const std::span<const SeqStep> seqs = layers.front()->seqs;
    std::vector<ScoredLayer> all;
    for (std::int32_t l = 0; l < model.num_layers; ++l) {
      if (allocator.scope() == Allocator::Scope::kCascade) {
        all.clear();
        for (std::int32_t i = 0; i < l; ++i) all.push_back(scored(i, window));
      }
      all.push_back(scored(l, window));
      if (allocator.scope() == Allocator::Scope::kModel && l + 1 < model.num_layers) continue;
      allocator.allocate(ops(), model, seqs, all);
      if (allocator.scope() == Allocator::Scope::kCascade) shorten(l + 1);
      if (allocator.scope() == Allocator::Scope::kLayer) all.clear();
    }
  }

  Ops& ops() { return layers.front()->ops; }
  std::int64_t kept(std::int32_t layer, std::int32_t sequence) const {
    const auto begin = nth(keep, layer).begin() + sequence * model.kv_heads;
    return std::accumulate(begin, begin + model.kv_heads, std::int64_t{0});
  }
  std::int64_t kept_in_model(std::int32_t sequence) const {
    std::int64_t sum = 0;
    for (std::int32_t l = 0; l < model.num_layers; ++l) sum += kept(l, sequence);
    return sum;
  }

  ModelShape model;
  std::vector<std::unique_ptr<RandomLayer>> layers;
  std::vector<std::vector<float>> scores;
  std::vector<std::int32_t> target;
  std::vector<std::vector<std::int32_t>> keep;  // per layer and row
  std::vector<Observed> observed;

 private:
  // Keeps the largest scores of each row, in order.
  void shorten(std::int32_t count) {
    for (std::int32_t l = 0; l < count; ++l) {
      const auto at = static_cast<std::size_t>(l);
      KvStore& store = layers[at]->store;
      const KvRows kv = store.rows();
      std::vector<float> left;
      for (std::int32_t r = 0; r < kv.num_rows; ++r) {
        std::vector<float> row(scores[at].begin() + kv.first[r], scores[at].begin() + kv.first[r + 1]), sorted = row;
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        const auto n = static_cast<std::size_t>(nth(keep[at], r));
        for (const float x : row)
          if (n > 0 && x >= sorted[n - 1]) left.push_back(x);
      }
      if (!layers[at]->store.has_data()) left.clear();
      for (std::int32_t r = 0; r < store.num_rows(); ++r) store.shrink(r, nth(keep[at], r));
      scores[at] = left;
    }
  }
};

}  // namespace kvlab::test
