#include <gtest/gtest.h>

#include "tests/kv/tier_fixture.h"

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
  std::vector<std::int32_t> chosen = best(scores, top);
  for (std::int32_t& f : chosen) f += first;
  return chosen;
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
  EXPECT_EQ(traffic.hit_units, there / 4);
  EXPECT_EQ(traffic.fetched_bytes, (6 - there / 4) * 4 * 2 * 8 * 2);
}

TEST(ReKv, OlderTokensLieOnTheHost) {
  Decode d({4, 2, 1, 8, 16}, 1, 1000, 3);
  auto part = make_part<SelectorRegistry>("rekv", "{frame_tokens: 10, first_frames: 1, top_frames: 4, local_tokens: 50}");
  d.append(1000);
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {32000, 0, 0}), (TierBytes{100 * 32 + 100 * 8 * 2, 900 * 32, 0}));
}

TEST(ReKv, KeepsTheContract) {
  EXPECT_TRUE(large_budget_selects_everything("rekv", "{}"));
  expect_promises("rekv", "{frame_tokens: 4, top_frames: 3, question_tokens: 8}", {{60, 5}, {1, 5}}, {65, 4}, 8);
}

}  // namespace
}  // namespace kvlab::test
