#include <rapidcheck.h>

#include "policies/kv/allocator/counts.h"
#include "tests/kv/allocator_fixture.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

const ModelShape kModel{5, 8, 2, 8, 16};

Ints pyramid_counts(Allocator& allocator, const ModelShape& model, std::int32_t budget, std::int32_t n) {
  Ints counts;
  for (std::int32_t l = 0; l < model.num_layers; ++l) counts.push_back(allocator.expected(model, l, 0, budget, n));
  return counts;
}

TEST(Pyramid, FallsLinearlyAndSumsToTheBudget) {
  auto pyramid = make_part<AllocatorRegistry>("pyramid", "{beta: 4, window_tokens: 8}");
  // C = 40: last 10, first 70, 15 less per layer, and 8 for the window.
  EXPECT_EQ(pyramid_counts(*pyramid, kModel, 48, 200), (Ints{78, 63, 48, 33, 18}));
  for (const std::int32_t layers : {1, 2, 7, 8, 32})
    for (const std::int32_t budget : {1, 8, 9, 31, 100, 199, 200}) {
      const ModelShape model{layers, 8, 2, 8, 16};
      const Ints counts = pyramid_counts(*pyramid, model, budget, 200);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), layers * budget) << layers << " layers, budget " << budget;
      EXPECT_TRUE(std::is_sorted(counts.rbegin(), counts.rend()));
    }
}

TEST(Pyramid, TheFirstLayerIsCutAtThePromptAndTheLastGetsTheRest) {
  auto pyramid = make_part<AllocatorRegistry>("pyramid", "{beta: 20, window_tokens: 8}");
  // C = 40, n - w = 77 < 78: 77 .. 3.
  EXPECT_EQ(pyramid_counts(*pyramid, kModel, 48, 85), (Ints{85, 67, 48, 29, 11}));
  EXPECT_EQ(pyramid_counts(*pyramid, kModel, 48, 79), (Ints{48, 48, 48, 48, 48}));  // n < 2 C: as SnapKV
  EXPECT_EQ(pyramid_counts(*pyramid, kModel, 48, 40), (Ints{40, 40, 40, 40, 40}));
}

TEST(Pyramid, GroupsOfLayersHaveOneBudgetEach) {
  auto groups = make_part<AllocatorRegistry>("pyramid", "{beta: 4, window_tokens: 8, layer_groups: 2}");
  auto layers = make_part<AllocatorRegistry>("pyramid", "{beta: 4, window_tokens: 8}");
  const ModelShape four{4, 8, 2, 8, 16}, two{2, 8, 2, 8, 16}, five{5, 8, 2, 8, 16};
  const Ints of_groups = pyramid_counts(*layers, two, 48, 200);
  EXPECT_EQ(pyramid_counts(*groups, four, 48, 200), (Ints{of_groups[0], of_groups[0], of_groups[1], of_groups[1]}));
  EXPECT_EQ(pyramid_counts(*groups, five, 48, 200), pyramid_counts(*layers, five, 48, 200)) << "five layers are no two groups";
}

TEST(Pyramid, CountsAsKvpressDoes) {
  auto pyramid = make_part<AllocatorRegistry>("pyramid", "{beta: 20, window_tokens: 64, rounding: kvpress}");
  const ModelShape probe{8, 8, 2, 64, 384};
  pyramid->set_budget({0, 0.25, true});
  EXPECT_EQ(pyramid_counts(*pyramid, probe, 76, 307), Ints(8, 77));  // 76.75, too little for 64 in the last layer
  auto steep = make_part<AllocatorRegistry>("pyramid", "{beta: 4, window_tokens: 16, rounding: kvpress}");
  steep->set_budget({0, 0.25, true});
  // T = 76.75: least 19.1875, most 134.3125, 16.4464 less per layer.
  EXPECT_EQ(pyramid_counts(*steep, probe, 76, 307), (Ints{134, 118, 101, 85, 69, 52, 36, 19}));
}

