// Sequences packed between steps on a GPU as their format stores them: the same answers as from pages, bit for bit, in the CPU's bytes.

#include "tests/cuda/shape_model.h"
#include "tests/engine/stored_recipes.h"

namespace kvlab {
namespace {

// Tokens of the two sequences' prompts.
struct Prompts {
  std::int32_t a = 170, b = 150;
};

// Two sequences of a cache over a model without weights, which take the same steps in each cache of a test.
struct Cached {
  Prompts prompts;
  PolicyCache cache;
  EngineSequence a = sequence(0, prompts.a), b = sequence(1, prompts.b);
  std::uint64_t seed = 7;

  Cached(const Recipe& recipe, const TensorMemory& memory, ElementType type, bool packs, Prompts lengths = {})
      : prompts(lengths),
        cache(std::make_unique<ShapeModel>(2, memory, type), recipe,
              {.kv_bytes = static_cast<std::int32_t>(element_bytes(type)), .packs = packs}) {
    cache.start(a);
    cache.start(b);
  }
  static EngineSequence sequence(std::int32_t index, std::int32_t prompt) {
    EngineSequence s = sequence_of(index, tiny_ids(prompt + 80, 3 + 2 * index), prompt);
    s.question_begin = prompt - 9;
    return s;
  }
  // Runs of_a and of_b tokens of the sequences in one step; returns attention's outputs in all layers. `layer`: run_layer.
  template <class F>
  std::vector<float> step(std::int32_t of_a, std::int32_t of_b, const F& layer) {
    std::vector<StepPiece> pieces;
    if (of_a > 0) pieces.push_back({&a, of_a});
    if (of_b > 0) pieces.push_back({&b, of_b});
    cache.begin_step(pieces);
    std::vector<float> all;
    for (std::int32_t l = 0; l < 2; ++l) {
      const std::vector<float> out = layer(cache, l, of_a + of_b, seed += 10);
      all.insert(all.end(), out.begin(), out.end());
    }
    cache.end_step({});
    return all;
  }
};

// Decode steps, some of several tokens, so that groups and buffers fill soon.
constexpr std::pair<std::int32_t, std::int32_t> kSteps[] = {{1, 1}, {13, 0}, {20, 33}, {1, 1}};

class EnginePackedCuda : public CudaTest, public testing::WithParamInterface<std::string> {
 protected:
  template <class T>
  auto layers() {
    return [this](PolicyCache& cache, std::int32_t l, std::int32_t tokens, std::uint64_t seed) {
      return run_layer<T>(cache, l, tokens, seed, cuda());
    };
  }
  static std::vector<float> on_cpu(PolicyCache& cache, std::int32_t l, std::int32_t tokens, std::uint64_t seed) {
    return run_layer(cache, l, tokens, seed);
  }
  template <class T>
  Cached cached(const Recipe& recipe, bool packs, Prompts prompts = {}) {
    return Cached(recipe, TensorMemory(cuda()), kElementType<T>, packs, prompts);
  }

