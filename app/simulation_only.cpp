// Stand-ins of kvlab_sim for what it lacks: KV recipes other than full, commands other than `run`, comparisons, replay and the engine.
#include <fmt/format.h>

#include <utility>

#include "app/commands/command.h"
#include "app/compare/compare.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/kv_memory.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "base/usage.h"
#include "kernels/ops.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

namespace {

[[noreturn]] void refuse() { throw InputError("kvlab_sim only simulates serving: build the whole program with './kvlab build'"); }

}  // namespace

void add_other_commands(CLI::App&, Command&) {}

void validate_results(const std::string&, ResultsFolder&, std::ostream*) { refuse(); }

bool compare_hosts(const Experiment&, ResultsFolder&, double, std::ostream*) { return false; }  // the engine is refused earlier

Fields fidelity_fields(Params&, const Recipe&, std::uint64_t) { refuse(); }

// With the whole program's notes of it.
Recipe read_recipe(Params& p) {
  Recipe recipe;
  recipe.name = p.text("recipe", "full", "name of the recipe");
  if (recipe.name != "full" || p.keys().size() > 1) refuse();
  find_spec_file(recipe.name, recipes_folder(), "recipe");
  p.text("positions", "original", "");
  for (const auto& [kind, part] :
       {std::pair{"allocator", "uniform"}, {"trigger", "never"}, {"disposal", "drop"}, {"format", "native"}, {"selector", "all"}}) {
    p.text(kind, part, "");
    UsageLog::note_source(fmt::format("policies/kv/{}/{}.cpp", kind, part).c_str());
  }
  recipe.text = p.text_of_all();
  return recipe;
}

std::string remark_on_budget(std::uint64_t, std::uint64_t, const std::string&) { return ""; }

void use_recipe(Params&, const KvLayout&, PoolPlan&) { refuse(); }

void throw_without_cuda() { refuse(); }

}  // namespace kvlab
