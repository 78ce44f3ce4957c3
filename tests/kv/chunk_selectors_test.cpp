#include <set>

#include "policies/kv/selector/sentences_op.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// Frames of `frame` tokens by the product of their mean keys with the mean of the question's queries, over all heads of a sequence.
std::vector<std::int32_t> frames_of(const Decode& d, std::int32_t sequence, std::int32_t question, std::int32_t prompt, std::int32_t frame,
                                    std::int32_t first, std::size_t top) {
  const std::int32_t width = d.model.q_heads * d.model.head_dim, frames = question / frame;
  std::vector<double> scores;
  for (std::int32_t f = first; f < frames; ++f) {
    double sum = 0;
    for (std::int32_t i = f * frame; i < (f + 1) * frame; ++i)
      for (std::int32_t t = question; t < prompt; ++t)
        for (std::int32_t h = 0; h < d.model.q_heads; ++h)
          sum += d.dot(nth(d.q, sequence).data() + static_cast<std::ptrdiff_t>(t) * width + h * d.model.head_dim,
                       d.key(sequence * d.model.kv_heads + h / d.model.group(), i));
    scores.push_back(sum);
  }
  return shifted(best(scores, top), first);
}

TEST(ReKv, FramesThatTheQuestionAsksFor) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {55, 56, 57, 90}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "rekv", "{frame_tokens: 4, first_frames: 1, top_frames: 3, question_tokens: 7}",
                  {.window = 7});
      d.expect_rows(3, [&](std::int32_t r, std::int32_t) {
        return tokens_of(frames_of(d, r / 2, prompt - 7, prompt, 4, 1, 3), 4, 4, (prompt - 7) / 4 * 4, d.tokens());
      });
    }
}

TEST(ReKv, AMarkedQuestionIsTaken) {
  Decode d({4, 4, 2, 8, 16}, 1, 60, 3);
  d.window_tokens = 20;
  auto part = make_part<SelectorRegistry>("rekv", "{frame_tokens: 4, first_frames: 1, top_frames: 3, question_tokens: 20}");
  d.append(60);
  d.seqs[0].question_begin = 51;
  LayerStep prompt = d.step();
  part->update(prompt);
  const auto rows = d.decode(*part);
  for (std::size_t r = 0; r < 2; ++r) EXPECT_EQ(rows[r], tokens_of(frames_of(d, 0, 51, 60, 4, 1, 3), 4, 4, 48, 61));
}

TEST(ReKv, FramesComeOncePerQuestion) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 60, "rekv", "{frame_tokens: 4, top_frames: 3, question_tokens: 8, local_tokens: 8}", {.window = 8});
  for (const bool again : {false, true}) {
    d.decode();
    const Traffic traffic = d.part->take_traffic();
    EXPECT_EQ(traffic.asked_units, 6);
    EXPECT_EQ(traffic.hit_units, again ? 6 : 0);
    EXPECT_EQ(traffic.fetched_bytes, again ? 0 : 6 * 4 * 2 * 8 * 2);
  }
}

TEST(ReKv, FramesAmongTheNewestTokensAreThere) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 60, "rekv", "{frame_tokens: 4, top_frames: 3, question_tokens: 8, local_tokens: 31}", {.window = 8});
  const auto rows = d.decode();
  std::int64_t there = 0;  // of what is retrieved of tokens before the question, those of frames from token 28 on
  for (const auto& row : rows) there += std::count_if(row.begin(), row.end(), [](std::int32_t i) { return i >= 28 && i < 52; });
  const Traffic traffic = d.part->take_traffic();
  EXPECT_EQ(std::tuple(traffic.hit_units, traffic.fetched_bytes), std::tuple(there / 4, (6 - there / 4) * 4 * 2 * 8 * 2));
}

constexpr const char* kShortSentences =
    "{budget_tokens: 16, sink_tokens: 3, recent_tokens: 4, candidate_factor: 2, window_tokens: 5, pool_tokens: 3, sentence_tokens: 6}";

// SnapKV's choice of candidates: 32 of the tokens [3, prompt - 4), by the last 5 queries and a maximum over 3 neighbours.
std::vector<std::int32_t> candidates_of(const Decode& d, std::int32_t row, std::int32_t prompt) {
  std::vector<double> sum(static_cast<std::size_t>(prompt), 0.0);
  for (std::int32_t t = prompt - 5; t < prompt; ++t)
    for (std::int32_t h = 0; h < d.model.group(); ++h) {
      const float* q =
          nth(d.q, row / 2).data() + (static_cast<std::ptrdiff_t>(t) * d.model.q_heads + row % 2 * d.model.group() + h) * d.model.head_dim;
      std::vector<double> z;
      for (std::int32_t i = 0; i <= t; ++i) z.push_back(d.dot(q, d.key(row, i)) / std::sqrt(d.model.head_dim));
      const std::vector<double> p = softmax(z);
      for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i] / d.model.group();
    }
  std::vector<double> pooled;
  for (std::int32_t i = 3; i < prompt - 4; ++i) {
    double best = nth(sum, i);  // the last 5 tokens are not smoothed
    for (std::int32_t j = i - 1; j <= i + 1 && i < prompt - 5; ++j)
      if (j < prompt - 5) best = std::max(best, nth(sum, j));
    pooled.push_back(best);
  }
  return shifted(best(pooled, 32), 3);
}

