#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/commands/command.h"
#include "app/runs/report/summary_row.h"
#include "base/error.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/step_work.h"

namespace kvlab {

namespace {

// profile: as in an experiment, as one line of YAML.
struct MachineOptions {
  std::string model, quantization, hardware, profile = "roofline";
  int tp = 1;
  bool json = false;
};
constexpr int kMostTokens = 1 << 26, kMostRows = 100'000;

// `kvlab estimate` (docs/cost-model.md, "Estimates without a simulation").
struct EstimateCommand : MachineOptions {
  std::int32_t prompt_tokens = 1024, output_tokens = 128;
  std::int32_t batch = 0;    // 0: the largest that fits
  double memory_frac = 0.9;  // for weights and KV
  double watts = 0;          // for GPUs and cooling; 0: unlimited
  double pue = 1;            // power usage effectiveness
};

// key: with unit. value: nullopt if unknown or undefined. form: the formula in words.
struct EstimatedFigure {
  std::string key;
  std::optional<double> value;
  std::string form;
};

constexpr std::int64_t kBlockTokens = 16;
constexpr double kMs = 1e3;

// By the cost model, and at datasheet peak rates.
struct StepTimes {
  double priced_s = 0, peak_s = 0;
};

StepTimes times_of(CostModel& cost, const StepShape& shape) {
  const StepCost step = cost.step(shape);
  const double priced = to_s(step.total);
  const double flops_s = static_cast<double>(step.flops) / cost.peak_flops(),
               bytes_s = static_cast<double>(step.bytes) / cost.peak_bytes_per_s();
  return {priced, std::min(priced, std::max(flops_s, bytes_s))};
}

StepTimes prompt_times(CostModel& cost, std::int32_t tokens) {
  const PrefillPiece piece{tokens, 0};
  StepShape shape;
  shape.prefills = std::span(&piece, 1);
  shape.head_rows = 1;
  return times_of(cost, shape);
}

// Mean; each step adds a token.
StepTimes decode_times(CostModel& cost, const EstimateCommand& c, std::int32_t rows) {
  if (c.output_tokens < 2) return {};
  StepShape shape;
  for (std::int32_t i = 0; i < rows; ++i) add_decode_row(shape, c.prompt_tokens + (c.output_tokens - 2) / 2, cost.windows());
  shape.head_rows = rows;
  return times_of(cost, shape);
}

struct MemoryUse {
  double weights = 0, sequence = 0, usable = 0;
  [[nodiscard]] double sequences() const { return std::floor((usable - weights) / sequence); }
};

MemoryUse memory_of(const CostSetup& setup, const EstimateCommand& c) {
  const Parallel& p = setup.parallel;
  const KvLayout layout = kv_layout(setup.model, p, kBlockTokens);
  const std::int64_t tokens = std::int64_t{c.prompt_tokens} + c.output_tokens;
  return {static_cast<double>(weight_bytes(setup.model, p.tp, p.pp, p.expert_ranks())),
          static_cast<double>(sequence_bytes(layout, kBlockTokens, tokens - 1, 1)),
          c.memory_frac * static_cast<double>(setup.hardware.memory_bytes)};
}

std::int32_t batch_of(const CostSetup& setup, const EstimateCommand& c, const MemoryUse& memory) {
  const double most = memory.sequences();
  if (!(most >= 1) || c.batch > most) {
    const double wanted = std::max(1.0, static_cast<double>(c.batch));
    const std::string fitting = setups_that_fit(setup, [&](const CostSetup& s) { return memory_of(s, c).sequences() >= wanted; });
    throw InputError(
        fmt::format("{}{} sequences of {} + {} tokens of {} fit on {} x {} ({:.2f} GB usable per GPU, {:.2f} GB weights, {:.3f} GB "
                    "per sequence); {}lower {}the lengths, raise --tp, or choose a larger GPU",
                    c.batch > 0 ? "--batch: " : "", std::max(0.0, most), c.prompt_tokens, c.output_tokens, setup.model.name,
                    setup.parallel.gpus(), setup.hardware.name, memory.usable * 1e-9, memory.weights * 1e-9, memory.sequence * 1e-9,
                    fitting.empty() ? "" : fitting + " fits; ", c.batch > 0 ? "--batch or " : ""));
  }
  return c.batch > 0 ? c.batch : static_cast<std::int32_t>(std::min(most, double{kMostRows}));
}

// Prompts in sequence, then decode steps of all rows.
struct BatchTimes {
  StepTimes prompt, decode, decode_alone;
  double batch = 0, steps = 0;  // decode steps

