#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "policies/scheduler/layer_ranges.h"
#include "sim/simulation.h"
#include "tests/has_all.h"
#include "tests/memory_run.h"
#include "traces/trace.h"

namespace kvlab::testing {

using test::Recorder;
using test::request_at;
using test::VectorTrace;

// Linear prices with integer coefficients and grid cells, so that spans have edges to cross.
struct LinearPrices {
  Picoseconds step{5'000'000}, token{20'000}, kv_token{37}, host{};
  std::int64_t cell = 4096;           // total decode kv tokens per cell; every second cell costs a little more per token
  std::vector<Picoseconds> stages{};  // more than one: pipeline stages, as shares of the step
  std::int32_t window = 0;
  Picoseconds op_byte{};  // of a policy's operations
};

// A model of which a test gives the price of a step.
class StubCost : public CostModel {
 public:
  StepCost step(const StepShape&) override { return {}; }
  DecodeSpan decode_span(const StepShape& shape) override { return {step(shape), {}, 1}; }
  [[nodiscard]] Picoseconds host_time(const StepShape&) const override { return {}; }
  void stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) override { stages = {step(shape).total}; }
  [[nodiscard]] int num_layers() const override { return 4; }
  [[nodiscard]] double peak_flops() const override { return 1e12; }
  [[nodiscard]] double peak_bytes_per_s() const override { return 1e12; }
};

class LinearCost final : public StubCost {
 public:
  explicit LinearCost(LinearPrices prices) : prices_(std::move(prices)) {}

  StepCost step(const StepShape& shape) override {
    Picoseconds attention = decode_price(shape.decode_kv_tokens);
    std::int64_t tokens = shape.decodes + shape.idle_rows + shape.padding_rows;
    for (const PrefillPiece& piece : shape.prefills) {
      tokens += piece.new_tokens;
      attention += prices_.kv_token * piece.kv_before;
    }
    StepCost cost;
    Picoseconds linear = prices_.step + prices_.token * tokens;
    for (const PolicyOp& op : shape.ops) linear += prices_.op_byte * op.bytes;
    cost.add(CostPart::kLinear, Footing::kInterpolated, linear);
    cost.add(CostPart::kAttention, Footing::kRoofline, attention);
    cost.flops = tokens * 1000;
    cost.bytes = shape.decode_kv_tokens * 7;
    return cost;
  }

  DecodeSpan decode_span(const StepShape& shape) override {
    DecodeSpan span;
    span.base = step(shape);
    StepShape next = shape;
    const std::int64_t growing = shape.decodes - shape.decode_full;
    next.decode_kv_tokens += growing;
    const std::int64_t end = (shape.decode_kv_tokens / prices_.cell + 1) * prices_.cell;
    span.valid_steps = growing == 0 ? 1 << 30 : (end - 1 - shape.decode_kv_tokens) / growing + 1;
    if (growing > 0 && prices_.window > 0)
      span.valid_steps = std::min<std::int64_t>(span.valid_steps, prices_.window - 1 - shape.decode_open_max);
    if (span.valid_steps > 1) {
      span.slope = step(next);
      span.slope.add(span.base, -1);
    }
    return span;
  }

  [[nodiscard]] Picoseconds host_time(const StepShape&) const override { return prices_.host; }
  [[nodiscard]] AttentionWindows windows() const override { return {prices_.window, 0}; }
  [[nodiscard]] int num_stages() const override { return std::max(1, static_cast<int>(prices_.stages.size())); }
  void stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) override {
    stages = prices_.stages;
    if (stages.empty()) stages = {step(shape).total};
  }
  double prefill_seconds(std::int32_t tokens, std::int32_t) override { return static_cast<double>(tokens) * 1e-6; }

 private:
  [[nodiscard]] Picoseconds decode_price(std::int64_t kv) const {
    const std::int64_t cell = kv / prices_.cell;
    const Picoseconds slope = prices_.kv_token + Picoseconds{cell % 2};
    return cell * prices_.cell * prices_.kv_token + slope * (kv - cell * prices_.cell);
  }
  LinearPrices prices_;
};

template <class Registry>
auto policy(const std::string& kind, const std::string& name, const std::string& parameters) {
  return [kind, name, parameters] {
    Params p = Params::from_text(parameters, kind + " '" + name + "'");
    tell_setting({.model_layers = 4}, p);  // those of StubCost
    return Registry::make(name, p, kind);
  };
}

inline std::function<std::unique_ptr<CostModel>()> linear_cost(const LinearPrices& prices) {
  return [prices] { return std::make_unique<LinearCost>(prices); };
}

inline RunSummary run_into(RunSink& records, const SimSetup& setup, const std::vector<TraceRequest>& requests) {
  VectorTrace trace(requests);
  return simulate(setup, trace, records);
}

struct Served {
  Recorder records;
  RunSummary summary;
};

inline Served serve(const SimSetup& setup, const std::vector<TraceRequest>& requests) {
  Served served;
  served.summary = run_into(served.records, setup, requests);
  return served;
}

inline Recorder records_of(const SimSetup& setup, const std::vector<TraceRequest>& requests) { return serve(setup, requests).records; }
inline RunSummary summary_of(const SimSetup& setup, const std::vector<TraceRequest>& requests) { return serve(setup, requests).summary; }

inline const RequestRecord& record_of(const Recorder& records, std::uint64_t number) {
  for (const RequestRecord& r : records.requests)
    if (r.number == number) return r;
  throw InternalError("no request " + std::to_string(number));
}

inline SimSetup basic_setup(const std::string& scheduler = "vllm_v1", const std::string& parameters = "{}") {
  SimSetup setup;
  setup.make_scheduler = policy<SchedulerRegistry>("scheduler", scheduler, parameters);
  setup.make_block_cache = policy<BlockCacheRegistry>("block cache", "lru", "{}");
  setup.make_footprint = [] { return std::make_unique<KeepAll>(); };
  setup.make_dispatcher = policy<DispatcherRegistry>("dispatcher", "round_robin", "{}");
  setup.make_cost_model = linear_cost({});
  setup.memory.num_blocks = 1000;
  setup.memory.block_tokens = 16;
  setup.memory.block_bytes = 1 << 20;
  setup.memory.pages_per_block = 8;
  setup.max_model_len = 100'000;
  setup.timeline_interval = Span(10'000'000);
  return setup;
}

}  // namespace kvlab::testing