TEST(Pyramid, AllocatesWhatItExpects) {
  ScoredModel m(kModel, 2, 100, 8, 40);
  auto pyramid = make_part<AllocatorRegistry>("pyramid", "{window_tokens: 8}");
  m.allocate(*pyramid);
  for (std::int32_t l = 0; l < kModel.num_layers; ++l)
    for (const std::int32_t k : nth(m.keep, l)) EXPECT_EQ(k, pyramid->expected(kModel, l, 0, 40, 100));
  EXPECT_EQ(m.kept_in_model(0), 5 * 2 * 40);
}

// Heads' counts among the `budget` largest of all scores of a layer.
Ints plain_pooled(const ScoredModel& m, std::int32_t layer, std::int32_t sequence, std::int32_t tokens, std::int64_t budget) {
  std::vector<std::pair<float, std::int32_t>> all;
  const auto& scores = nth(m.scores, layer);
  for (std::int32_t h = 0; h < m.model.kv_heads; ++h)
    for (std::int32_t i = 0; i < tokens; ++i) all.emplace_back(-nth(scores, (sequence * m.model.kv_heads + h) * tokens + i), h);
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Ints counts(static_cast<std::size_t>(m.model.kv_heads));
  for (std::int64_t i = 0; i < budget; ++i) ++nth(counts, nth(all, i).second);
  return counts;
}

TEST(Ada, HeadsCompeteForTheLayersBudget) {
  ScoredModel m({3, 16, 4, 8, 16}, 2, 65, 5, 20);
  m.allocate(*make_part<AllocatorRegistry>("ada", "{safeguard_frac: 0}"));
  for (std::int32_t l = 0; l < 3; ++l)
    for (std::int32_t s = 0; s < 2; ++s) {
      const auto* keep = nth(m.keep, l).data() + s * 4;
      EXPECT_EQ(Ints(keep, keep + 4), plain_pooled(m, l, s, 65, 80));
      EXPECT_EQ(m.kept(l, s), 80);
    }
}

TEST(Ada, EveryHeadHasItsSafeguard) {
  // blend: head 0 had 64 of 80 and the others' 16 went to head 1 (ties: lower row). forced_first: 4 each, then head 0's other 60, then 4.
  for (const auto& [kind, counts] : {std::pair<std::string, Ints>{"blend", {55, 17, 4, 4}}, {"forced_first", {64, 8, 4, 4}}}) {
    ScoredModel m({2, 4, 4, 8, 16}, 1, 64, 0, 20);
    for (std::size_t i = 0; i < m.scores[0].size(); ++i) m.scores[0][i] = i < 64 ? 10.0F + static_cast<float>(i) : 1.0F;  // head 0 wins all
    m.allocate(*make_part<AllocatorRegistry>("ada", "{safeguard_frac: 0.2, safeguard: " + kind + "}"));
    EXPECT_EQ(m.keep[0], counts);
    EXPECT_EQ(m.kept(1, 0), 80);
  }
}

TEST(Ada, AHeadKeepsWhatAShorterOneLeaves) {
  ScoredModel m({1, 4, 2, 8, 16}, 1, 60, 0, 30);
  m.layers[0]->store.shrink(1, 15);  // an earlier cut
  m.allocate(*make_part<AllocatorRegistry>("ada"));
  EXPECT_EQ(m.kept(0, 0), 60);
  EXPECT_GE(m.keep[0][0], 45);
}

TEST(Ada, TakesLayerBudgetsFromAnotherAllocator) {
  ScoredModel m(kModel, 1, 100, 8, 40);
  m.allocate(*make_part<AllocatorRegistry>("ada", "{layers: {pyramid: {window_tokens: 8, beta: 4}}}"));
  auto pyramid = make_part<AllocatorRegistry>("pyramid", "{window_tokens: 8, beta: 4}");
  for (std::int32_t l = 0; l < kModel.num_layers; ++l) {
    EXPECT_EQ(m.kept(l, 0), 2 * pyramid->expected(kModel, l, 0, 40, 100));
    for (const std::int32_t k : nth(m.keep, l)) EXPECT_GE(k, 8);  // protected tokens fit
  }
}

TEST(Ada, RefusesLayersThatChangeLater) { EXPECT_THROW(make_part<AllocatorRegistry>("ada", "{layers: nonsense}"), InputError); }