  template <class T>
  void step_both(Cached& paged, Cached& packed, std::int32_t of_a, std::int32_t of_b) {
    ASSERT_EQ(paged.step(of_a, of_b, layers<T>()), packed.step(of_a, of_b, layers<T>())) << "after " << paged.a.seen_tokens << " tokens";
  }
  static void compare(Cached& paged, Cached& packed) {
    for (const auto member : {&Cached::a, &Cached::b}) {
      EXPECT_EQ(paged.cache.resident(paged.*member), packed.cache.resident(packed.*member));
      EXPECT_EQ(paged.cache.positions(paged.*member), packed.cache.positions(packed.*member));
    }
  }
};

// To host memory and back; what rests takes no GPU memory there.
void swap_out_and_in(PolicyCache& cache, EngineSequence& s) {
#if KVLAB_EMULATED
  const PolicyCache::HeldBytes held = cache.held(s);
  const std::int64_t before = emulated::used_memory();
#endif
  cache.move_rest(s, true);
#if KVLAB_EMULATED
  EXPECT_GE(before - emulated::used_memory(), held.kv + held.beside);
#endif
  cache.move_rest(s, false);
}

// Leaves out recipes with a test of their own (outliers take the emulator long).
std::vector<std::string> tested_recipes() {
  std::vector<std::string> names = packed_recipes();
  std::erase(names, "gear");
  return names;
}

bool runs_on_gpu(const Recipe& recipe) {
  const PolicyCache cache(std::make_unique<ShapeModel>(2, TensorMemory(), ElementType::kF32), recipe, {});
  return cache.policy().needs().cpu_only.empty() && cache.policy().needs().pass.empty();
}

Recipe packed_recipe(const std::string& name) { return load_recipe(name, load_recipe(name).has_budget ? 140 : 0); }

// In bf16, with what is counted.
TEST_P(EnginePackedCuda, AnswersAsFromPages) {
  const Recipe recipe = packed_recipe(GetParam());
  if (!runs_on_gpu(recipe)) GTEST_SKIP() << "runs on the CPU alone";
  Cached paged = cached<bf16>(recipe, false), packed = cached<bf16>(recipe, true);
  step_both<bf16>(paged, packed, paged.prompts.a, paged.prompts.b);
  compare(paged, packed);
  EXPECT_EQ(packed.cache.pages().used_pages() > 0, stays_in_pages(recipe.name));
  if (stays_in_pages(recipe.name)) return;
  const std::int64_t divisors = 2 * 2 * divisor_bytes(recipe.name, 64), counted = counted_kv(packed.cache, packed.a) + divisors;
  const double held = static_cast<double>(packed.cache.held(packed.a).kv),
               most_apart = recipe.name.starts_with("zipvl") || recipe.name == "dfloat11" ? 0.05 : 0;
  EXPECT_NEAR(held, static_cast<double>(counted), most_apart * static_cast<double>(counted));
  for (const auto& [of_a, of_b] : kSteps) {
    step_both<bf16>(paged, packed, of_a, of_b);
    swap_out_and_in(packed.cache, packed.a);
  }
  compare(paged, packed);
  EXPECT_EQ(packed.cache.pages().used_pages(), 0);
  packed.cache.release(packed.a);
  packed.cache.release(packed.b);
  EXPECT_EQ(packed.cache.pages().used_pages(), 0);
}

// The second prompt is shorter than what recipes keep or leave in full precision.
TEST_P(EnginePackedCuda, HoldsTheBytesOfTheCpu) {
  const Recipe recipe = packed_recipe(GetParam());
  if (!runs_on_gpu(recipe)) GTEST_SKIP() << "runs on the CPU alone";
  if (recipe.selects_in_prompts()) GTEST_SKIP() << "selects in prompts, which takes keys of 16 bits";
  const Prompts prompts{170, 60};
  Cached cpu(recipe, TensorMemory(), ElementType::kF32, true, prompts), gpu = cached<float>(recipe, true, prompts);
  const auto step = [&](std::int32_t of_a, std::int32_t of_b) {
    cpu.step(of_a, of_b, on_cpu);
    gpu.step(of_a, of_b, layers<float>());
  };
  const auto same = [&] {
    for (const auto member : {&Cached::a, &Cached::b}) {
      const PolicyCache::HeldBytes expected = cpu.cache.held(cpu.*member), held = gpu.cache.held(gpu.*member);
      EXPECT_EQ(held.kv, expected.kv);
      EXPECT_EQ(held.beside, expected.beside);
    }
  };
  step(cpu.prompts.a, cpu.prompts.b);
  same();
  step(20, 33);
  step(1, 1);
  same();
}

INSTANTIATE_TEST_SUITE_P(Recipes, EnginePackedCuda, testing::ValuesIn(tested_recipes()), [](const auto& info) { return info.param; });

// Tokens that were encoded are evicted: the rows go back to pages and stay there.
TEST_F(EnginePackedCuda, RowsThatLoseEncodedTokensStayInPages) {
  const Recipe recipe = recipe_of("{recipe: h2o, budget_tokens: 20, format: {cast: {type: fp8_e4m3}}}");
  const Prompts prompts{50, 40};
  Cached paged = cached<bf16>(recipe, false, prompts), packed = cached<bf16>(recipe, true, prompts);
  step_both<bf16>(paged, packed, 30, 20);
  step_both<bf16>(paged, packed, 20, 20);
  for (std::int32_t i = 0; i < 6; ++i) step_both<bf16>(paged, packed, 1, 1);
  compare(paged, packed);
  EXPECT_GT(packed.cache.pages().used_pages(), 0);
}

// Blocks of decode that differ in nothing but the divisors of their channels.
TEST_F(EnginePackedCuda, EachBlockKeepsItsDivisors) {
  const Recipe recipe = recipe_of("{recipe: full, format: {zipcache: {salient_bits: 4, other_bits: 4, salient_frac: 1, block_tokens: 5}}}");
  const Prompts prompts{50, 40};
  Cached paged = cached<bf16>(recipe, false, prompts), packed = cached<bf16>(recipe, true, prompts);
  step_both<bf16>(paged, packed, paged.prompts.a, paged.prompts.b);
  for (std::int32_t i = 0; i < 12; ++i) step_both<bf16>(paged, packed, 1, 1);
  compare(paged, packed);
  EXPECT_EQ(packed.cache.pages().used_pages(), 0);
}

// Prompt and buffers of decode have outliers and factors of their own. One of 22 tokens waits, and the CPU holds it in float32.
TEST_F(EnginePackedCuda, BuffersWithOutliers) {
  const Recipe recipe = recipe_of("{recipe: full, format: {gear: {buffer_tokens: 3}}}");
  const Prompts prompts{20, 10};
  Cached paged = cached<bf16>(recipe, false, prompts), packed = cached<bf16>(recipe, true, prompts);
  Cached cpu(recipe, TensorMemory(), ElementType::kF32, true, prompts);
  for (const std::int32_t n : {20, 1, 1}) {
    step_both<bf16>(paged, packed, n, 0);
    cpu.step(n, 0, on_cpu);
  }
  EXPECT_EQ(paged.cache.positions(paged.a), packed.cache.positions(packed.a));
  EXPECT_EQ(packed.cache.pages().used_pages(), 0);
  EXPECT_EQ(packed.cache.held(packed.a).kv, cpu.cache.held(cpu.a).kv - 2 * 2 * 2 * 64 * 2);
}

TEST_F(EnginePackedCuda, DecodingIsNotLogged) {
  const Recipe recipe = load_recipe("int8_per_token");
  Cached paged = cached<bf16>(recipe, false), packed = cached<bf16>(recipe, true);
  for (Cached* c : {&paged, &packed}) c->cache.ops().keep_log(true);
  step_both<bf16>(paged, packed, paged.prompts.a, paged.prompts.b);
  step_both<bf16>(paged, packed, 1, 1);
  EXPECT_FALSE(paged.cache.ops().log().empty());
  EXPECT_EQ(packed.cache.ops().log(), paged.cache.ops().log());
}

#if KVLAB_EMULATED

// Every step appends its codes to the earlier ones: the number of commands per step stays the same, and small.
TEST_F(EnginePackedCuda, StepsHaveNoMoreCommandsTheMoreIsEncoded) {
  for (const char* name : {"fp8", "int8_per_token", "qserve_kv4"}) {
    SCOPED_TRACE(name);
    Cached paged = cached<bf16>(load_recipe(name), false), packed = cached<bf16>(load_recipe(name), true);
    const auto commands = [&](Cached& c) {
      const std::int64_t before = emulated::commands();
      c.step(1, 0, layers<bf16>());
      return emulated::commands() - before;
    };
    for (Cached* c : {&paged, &packed}) c->step(c->prompts.a, c->prompts.b, layers<bf16>()), commands(*c);
    const std::int64_t early = commands(packed);
    for (std::int32_t i = 0; i < 20; ++i) commands(packed);
    EXPECT_LE(commands(packed), early);
    EXPECT_LE(early - commands(paged), 2 * 120);  // two layers
  }
}

// Whenever the GPU's memory is full, the step is refused, and nothing stays allocated.
TEST_F(EnginePackedCuda, FullMemoryIsAnInputError) {
  const auto model = tiny_model(ElementType::kBf16);
  const auto run = [&](std::int64_t room) {
    PolicyCache::Options options;
    options.packs = true;
    const std::unique_ptr<PolicyCache> cache = model->make_cache(load_recipe("int8_per_token"), options);
    EngineSequence s = sequence_of(0, tiny_ids(124, 3), 120);
    const std::string error = error_with_room(room, [&] {
      cache->start(s);
      for (const std::int32_t n : {120, 1, 1, 1}) {
        const PieceBatch batch({{&s, n}});
        static_cast<void>(model->forward(*cache, batch.pieces, batch.tokens(), batch.rows));
      }
    });
    if (error == "no error") {
      EXPECT_EQ(cache->pages().used_pages(), 0);
    }
    return error;
  };
  EXPECT_EQ(run(kAllMemory / 2), "no error");
  const std::int64_t before = emulated::used_memory();
  std::int64_t encoded = 0;
  for (std::int64_t room = 0;; room += 4 << 10) {
    const std::string refused = run(room);
    EXPECT_EQ(emulated::used_memory(), before) << refused;
    if (refused == "no error") break;
    if (refused.find("what the recipe encodes does not fit into the GPU's memory") != std::string::npos) ++encoded;
  }
  EXPECT_GT(encoded, 3);
}

#endif

// Selectors with tiers on a GPU: the results of pages, with CPU memory for what no step reads.

ModelConfig three_layers() {
  ModelConfig c = tiny_config();
  c.layers = 3;
  return c;
}

ModelShape tiny_shape() {
  const ModelConfig c = three_layers();
  return {c.layers, c.q_heads, c.kv_heads, c.head_dim, c.hidden_dim, 2, {c.rope_base, c.rope_scaling}};
}

class TieredCacheCuda : public CudaTest, public testing::WithParamInterface<std::string> {};

TEST_P(TieredCacheCuda, AnswersAsFromPagesWithWhatIsCountedFetched) {
  const std::string name = GetParam();
  if (left_out_of_short_run(name)) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = small_tiered(name);
  const auto model = make_device_model(three_layers(), tiny_weights(three_layers()), {}, ElementType::kBf16);
  if (!KvPolicy(recipe, tiny_shape()).needs().cpu_only.empty()) GTEST_SKIP() << "it runs only with backend cpu";
  const auto paged = model->make_cache(recipe, {.kv_bytes = 2}),
             tiered = model->make_cache(recipe, {.kv_bytes = 2, .tiers = true, .poisons = true});
  EngineSequence a[2] = {sequence_of(0, tiny_ids(143, 3), 128), sequence_of(0, tiny_ids(143, 3), 128)};
  EngineSequence b[2] = {sequence_of(1, tiny_ids(127, 5), 112), sequence_of(1, tiny_ids(127, 5), 112)};
  paged->start(a[0]), tiered->start(a[1]), paged->start(b[0]), tiered->start(b[1]);
  std::int64_t fetched = 0;
  const auto step = [&](std::int32_t of_a, std::int32_t of_b) {
    const auto run = [&](PolicyCache& cache, std::size_t i) {
      std::vector<StepPiece> pieces;
      if (of_a > 0) pieces.push_back({&a[i], of_a});
      if (of_b > 0) pieces.push_back({&b[i], of_b});
      const PieceBatch batch(std::move(pieces));
      return model->step(cache, batch.pieces, batch.tokens(), batch.rows);
    };
    ASSERT_EQ(run(*paged, 0), run(*tiered, 1)) << "after " << a[0].seen_tokens << " and " << b[0].seen_tokens << " tokens";
    const Traffic counted = tiered->take_traffic(), moved = tiered->take_moved();
    fetched += moved.fetched_bytes;
    EXPECT_EQ(moved.fetched_bytes * (name == "sentencekv" || name == "retrieval_attention" ? 2 : 1), counted.fetched_bytes);
  };
  step(88, 112);
  step(40, 1);
  for (std::int32_t i = 0; i < 2; ++i) step(1, 1);
  step(3, 0);
  step(1, 2);
  EXPECT_GT(fetched, 0);
  EXPECT_EQ(paged->positions(a[0]), tiered->positions(a[1]));
  EXPECT_EQ(paged->resident(a[0]), tiered->resident(a[1]));
  const std::int64_t line = 64 * 2, heads = 2;
  std::int64_t pages = tiered->pages().used_pages();
  for (EngineSequence* s : {&a[1], &b[1]}) {
    const PolicyCache::HeldBytes held = tiered->held(*s);
    std::int64_t layers = 0;
    for (std::int32_t l = 0; l < 3; ++l) layers += tiered->policy().lower(l) != Selector::Lower::kNothing ? 1 : 0;
    const std::int64_t dense_pages = (3 - layers) * heads * ((s->seen_tokens + 15) / 16);
    EXPECT_EQ(held.kv - dense_pages * 16 * 2 * line + held.host, layers * heads * s->seen_tokens * 2 * line);
    EXPECT_GT(held.host, 0);
    pages -= dense_pages;
    tiered->release(*s);
  }
  EXPECT_EQ(pages, 0);
}

INSTANTIATE_TEST_SUITE_P(Recipes, TieredCacheCuda, testing::ValuesIn(tiered_recipes(tiny_shape())),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab
