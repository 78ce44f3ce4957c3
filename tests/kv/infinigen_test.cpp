#include "kernels/select/guess_queries/guess_queries.h"
#include "sim/kv_cost/shape_run.h"
#include "sim/kv_cost/step_ops.h"
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// Tokens that the rule picks for all rows of a sequence when every channel is kept, by plain loops over the query `q_at` tokens back.
std::vector<std::vector<std::int32_t>> by_hand(Decode& d, std::int32_t sequence, std::int32_t back, double alpha, double max_frac) {
  const std::int32_t heads = d.model.kv_heads, n = d.tokens() - 1, group = d.model.group(), dim = d.model.head_dim;
  std::vector<std::vector<double>> scores;
  std::int64_t wanted = 0;
  for (std::int32_t r = sequence * heads; r < (sequence + 1) * heads; ++r) {
    std::vector<double> best_of_group(static_cast<std::size_t>(n), -1e30);
    for (std::int32_t h = 0; h < group; ++h) {
      std::vector<double> z;
      for (std::int32_t i = 0; i < n; ++i)
        z.push_back(d.dot(d.query(r, h) - static_cast<std::ptrdiff_t>(back) * d.model.q_heads * dim, d.key(r, i)) / std::sqrt(dim));
      const double top = *std::max_element(z.begin(), z.end());
      for (std::size_t i = 0; i < z.size(); ++i) best_of_group[i] = std::max(best_of_group[i], z[i] - top);
    }
    wanted += std::count_if(best_of_group.begin(), best_of_group.end(), [&](double z) { return z > -alpha; });
    scores.push_back(best_of_group);
  }
  const auto count = std::min<std::int64_t>(std::max<std::int64_t>(wanted / heads, 1), static_cast<std::int64_t>(max_frac * n));
  std::vector<std::vector<std::int32_t>> rows;
  for (const auto& s : scores) rows.push_back(tokens_of(best(s, static_cast<std::size_t>(count)), 1, 0, n, n + 1));
  return rows;
}

// The two rows of a sequence.
std::vector<std::vector<std::int32_t>> of_sequence(const std::vector<std::vector<std::int32_t>>& rows, std::int32_t sequence) {
  return {rows.begin() + 2 * sequence, rows.begin() + 2 * sequence + 2};
}

TEST(InfiniGen, TakesWhatTheLastStepsQueryWants) {
  for (const char* skew : {"true", "false"}) {  // a rotation changes no logit when all directions are kept
    for (const std::int32_t group : {1, 3, 4, 8}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, 65, "infinigen",
                  std::string("{partial_frac: 1, alpha: 0.8, max_frac: 0.5, skew: ") + skew + "}");
      for (std::int32_t t = 0; t < 3; ++t) {
        const auto rows = d.decode();
        for (std::int32_t s = 0; s < 2; ++s) EXPECT_EQ(of_sequence(rows, s), by_hand(d, s, 1, 0.8, 0.5)) << group << " step " << t;
      }
    }
  }
}

TEST(InfiniGen, CurrentQueryIsTheUpperBound) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 65, "infinigen", "{partial_frac: 1, alpha: 1, max_frac: 0.5, query: current}");
  const auto rows = d.decode();
  EXPECT_EQ(rows, by_hand(d, 0, 0, 1, 0.5));
}

// A step of layer 2 with inputs of the layer before, [sequences][hidden_dim], and W_q.
std::vector<std::vector<std::int32_t>> guessed_step(Decode& d, Selector& part, const std::vector<std::vector<float>>& before,
                                                    const std::vector<float>& w) {
  d.append(1);
  LayerStep s = d.step();
  std::vector<const float*> inputs;
  for (const auto& input : before) inputs.push_back(input.data());
  s.in.hidden_before = inputs, s.in.w_q.w = w.data();
  const Ops::Frame frame(d.ops);
  part.update(s);
  const Selection chosen = part.select(s);
  std::vector<Ints> rows;
  for (std::int32_t r = 0; r < s.kv.num_rows; ++r) rows.push_back(tokens_in(chosen, r));
  return rows;
}