TEST(Sentence, BestSentencesByTheMeanQueryOfTheCurrentOne) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    const std::int32_t prompt = 62;
    Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "sentence", kShortSentences, {.window = 5});
    d.expect_rows(14, [&](std::int32_t r, std::int32_t) {
      const std::int32_t n = d.tokens(), tail = n - 4, begin = std::max(prompt, (n - 1) / 6 * 6);
      std::vector<std::int32_t> candidates = candidates_of(d, r, prompt);
      for (std::int32_t i = prompt - 4; i < tail; ++i) candidates.push_back(i);
      std::map<std::int32_t, std::vector<std::int32_t>> sentences;
      for (const std::int32_t i : candidates) sentences[i / 6].push_back(i);
      std::vector<std::pair<double, std::int32_t>> ranked;
      for (const auto& [number, members] : sentences) {
        double sum = 0;
        for (const std::int32_t i : members)
          for (std::int32_t u = begin; u < n; ++u)
            for (std::int32_t h = 0; h < group; ++h)
              sum += d.dot(d.query(r, h) - static_cast<std::ptrdiff_t>(n - 1 - u) * d.model.q_heads * 8, d.key(r, i)) /
                     static_cast<double>(members.size()) / (n - begin);
        ranked.emplace_back(-sum, number);
      }
      std::sort(ranked.begin(), ranked.end());
      std::vector<std::int32_t> expected{0, 1, 2};
      std::size_t left = 16 - 3 - 4;
      for (const auto& [score, number] : ranked)
        for (const std::int32_t i : sentences[number])
          if (left > 0) expected.push_back(i), --left;
      for (std::int32_t i = tail; i < n; ++i) expected.push_back(i);
      std::sort(expected.begin(), expected.end());
      return expected;
    });
  }
}

TEST(Sentence, TokenIdsCloseSentences) {
  const std::int32_t ids[] = {5, 9, 9, 1, 2, 7, 4, 9, 3};
  const std::int32_t* text = ids;
  const std::int32_t closing[] = {7, 9};
  std::vector<std::int32_t> sentence(9, -1);
  std::int32_t* out = sentence.data();
  const std::int32_t bounds[] = {0, 4, 9};
  run_cpu(SplitSentences{1, 1, 2, closing, &text, bounds, bounds + 1, &out});
  run_cpu(SplitSentences{1, 1, 2, closing, &text, bounds + 1, bounds + 2, &out});
  EXPECT_EQ(sentence, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1, 2, 2, 3}));
}

TEST(Sentence, CountsWhatComesFromTheHost) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 90, "sentence", kShortSentences, {.window = 5});
  std::vector<std::vector<std::int32_t>> last(2);
  for (std::int32_t t = 0; t < 4; ++t) {
    const auto rows = d.decode();
    std::int64_t fetched = 0;
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(rows[r].size(), 16U);
      fetched += newcomers({rows[r].begin() + 3, rows[r].end() - 4}, last[r]);
      last[r] = rows[r];
    }
    const Traffic traffic = d.part->take_traffic();
    EXPECT_EQ(std::tuple(traffic.asked_units, traffic.fetched_bytes), std::tuple(2 * 9, fetched * 2 * 8 * 2));
    EXPECT_EQ(traffic.hit_units, 18 - fetched);
  }
  // 94 tokens of 32 bytes in 2 rows: 16 of each on the GPU, and 16 mean keys.
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {2 * 94 * 32, 0, 0}), (TierBytes{2 * 16 * 32 + 2 * 16 * 16, 2 * 78 * 32, 0}));
}

TEST(Sentence, RefusesWhatCannotBe) {
  EXPECT_THROW(make_part<SelectorRegistry>("sentence", "{closing_ids: \"3 x\"}"), InputError);
  EXPECT_THROW(make_part<SelectorRegistry>("sentence", "{pool_tokens: 4}"), InputError);
}

using Key = std::function<std::vector<double>(std::int32_t token)>;