TEST(Global, TheLargestScoresOfTheModelStay) {
  ScoredModel m(kModel, 2, 65, 4, 20);
  m.allocate(*make_part<AllocatorRegistry>("global"));
  for (std::int32_t s = 0; s < 2; ++s) {
    EXPECT_EQ(m.kept_in_model(s), 5 * 2 * 20);
    float least_kept = 1e30F, most_dropped = 0;
    for (std::size_t l = 0; l < 5; ++l)
      for (std::int32_t row = 2 * s; row < 2 * s + 2; ++row) {
        const auto begin = m.scores[l].begin() + row * 65;
        std::vector<float> x(begin, begin + 65);
        std::sort(x.begin(), x.end(), std::greater<>());
        const auto k = static_cast<std::size_t>(nth(m.keep[l], row));
        EXPECT_GE(k, 4U);
        least_kept = std::min(least_kept, x[k - 1]);
        if (k < x.size()) most_dropped = std::max(most_dropped, x[k]);
      }
    EXPECT_GE(least_kept, most_dropped);
  }
}

TEST(Global, RoundsOnceForTheWholeModelOnRequest) {
  ScoredModel m(kModel, 1, 65, 0, 16);
  auto global = make_part<AllocatorRegistry>("global", "{rounding: whole}");
  global->set_budget({0, 0.25, true});
  m.allocate(*global);
  EXPECT_EQ(m.kept_in_model(0), 650 - 487);  // 487.5 go
}

TEST(Ada, RoundsOnceForTheLayerOnRequest) {
  ScoredModel m({2, 4, 4, 8, 16}, 1, 63, 0, 15);
  auto ada = make_part<AllocatorRegistry>("ada", "{safeguard_frac: 0, rounding: whole}");
  ada->set_budget({0, 0.25, true});
  m.allocate(*ada);
  EXPECT_EQ(m.kept(0, 0), 252 - 189);  // four rows of 15 would be 60
  EXPECT_THROW(make_part<AllocatorRegistry>("ada", "{rounding: whole, layers: pyramid}"), InputError);
}

class AllocatorLogs : public testing::TestWithParam<NamedPart> {};