TEST(InfiniGen, GuessesTheQueryFromTheLayerBefore) {
  for (const std::int32_t group : {1, 4}) {
    Decode d({4, 2 * group, 2, 8, 16}, 2, 65, 3);
    const std::int32_t width = 2 * group * 8;
    auto part = make_part<SelectorRegistry>("infinigen", "{partial_frac: 1, alpha: 0.8, max_frac: 0.5, query: guessed}");
    d.prefill(*part);
    const std::vector<float> w = RandomLayer::normals(static_cast<std::size_t>(width * 16), 31, 0);
    for (std::int32_t t = 0; t < 3; ++t) {
      const std::vector<std::vector<float>> before{RandomLayer::normals(16, 32, 2 * t), RandomLayer::normals(16, 32, 2 * t + 1)};
      const auto rows = guessed_step(d, *part, before, w);
      for (std::int32_t s = 0; s < 2; ++s) {
        const std::vector<float> own = nth(d.q, s);
        float* const newest = nth(d.q, s).data() + own.size() - static_cast<std::size_t>(width);
        for (std::int32_t o = 0; o < width; ++o) {
          newest[o] = 0;
          for (std::int32_t i = 0; i < 16; ++i) newest[o] += nth(w, o * 16 + i) * nth(nth(before, s), i);
        }
        const auto expected = by_hand(d, s, 0, 0.8, 0.5);
        EXPECT_EQ(of_sequence(rows, s), expected) << group << " step " << t;
        nth(d.q, s) = own;
        EXPECT_NE(by_hand(d, s, 0, 0.8, 0.5), expected);
      }
    }
  }
}

// Two heads of two channels, two inputs: W h + b = (2, 4, 2, -1), each head normed to a root mean square of 1, times the norm's weights.
TEST(GuessQueries, BiasNormAndRope) {
  const std::vector<float> w{1, 0, 0, 1, 1, 1, -1, 0}, bias{1, 1, -2, 0}, norm{1, 3}, h{1, 3};
  const float* const hidden = h.data();
  std::vector<float> out(4);
  GuessQueries op{1, 2, 2, 2, &hidden, {w.data(), bias.data()}, nullptr, nullptr, out.data()};
  run_cpu(op);
  EXPECT_EQ(out, (std::vector<float>{2, 4, 2, -1}));
  op.weights.norm = norm.data();
  run_cpu(op);
  const float first = std::sqrt(10.0F), second = std::sqrt(2.5F);
  const float normed[] = {2 / first, 12 / first, 2 / second, -3 / second};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(out[i], normed[i], 1e-6);
  const float cos = 0, sin = 1;  // a quarter turn: (a, b) becomes (-b, a)
  op.cos = &cos, op.sin = &sin;
  run_cpu(op);
  const float turned[] = {-normed[1], normed[0], -normed[3], normed[2]};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(out[i], turned[i], 1e-6);
}

TEST(InfiniGen, AGuessNeedsALayerBefore) {
  EXPECT_THAT(error_of([] { make_part<SelectorRegistry>("infinigen", "{dense_layers: 0, query: guessed}"); }),
              HasSubstr("write 'dense_layers: 1' or 'query: previous'"));
}

constexpr ModelShape kGuessing{4, 8, 2, 16, 96, 2};

TEST(InfiniGen, TheGuessCostsAProjectionPerStepAndLayer) {
  ShapeRun run(load_recipe("infinigen"), kGuessing);
  ShapeRun::Seq seq{200, 1, 200, std::vector<std::int32_t>(8, 200)};
  std::int64_t bytes = 0, flops = 0, calls = 0;
  for (const OpCall& c : run.step(std::span(&seq, 1)).calls)
    if (c.op == "guess_queries") bytes += c.bytes, flops += c.flops, ++calls;
  EXPECT_EQ(calls, 3);  // layer 0 is read whole
  EXPECT_EQ(bytes, 3 * (2 * 8 * 16 * 96 + 4 * (96 + 8 * 16 + 16)));
  EXPECT_EQ(flops, 3 * (2 * 8 * 16 * 96 + 3 * 8 * 16));
}

// In the batch's own call and in the sum over its sequences.
TEST(InfiniGen, ABatchReadsTheProjectionOnce) {
  const Recipe recipe = load_recipe("infinigen");
  const std::vector<ShapeRun::Seq> batch{{200, 1, 200, {200}, {}}, {230, 1, 200, {230}, {}}, {200, 1, 180, {200}, {}}};
  const auto bytes_of = [](const std::vector<OpCall>& calls) {
    std::int64_t bytes = 0;
    for (const OpCall& c : calls) bytes += c.op == "guess_queries" ? c.bytes : 0;
    return bytes;
  };
  const std::int64_t once = 2 * 8 * 16 * 96 + 3 * 4 * (96 + 8 * 16 + 16);
  EXPECT_EQ(bytes_of(ShapeRun(recipe, kGuessing).step(batch).calls), 3 * once);
  EXPECT_EQ(bytes_of(StepOps(recipe, kGuessing).decode(batch).of_layer(1)), once);
}