// The mean key of each chunk of four tokens, and minus the smallest cosine of one of its keys with that.
struct Chunks {
  Chunks(const Key& key, std::int32_t chunks) {
    for (std::int32_t i = 0; i < 4 * chunks; i += 4) {
      std::vector<double> sum(key(i).size(), 0.0);
      for (std::int32_t j = i; j < i + 4; ++j)
        for (std::size_t x = 0; x < sum.size(); ++x) sum[x] += key(j)[x] / 4;
      double worst = 1;
      for (std::int32_t j = i; j < i + 4; ++j) worst = std::min(worst, dot(key(j), sum) / std::sqrt(dot(key(j), key(j)) * dot(sum, sum)));
      mean.push_back(sum);
      misfit.push_back(-worst);
    }
  }
  std::vector<std::vector<double>> mean;
  std::vector<double> misfit;
};

// Tokens by the definition: outliers, then the best of the others by the largest softmax share of any query head.
std::vector<std::int32_t> shadow_by_hand(const Decode& d, std::int32_t row, std::int32_t chunks, std::int32_t outliers, std::int32_t keep) {
  const Chunks all([&](std::int32_t i) { return std::vector<double>(d.key(row, i), d.key(row, i) + d.model.head_dim); }, chunks);
  const std::vector<std::int32_t> out = best(all.misfit, static_cast<std::size_t>(outliers));
  std::set<std::int32_t> read(out.begin(), out.end());
  std::vector<std::int32_t> others;
  for (std::int32_t c = 0; c < chunks; ++c)
    if (read.count(c) == 0) others.push_back(c);
  std::vector<double> score(others.size(), 0.0);
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    std::vector<double> z;
    for (const std::int32_t c : others) z.push_back(dot(d.query(row, h), nth(all.mean, c).data(), 8) / std::sqrt(8.0));
    const std::vector<double> p = softmax(z);
    for (std::size_t i = 0; i < p.size(); ++i) score[i] = std::max(score[i], p[i]);
  }
  for (const std::int32_t i : best(score, static_cast<std::size_t>(keep))) read.insert(nth(others, i));
  std::vector<std::int32_t> tokens;
  for (const std::int32_t c : read)
    for (std::int32_t i = 4 * c; i < 4 * c + 4; ++i) tokens.push_back(i);
  for (std::int32_t i = chunks * 4; i < d.tokens(); ++i) tokens.push_back(i);
  return tokens;
}

const char* const kSmallShadow = "{chunk_tokens: 4, budget_tokens: 12, outlier_chunks: 3, local_chunks: 2}";

TEST(ShadowKv, OutliersBestChunksAndTheEnd) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {63, 64, 65}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "shadow_kv", kSmallShadow);
      d.expect_rows(3, [&](std::int32_t r, std::int32_t) { return shadow_by_hand(d, r, prompt / 4 - 2, 3, 3); });
    }
}

TEST(ShadowKv, BringsOnlyValuesOfChunksThatTheLastStepDidNotRead) {
  for (const bool keys : {false, true}) {
    Prefilled d({4, 8, 2, 8, 16}, 1, 64, "shadow_kv",
                std::string("{chunk_tokens: 4, budget_tokens: 12, outlier_chunks: 3, ") +
                    "local_chunks: 2, keys: " + (keys ? "fetched}" : "low_rank}"));
    std::vector<std::vector<std::int32_t>> last(2);
    for (std::int32_t t = 0; t < 4; ++t) {
      const auto rows = d.decode();
      std::int64_t fetched = 0;
      for (std::size_t r = 0; r < 2; ++r) {
        const std::vector<std::int32_t> chunks(rows[r].begin(), rows[r].begin() + 24);
        fetched += newcomers(chunks, last[r]);
        if (t == 0) fetched -= 12;  // outliers never come from the host
        last[r] = chunks;
      }
      const Traffic traffic = d.part->take_traffic();
      EXPECT_EQ(traffic.fetched_bytes, fetched * (keys ? 2 : 1) * 8 * 2);
      EXPECT_EQ(traffic.asked_units, 6);
    }
    LayerStep same = d.step();
    d.part->select(same);
    EXPECT_EQ(d.part->take_traffic().fetched_bytes, 0);
  }
}

TEST(ShadowKv, ValuesLieOnTheHost) {
  Prefilled d({4, 2, 2, 8, 16}, 1, 1000, "shadow_kv", kSmallShadow);
  // 1000 tokens of 16 + 16 bytes: 12 + 12 + 8 of them read; the values of the others on the host, 250 means and 32 keys beside.
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {2 * 32000, 0, 0}),
            (TierBytes{2 * (32000 - 968 * 16 + 250 * 16 + 32 * 16), 2 * 968 * 16, 0}));
}

// The authors' sparse budget is what is chosen; outliers, 24 chunks per 1,024 tokens of it, and the prompt's end are read beside it.
TEST(ShadowKv, BudgetCountsChosenChunksAlone) {
  for (const std::int32_t budget : {128, 512, 1024}) {
    Prefilled d({1, 2, 2, 8, 16}, 1, 1606, "shadow_kv", "{}", {.budget = budget});
    const std::int32_t outliers = budget * 24 / 1024, end = 4 * 8 + 1606 % 8;
    EXPECT_EQ(d.decode()[0].size(), static_cast<std::size_t>(budget + 8 * outliers + end + 1)) << budget;
  }
}

