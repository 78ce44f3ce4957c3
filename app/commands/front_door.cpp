#include "app/commands/front_door.h"

#include <array>
#include <cstdlib>
#include <sstream>
#include <string>

#include "app/commands/offers.h"

namespace kvlab {

namespace {

struct FrontCommand {
  const char* name;
  const char* help;
  void (*add_options)(CLI::App& command);
};

void add_front_flag(CLI::App& command, const std::string& name, const std::string& help) { command.add_flag(name, help); }

CLI::Option* add_front_value(CLI::App& command, const std::string& name, const std::string& help) { return command.add_option(name, help); }

void add_results_argument(CLI::App& command) {
  add_front_value(command, "folder", "results folders")->expected(1, CLI::detail::expected_max_vector_size)->check(offers(Offer::kResults));
}

void add_plot_options(CLI::App& plot) {
  add_results_argument(plot);
  add_front_flag(plot, "--all", "draw every value of a long sweep, not a few of them");
  add_front_value(plot, "--recipe", "of a replay: draw this recipe layer by layer and head by head")
      ->check(offers(Offer::kNames, "recipes"));
  add_front_value(plot, "--set", "figures.NAME.KEY=VALUE: a setting of a figure")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false)
      ->check(offers(Offer::kText));
  add_front_flag(plot, "--pgf", "also write NAME.pgf, pgfplots source for LaTeX");
  add_front_flag(plot, "--quiet", "do not say what was left out");
}

void add_report_options(CLI::App& report) {
  add_results_argument(report);
  add_front_value(report, "--out", "where to write the page")->check(offers(Offer::kFiles));
}

void add_bench_options(CLI::App& bench) {
  add_front_value(bench, "programs", "benchmarks to run; default: kernels and sim")
      ->check(offers(Offer::kWords, "kernels sim instructions"));
  add_front_flag(bench, "--cpu", "the kernels of the CPU");
  add_front_flag(bench, "--gpu", "the kernels of the GPU; --gpu=N: of that number");
  add_front_flag(bench, "--update", "instructions: write the counts to bench/instructions.json");
}

constexpr std::array<FrontCommand, 7> kFrontCommands = {
    {{"bench", "build and run the benchmarks of kernels, simulator, or both", add_bench_options},
     {"build", "build the program", [](CLI::App& build) { add_front_flag(build, "--cuda", "with the GPU's kernels"); }},
     {"doctor", "say what is installed and what is missing", [](CLI::App&) {}},
     {"package", "write the program with its data as a .deb and a .tar.gz", [](CLI::App&) {}},
     {"plot", "draw the figures of results again", add_plot_options},
     {"report", "write one interactive HTML page of a result, or of two side by side", add_report_options},
     {"test", "build and run every test", [](CLI::App& test) { add_front_flag(test, "--dev", "with sanitizers"); }}}};

}  // namespace

void add_front_door(CLI::App& app) {
  const char* const named = std::getenv("KVLAB_FRONT_DOOR");
  std::istringstream names(named == nullptr ? "" : named);
  for (std::string name; names >> name;)
    for (const FrontCommand& command : kFrontCommands)
      if (name == command.name) command.add_options(*app.add_subcommand(name, command.help));
}

}  // namespace kvlab
