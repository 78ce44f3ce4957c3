// Serving and grading on a GPU against the CPU, on a tiny model.

#include "engine/grade/grader.h"
#include "kernels/device/cuda/memory.h"
#include "policies/kv/cache/kv_store.h"
#include "tests/cuda/engine_fixture.h"
#include "tests/engine/serve_fixture.h"

namespace kvlab::test {
namespace {

const EngineModel& on_cpu() {
  static const std::unique_ptr<EngineModel> model = make_cpu_model(Transformer(tiny_config(), tiny_weights(tiny_config())));
  return *model;
}

// Prompts of 46 and 62 tokens, which fill their last block soon; the first 32 of every other one are the same.
std::vector<SomeRequest> some_requests() {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 5; ++i) {
    SomeRequest r{1.5 * i, i % 2 == 0 ? 46 : 62, 4 + i % 2, 16};
    for (std::int32_t c = 0; c < r.prompt / 16; ++c)
      r.hashes.push_back(static_cast<std::uint64_t>(c < 2 && i % 2 == 0 ? 100 + c : 1000 * (i + 1) + c));
    requests.push_back(r);
  }
  return requests;
}

using Kind = ExecutorAction::Kind;

// A request whose prompt is all that is known.
EngineSequence arrival(std::uint64_t request, std::int32_t index, std::vector<std::int32_t> prompt) {
  const auto tokens = static_cast<std::int32_t>(prompt.size());
  EngineSequence sequence = sequence_of(index, std::move(prompt), tokens);
  sequence.draws = request;
  return sequence;
}

template <class... Arrived>
StepJob job_of(std::vector<ExecutorAction> actions, Arrived... arrived) {
  StepJob job;
  (job.arrived.push_back(std::move(arrived)), ...);
  job.actions = std::move(actions);
  return job;
}

// Its tokens up to `end`, with a token drawn after them.
ExecutorAction row(std::uint64_t request, std::int32_t end, std::int32_t prompt, std::vector<TakenBlock> new_blocks) {
  StepEntry share;
  share.tokens = end;
  share.emits = true;
  return {Kind::kRun, request, std::move(new_blocks), share, prompt, false};
}

std::vector<TakenBlock> blocks(std::initializer_list<std::uint32_t> ids, std::uint32_t takes) {
  std::vector<TakenBlock> taken;
  for (const std::uint32_t id : ids) taken.push_back({BlockId{id}, takes});
  return taken;
}

bool rests(const Recipe& recipe) { return on_cpu().make_cache(recipe, {.packs = true, .tiers = true})->may_rest(); }

class EngineHostsCuda : public CudaTest {
 protected:
  static Served run(const EngineModel& model, const Recipe& recipe, std::int64_t blocks) {
    ServeSetup setup = serve_setup(model, recipe, "vllm_v0", "{preemption: swap}", blocks);
    setup.memory.prefix_caching = !rests(recipe);  // sequences that others find do not
    setup.inspect = [](const ReplicaState&, const StepExecutor& executor) {
      EXPECT_EQ(executor.pages().used_pages(), executor.explained_pages());
    };
    const Served served = serve_all(setup, some_requests());
    EXPECT_EQ(served.summary.latencies.completed, 5U);
    return served;
  }
};

// In float32 the tokens are the CPU's: blocks are shared by their prefix, and with few of them sequences go to host memory and come back.
TEST_F(EngineHostsCuda, ServesTheTokensOfTheCpu) {
  const auto gpu = tiny_model(ElementType::kF32);
  const auto serves_the_same = [&](const char* name, std::int64_t blocks) {
    SCOPED_TRACE(name);
    const Recipe recipe = load_recipe(name, load_recipe(name).has_budget ? 46 : 0);
    const Served expected = run(on_cpu(), recipe, blocks), served = run(*gpu, recipe, blocks);
    EXPECT_EQ(served.summary.swaps, expected.summary.swaps);
    EXPECT_EQ(served.summary.hit_tokens, expected.summary.hit_tokens);
    EXPECT_EQ(served.summary.steps, expected.summary.steps);
    EXPECT_EQ(served.tokens, expected.tokens);
    return served;
  };
  for (const char* name : {"h2o", "snapkv", "fp8"}) EXPECT_GT(serves_the_same(name, 7).summary.swaps, 0U);
  EXPECT_GT(serves_the_same("knorm", 9).summary.hit_tokens, 0);
}

// In bf16, plain steps use tables on the GPU, as graphs or not: sequences that return from CPU memory are in other pages.
TEST_F(EngineHostsCuda, SwapsUnderPlainDecoding) {
  const auto served = [&](std::int64_t blocks, bool graphs) {
    return run(*make_device_model(tiny_config(), tiny_weights(tiny_config()), {graphs}, ElementType::kBf16), load_recipe("full"), blocks);
  };
  const Served few = served(7, false);
  EXPECT_GT(few.summary.swaps, 0U);
  EXPECT_EQ(served(7, true).tokens, few.tokens);
  if (cuda_backend() != CudaBackend::kEmulated) return;  // cuBLAS sums in another order in other batches
  const Served many = served(40, false);
  EXPECT_EQ(many.summary.swaps, 0U);
  EXPECT_EQ(many.tokens, few.tokens);
}

// A sequence leaves the device between two of its plain steps, another one takes its blocks, and it comes back into others.
TEST_F(EngineHostsCuda, TablesOfPlainStepsFollowASequenceThatMoved) {
  const auto gpu = tiny_model(ElementType::kBf16);
  const auto tokens = [&](bool swaps) {
    StepExecutor executor(*gpu, load_recipe("full"), {6, 6, 16, 1, 0, true});
    executor.run(job_of({row(1, 40, 40, blocks({0, 1, 2}, 1))}, arrival(1, 0, tiny_ids(40, 3))));
    for (const std::int32_t end : {41, 42}) executor.run(job_of({row(1, end, 40, {})}));
    if (swaps) {
      executor.run(job_of({{Kind::kSwapOut, 1}, row(2, 40, 40, blocks({0, 1, 2}, 2))}, arrival(2, 1, tiny_ids(40, 5))));
      EXPECT_EQ(executor.host_pages().used_pages(), 3 * 2 * 2);
      executor.run(job_of({{Kind::kSwapIn, 1, blocks({3, 4, 5}, 1)}}));
      EXPECT_EQ(executor.host_pages().used_pages(), 0);
    }
    for (const std::int32_t end : {43, 44, 45}) executor.run(job_of({row(1, end, 40, {})}));
    executor.run(job_of({{Kind::kFinish, 1}}));
    return executor.tokens().at(1);
  };
  EXPECT_EQ(tokens(true), tokens(false));
}

// Pages keep the positions of their previous owner. After plain steps, steps that go by positions (decoding sequences apart in the batch)
// see those of their own tokens.
TEST_F(EngineHostsCuda, StepsBehindPlainOnesSeeAllTokens) {
  const auto gpu = tiny_model(ElementType::kBf16);
  const auto tokens = [&](bool used_before) {
    StepExecutor executor(*gpu, load_recipe("full"), {16, 0, 16, 1, 0, true});
    if (used_before) {
      executor.run(job_of({row(9, 96, 96, blocks({0, 1, 2, 3, 4, 5}, 1))}, arrival(9, 0, tiny_ids(96, 9))));
      executor.run(job_of({{Kind::kFinish, 9}}));
    }
    executor.run(job_of({row(1, 20, 20, blocks({5, 4, 3}, 2)), row(2, 20, 20, blocks({2, 1, 0}, 2))}, arrival(1, 0, tiny_ids(20, 3)),
                        arrival(2, 1, tiny_ids(20, 4))));
    for (std::int32_t end = 21; end < 40; ++end) executor.run(job_of({row(1, end, 20, {}), row(2, end, 20, {})}));
    for (std::int32_t i = 0; i < 4; ++i) {
      const auto other = static_cast<std::uint64_t>(3 + i);
      executor.run(
          job_of({row(1, 40 + i, 20, {}), row(other, 16, 16, blocks({6U + static_cast<std::uint32_t>(i)}, 1)), row(2, 40 + i, 20, {})},
                 arrival(other, 2 + i, tiny_ids(16, 5))));
    }
    std::vector<std::int32_t> all;
    for (const std::uint64_t request : {1, 2}) {
      executor.run(job_of({{Kind::kFinish, request}}));
      const std::vector<std::int32_t>& emitted = executor.tokens().at(request);
      all.insert(all.end(), emitted.begin(), emitted.end());
    }
    return all;
  };
  EXPECT_EQ(tokens(true), tokens(false));
}

#if KVLAB_EMULATED
// Steps of up to 5 sequences of at most 300 tokens: prompts of two sizes, then batches of 1 to 5, rows that grow beyond 256 tokens. The
// tokens are those of an executor that came cold.
TEST_F(EngineHostsCuda, AWarmExecutorMakesNothingInItsSteps) {
  const auto gpu = make_device_model(tiny_config(), tiny_weights(tiny_config()), {true}, ElementType::kBf16);
  const auto tokens = [&](bool warms_up) {
    StepExecutor executor(*gpu, load_recipe("full"), {40, 0, 16, 1, 0, true});
    if (warms_up) executor.warm_up({5, 300, 400, 640});
    EXPECT_EQ(executor.pages().used_pages(), 0);
    const std::int64_t recorded = emulated::recorded_graphs(), allocations = emulated::allocations();
    std::uint32_t block = 0;
    const auto prompt = [&](std::uint64_t request, std::int32_t n) {
      std::vector<TakenBlock> blocks;
      for (std::int32_t i = 0; i < (n + 20) / 16; ++i) blocks.push_back({BlockId{block++}, 1});
      const auto index = static_cast<std::int32_t>(request);
      executor.run(job_of({row(request, n, n, blocks)}, arrival(request, index, tiny_ids(n, 3 + index))));
    };
    struct Next {
      std::uint64_t request;
      std::int32_t end, prompt;
    };
    const auto decode = [&](std::vector<Next> batch) {
      StepJob job;
      for (const Next& n : batch) job.actions.push_back(row(n.request, n.end, n.prompt, {}));
      executor.run(std::move(job));
    };
    prompt(0, 254);
    for (const std::int32_t end : {255, 256, 257}) decode({{0, end, 254}});
    prompt(1, 40), prompt(2, 10), prompt(3, 33), prompt(4, 20);
    decode({{0, 258, 254}, {1, 41, 40}});
    decode({{0, 259, 254}, {1, 42, 40}, {2, 11, 10}});
    decode({{1, 43, 40}, {2, 12, 10}, {3, 34, 33}, {4, 21, 20}});
    decode({{1, 44, 40}, {2, 13, 10}, {3, 35, 33}, {4, 22, 20}, {0, 260, 254}});
    EXPECT_EQ(emulated::recorded_graphs() == recorded, warms_up);
    EXPECT_EQ(emulated::allocations() == allocations, warms_up);
    StepJob ends;
    for (std::uint64_t r = 0; r < 5; ++r) ends.actions.push_back({Kind::kFinish, r});
    executor.run(std::move(ends));
    return executor.tokens();
  };
  EXPECT_EQ(tokens(true), tokens(false));
}
#endif

TEST_F(EngineHostsCuda, GradesLikeTheCpu) {
  std::vector<EvalSample> samples;
  for (std::int32_t i = 0; i < 2; ++i) {
    EvalSample s{"a", 60, i, tiny_ids(58 + i, 3 + i), {}};
    s.turns.push_back({{5, 6, 7}, {8, 9, 10, 11}, 4});
    s.turns.push_back({{12}, {13, 14}, 2});
    samples.push_back(s);
  }
  const auto gpu = tiny_model(ElementType::kF32);
  for (const auto& [name, budget] :
       std::map<std::string, std::int32_t>{{"h2o", 40}, {"kvzip", 40}, {"laq", 40}, {"fp8", 0}, {"int8_per_token", 0}}) {
    SCOPED_TRACE(name);
    const std::vector<Recipe> recipes{load_recipe(name, budget)};
    std::vector<std::vector<GradedAnswer>> answers;
    std::vector<std::vector<float>> full_logits;
    for (const EngineModel* model : {&on_cpu(), const_cast<const EngineModel*>(gpu.get())}) {
      GradeOptions options;
      options.passes.repeat = {{5, 6}, {5, 7}, {8}, 32, 4};
      const GradeNeeds needs = needs_of(*model, recipes);
      std::vector<GradeSample> prepared;
      for (const EvalSample& s : samples) prepared.push_back(prepare_sample(*model, s, options, needs.needs, needs.passes));
      full_logits.push_back(prepared[0].full_logits);
      answers.push_back(grade(*model, recipes[0], std::vector<const GradeSample*>{&prepared[0], &prepared[1]}, options));
    }
    EXPECT_TRUE(all_near(full_logits[1], full_logits[0], 2e-4, 2e-4));
    ASSERT_EQ(answers[0].size(), 4U);
    ASSERT_EQ(answers[1].size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
      const GradedAnswer &a = answers[0][i], &b = answers[1][i];
      EXPECT_EQ(std::tie(a.sample, a.turn, a.tokens, a.first_wrong, a.first_diverging, a.agreeing, a.is_full_exact),
                std::tie(b.sample, b.turn, b.tokens, b.first_wrong, b.first_diverging, b.agreeing, b.is_full_exact));
      EXPECT_NEAR(a.bits, b.bits, 1e-2);
      EXPECT_NEAR(a.kl_nats, b.kl_nats, 1e-3);
      EXPECT_NEAR(a.resident_bytes_frac, b.resident_bytes_frac, 1e-9);
    }
  }
}

// Behaviour when the GPU's memory is nearly full, and copies of pages in it.

class EngineMemoryCuda : public CudaTest {
 protected:
  static constexpr std::int32_t kDim = 64, kPage = 16;
  // Writes `value` to all positions of a page, and reads the first one.
  void mark(KvPages& pages, std::int32_t page, std::int32_t value) {
    KvRows kv;
    pages.fill(kv);
    const std::vector<std::int32_t> values(kPage, value);
    TensorMemory(cuda()).from_host(kv.position + std::int64_t{page} * kPage, values.data(), kPage * 4);
  }
  std::int32_t mark_of(KvPages& pages, std::int32_t page) {
    KvRows kv;
    pages.fill(kv);
    return TensorMemory(cuda()).to_host(kv.position + std::int64_t{page} * kPage, 1).front();
  }
};

// Two sequences of three KV heads read the same pages; one of them gets its own.
TEST_F(EngineMemoryCuda, UnsharedPagesHoldTheSame) {
  const ModelShape shape{1, 3, 3, kDim, 3 * kDim};
  const auto pages = std::make_shared<KvPages>(kDim, 1, kPage, TensorMemory(cuda()), ElementType::kBf16);
  pages->reserve(100);
  KvStore store(shape, pages);
  KvStore::Sequence a{{70, 70, 70}, {}};
  for (std::int32_t h = 0; h < 3; ++h) {
    a.pages.emplace_back();
    for (std::int32_t p = 0; p < 6; ++p) {  // the last one waits for tokens
      a.pages.back().push_back(pages->take());
      mark(*pages, a.pages.back().back(), 100 * h + p);
    }
  }
  KvStore::Sequence b = a;
  for (const auto& row : b.pages)
    for (const std::int32_t page : row) pages->share(page);
  store.push(a);
  store.push(b);
#if KVLAB_EMULATED
  const std::int64_t commands = emulated::commands();
  store.unshare(3, 3);
  EXPECT_LE(emulated::commands() - commands, 4 * 3);  // K, V, positions, a statistic: two lists and a launch each, at most
#else
  store.unshare(3, 3);
#endif
  EXPECT_EQ(pages->used_pages(), 36);
  b = store.pop();
  a = store.pop();
  for (std::size_t h = 0; h < 3; ++h)
    for (std::size_t p = 0; p < 6; ++p) {
      EXPECT_NE(a.pages[h][p], b.pages[h][p]);
      EXPECT_FALSE(pages->is_shared(a.pages[h][p]));
      if (p == 5) continue;
      EXPECT_EQ(mark_of(*pages, b.pages[h][p]), static_cast<std::int32_t>(100 * h + p));
    }
}

#if KVLAB_EMULATED

constexpr std::int64_t kPageBytes = 16 * (2 * 64 * 4 + 4);

// A hundred pages in use, and the next one. Without limits half as much again is taken; with less, less; and one, where that is all there
// is room for.
TEST_F(EngineMemoryCuda, PagesGrowByWhatFits) {
  constexpr std::int64_t kVectors = 16 * 64 * 4;  // of a page, K or V
  const auto grown = [&](std::int64_t free) {
    KvPages pages(kDim, 0, kPage, TensorMemory(cuda()));
    pages.reserve(100);
    for (std::int32_t p = 0; p < 100; ++p) mark(pages, pages.take(), p);
    const std::string message = error_with_room(free, [&] { static_cast<void>(pages.take()); });
    for (std::int32_t p = 0; p < 100; ++p) EXPECT_EQ(mark_of(pages, p), p);
    if (message != "no error") {
      EXPECT_THAT(message, testing::HasSubstr("the KV cache does not fit into the GPU's memory: 101 pages"));
      EXPECT_EQ(pages.used_pages(), 100);
    }
    return pages.capacity();
  };
  EXPECT_EQ(grown(kAllMemory), 150);
  EXPECT_EQ(grown(2 * 150 * kVectors), 150);
  EXPECT_EQ(grown(150 * kVectors), 125);  // the new V and the old V beside the new K
  EXPECT_EQ(grown(103 * kVectors), 101);
  EXPECT_EQ(grown(102 * kVectors), 101);
  EXPECT_EQ(grown(100 * kVectors), 100);  // refused
}

TEST_F(EngineMemoryCuda, PinnedMemoryIsNotTheGpus) {
  const std::int64_t before = emulated::used_memory();
  KvPages pages(kDim, 0, kPage, TensorMemory::pinned());
  pages.reserve(100);
  EXPECT_EQ(emulated::used_memory(), before);
  emulated::limit_pinned_memory(100 * kPageBytes);
  EXPECT_THROW(cuda::allocate_pinned(1), PinnedMemoryError);
  EXPECT_THAT(error_of([&] { pages.reserve(200); }),
              testing::AllOf(testing::HasSubstr("swapped KV does not fit into pinned host memory: 200 pages"),
                             testing::HasSubstr("more bytes of pinned host memory were asked for")));
  emulated::limit_pinned_memory(kAllMemory);
}

// From no room to enough: the step is refused; it runs and its graph is left out, which is reported once; all of it fits. The tokens are
// the same.
TEST_F(EngineMemoryCuda, DecodeStepsDoWithoutGraphs) {
  struct Run {
    std::vector<std::int32_t> tokens;
    std::string refused, remark;
    std::int64_t graphs = 0;
  };
  const auto run = [&](std::int64_t room) {
    Run r;
    const auto model = make_device_model(tiny_config(), tiny_weights(tiny_config()), {true}, ElementType::kBf16);
    const std::unique_ptr<PolicyCache> cache = model->make_cache(load_recipe("full"), {});
    EngineSequence s = sequence_of(0, tiny_ids(20, 3), 20);
    cache->start(s);
    const auto step = [&](std::int32_t n) {
      const PieceBatch batch({{&s, n}});
      const std::vector<EngineModel::Draw> draws{{n - 1, 0, 0}};
      s.ids.push_back(model->sample_step(*cache, batch.pieces, batch.tokens(), draws).front());
      r.tokens.push_back(s.ids.back());
    };
    step(20);
    const std::int64_t graphs = emulated::recorded_graphs();
    r.refused = error_with_room(room, [&] {
      for (int i = 0; i < 3; ++i) step(1);
    });
    r.graphs = emulated::recorded_graphs() - graphs, r.remark = model->remark(*cache);
    return r;
  };
  const Run free = run(kAllMemory / 2);
  EXPECT_EQ(free.remark, "");
  EXPECT_EQ(free.graphs, 1);
  int refused = 0, without = 0;
  for (std::int64_t room = 0;; room += 8 << 10) {
    const Run r = run(room);
    if (r.refused != "no error") {
      EXPECT_EQ(without, 0) << room;
      ++refused;
      continue;
    }
    EXPECT_EQ(r.tokens, free.tokens);
    if (r.remark.empty()) break;
    ++without;
    EXPECT_EQ(r.graphs, 0);
    EXPECT_THAT(r.remark, testing::AllOf(testing::HasSubstr("0 decode steps run as graphs; the GPU had no memory for that of 1 sequences"),
                                         testing::HasSubstr("65536 more bytes were asked for")));
  }
  EXPECT_GE(refused, 1);
  EXPECT_GE(without, 4);
}

#endif

}  // namespace
}  // namespace kvlab::test
