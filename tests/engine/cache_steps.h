#pragma once

#include <gtest/gtest.h>

#include "engine/cache/policy_cache.h"
#include "tests/engine/probe.h"
#include "tests/engine/small_model.h"

// The probe's steps over a PolicyCache.
namespace kvlab {

inline std::vector<std::int32_t> some_ids(std::int32_t n, std::int32_t seed) {
  std::vector<std::int32_t> ids{256};
  for (std::int32_t i = 1; i < n; ++i) ids.push_back(32 + (i * i * 7 + i * seed) % 90);
  return ids;
}

inline std::vector<float> run_step(PolicyCache& cache, std::vector<StepPiece> pieces, const Transformer& model = probe()) {
  const PieceBatch batch(std::move(pieces));
  cache.begin_step(batch.pieces);
  const std::vector<float> hidden = model.forward(batch.tokens(), cache);
  cache.end_step(hidden);
  return model.logits(hidden);
}

// One sequence over a cache.
struct CacheRun {
  PolicyCache cache;
  EngineSequence s;

  CacheRun(const Recipe& recipe, EngineSequence sequence, const PolicyCache::Options& options = {})
      : cache(probe(), recipe, options), s(std::move(sequence)) {
    cache.start(s);
  }
  std::vector<float> run(std::int32_t tokens) { return run_step(cache, {{&s, tokens}}); }
  // Without running it.
  void adopt(std::int32_t prompt) {
    const Needs& needs = cache.policy().needs();
    const std::vector<std::string> passes(needs.pass.empty() ? 0 : 1, needs.pass);
    cache.adopt(s, run_prompt(probe(), std::span(s.ids).first(static_cast<std::size_t>(prompt)), needs, passes));
  }
};

// The logits of `tokens` tokens from the one at `first` on.
inline std::span<const float> logits_of(const std::vector<float>& logits, std::int64_t first, std::int64_t tokens = 1) {
  const std::int64_t vocab = probe().config().vocab_size;
  return std::span(logits).subspan(static_cast<std::size_t>(first * vocab), static_cast<std::size_t>(tokens * vocab));
}
inline std::span<const float> last_logits(const std::vector<float>& logits) {
  return logits_of(logits, std::ssize(logits) / probe().config().vocab_size - 1);
}

// Two sequences with everything in pages, and the same ones in a cache of other options.
struct CachePair {
  PolicyCache paged, other;
  EngineSequence a = sequence_of(0, some_ids(310, 3), 230), b = sequence_of(1, some_ids(250, 5), 160);
  EngineSequence other_a = sequence_of(0, some_ids(310, 3), 230), other_b = sequence_of(1, some_ids(250, 5), 160);

  CachePair(const Recipe& recipe, const PolicyCache::Options& options) : paged(probe(), recipe, {}), other(probe(), recipe, options) {
    for (EngineSequence* s : {&a, &b}) paged.start(*s);
    for (EngineSequence* s : {&other_a, &other_b}) other.start(*s);
  }
  // Runs this number of tokens of each in one step.
  void step(std::int32_t of_a, std::int32_t of_b) {
    std::vector<StepPiece> in_pages, elsewhere;
    if (of_a > 0) in_pages.push_back({&a, of_a}), elsewhere.push_back({&other_a, of_a});
    if (of_b > 0) in_pages.push_back({&b, of_b}), elsewhere.push_back({&other_b, of_b});
    ASSERT_EQ(run_step(paged, in_pages), run_step(other, elsewhere)) << "after " << a.seen_tokens << " and " << b.seen_tokens << " tokens";
  }
  void compare() {
    EXPECT_EQ(paged.resident(a), other.resident(other_a));
    EXPECT_EQ(paged.resident(b), other.resident(other_b));
    EXPECT_EQ(paged.positions(a), other.positions(other_a));
    EXPECT_EQ(paged.positions(b), other.positions(other_b));
  }
};

}  // namespace kvlab
