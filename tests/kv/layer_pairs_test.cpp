#include <gtest/gtest.h>

#include "base/error.h"
#include "policies/kv/recipe/recipe.h"
#include "tests/kv/disposal_fixture.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

// Four layers of one sequence, driven step by step; the last two are a pair.
struct Layers {
  explicit Layers(const std::string& parameters, std::int32_t prompt_tokens)
      : prompt(prompt_tokens), disposal(make_part<DisposalRegistry>("layer_pairs", parameters)) {
    for (std::int32_t l = 0; l < 4; ++l) stores.emplace_back(model, 1, 0, true);
  }
  void step(std::int32_t tokens) {
    const SeqStep seq{0, seen, tokens, prompt, -1};
    for (std::int32_t l = 0; l < 4; ++l) {
      KvStore& store = nth(stores, l);
      const auto n = static_cast<std::size_t>(tokens * model.kv_heads * model.head_dim);
      const auto k = RandomLayer::normals(n, 1, 100 * seen + l), v = RandomLayer::normals(n, 2, 100 * seen + l);
      store.append(0, k.data(), v.data(), tokens, seen);
      written.push_back(k[0]);
      const Ops::Frame frame(ops);
      LayerStep view{ops, model, l, {&seq, 1}, store.rows(), {}, 7};
      disposal->observe(view);
    }
    last = seq;
    seen += tokens;
  }
  // Tokens of KV head 0 whose keys have one direction in the pair.
  std::int32_t shared() {
    std::int32_t count = 0;
    for (std::int32_t i = 0; i < seen; ++i) {
      double a = 0, b = 0, product = 0;
      for (std::int32_t c = 0; c < model.head_dim; ++c) {
        const double x = double{stores[2].rows().key(0, i)[c]}, y = double{stores[3].rows().key(0, i)[c]};
        a += x * x, b += y * y, product += x * y;
      }
      count += product * product > 0.99999 * a * b ? 1 : 0;
    }
    return count;
  }
  std::int64_t bytes(std::int32_t layer) {
    const auto format = make_part<FormatRegistry>("native");
    const KvRows kv = nth(stores, layer).rows();
    std::int64_t native = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) native += format->row_bytes(model, layer, kv.len[r]);
    return disposal->resident(model, layer, {&last, 1}, kv, *format, {native}).gpu;
  }

  ModelShape model{4, 4, 2, 64, 16};
  std::int32_t prompt, seen = 0;
  std::unique_ptr<Disposal> disposal;
  std::vector<KvStore> stores;
  std::vector<float> written;
  Ops ops{Ops::Backend::kCpu};
  SeqStep last;
};

TEST(LayerPairs, MergeThePromptWhenItIsComplete) {
  Layers layers("{}", 100);
  layers.step(60);
  EXPECT_EQ(layers.shared(), 0);  // later prompt tokens are computed over what is exact
  EXPECT_EQ(layers.bytes(2), 60 * 2 * 256);
  layers.step(40);
  EXPECT_EQ(layers.shared(), 95);
  for (const std::size_t l : {0U, 1U}) EXPECT_EQ(layers.stores[l].rows().key(0, 0)[0], layers.written[l]);
  // Per row: 5 tokens with both vectors, 95 with two fp16 magnitudes for K and for V.
  EXPECT_EQ(layers.bytes(0), 100 * 2 * 256);
  EXPECT_EQ(layers.bytes(2), 2 * (5 * 256 + 5 * 8 + 95 * 4));
  EXPECT_EQ(layers.bytes(3), 2 * (100 * 256 + 95 * 4));
  const double all = static_cast<double>(layers.bytes(0) + layers.bytes(1) + layers.bytes(2) + layers.bytes(3));
  EXPECT_GT(all / (4 * 100 * 2 * 256), 0.75);
  EXPECT_LT(all / (4 * 100 * 2 * 256), 0.78);
}

TEST(LayerPairs, MergeDecodedTokensInBlocks) {
  Layers layers("{block_tokens: 20}", 100);
  layers.step(100);
  for (std::int32_t t = 1; t <= 45; ++t) {
    layers.step(1);
    EXPECT_EQ(layers.shared(), 95 + t / 20 * 19) << t;
    EXPECT_EQ(layers.bytes(3), 2 * ((100 + t) * 256LL + (95 + t / 20 * 19) * 4)) << t;
  }
  layers.disposal->forget(0);
  EXPECT_EQ(layers.bytes(3), 2 * 145 * 256);
}

TEST(LayerPairs, LastTokensOfThePromptWait) {
  Layers layers("{block_tokens: 20}", 110);
  layers.step(110);
  EXPECT_EQ(layers.shared(), 95);
  for (std::int32_t t = 1; t <= 10; ++t) {
    EXPECT_EQ(layers.bytes(2), 2 * ((109 + t - 95) * 256LL + 5 * 8 + 95 * 4));
    layers.step(1);
  }
  EXPECT_EQ(layers.shared(), 114);
}

TEST(LayerPairs, OddLayersAndShallowOnesStayAlone) {
  for (const auto& [parameters, tokens, shared] : {std::tuple{"{begin_frac: 0.75, block_tokens: 5}", 10, 0},  // layer 3 has no partner
                                                   {"{retain_frac: 1, block_tokens: 5}", 10, 0},
                                                   {"{block_tokens: 1}", 1, 1}}) {
    Layers layers(parameters, tokens);
    layers.step(tokens);
    EXPECT_EQ(layers.shared(), shared) << parameters;
  }
}

TEST(LayerPairs, RefuseToWorkWithEvictionAndEncoding) {
  EXPECT_THROW(recipe_of("{recipe: snapkv, disposal: layer_pairs}"), InputError);
  EXPECT_THROW(recipe_of("{recipe: minicache, format: kivi}"), InputError);
  EXPECT_NO_THROW(recipe_of("{recipe: minicache}"));
}

}  // namespace
}  // namespace kvlab::test