TEST(InfiniGen, KeepsTheLargestChannelsOfThePrompt) {
  // Queries live in channels 2 and 5 alone, so two of eight channels give every logit exactly.
  Decode d({4, 2, 1, 8, 16}, 1, 50, 3);
  d.append(50);
  for (std::size_t i = 0; i < d.q[0].size(); ++i)
    if (i % 8 != 2 && i % 8 != 5) d.q[0][i] *= 1e-6F;
  auto part = make_part<SelectorRegistry>("infinigen", "{partial_frac: 0.25, skew: false, alpha: 1, max_frac: 0.5}");
  LayerStep prompt = d.step();
  part->update(prompt);
  const auto rows = d.decode(*part);
  EXPECT_EQ(rows, by_hand(d, 0, 1, 1, 0.5));
}

TEST(InfiniGen, SkewFindsTheDirectionThatChannelsMiss) {
  // All queries point along (1, ..., 1): one skewed direction gives the logits, one channel does not.
  for (const bool skew : {true, false}) {
    Decode d({4, 1, 1, 8, 16}, 1, 200, 3);
    d.append(200);
    for (std::size_t i = 0; i < d.q[0].size(); ++i) d.q[0][i] = 0.5F;
    auto part = make_part<SelectorRegistry>(
        "infinigen", std::string("{partial_frac: 0.125, alpha: 0.5, max_frac: 0.5, skew: ") + (skew ? "true}" : "false}"));
    LayerStep prompt = d.step();
    part->update(prompt);
    const auto rows = d.decode(*part);
    EXPECT_EQ(rows == by_hand(d, 0, 1, 0.5, 0.5), skew);
  }
}

TEST(InfiniGen, ChunksOfThePromptMakeNoDifference) {
  const auto run = [](std::int32_t chunk) {
    Decode d({4, 4, 2, 8, 16}, 1, 60, 3);
    auto part = make_part<SelectorRegistry>("infinigen", "{alpha: 1}");
    d.append(60);
    const std::vector<float> all = d.q[0];
    for (std::int32_t at = 0; at < 60; at += chunk) {
      Decode part_of({4, 4, 2, 8, 16}, 1, 60, 3);
      part_of.append(60);
      for (std::int32_t r = 0; r < 2; ++r) part_of.store.shrink(r, at + chunk);
      part_of.seqs = {{0, at, chunk, 60, -1}};
      part_of.queries = {{part_of.q[0].data() + static_cast<std::ptrdiff_t>(at) * 4 * 8, chunk, at}};
      LayerStep step = part_of.step();
      part->update(step);
    }
    return d.decode(*part);
  };
  EXPECT_EQ(run(60), run(20));
  EXPECT_EQ(run(60), run(1));
}

TEST(InfiniGen, FirstLayerIsDense) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 65, "infinigen", "{}", {.layer = 0});
  EXPECT_EQ(d.decode()[0].size(), 66U);
  EXPECT_TRUE(d.ops.log().empty());
  const TierBytes held{1000, 0, 0};
  EXPECT_EQ(d.part->resident_in_layer(0, d.model, d.store.rows(), held), held);
}

TEST(InfiniGen, CountsWhatIsBroughtAndWhereItLies) {
  Prefilled d({4, 8, 2, 16, 16}, 1, 100, "infinigen", "{alpha: 2, skew: false, partial_frac: 0.25}");
  std::vector<std::vector<std::int32_t>> last(2);
  for (std::int32_t t = 0; t < 4; ++t) {
    const auto rows = d.decode();
    std::int64_t fetched = 0;
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_LE(rows[r].size(), 21U);
      EXPECT_EQ(rows[r].size(), rows[0].size());
      auto older = rows[r];
      older.pop_back();
      fetched += newcomers(older, last[r]);
      last[r] = rows[r];
    }
    EXPECT_EQ(d.part->take_traffic().fetched_bytes, fetched * 2 * 16 * 2);
  }
  // 104 tokens: at most 20 brought and the newest stay on the GPU, with 4 of 16 key channels of all and their numbers.
  const std::int64_t token = 2 * 16 * 2;
  const TierBytes bytes = d.part->resident_in_layer(2, d.model, d.store.rows(), {2 * 104 * token, 0, 0});
  EXPECT_EQ(std::tuple(bytes.host, bytes.gpu), std::tuple(2 * (104 - 21) * token, 2 * 21 * token + (2 * 104 + 2) * 4 * 2));
}

}  // namespace
}  // namespace kvlab::test