TEST_P(AllocatorLogs, AreTheSameOnShapesWithScriptedCounts) {
  const auto& [name, parameters] = GetParam();
  for (const std::int32_t tokens : {1, 17, 64, 65}) {
    ScoredModel with(kModel, 2, tokens, std::min(tokens, 4), 16), without(kModel, 2, tokens, 4, 16, false), again(kModel, 2, tokens, 4, 16);
    auto a = make_part<AllocatorRegistry>(name, parameters), b = make_part<AllocatorRegistry>(name, parameters);
    Played counts;
    with.ops().take_counts_from(&counts), without.ops().take_counts_from(&counts);
    with.allocate(*a);
    counts.play();
    without.allocate(*b);
    EXPECT_TRUE(counts.fitted()) << tokens;
    EXPECT_EQ(with.ops().log(), without.ops().log()) << tokens;
    EXPECT_EQ(with.keep, without.keep) << tokens;
    a->forget(0), a->forget(1);
    again.allocate(*a);
    EXPECT_EQ(with.keep, again.keep) << "deterministic";
    for (const auto& layer : with.keep)
      for (const std::int32_t k : layer) EXPECT_TRUE(k >= 0 && k <= tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, AllocatorLogs,
    testing::Values(NamedPart{"uniform", "{}"}, NamedPart{"pyramid", "{}"}, NamedPart{"ada", "{}"},
                    NamedPart{"ada", "{safeguard: forced_first}"}, NamedPart{"ada", "{rounding: whole}"},
                    NamedPart{"ada", "{layers: {d2o_layers: {dense_first_layers: 1}}}"}, NamedPart{"global", "{safeguard_frac: 0.1}"},
                    NamedPart{"layer_global", "{}"}, NamedPart{"cake", "{window_tokens: 4}"},
                    NamedPart{"cake", "{window_tokens: 8, tau_entropy: 1.6, tau_variance: 0.4}"},
                    NamedPart{"dynamic_layers", "{window_tokens: 4, surplus: 2, every_layers: 2}"}, NamedPart{"d2o_layers", "{}"},
                    NamedPart{"head_split", "{retrieval_heads: \"0.1 3\"}"}, NamedPart{"head_split", "{retrieval_frac: 0.3}"},
                    NamedPart{"lazy_layers", "{tau: 0.4}"}, NamedPart{"lazy_layers", "{tau: 0.4, measures: kvpress}"},
                    NamedPart{"table", "{values: \"0=5 1.1=1000\"}"},
                    NamedPart{"sensitivity_layers", "{least_tokens: 2, importance: \"0=1 1=2 2=3 3=4 4=50\"}"},
                    NamedPart{"attention_mass_share", "{tau: 0.7}"}, NamedPart{"score_threshold", "{min_score: 1.0}"}));

Ints split(const std::vector<double>& weights, std::int64_t total, const Ints& floor, const Ints& cap, Excess excess) {
  Ints counts(weights.size());
  split_total(weights, total, floor, cap, excess, counts);
  return counts;
}

TEST(SplitTotal, GoesByWeightWhereNothingIsBounded) {
  EXPECT_EQ(split({1, 2, 3, 4}, 100, Ints(4, 0), Ints(4, 1000), Excess::kLost), (Ints{10, 20, 30, 40}));
  EXPECT_EQ(split({1, 1, 1}, 100, Ints(3, 0), Ints(3, 1000), Excess::kLost), (Ints{33, 34, 33}));
  EXPECT_EQ(split({0, 0}, 10, Ints(2, 0), Ints(2, 1000), Excess::kLost), (Ints{5, 5}));
  EXPECT_EQ(split({std::numeric_limits<double>::quiet_NaN(), 1}, 10, Ints(2, 0), Ints(2, 1000), Excess::kLost), (Ints{0, 10}));
  EXPECT_EQ(split({}, 10, {}, {}, Excess::kEven), Ints{});
}

TEST(SplitTotal, PassesExcessOnAsAsked) {
  const std::vector<double> weights{6, 3, 1};
  EXPECT_EQ(split(weights, 100, Ints(3, 0), {20, 100, 100}, Excess::kLost), (Ints{20, 30, 10}));
  EXPECT_EQ(split(weights, 100, Ints(3, 0), {20, 100, 100}, Excess::kEven), (Ints{20, 50, 30}));
  EXPECT_EQ(split(weights, 100, Ints(3, 0), {20, 100, 100}, Excess::kByWeight), (Ints{20, 60, 20}));
  EXPECT_EQ(split(weights, 100, {0, 0, 30}, {100, 100, 100}, Excess::kEven),
            (Ints{50, 20, 30}));  // what the floor takes comes from the others
}

TEST(SplitTotal, SumsToTheTotalWithinTheBounds) {
  rc::check([](std::uint16_t seed) {
    const auto n = *rc::gen::inRange<std::size_t>(1, 20);
    const auto weights = *rc::gen::container<std::vector<std::int32_t>>(n, rc::gen::inRange(0, 100));
    const auto cap = *rc::gen::container<Ints>(n, rc::gen::inRange(0, 50));
    Ints floor(n);
    for (std::size_t i = 0; i < n; ++i) floor[i] = cap[i] * static_cast<int>(seed % 3) / 4;
    const std::int64_t total = *rc::gen::inRange(0, 1000);
    const std::int64_t most = std::accumulate(cap.begin(), cap.end(), 0), least = std::accumulate(floor.begin(), floor.end(), 0);
    for (const Excess excess : {Excess::kEven, Excess::kByWeight}) {
      const Ints counts = split(std::vector<double>(weights.begin(), weights.end()), total, floor, cap, excess);
      for (std::size_t i = 0; i < n; ++i) RC_ASSERT(counts[i] >= floor[i] && counts[i] <= cap[i]);
      RC_ASSERT(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == std::clamp(total, least, most));
    }
  });
}

TEST(SplitTotal, SoftmaxOfNegativeGivesTheSmallestMost) {
  const std::vector<double> x{0, std::log(2), std::log(4)};
  EXPECT_EQ(split(softmax_of_negative(x, 1), 70, Ints(3, 0), Ints(3, 100), Excess::kLost), (Ints{40, 20, 10}));
}

}  // namespace
}  // namespace kvlab::test
