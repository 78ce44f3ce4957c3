#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "app/commands/estimate.h"
#include "app/commands/offers.h"
#include "app/commands/other_commands.h"
#include "sim/cost/layer_kinds.h"
#include "sim/cost/step_work.h"

namespace kvlab {

namespace {

// `kvlab characterize`: from which batch on a step takes the GPU longer than the CPU needs for launches (TKLQT, arXiv:2504.11750). Not for
// CUDA graphs.
struct CharacterizeCommand : MachineOptions {
  std::int32_t max_batch = 256;
  std::int32_t tokens = 512;   // cached per decode row, or prompt length
  bool is_prefill = false;     // else one token per row
  double dispatch_us = 2.375;  // between launches; default: a null kernel's launch (ibid., Intel CPU with H100)
};

// One rank. kernels: one per operation of the cost model; engines without fusion launch more.
struct LaunchPoint {
  std::int32_t batch = 0;
  std::int64_t kernels = 0;
  double gpu_us = 0, host_us = 0;
  [[nodiscard]] bool is_host_bound() const { return gpu_us < host_us; }
};

constexpr double kUs = 1e6;

std::int64_t kernels_in(const std::vector<OpWork>& ops) {
  std::int64_t sum = 0;
  for (const OpWork& op : ops) sum += op.times;
  return sum;
}

// One for attention, products of latent attention, two collectives of a split layer.
std::int64_t kernels_of(const CostSetup& setup, std::int64_t tokens, std::int64_t rows, bool is_prefill) {
  const ModelSpec& m = setup.model;
  std::vector<OpWork> ops;
  std::int64_t sum = 0;
  for (const LayerClass& layers : layer_classes(m)) {
    ops.clear();
    layer_ops(m, setup.parallel, layers, tokens, ops);
    const std::int64_t products = layers.attention == AttentionKind::kLatent ? (is_prefill ? 1 : 2) : 0;
    sum += layers.count * (kernels_in(ops) + 1 + products + (setup.parallel.tp > 1 ? 2 : 0));
  }
  ops.clear();
  step_ops(m, setup.parallel, tokens, ops);
  head_ops(m, setup.parallel, rows, ops);
  return sum + kernels_in(ops);
}

LaunchPoint point_of(CostModel& cost, const CostSetup& setup, const CharacterizeCommand& c, std::int32_t batch) {
  StepShape shape;
  std::vector<PrefillPiece> prompts;
  if (c.is_prefill) {
    prompts.assign(static_cast<std::size_t>(batch), {c.tokens, 0});
    shape.prefills = prompts;
  } else {
    for (std::int32_t i = 0; i < batch; ++i) add_decode_row(shape, c.tokens, cost.windows());
  }
  shape.head_rows = batch;
  LaunchPoint point;
  point.batch = batch;
  point.kernels = kernels_of(setup, shape.tokens(), batch, c.is_prefill);
  point.gpu_us = to_s(cost.step(shape).total) * kUs;
  point.host_us = static_cast<double>(point.kernels) * c.dispatch_us;
  return point;
}

// From it on all are GPU-bound; 0: none.
std::int32_t transition_batch(const std::vector<LaunchPoint>& points) {
  std::int32_t first = 0;
  for (auto at = points.rbegin(); at != points.rend() && !at->is_host_bound(); ++at) first = at->batch;
  return first;
}

std::string verdict(const std::vector<LaunchPoint>& points) {
  const std::int32_t first = transition_batch(points);
  if (first == 0) return "the host is the bound at every batch of the sweep\n";
  if (first == points.front().batch) return "the GPU is the bound at every batch of the sweep\n";
  return fmt::format("the GPU is the bound from batch {} on\n", first);
}

std::string as_json(const CostSetup& setup, const CharacterizeCommand& c, const std::vector<LaunchPoint>& points) {
  nlohmann::ordered_json json = {{"model", setup.model.name},
                                 {"hardware", setup.hardware.name},
                                 {"step_times", setup.profile_name},
                                 {"phase", c.is_prefill ? "prefill" : "decode"},
                                 {"tokens", c.tokens},
                                 {"dispatch_us", c.dispatch_us}};
  const std::int32_t first = transition_batch(points);
  json["transition_batch"] = first > 0 ? nlohmann::ordered_json(first) : nullptr;
  for (const LaunchPoint& p : points)
    json["points"].push_back({{"batch", p.batch}, {"kernels", p.kernels}, {"gpu_us", p.gpu_us}, {"host_us", p.host_us}});
  return json.dump(2) + "\n";
}

// Batches 1, 2, 4, ... and the largest.
std::vector<LaunchPoint> launch_points(const CostSetup& setup, const CharacterizeCommand& c) {
  const std::unique_ptr<CostModel> cost = make_cost_model(setup);
  std::vector<LaunchPoint> points;
  for (std::int64_t batch = 1; batch < c.max_batch; batch *= 2)
    points.push_back(point_of(*cost, setup, c, static_cast<std::int32_t>(batch)));
  points.push_back(point_of(*cost, setup, c, c.max_batch));
  return points;
}

int print_characterization(const CharacterizeCommand& c, std::ostream& out) {
  const CostSetup setup = read_machine(c);
  const std::vector<LaunchPoint> points = launch_points(setup, c);
  if (c.json) {
    out << as_json(setup, c, points);
    return 0;
  }
  out << fmt::format("{} on {} x {}, {} of {} tokens a row; step times: {}; a launch every {:g} us\n", setup.model.name,
                     setup.parallel.gpus(), setup.hardware.name, c.is_prefill ? "prefill" : "decode", c.tokens, setup.profile_name,
                     c.dispatch_us);
  out << fmt::format("{:>7}{:>9}{:>14}{:>14}{:>17}  bound\n", "batch", "kernels", "gpu_us", "host_us", "gpu_us/kernel");
  for (const LaunchPoint& p : points)
    out << fmt::format("{:>7}{:>9}{:>14.1f}{:>14.1f}{:>17.2f}  {}\n", p.batch, p.kernels, p.gpu_us, p.host_us,
                       p.gpu_us / static_cast<double>(p.kernels), p.is_host_bound() ? "host" : "GPU");
  out << verdict(points);
  return 0;
}

}  // namespace

void add_characterize_command(CLI::App& app, Command& chosen) {
  CLI::App* one = app.add_subcommand("characterize", "from which batch on the GPU, and not the host's kernel launches, bounds a step");
  auto& c = arguments_of<CharacterizeCommand>(*one);
  add_machine_options(*one, c);
  one->add_option("--batch", c.max_batch, "the largest of the sweep 1, 2, 4, ...; default: 256")->check(CLI::Range(1, kMostRows));
  one->add_option("--tokens", c.tokens, "cached by each row, or with --prefill the length of each prompt; default: 512")
      ->check(CLI::Range(1, kMostTokens));
  one->add_flag("--prefill", c.is_prefill, "the step computes a batch of prompts; default: one token of each row");
  one->add_option("--dispatch-us", c.dispatch_us,
                  "host time from one launch to the next; default: 2.375, a null kernel's launch. Frameworks take longer: measure yours")
      ->check(CLI::Range(0.001, 1e6));
  choose(one, chosen, c, print_characterization);
}

}  // namespace kvlab
