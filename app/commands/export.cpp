#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/export/export_format.h"
#include "app/results/view.h"
#include "base/config/params.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

struct ExportCommand {
  std::string folder, format, out;
  std::vector<std::string> runs;
  ExportOptions options;
};

void report_written(const ExportFolder& folder, std::ostream& out) {
  constexpr std::size_t kNamed = 4;
  const auto& files = folder.written();
  for (std::size_t i = 0; i < std::min(files.size(), kNamed); ++i) out << "wrote " << files[i].string() << "\n";
  for (const std::string& note : folder.notes()) out << "note: " << note << "\n";
  if (files.size() > kNamed) out << fmt::format("and {} more files in {}\n", files.size() - kNamed, folder.path().string());
}

int export_results(const ExportCommand& command, std::ostream& out) {
  Params none = Params::empty("export");
  const auto format = ExportFormatRegistry::make(command.format, none, "export format");
  const ExportSource source = read_export_source(command.folder, command.runs);
  if (source.num_included > 0)
    out << fmt::format("note: {} of results that it includes, and not exported: export them from their own folder\n",
                       runs_are(source.num_included, command.folder));
  const bool is_own = command.out.empty();
  ExportFolder folder(is_own ? fs::path(command.folder) / "export" / command.format : fs::path(command.out), is_own);
  if (!format->is_per_run() || source.runs.size() == 1) {
    format->write(source, command.options, folder);
    report_written(folder, out);
    return 0;
  }
  for (const ExportedRun& run : source.runs) {
    ExportFolder below = folder.below(run.id());
    format->write({source.folder, source.experiment, {run}}, command.options, below);
    report_written(below, out);
  }
  return 0;
}

}  // namespace

void add_export_command(CLI::App& app, Command& chosen) {
  CLI::App* const one = app.add_subcommand("export", "write results in the format of another tool (docs/exchange.md)");
  auto& c = arguments_of<ExportCommand>(*one);
  one->add_option("folder", c.folder, "results folder")->required()->check(offers(Offer::kResults));
  one->add_option("--format", c.format, join(ExportFormatRegistry::names(), ", "))
      ->required()
      ->check(offers(Offer::kNames, "export_formats"));
  one->add_option("--run", c.runs, "ID of a run, as in summary.csv; may be repeated; default: all of the newest sweep")
      ->allow_extra_args(false)
      ->check(offers(Offer::kRuns));
  one->add_option("--out", c.out,
                  "folder to write; files in it are not replaced; default: RESULTS/export/FORMAT, a folder per run of several");
  one->add_option("--start", c.options.start_s, "instant at which the simulation starts, in seconds since 1970; default: 0")
      ->check(CLI::Range(0.0, 9e9));
  choose(one, chosen, c, export_results);
}

}  // namespace kvlab
