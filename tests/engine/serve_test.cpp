#include "engine/serve/serve.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/engine/serve_fixture.h"

namespace kvlab::test {
namespace {

// Sixteen requests within 60 ms: some share prefixes of 32 and 64 tokens by their hashes, some have no names.
std::vector<SomeRequest> busy_requests(std::int32_t output) {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 16; ++i) {
    SomeRequest r{4.0 * i, 40 + 13 * (i % 5), output + i % 4};
    if (i % 3 != 0) {
      r.hash_tokens = 16;
      const std::int32_t chunks = r.prompt / 16;
      for (std::int32_t c = 0; c < chunks; ++c)
        r.hashes.push_back(static_cast<std::uint64_t>(c < 2 ? 100 + c : c < 4 && i % 2 == 0 ? 200 + c : 1000 * (i + 1) + c));
    }
    requests.push_back(r);
  }
  return requests;
}

// Greedy tokens of a request by itself, over the plain cache.
std::vector<std::int32_t> alone(const SomeRequest& r, std::uint64_t number) {
  const Transformer& model = *served_model().transformer();
  TraceRequest request;
  request.prompt_tokens = r.prompt, request.output_tokens = r.output, request.hash_tokens = r.hash_tokens, request.hashes = r.hashes;
  request.number = number;
  const std::vector<std::int32_t> content = request_content(request, 1, model.config().vocab_size);
  EXPECT_EQ(content.size(), static_cast<std::size_t>(r.prompt));
  KvState kv(model.config());
  std::vector<float> logits = forward_logits(model, content, kv);
  std::vector<std::int32_t> out;
  while (true) {
    out.push_back(greedy_token(logits, model.config().vocab_size));
    if (static_cast<std::int32_t>(out.size()) == r.output) return out;
    logits = forward_logits(model, std::span(out).last(1), kv);
  }
}

const std::map<std::uint64_t, std::vector<std::int32_t>>& expected_tokens() {
  static const auto tokens = [] {
    std::map<std::uint64_t, std::vector<std::int32_t>> all;
    const std::vector<SomeRequest> requests = busy_requests(20);
    for (std::size_t i = 0; i < requests.size(); ++i) all[i] = alone(requests[i], i);
    return all;
  }();
  return tokens;
}

struct Case {
  const char* scheduler;
  const char* options;
};

class ServeFull : public ::testing::TestWithParam<Case> {};

// In a batch, with chunked prompts, prefixes from the cache and preemptions, every request gets the tokens that it gets alone; its pages
// are those of its blocks.
TEST_P(ServeFull, TokensAreThoseOfTheRequestAlone) {
  const std::string scheduler = GetParam().scheduler;
  const Recipe full = load_recipe("full");
  ServeSetup setup = served_setup(full, GetParam().scheduler, GetParam().options, 22);
  std::int64_t most = 0, plans = 0;
  setup.inspect = [&](const ReplicaState& state, const StepExecutor& executor) {
    expect_explained_pages(state, executor);
    most = std::max(most, executor.pages().used_pages());
    if (scheduler != "orca") {
      EXPECT_EQ(executor.pages().capacity(), 22 * setup.memory.pages_per_block) << "a pool that grows is copied, in the middle of serving";
    }
    ++plans;
  };
  const Served served = serve_all(setup, busy_requests(20));
  EXPECT_EQ(std::tuple(served.summary.latencies.completed, served.tokens), std::tuple(16U, expected_tokens()));
  EXPECT_GT(plans, 20);
  if (scheduler == "orca") return;  // it has no blocks
  EXPECT_LE(most, 22 * setup.memory.pages_per_block);
  EXPECT_GT(served.summary.hit_tokens, 0);
  EXPECT_EQ(served.summary.preemptions > 0, scheduler != "fastgen");
}

INSTANTIATE_TEST_SUITE_P(Schedulers, ServeFull,
                         ::testing::Values(Case{"vllm_v1", "{budget_tokens: 48}"}, Case{"vllm_v1", "{budget_tokens: 512}"},
                                           Case{"sarathi", "{budget_tokens: 32, watermark_frac: 0}"}, Case{"vllm_v0", "{}"},
                                           Case{"vllm_v0", "{preemption: swap}"}, Case{"fastgen", "{}"},
                                           Case{"sglang", "{chunk_tokens: 48, clip_tokens: 1, init_ratio: 0}"},
                                           Case{"orca", "{reservation: oracle}"}),
                         [](const auto& info) { return std::string(info.param.scheduler) + std::to_string(info.index); });

struct Stop {};

// Long before the next request arrives.
TEST(Serve, IsInterruptedWhileItWaits) {
  const Recipe full = load_recipe("full");
  for (const bool stays_awake : {true, false}) {
    ServeSetup setup = served_setup(full, "vllm_v1", "{}", 40);
    setup.nominal_time = nullptr, setup.stays_awake = stays_awake;
    SomeTrace trace({{0, 40, 3}, {1e6, 40, 3}});
    Recorder sink;
    setup.each_turn = [&] {
      if (!sink.requests.empty()) throw Stop{};
    };
    EXPECT_THROW(serve(setup, trace, sink), Stop);
    EXPECT_EQ(sink.requests.size(), 1U);
  }
}

TEST(ServeContent, EqualHashesAreEqualTokens) {
  const std::vector<std::uint64_t> hashes{7, 8};
  TraceRequest a;
  a.prompt_tokens = 40, a.output_tokens = 5, a.hash_tokens = 16, a.hashes = hashes;
  a.number = 1;
  TraceRequest b = a;
  b.prompt_tokens = 50, b.number = 2;
  const auto x = request_content(a, 9, 264), y = request_content(b, 9, 264);
  EXPECT_TRUE(std::equal(x.begin(), x.begin() + 32, y.begin()));
  EXPECT_FALSE(std::equal(x.begin() + 32, x.end(), y.begin() + 32));
  EXPECT_EQ(request_content(a, 9, 264), x);
  EXPECT_NE(request_content(a, 10, 264), x);
}

}  // namespace
}  // namespace kvlab::test
