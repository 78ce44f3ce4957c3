#pragma once

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>

#include "base/config/params.h"
#include "engine/serve/serve.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/engine/probe.h"
#include "tests/engine/small_model.h"
#include "tests/memory_run.h"
#include "tests/short_run.h"

namespace kvlab::test {

struct SomeRequest {
  double arrival_ms = 0;
  std::int32_t prompt = 0, output = 0;
  std::int32_t hash_tokens = 0;
  std::vector<std::uint64_t> hashes = {};
  std::optional<RequestFacts> facts = {};
};

// Request number `i` with names for its prompt in chunks of 16 tokens, the first `shared` ones those of other requests too.
inline SomeRequest with_hashes(SomeRequest r, std::int32_t i, std::int32_t shared = 0) {
  r.hash_tokens = 16;
  for (std::int32_t c = 0; c < r.prompt / 16; ++c)
    r.hashes.push_back(static_cast<std::uint64_t>(c < shared ? 100 + c : 1000 * (i + 1) + c));
  return r;
}

// Owns its hashes and facts, which a TraceRequest only points to.
class SomeTrace final : public TraceSource {
 public:
  explicit SomeTrace(std::vector<SomeRequest> requests) : requests_(std::move(requests)) {}
  bool next(TraceRequest& r) override {
    if (at_ == requests_.size()) return false;
    const SomeRequest& s = requests_[at_++];
    r = request_at(s.arrival_ms, s.prompt, s.output);
    r.hash_tokens = s.hash_tokens, r.hashes = s.hashes;
    if (s.facts) r.facts = &*s.facts;
    return true;
  }
  [[nodiscard]] bool keeps_hashes() const override { return true; }

 private:
  std::vector<SomeRequest> requests_;
  std::size_t at_ = 0;
};

template <class Registry>
auto maker(const std::string& name, const std::string& yaml, const std::string& kind) {
  return [=] {
    Params p = Params::from_text(yaml, "test");
    return Registry::make(name, p, kind);
  };
}

// The shape that recipes are given, with KV in four bytes.
inline ModelShape served_shape(const EngineModel& model) {
  const ModelConfig& c = model.config();
  return {c.layers, c.q_heads, c.kv_heads, c.head_dim, c.hidden_dim, 4};
}

// A model under a scheduler, on a clock on which a step, and each extra pass in it, takes 1 ms and 10 us per token.
inline ServeSetup serve_setup(const EngineModel& model, const Recipe& recipe, const std::string& scheduler, const std::string& options,
                              std::int64_t num_blocks) {
  ServeSetup setup;
  setup.model = &model;
  setup.recipe = &recipe;
  setup.make_scheduler = maker<SchedulerRegistry>(scheduler, options, "scheduler");
  setup.make_block_cache = maker<BlockCacheRegistry>("lru", "{}", "block cache");
  const ModelShape shape = served_shape(model);
  setup.make_footprint = [&recipe, shape]() -> std::unique_ptr<Footprint> {
    if (recipe.keeps_everything()) return std::make_unique<KeepAll>();
    return std::make_unique<RecipeFootprint>(recipe, shape, 16);
  };
  setup.memory.num_blocks = num_blocks;
  setup.memory.block_tokens = 16;
  setup.memory.pages_per_block = shape.num_layers * shape.kv_heads;
  setup.memory.host_blocks = 1000;
  setup.nominal_time = [](const InFlightStep& step) {
    constexpr Picoseconds kStep{1'000'000'000}, kToken{10'000'000};
    Picoseconds time = kStep;
    for (const StepEntry& entry : step.entries) time += entry.tokens * kToken;
    for (const ForwardPass& pass : step.policy.passes) time += kStep + pass.new_tokens * kToken;
    return time;
  };
  return setup;
}

// The probe; in a short run a model that runs in no time.
inline const EngineModel& served_model() { return short_run() ? small_model() : probe_engine(); }
inline ServeSetup served_setup(const Recipe& recipe, const std::string& scheduler, const std::string& options, std::int64_t num_blocks) {
  return serve_setup(served_model(), recipe, scheduler, options, num_blocks);
}

// The state is sound, and each page in use is known to be some sequence's.
inline void expect_explained_pages(const ReplicaState& state, const StepExecutor& executor) {
  state.check();
  EXPECT_EQ(executor.pages().used_pages(), executor.explained_pages());
}

struct Served {
  ServingSummary summary;
  std::vector<RequestRecord> records;
  std::map<std::uint64_t, std::vector<std::int32_t>> tokens;
};

inline Served serve_all(ServeSetup setup, const std::vector<SomeRequest>& requests) {
  Served served;
  setup.emitted = &served.tokens;
  SomeTrace trace(requests);
  Recorder sink;
  served.summary = serve(setup, trace, sink);
  served.records = std::move(sink.requests);
  return served;
}

}  // namespace kvlab::test
