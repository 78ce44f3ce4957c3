#include "app/machine_options.h"

#include "app/commands/offers.h"

namespace kvlab {

namespace {

constexpr int kMostTokens = 1 << 26, kMostRows = 100'000;

void add_machine(CLI::App& command, MachineOptions& m) {
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

}  // namespace

CLI::App* add_estimate_command(CLI::App& app, EstimateCommand& c) {
  CLI::App* one =
      app.add_subcommand("estimate", "memory, latency, throughput, energy and price of one load by formulas, without a simulation");
  add_machine(*one, c);
  one->add_option("--prompt-tokens", c.prompt_tokens, "of each request; default: 1024")->check(CLI::Range(1, kMostTokens));
  one->add_option("--output-tokens", c.output_tokens, "of each request; default: 128")->check(CLI::Range(1, kMostTokens));
  one->add_option("--batch", c.batch, "requests decoded together; default: the most that fit")->check(CLI::Range(1, kMostRows));
  one->add_option("--memory-frac", c.memory_frac, "share of GPU memory for weights and KV; default: 0.9")->check(CLI::Range(0.01, 1.0));
  one->add_option("--watts", c.watts, "power there is: also the rate of tokens that it allows")->check(CLI::Range(1.0, 1e12));
  one->add_option("--pue", c.pue, "--watts: all power over that of the GPUs; default: 1")->check(CLI::Range(1.0, 10.0))->needs("--watts");
  return one;
}

CLI::App* add_characterize_command(CLI::App& app, CharacterizeCommand& c) {
  CLI::App* one = app.add_subcommand("characterize", "from which batch on the GPU, and not the host's kernel launches, bounds a step");
  add_machine(*one, c);
  one->add_option("--batch", c.max_batch, "the largest of the sweep 1, 2, 4, ...; default: 256")->check(CLI::Range(1, kMostRows));
  one->add_option("--tokens", c.tokens, "cached by each row, or with --prefill the length of each prompt; default: 512")
      ->check(CLI::Range(1, kMostTokens));
  one->add_flag("--prefill", c.is_prefill, "the step computes a batch of prompts; default: one token of each row");
  one->add_option("--dispatch-us", c.dispatch_us,
                  "host time from one launch to the next; default: 2.375, a null kernel's launch. Frameworks take longer: measure yours")
      ->check(CLI::Range(0.001, 1e6));
  return one;
}

}  // namespace kvlab
