// Budgets that differ between layers or heads, kept in decode row by row.
#include <numeric>

#include "tests/kv/host_fixture.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kSharesModel{4, 8, 2, 64, 128};
constexpr std::int32_t kSharesBudget = 130;

bool calls(const ShapeRun::Result& step, std::int32_t layer, std::string_view op) {
  const auto at = [&](std::int32_t l) { return step.calls.begin() + static_cast<std::ptrdiff_t>(nth(step.first_call, l)); };
  return std::any_of(at(layer), at(layer + 1), [&](const OpCall& c) { return c.op == op; });
}

class UnequalShares : public testing::TestWithParam<std::string> {
 protected:
  UnequalShares()
      : recipe_(unequal_shares_of(GetParam().substr(7))),
        allocator_(recipe_.make_allocator()),
        slack_(recipe_.make_trigger()->slack_tokens()) {}
  [[nodiscard]] std::int32_t share(std::size_t row, std::int32_t n) const {
    const auto layer = static_cast<std::int32_t>(row) / kSharesModel.kv_heads;
    return allocator_->expected(kSharesModel, layer, static_cast<std::int32_t>(row) % kSharesModel.kv_heads, kSharesBudget, n);
  }

  Recipe recipe_;
  std::unique_ptr<Allocator> allocator_;
  std::int32_t slack_;
};

// No row is longer than its share while tokens are decoded, and no layer is scored whose rows are not.
TEST_P(UnequalShares, AreKeptByEveryRowInDecode) {
  if (GetParam() == "shares_ada") return;  // its heads compete
  for (const std::int32_t prompt : {20, 129, 140, 300}) {
    ShapeRun run(recipe_, kSharesModel);
    std::vector<std::int32_t> held;
    for (std::int32_t n = prompt; n < prompt + 300; ++n) {
      SCOPED_TRACE("prompt " + std::to_string(prompt) + ", tokens " + std::to_string(n));
      const ShapeRun::Seq seq{held.empty() ? 0 : n - 1, held.empty() ? n : 1, prompt, held, {}};
      const ShapeRun::Result step = run.step(std::span(&seq, 1));
      for (std::size_t r = 0; r < step.held.size(); ++r) {
        std::int32_t most = n <= kSharesBudget + slack_ ? n : 0;  // a sequence within the budget is whole
        for (std::int32_t cut = std::max(n - slack_, kSharesBudget + 1); cut <= n; ++cut) most = std::max(most, share(r, cut));
        ASSERT_LE(step.held[r], most + slack_) << "row " << r;
      }
      for (std::int32_t l = 0; l < kSharesModel.num_layers && !held.empty(); ++l) {
        bool over = false;
        for (std::int32_t h = 0; h < kSharesModel.kv_heads; ++h) {
          const auto r = static_cast<std::size_t>(l * kSharesModel.kv_heads + h);
          over |= held[r] + 1 > share(r, n);
        }
        if (!over) {
          ASSERT_FALSE(calls(step, l, "top_k")) << "layer " << l;
          ASSERT_FALSE(calls(step, l, "token_scores")) << "layer " << l;
        }
      }
      held = step.held;
    }
  }
}

TEST_P(UnequalShares, SumToTheBudget) {
  if (GetParam() == "shares_heads" || GetParam() == "shares_ada") return;  // retrieval heads are on top of it
  ShapeRun run(recipe_, kSharesModel);
  std::vector<std::int32_t> held;
  for (const std::int32_t prompt : {20, 140, 300}) {
    held.clear();
    for (std::int32_t n = prompt; n < prompt + 300; ++n) {
      const ShapeRun::Seq seq{held.empty() ? 0 : n - 1, held.empty() ? n : 1, prompt, held, {}};
      held = run.step(std::span(&seq, 1)).held;
      const double mean = std::accumulate(held.begin(), held.end(), 0.0) / static_cast<double>(held.size());
      ASSERT_LE(mean, kSharesBudget + slack_) << n;
      if (recipe_.trigger == "every_step" && prompt == 300) {
        ASSERT_GT(mean, kSharesBudget - 2) << n;
      }
    }
  }
}

TEST_P(UnequalShares, CostTheSameInReplayAndOnShapes) {
  const AttentionTrace trace = sample({.layers = 4, .prompt = 210, .decode = 90});
  const ReplayResult end = expect_cost_is_replay(trace, full_attention(trace), recipe_);
  for (std::size_t r = 0; r < end.kept.size(); r += 2)
    EXPECT_LE(end.kept[r].size() + end.kept[r + 1].size(), static_cast<std::size_t>(share(r, 300) + share(r + 1, 300) + 2 * slack_))
        << "row " << r;
}

INSTANTIATE_TEST_SUITE_P(All, UnequalShares, testing::ValuesIn(unequal_shares_names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