// The policy at work over a trace's prompt, and what its stores hold then.
struct ShadowPrompt : PolicyWalk {
  ShadowPrompt(const AttentionTrace& trace, const Recipe& recipe) : PolicyWalk(trace, recipe, 7) {
    std::int32_t begin = 0;
    for (const std::int32_t end : trace.chunk_ends) {
      step({0, begin, end - begin, trace.prompt_tokens, -1}, [](const PolicyStep&, std::int32_t) {});
      begin = end;
    }
  }
  // Tokens whose stored key is the trace's own, bit by bit.
  std::set<std::int32_t> exact(const AttentionTrace& trace, std::int32_t layer, std::int32_t row) {
    std::set<std::int32_t> tokens;
    const KvRows kv = nth(stores, layer).rows();
    for (std::int32_t i = 0; i < trace.prompt_tokens; ++i) {
      const float* k = nth(trace.layers, layer).k.data() + (i * model.kv_heads + row) * model.head_dim;
      if (std::equal(k, k + model.head_dim, kv.key(row, i))) tokens.insert(i);
    }
    return tokens;
  }
};

// Tokens of the chunks of four in which some key has the smallest cosines to the mean key, and all from the last two chunks on.
std::set<std::int32_t> always_read(const AttentionTrace& trace, std::int32_t layer, std::int32_t row, std::size_t outliers) {
  const std::int32_t d = trace.head_dim, chunks = trace.prompt_tokens / 4 - 2;
  const auto key = [&](std::int32_t i) {
    const float* k = nth(trace.layers, layer).k.data() + (i * trace.kv_heads + row) * d;
    return std::vector<double>(k, k + d);
  };
  std::set<std::int32_t> tokens;
  for (const std::int32_t c : best(Chunks(key, chunks).misfit, outliers))
    for (std::int32_t i = 4 * c; i < 4 * c + 4; ++i) tokens.insert(i);
  for (std::int32_t i = 4 * chunks; i < trace.prompt_tokens; ++i) tokens.insert(i);
  return tokens;
}

TEST(ShadowKv, KeysOfOutliersAndOfThePromptsEndStayExact) {
  const std::string parts = "{recipe: shadowkv, format: {low_rank_keys: {rank: 6, keys: before_rope}}, selector: {shadow_kv: ";
  for (const std::int32_t chunk : {90, 0}) {
    const AttentionTrace trace = sample({.prompt = 203, .decode = 1, .chunk = chunk});
    ShadowPrompt run(trace, recipe_of(parts + kSmallShadow + "}}"));
    for (std::int32_t l = 0; l < 3; ++l)
      for (std::int32_t r = 0; r < 2; ++r) EXPECT_EQ(run.exact(trace, l, r), always_read(trace, l, r, 3)) << l << " " << r;
    ShadowPrompt format_alone(trace, recipe_of("{recipe: shadowkv_keys, format: {low_rank_keys: {rank: 6, keys: before_rope}}}"));
    EXPECT_TRUE(format_alone.exact(trace, 1, 1).empty());
  }
}

// Everything in low rank, and the means, exact K and V of what is read: 12 chosen, 12 of outliers, 8 of the last chunks; V elsewhere.
TEST(ShadowKv, BytesOfExactKeysCount) {
  const AttentionTrace trace = sample({.prompt = 200, .decode = 1});
  ShadowPrompt run(
      trace, recipe_of(std::string("{recipe: shadowkv, format: {low_rank_keys: {rank: 6}}, selector: {shadow_kv: ") + kSmallShadow + "}}"));
  const SeqStep seq{0, 0, 200, 200, -1};
  const std::int64_t line = 32 * 2, low_rank = 200 * 6 * 2 / 2 + 6 * 32 * 2, read = 12 + 12 + 8;
  EXPECT_EQ(run.policy.resident(1, std::span(&seq, 1), run.stores[1].rows()),
            (TierBytes{2 * (low_rank + 50 * line + 2 * read * line), 2 * (200 - read) * line, 0}));
}

TEST(ShadowKv, BuiltAnewAfterAnEviction) {
  Prefilled d({4, 2, 2, 8, 16}, 1, 64, "shadow_kv", kSmallShadow);
  d.decode();
  d.store.shrink(0, 40), d.store.shrink(1, 40);
  const auto rows = d.decode();
  EXPECT_EQ(std::tuple(rows[0].back(), rows[0].size()), std::tuple(40, 6U * 4 + 8 + 1));
}

}  // namespace
}  // namespace kvlab::test
