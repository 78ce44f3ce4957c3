#pragma once

#include <tuple>

#include "policies/dispatcher/dispatcher.h"
#include "tests/engine/serve_fixture.h"

// The simulation of what a ServeSetup serves, on the same made-up clock.
namespace kvlab::test {

// The fixture's nominal time.
class NominalCost final : public CostModel {
 public:
  StepCost step(const StepShape& shape) override {
    std::int64_t tokens = shape.decodes;
    for (const PrefillPiece& piece : shape.prefills) tokens += piece.new_tokens;
    StepCost cost;
    cost.add(CostPart::kLinear, Footing::kInside, Picoseconds{1'000'000'000} + tokens * Picoseconds{10'000'000});
    return cost;
  }
  DecodeSpan decode_span(const StepShape& shape) override { return {step(shape), {}, 1}; }
  [[nodiscard]] Picoseconds host_time(const StepShape&) const override { return {}; }
  void stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) override { stages.assign(1, step(shape).total); }
  [[nodiscard]] int num_layers() const override { return 8; }
  double prefill_seconds(std::int32_t, std::int32_t) override { return 0; }
  [[nodiscard]] double peak_flops() const override { return 1; }
  [[nodiscard]] double peak_bytes_per_s() const override { return 1; }
};

inline std::vector<RequestRecord> simulated(const ServeSetup& serve, TraceSource& trace) {
  SimSetup sim;
  sim.make_scheduler = serve.make_scheduler;
  sim.make_order = serve.make_order;
  sim.make_predictor = serve.make_predictor;
  sim.seed = serve.seed;
  sim.make_block_cache = serve.make_block_cache;
  sim.make_footprint = serve.make_footprint;
  sim.make_dispatcher = maker<DispatcherRegistry>("round_robin", "{}", "dispatcher");
  sim.make_cost_model = [] { return std::make_unique<NominalCost>(); };
  sim.memory = serve.memory;
  sim.memory.block_bytes = 1;
  sim.swap_link = {1e18, Span(0)};  // copies take no time on this clock
  sim.stop = serve.stop;
  Recorder sink;
  simulate(sim, trace, sink);
  return sink.requests;
}

inline void expect_same(std::vector<RequestRecord> a, std::vector<RequestRecord> b) {
  ASSERT_EQ(a.size(), b.size());
  const auto by_number = [](const RequestRecord& x, const RequestRecord& y) { return x.number < y.number; };
  std::sort(a.begin(), a.end(), by_number);
  std::sort(b.begin(), b.end(), by_number);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto facts = [](const RequestRecord& r) {
      return std::tuple(ns(r.arrival), ns(r.queued), ns(r.scheduled), ns(r.first_token), ns(r.last_token), r.outcome, r.hit_tokens,
                        r.preemptions, r.recomputed_tokens);
    };
    EXPECT_EQ(facts(a[i]), facts(b[i])) << "request " << i;
  }
}

// Serves, and expects the simulator's records.
inline Served serve_as_simulated(const ServeSetup& setup, const std::vector<SomeRequest>& requests) {
  Served served = serve_all(setup, requests);
  SomeTrace trace(requests);
  expect_same(simulated(setup, trace), served.records);
  return served;
}

}  // namespace kvlab::test
