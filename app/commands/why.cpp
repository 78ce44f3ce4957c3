#include "app/commands/why.h"

#include <CLI/CLI.hpp>

#include "app/commands/offers.h"
#include "app/why/why_metric.h"
#include "base/text.h"

namespace kvlab {

void add_why_command(CLI::App& app, WhyCommand& c, const std::function<void()>& choose) {
  CLI::App* const why = app.add_subcommand("why", "why a run is slow, and what would help: tried in runs that are thrown away");
  why->add_option("folder", c.folder, "results folder")->required()->check(offers(Offer::kResults));
  why->add_option(
         "--metric", c.metric,
         "what to explain: ttft, tpot, itl, tbt or e2e (P99), a column such as ttft_p90_ms, or goodput_per_s; default: the limit of "
         "the SLO that is missed most, or what a search found")
      ->check(offers(Offer::kWords, join(why_metric_columns(), " ")));
  CLI::Option* const run =
      why->add_option("--run", c.run, "ID of a run, as in summary.csv; default: the best one that misses its SLO, else the best")
          ->check(offers(Offer::kRuns));
  why->add_flag("--all", c.every, "every run of the folder")->excludes(run);
  why->add_flag_callback(
      "--no-try", [&c] { c.tries = false; }, "only what the results say; default: runs with other settings too");
  why->add_option("--seconds", c.seconds, "time for the tries of a run; those that are left are named; default: 60")
      ->check(CLI::Range(0.0, 1e6));
  why->add_flag("--json", c.json, "as JSON");
  why->add_option("--out", c.out, "file to write; default: standard output")->check(offers(Offer::kFiles));
  why->callback(choose);
}

}  // namespace kvlab