  [[nodiscard]] double priced_s() const { return batch * prompt.priced_s + steps * decode.priced_s; }
  [[nodiscard]] double peak_s() const { return batch * prompt.peak_s + steps * decode.peak_s; }
  [[nodiscard]] double alone_s() const { return prompt.priced_s + steps * decode_alone.priced_s; }
  [[nodiscard]] double tokens() const { return batch * (steps + 1); }
};

void add_alone(const CostSetup& setup, const BatchTimes& times, const MemoryUse& memory, std::vector<EstimatedFigure>& all) {
  const HardwareSpec& h = setup.hardware;
  const int gpus = setup.parallel.gpus();
  all.push_back({"alone_ms", kMs * times.alone_s(), "one request with the GPUs to itself: ttft + (output - 1) x tpot at batch 1"});
  std::optional<double> price, joules;
  if (h.price_per_hour) price = dollars(*h.price_per_hour * gpus, times.alone_s());
  if (h.power) joules = h.power->peak_w * gpus * times.alone_s();
  all.push_back({"alone_dollars", price, "alone x GPUs x price per hour"});
  all.push_back({"alone_energy_j", joules, "alone x GPUs x peak power"});
  all.push_back({"context_switch_ms", kMs * memory.sequence / h.pcie_bytes_per_s, "a sequence's KV over PCIe, one way"});
}

void add_rates(const CostSetup& setup, const EstimateCommand& c, const BatchTimes& times, std::vector<EstimatedFigure>& all) {
  const HardwareSpec& h = setup.hardware;
  const double gpus = setup.parallel.gpus(), rate = times.tokens() / times.priced_s();
  all.push_back({"output_tokens_per_s", rate, "batch x output / (batch x ttft + (output - 1) x tpot)"});
  std::optional<double> joules, price;
  if (h.power) joules = gpus * energy_j(*h.power, times.priced_s(), times.peak_s()) / times.tokens();
  if (h.price_per_hour) price = dollars_per_million(dollars(*h.price_per_hour * gpus, 1), rate);
  all.push_back({"energy_j_per_token", joules, "GPUs x (idle power x time + (peak - idle power) x time at peak) / output tokens"});
  all.push_back({"dollars_per_million_tokens", price, "GPUs x price per hour / output tokens per hour x 1e6"});
  if (c.watts <= 0) return;
  std::optional<double> fed;
  if (joules) fed = c.watts / (c.pue * *joules);
  all.push_back({"power_bound_tokens_per_s", fed, "power / (PUE x energy per token)"});
  const char* const form = !fed ? "energy per token is not known" : *fed < rate ? "the bound is power" : "the bound is the GPUs";
  all.push_back({"bound_tokens_per_s", fed ? std::optional(std::min(*fed, rate)) : std::nullopt, form});
}

std::string value_text(const EstimatedFigure& figure) {
  if (!figure.value) return "-";
  const bool is_whole = *figure.value == std::floor(*figure.value) && std::abs(*figure.value) < 1e15;
  return is_whole ? fmt::format("{:.0f}", *figure.value) : fmt::format("{:.6g}", *figure.value);
}

nlohmann::ordered_json as_json(const CostSetup& setup, const EstimateCommand& c, const std::vector<EstimatedFigure>& all) {
  nlohmann::ordered_json json = {{"model", setup.model.name},        {"hardware", setup.hardware.name},
                                 {"gpus", setup.parallel.gpus()},    {"step_times", setup.profile_name},
                                 {"prompt_tokens", c.prompt_tokens}, {"output_tokens", c.output_tokens}};
  for (const EstimatedFigure& figure : all) json[figure.key] = figure.value ? nlohmann::ordered_json(*figure.value) : nullptr;
  return json;
}

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

void add_machine_options(CLI::App& command, MachineOptions& m) {
  command.add_option("--model", m.model, "a name in profiles/models, a config.json or a folder that holds one; default: the profile's")
      ->check(offers(Offer::kNames, "models"))
      ->check(offers(Offer::kFiles));
  command
      .add_option("--quantization", m.quantization, "format of the weights, as in an experiment: fp8, awq, nvfp4, ...; default: the file's")
      ->check(offers(Offer::kText));
  command.add_option("--hardware", m.hardware, "a name in profiles/hardware, or a file; default: the profile's")
      ->check(offers(Offer::kNames, "hardware"))
      ->check(offers(Offer::kYamlFiles));
  command
      .add_option("--profile", m.profile,
                  "where step times come from, as in an experiment, e.g. '{bundle: {path: DIR}}'; default: roofline")
      ->check(offers(Offer::kText));
  command.add_option("--tp", m.tp, "GPUs that share each layer; default: 1")->check(CLI::Range(1, 1024));
  command.add_flag("--json", m.json, "as JSON");
}

CostSetup read_machine(const MachineOptions& options) {
  std::string yaml = fmt::format("profile: {}\nparallel: {{tp: {}}}\n", options.profile, options.tp);
  if (!options.model.empty()) yaml += "model: " + nlohmann::json(options.model).dump() + "\n";
  if (!options.quantization.empty()) yaml += "quantization: " + nlohmann::json(options.quantization).dump() + "\n";
  if (!options.hardware.empty()) yaml += "hardware: " + nlohmann::json(options.hardware).dump() + "\n";
  Params p = Params::from_text(yaml, "command line");
  CostSetup setup = read_cost_setup(p);
  p.reject_unread();
  return setup;
}

// Throws InputError if model or batch exceed memory.
std::vector<EstimatedFigure> estimate(const CostSetup& setup, const EstimateCommand& c) {
  const MemoryUse memory = memory_of(setup, c);
  const std::int32_t batch = batch_of(setup, c, memory);
  const std::unique_ptr<CostModel> cost = make_cost_model(setup);
  BatchTimes times{prompt_times(*cost, c.prompt_tokens), decode_times(*cost, c, batch), decode_times(*cost, c, 1)};
  times.batch = batch;
  times.steps = c.output_tokens - 1;
  const auto tpot = [&](double seconds) { return times.steps > 0 ? std::optional(kMs * seconds) : std::nullopt; };
  std::vector<EstimatedFigure> all = {
      {"weights_bytes", memory.weights, "on one GPU"},
      {"kv_bytes_per_token", static_cast<double>(kv_bytes_per_token(setup.model)), "of all layers and heads, no window full"},
      {"sequence_kv_bytes", memory.sequence, "of prompt and output on one GPU, in blocks of 16 tokens"},
      {"max_batch", memory.sequences(), "floor((memory share - weights) / sequence's KV)"},
      {"batch", static_cast<double>(batch), "sequences decoded together"},
      {"ttft_at_peak_ms", kMs * times.prompt.peak_s, "a prompt alone: the longer of FLOPs / peak FLOP/s and bytes / peak bandwidth"},
      {"ttft_ms", kMs * times.prompt.priced_s, "the same as the cost model prices it"},
      {"tpot_at_peak_ms", tpot(times.decode.peak_s), "the mean decode step of the batch, as above"},
      {"tpot_ms", tpot(times.decode.priced_s), "the same as the cost model prices it"},
  };
  add_alone(setup, times, memory, all);
  add_rates(setup, c, times, all);
  return all;
}

std::string estimate_text(const EstimateCommand& command) {
  const CostSetup setup = read_machine(command);
  const std::vector<EstimatedFigure> all = estimate(setup, command);
  if (command.json) return as_json(setup, command, all).dump(2) + "\n";
  std::string text = fmt::format("{} on {} x {}, {} + {} tokens; step times: {}\n", setup.model.name, setup.parallel.gpus(),
                                 setup.hardware.name, command.prompt_tokens, command.output_tokens, setup.profile_name);
  for (const EstimatedFigure& figure : all) text += fmt::format("{:<28}{:>14}   {}\n", figure.key, value_text(figure), figure.form);
  for (const MissingFigure& m : missing_figures(setup.hardware))
    text += fmt::format("no {}: add {} to {}\n", m.figure, m.key, setup.hardware.file);
  return text;
}

std::string characterization(const CharacterizeCommand& c) {
  const CostSetup setup = read_machine(c);
  const std::vector<LaunchPoint> points = launch_points(setup, c);
  if (c.json) return as_json(setup, c, points);
  std::string text =
      fmt::format("{} on {} x {}, {} of {} tokens a row; step times: {}; a launch every {:g} us\n", setup.model.name, setup.parallel.gpus(),
                  setup.hardware.name, c.is_prefill ? "prefill" : "decode", c.tokens, setup.profile_name, c.dispatch_us);
  text += fmt::format("{:>7}{:>9}{:>14}{:>14}{:>17}  bound\n", "batch", "kernels", "gpu_us", "host_us", "gpu_us/kernel");
  for (const LaunchPoint& p : points)
    text += fmt::format("{:>7}{:>9}{:>14.1f}{:>14.1f}{:>17.2f}  {}\n", p.batch, p.kernels, p.gpu_us, p.host_us,
                        p.gpu_us / static_cast<double>(p.kernels), p.is_host_bound() ? "host" : "GPU");
  return text + verdict(points);
}

}  // namespace

void add_estimate_command(CLI::App& app, Command& chosen) {
  CLI::App* one =
      app.add_subcommand("estimate", "memory, latency, throughput, energy and price of one load by formulas, without a simulation");
  auto& c = arguments_of<EstimateCommand>(*one);
  add_machine_options(*one, c);
  one->add_option("--prompt-tokens", c.prompt_tokens, "of each request; default: 1024")->check(CLI::Range(1, kMostTokens));
  one->add_option("--output-tokens", c.output_tokens, "of each request; default: 128")->check(CLI::Range(1, kMostTokens));
  one->add_option("--batch", c.batch, "requests decoded together; default: the most that fit")->check(CLI::Range(1, kMostRows));
  one->add_option("--memory-frac", c.memory_frac, "share of GPU memory for weights and KV; default: 0.9")->check(CLI::Range(0.01, 1.0));
  one->add_option("--watts", c.watts, "power there is: also the rate of tokens that it allows")->check(CLI::Range(1.0, 1e12));
  one->add_option("--pue", c.pue, "--watts: all power over that of the GPUs; default: 1")->check(CLI::Range(1.0, 10.0))->needs("--watts");
  choose(one, chosen, c, estimate_text);
}

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
  choose(one, chosen, c, characterization);
}

}  // namespace kvlab
