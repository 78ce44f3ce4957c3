#include "app/graded_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "app/csv.h"
#include "app/partial_answers.h"
#include "app/run.h"
#include "app/run_files.h"
#include "app/setup.h"
#include "engine/grade/estimate.h"

namespace kvlab {

// One run: a recipe over all samples.
struct GradedRuns::Graded {
  Graded(const Job& j, Recipe r, std::filesystem::path partial) : job(j), recipe(std::move(r)), answers(std::move(partial)) {}
  Job job;
  Recipe recipe;
  PartialAnswers answers;
  bool failed = false;
  double wall_s = 0;
  [[nodiscard]] bool has(const EvalSample& s) const { return answers.by_sample().contains(s.number); }
};

// Runs that share model and samples.
struct GradedRuns::Set {
  AccuracySetup setup;
  std::unique_ptr<Transformer> model;
  std::vector<EvalSample> samples;
  std::vector<std::unique_ptr<Graded>> runs;
};

namespace {

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

Encode bytes_behind_bos(std::int32_t bos) {
  return [bos](std::string_view text, bool is_start) {
    std::vector<std::int32_t> ids;
    if (is_start) ids.push_back(bos);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
}

// As many samples at a time as decode well together and fit into a few gigabytes.
std::size_t block_end(const std::vector<EvalSample>& samples, std::size_t begin, const ModelConfig& c) {
  constexpr double kMostBytes = 3e9;
  constexpr std::size_t kMost = 12;
  const double token_bytes = 4.0 * c.layers * (5.0 * c.q_heads * c.head_dim + 6.0 * c.kv_heads * c.head_dim + 2.0 * c.hidden_dim);
  double bytes = 0;
  std::size_t end = begin;
  while (end < samples.size() && end - begin < kMost && (end == begin || bytes < kMostBytes))
    bytes += samples[end++].num_tokens() * token_bytes;
  return end;
}

}  // namespace

void GradedRuns::run(const std::vector<Job>& jobs, std::ostream* log) {
  std::vector<std::unique_ptr<Set>> sets;
  for (const Job& job : jobs) {
    try {
      Params p = experiment_.params(experiment_.runs[job.place]);
      const RunPlan plan = read_run_plan(p, experiment_.runs[job.place].seed);
      auto set = std::find_if(sets.begin(), sets.end(), [&](const auto& s) {
        return s->setup.text == plan.accuracy->text && s->setup.options.seed == plan.accuracy->options.seed;
      });
      if (set == sets.end()) {
        set = sets.insert(sets.end(), std::make_unique<Set>());
        (*set)->setup = *plan.accuracy;
      }
      (*set)->runs.push_back(std::make_unique<Graded>(job, *plan.recipe, folder_.path() / "partial" / (job.key + ".txt")));
    } catch (...) {
      finish_(job.place, std::current_exception());
    }
  }
  for (const auto& set : sets) {
    try {
      run_set(*set, log);
    } catch (...) {
      for (const auto& r : set->runs)
        if (!r->failed) finish_(r->job.place, std::current_exception());
    }
  }
}

void GradedRuns::run_set(Set& set, std::ostream* log) {
  set.model = std::make_unique<Transformer>(Transformer::load(set.setup.model));
  set.samples = read_eval_set(set.setup.eval_file, set.setup.choice, bytes_behind_bos(set.model->config().bos_id));
  if (log != nullptr) {
    GradeWork work(*set.model, set.setup.options);
    for (const EvalSample& s : set.samples)
      for (const auto& r : set.runs)
        if (!r->has(s)) work.add(s, r->recipe);
    *log << fmt::format("{} samples, {} policies: {}\n", set.samples.size(), set.runs.size(), work.describe()) << std::flush;
  }
  for (std::size_t begin = 0; begin < set.samples.size();) {
    const std::size_t end = block_end(set.samples, begin, set.model->config());
    grade_block(set, begin, end);
    begin = end;
  }
  for (const auto& r : set.runs) {
    if (r->failed) continue;
    r->failed = true;  // told of, whatever happens
    try {
      write(set, *r);
      finish_(r->job.place, nullptr);
    } catch (...) {
      finish_(r->job.place, std::current_exception());
    }
  }
}

void GradedRuns::grade_block(Set& set, std::size_t begin, std::size_t end) {
  std::vector<Recipe> recipes;
  for (const auto& r : set.runs) {
    const bool is_open =
        !r->failed && std::any_of(set.samples.begin() + static_cast<std::ptrdiff_t>(begin),
                                  set.samples.begin() + static_cast<std::ptrdiff_t>(end), [&](const EvalSample& s) { return !r->has(s); });
    if (is_open) recipes.push_back(r->recipe);
  }
  if (recipes.empty()) return;
  const GradeNeeds needs = needs_of(*set.model, recipes);
  std::vector<GradeSample> prepared;
  for (std::size_t i = begin; i < end; ++i) {
    if (stop_) throw Interrupted{};
    prepared.push_back(prepare_sample(*set.model, set.samples[i], set.setup.options, needs.needs, needs.passes));
  }
  for (const auto& r : set.runs) {
    if (stop_) throw Interrupted{};
    if (r->failed) continue;
    std::vector<const GradeSample*> open;
    for (const GradeSample& s : prepared)
      if (!r->has(*s.sample)) open.push_back(&s);
    if (open.empty()) continue;
    const auto began = std::chrono::steady_clock::now();
    try {
      r->answers.add(grade(*set.model, r->recipe, open, set.setup.options));
    } catch (...) {
      r->failed = true;
      finish_(r->job.place, std::current_exception());
    }
    r->wall_s += seconds_since(began);
  }
}

void GradedRuns::write(Set& set, Graded& r) {
  const RunSpec& run = experiment_.runs[r.job.place];
  RunFiles files(folder_.runs(), run.id, RunFiles::Tables::kNone);
  std::vector<GradedAnswer> all;
  std::string answers = answers_header();
  for (const EvalSample& s : set.samples) {
    for (const GradedAnswer& a : r.answers.by_sample().at(s.number)) {
      all.push_back(a);
      answers += answer_row(run.id, r.recipe, s, set.setup.options, a);
    }
  }
  files.add_file("answers.csv", answers);
  std::string summary;
  for (const Fields& row : accuracy_rows(r.recipe, set.samples, all, set.setup.options)) {
    const std::string text = summary_csv(experiment_, run, row);
    summary += summary.empty() ? text : text.substr(text.find('\n') + 1);
  }
  files.add_file("summary.csv", summary);
  files.add_file("resolved.yaml", experiment_.resolved(run));
  nlohmann::ordered_json axes = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < experiment_.axes.size(); ++i) axes[experiment_.axes[i]] = run.labels[i];
  const nlohmann::ordered_json manifest = {
      {"run", run.id},           {"seed", run.seed},  {"axes", axes}, {"input_key", r.job.key}, {"model", set.model->config().name},
      {"recipe", r.recipe.name}, {"wall_s", r.wall_s}};
  files.commit(manifest.dump(2) + "\n");
  r.answers.remove_file();
}

}  // namespace kvlab
