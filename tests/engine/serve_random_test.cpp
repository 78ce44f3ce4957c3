// Whatever is served, the engine does what the simulator does: drawn recipes, schedulers, orders, memories and requests.
// KVLAB_SEEDS=first:count draws others.
#include <fmt/format.h>

#include "tests/drawn_orders.h"
#include "tests/engine/serve_simulated.h"
#include "tests/engine/stored_recipes.h"
#include "tests/error_of.h"

namespace kvlab::test {
namespace {

struct DrawnRun {
  std::string text;
  Recipe recipe;
  ServeSetup setup;
  std::vector<SomeRequest> requests;
  bool whole_prompts = false;
};

// Name and options.
std::pair<std::string, std::string> drawn_scheduler(Drawn& draw, bool& whole_prompts) {
  const std::int32_t budget = draw.of<std::int32_t>({48, 64, 100, 128, 512});
  const std::int32_t which = draw.from(0, 7);
  whole_prompts = which == 0 || which == 2;
  switch (which) {
    case 0:
      return {"orca", draw.one_in(2) ? "{reservation: oracle}" : "{reservation: pow2, max_num_seqs: 4}"};
    case 1:
      return {"fastgen", fmt::format("{{forward_tokens: {}}}", budget)};
    case 2:
      return {"vllm_v0", draw.one_in(2) ? "{preemption: swap}" : "{}"};
    case 3:
      return {"sarathi", fmt::format("{{budget_tokens: {}{}}}", budget, draw.one_in(4) ? ", version: decode_maximal" : "")};
    case 4:
      return {"sglang", fmt::format("{{chunk_tokens: {}, overlap: {}, mixed_chunk: {}{}}}", budget, !draw.one_in(4), draw.one_in(4),
                                    draw.one_in(2) ? ", clip_tokens: 1, init_ratio: 0" : "")};
    default:
      const bool chunks = !draw.one_in(6);
      whole_prompts = !chunks;
      return {"vllm_v1", fmt::format("{{budget_tokens: {}, chunked_prefill: {}, async_scheduling: {}, max_num_seqs: {}}}",
                                     !chunks || draw.one_in(5) ? 512 : budget, chunks, !draw.one_in(4), draw.one_in(4) ? 3 : 1024)};
  }
}

// Some without names, some that share the first blocks of their prompts, some whose later blocks name generated tokens.
std::vector<SomeRequest> drawn_requests(Drawn& draw) {
  std::vector<SomeRequest> requests;
  const std::int32_t count = draw.from(4, 12), names = draw.from(0, 2);
  const double gap_ms = draw.of<double>({0, 0.4, 3, 11, 40});
  for (std::int32_t i = 0; i < count; ++i) {
    SomeRequest r{gap_ms * i, draw.from(1, 6) * draw.from(1, 45), draw.from(1, 6) * draw.from(1, 12), 16};
    const std::int32_t shared = draw.from(0, 5);
    for (std::int32_t c = 0; names > 0 && c < (names == 1 ? r.prompt : r.prompt + r.output - 1) / 16; ++c)
      r.hashes.push_back(static_cast<std::uint64_t>(c < shared ? 100 + c : 1000 * (i + 1) + c));
    requests.push_back(r);
  }
  return requests;
}

// Its names and parameters. All requests have the facts that it needs.
std::string add_order(Drawn& draw, DrawnRun& run) {
  constexpr double kStepMs = 1;
  const DrawnOrder order = drawn_order(draw, run.setup.make_scheduler()->lets_overtake(), kStepMs);
  run.setup.make_order = maker<OrderRegistry>(order.order, order.options, "order");
  run.setup.make_predictor = maker<PredictorRegistry>(order.predictor, order.predictor_options, "predictor");
  for (SomeRequest& r : run.requests) r.facts = drawn_facts(draw, kStepMs);
  run.setup.stop.after_time = Span(20'000'000'000);  // a run that takes so long never ends
  return fmt::format("{} {}, {} {}", order.order, order.options, order.predictor, order.predictor_options);
}

// Recipes that prune prompts need them in one piece, and the simulator prices their layers apart, which this clock does not.
std::vector<std::string> drawn_recipes() {
  std::vector<std::string> names = recipes_in({"engine", "cost"});
  std::erase_if(names, [](const std::string& name) { return shipped_recipe(name).prunes(); });
  return names;
}

void draw(std::uint64_t seed, const EngineModel& model, DrawnRun& run) {
  Drawn draw(seed);
  const std::string name = draw.one_in(6) ? "full" : draw.of(drawn_recipes());
  const bool has_budget = load_recipe(name).has_budget;
  run.recipe = load_recipe(name, has_budget ? draw.of<std::int32_t>({0, 32, 48, 96}) : 0);
  const auto [scheduler, options] = drawn_scheduler(draw, run.whole_prompts);
  // The bytes of this number of blocks of full tokens, up to a limit.
  const ModelShape shape = served_shape(model);
  const double smaller = 8.0 * shape.num_layers * shape.kv_heads * shape.head_dim / recipe_pages(load_recipe(name), shape, 16).token_bytes;
  const auto blocks = static_cast<std::int64_t>(draw.of<std::int32_t>({24, 40, 60, 400}) * std::clamp(smaller, 1.0, 100.0));
  run.setup = serve_setup(model, run.recipe, scheduler, options, blocks);
  run.setup.memory.prefix_caching = !draw.one_in(3);
  run.setup.memory.host_blocks = draw.of<std::int32_t>({0, 10, 1000});
  run.setup.make_footprint = [&recipe = run.recipe, shape]() -> std::unique_ptr<Footprint> {
    if (recipe.keeps_everything()) return std::make_unique<KeepAll>();
    return std::make_unique<RecipeFootprint>(recipe, shape, 16, KvReads::kUnpacked);
  };
  run.requests = drawn_requests(draw);
  const std::string order = draw.one_in(2) ? "fcfs" : add_order(draw, run);
  run.text = fmt::format("seed {}: {} {} budget, {} {}, {}, {} blocks, {} on the host, prefix caching {}, {} requests{}", seed, name,
                         has_budget ? run.recipe.budget.tokens : 0, scheduler, options, order, blocks, run.setup.memory.host_blocks,
                         run.setup.memory.prefix_caching, run.requests.size(), run.requests[0].hashes.empty() ? "" : " with names");
}

// Each request in steps of its own, with memory for all and nothing shared.
Served one_by_one(ServeSetup setup, const std::vector<SomeRequest>& requests) {
  setup.inspect = nullptr;
  setup.make_order = nullptr;
  setup.make_scheduler = maker<SchedulerRegistry>("vllm_v1", "{max_num_seqs: 1, chunked_prefill: false}", "scheduler");
  setup.memory.num_blocks *= 20;
  setup.memory.prefix_caching = false;
  return serve_all(setup, requests);
}

bool has_other_tokens(const Served& served, const Served& alone) {
  return std::any_of(served.tokens.begin(), served.tokens.end(), [&](const auto& of) { return alone.tokens.at(of.first) != of.second; });
}

// With a policy: prompts in one piece, none computed anew after a cut, and no prefix that others stored with less precision.
bool is_as_alone(const DrawnRun& run, const Served& served) {
  if (run.recipe.keeps_everything()) return true;
  return run.whole_prompts && served.summary.recomputed_tokens == 0 && (served.summary.hit_tokens == 0 || !is_packed(run.recipe));
}

TEST(ServeAnything, RecordsAreTheSimulators) {
  const auto [first, count] = drawn_seeds(60, 8);
  std::size_t served_runs = 0, other_runs = 0;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    DrawnRun run;
    draw(seed, small_model(), run);
    SCOPED_TRACE(run.text);
    run.setup.inspect = expect_explained_pages;
    Served served;
    std::vector<RequestRecord> expected;
    SomeTrace trace(run.requests);
    const std::string refused_there = error_of([&] { expected = simulated(run.setup, trace); });
    const std::string refused_here = error_of([&] { served = serve_all(run.setup, run.requests); });
    EXPECT_EQ(refused_here, refused_there);
    if (refused_here != "no error") continue;
    ++served_runs;
    expect_same(expected, served.records);
    if (is_as_alone(run, served) && has_other_tokens(served, one_by_one(run.setup, run.requests))) {
      fmt::print("other tokens than alone: {}\n", run.text);
      ++other_runs;
    }
  }
  EXPECT_GT(served_runs, count * 3 / 4);
  EXPECT_LE(other_runs, 1 + count / 200) << "more than where sums in another order turn a tie";
}

}  // namespace
}  // namespace kvlab::test
