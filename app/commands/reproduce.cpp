#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "app/claims/claim.h"
#include "app/commands/command.h"
#include "app/results/results.h"
#include "app/results/safe_files.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

struct ReproduceCommand {
  std::vector<std::string> names;  // of claims, or files
  bool every = false, json = false, quiet = false;
  std::string out;  // for claims.md and claims.csv; "": none
  ClaimOptions runs;
};

std::vector<Claim> claims_of(const ReproduceCommand& command) {
  if (command.every == !command.names.empty())
    throw InputError("reproduce takes names of claims, or --all for every one of `kvlab list claims`");
  std::vector<Claim> claims;
  for (const std::string& name : command.names) claims.push_back(load_claim(name));
  if (command.every)
    for (const fs::path& file : claim_files()) claims.push_back(load_claim(file.string()));
  if (claims.empty()) throw InputError("there is no claim: claims/ is looked for in the working directory, then in the source tree");
  return claims;
}

// Messages begin with the program's name.
void print_error(const ClaimResult& r, std::ostream& err) {
  std::istringstream lines(r.status == 130 ? "stopped; the same command does the rest" : r.error);
  for (std::string line; std::getline(lines, line);)
    err << fmt::format("kvlab: claim {}: {}\n", r.claim.name, line.starts_with("kvlab: ") ? line.substr(7) : line);
}

void write_page(const ReproduceCommand& command, const std::vector<ClaimResult>& results) {
  const fs::path folder = command.out;
  fs::create_directories(folder);
  const std::string what = command.every ? "--all" : join(command.names, " ");
  replace_file(folder / "claims.csv", claims_as_csv(results));
  replace_file(folder / "claims.md", claims_as_page(results, fmt::format("./kvlab reproduce {} --out {}", what, command.out)));
  name_results(command.out);
}

int reproduce_claims(const ReproduceCommand& command, std::ostream& out, std::ostream& err) {
  const std::vector<Claim> claims = claims_of(command);
  std::ostringstream none;
  const std::vector<ClaimResult> results = run_claims(claims, command.runs, command.quiet ? none : err);
  int status = 0;
  for (const ClaimResult& r : results) {
    if (!r.ours) print_error(r, err);
    status = std::max(status, r.ours ? 0 : r.status);
  }
  if (command.json) {
    out << claims_as_json(results);
  } else {
    for (const ClaimResult& r : results) out << claim_as_text(r) << "\n";
    out << claims_as_table(results);
  }
  if (command.out.empty() || status == 130) return status;
  write_page(command, results);
  if (!command.json) out << "wrote " << (fs::path(command.out) / "claims.md").string() << "\n";
  return status;
}

}  // namespace

void add_reproduce_command(CLI::App& app, Command& chosen) {
  CLI::App* one = app.add_subcommand("reproduce", "run published claims and print their figures beside ours");
  auto& c = arguments_of<ReproduceCommand>(*one);
  one->add_option("name", c.names, "claims, as `kvlab list claims` prints them, or files")
      ->check(offers(Offer::kNames, "claims"))
      ->check(offers(Offer::kYamlFiles));
  one->add_flag("--all", c.every, "every claim");
  one->add_flag("--json", c.json, "as JSON: a list of {name, system, published, ours, verdict}");
  one->add_option("--out", c.out, "folder that gets the table: claims.md, claims.csv and their figure");
  one->add_option("--jobs", c.runs.jobs, "runs at a time; default: the number of cores")->check(CLI::Range(1, 4096));
  one->add_option("--runs", c.runs.folder, "folder of the runs; default: results/claims")->check(offers(Offer::kFolders));
  one->add_flag("--force", c.runs.force, "do runs again whose inputs have not changed");
  one->add_flag("--quiet", c.quiet, "no progress");
  choose(one, chosen, c, reproduce_claims);
}

}  // namespace kvlab
