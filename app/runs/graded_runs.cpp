#include "app/runs/graded_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <span>

#include "app/results/run_files.h"
#include "app/runs/partial_answers.h"
#include "app/runs/replayed_sample.h"
#include "app/runs/run.h"
#include "app/runs/setup.h"
#include "app/runs/shared_model.h"
#include "base/csv.h"
#include "base/error.h"
#include "engine/grade/estimate.h"
#include "engine/tokenizer/tokenizer.h"

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
  std::set<std::int32_t> replayed;  // numbers of the samples that are
  const EngineModel* model = nullptr;
  std::span<const EvalSample> samples;
  std::vector<std::unique_ptr<Graded>> runs;
};

namespace {

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// A model's tokenizer, read once it is needed.
class LazyTokenizer {
 public:
  LazyTokenizer(std::string model_dir, std::int32_t bos_id) : model_dir_(std::move(model_dir)), bos_id_(bos_id) {}

  std::vector<std::int32_t> encode(std::string_view text, bool is_start) {
    return is_start ? get().encode_prompt(text, bos_id_) : get().encode(text, false);
  }
  // 0 where there is no tokenizer, or none that knows the ids.
  std::int32_t count_bytes(std::span<const std::int32_t> ids) {
    if (is_missing_) return 0;
    try {
      return static_cast<std::int32_t>(get().decode(ids, false).size());
    } catch (const InputError&) {
      is_missing_ = !tokenizer_;
      return 0;
    }
  }

 private:
  const Tokenizer& get() {
    if (!tokenizer_) tokenizer_ = Tokenizer::load(model_dir_);
    return *tokenizer_;
  }

  std::string model_dir_;
  std::int32_t bos_id_;
  std::optional<Tokenizer> tokenizer_;
  bool is_missing_ = false;
};

// As many samples at a time as decode well together and fit into a few gigabytes.
std::size_t block_end(std::span<const EvalSample> samples, std::size_t begin, const ModelConfig& c) {
  constexpr double kMostBytes = 3e9;
  constexpr std::size_t kMost = 12;
  const double token_bytes = 4.0 * c.layers * (5.0 * c.q_heads * c.head_dim + 6.0 * c.kv_heads * c.head_dim + 2.0 * c.hidden_dim);
  double bytes = 0;
  std::size_t end = begin;
  while (end < samples.size() && end - begin < kMost && (end == begin || bytes < kMostBytes))
    bytes += samples[end++].num_tokens() * token_bytes;
  return end;
}

// A remark on answers that cannot tell policies apart; "" where there are none.
std::string remark_on_first_answers(std::span<const EvalSample> samples, const GradeOptions& options) {
  const auto short_ones = std::count_if(samples.begin(), samples.end(), [](const EvalSample& s) { return s.turns[0].answer.size() == 1; });
  if (!options.compresses_question || short_ones == 0) return "";
  return fmt::format(
      "{} of {} first answers {} one token, which is predicted before the policy acts: {} nothing about it; "
      "'question: decoded' asks after it acted\n",
      short_ones, samples.size(), short_ones == 1 ? "has" : "have", short_ones == 1 ? "it says" : "they say");
}

}  // namespace

std::vector<EvalSample> read_samples(const AccuracySetup& setup) {
  const ModelConfig model = read_model_config(setup.model);
  LazyTokenizer tokenizer(setup.model, model.bos_id);
  return read_eval_set(
      setup.eval_file, setup.choice, [&](std::string_view text, bool is_start) { return tokenizer.encode(text, is_start); },
      {model.name, model.max_tokens, model.vocab_size}, [&](std::span<const std::int32_t> ids) { return tokenizer.count_bytes(ids); });
}

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
      (*set)->runs.push_back(std::make_unique<Graded>(job, *plan.recipe, folder_.partial_of(job.origin.input_key)));
    } catch (...) {
      finish_(job.place, std::current_exception(), 0);
    }
  }
  for (const auto& set : sets) {
    try {
      run_set(*set, log);
    } catch (...) {
      for (const auto& r : set->runs)
        if (!r->failed) finish_(r->job.place, std::current_exception(), r->wall_s);
    }
  }
}

// Recipes that the model cannot run are reported before the others start. Returns how many these others are.
std::size_t GradedRuns::refuse_early(Set& set) {
  std::size_t left = 0;
  for (const auto& r : set.runs) {
    const Params p(experiment_.config, experiment_.runs[r->job.place].choices, "the experiment");
    try {
      try {
        static_cast<void>(set.model->make_cache(r->recipe, {}));
      } catch (const InputError& e) {
        p.fail_at("kv_policy", e.what());
      }
      ++left;
    } catch (const InputError&) {
      r->failed = true;
      finish_(r->job.place, std::current_exception(), 0);
    }
  }
  return left;
}

void GradedRuns::run_set(Set& set, std::ostream* log) {
  set.model = &shared_model(set.setup.model, set.setup.backend);
  const std::size_t left = refuse_early(set);
  if (left == 0) return;
  set.samples = samples_.at(set.setup.text);
  if (log != nullptr) {
    GradeWork work(*set.model, set.setup.options);
    for (const EvalSample& s : set.samples)
      for (const auto& r : set.runs)
        if (!r->failed && !r->has(s)) work.add(s, r->recipe);
    *log << fmt::format("{} sample{}, {} {}: {}\n", set.samples.size(), set.samples.size() == 1 ? "" : "s", left,
                        left == 1 ? "policy" : "policies", work.describe())
         << std::flush;
  }
  std::map<std::pair<std::string, std::int32_t>, std::int32_t> taken;
  for (const EvalSample& s : set.samples)
    if (taken[{s.task, s.length}]++ < set.setup.replay_per_task) set.replayed.insert(s.number);
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
      finish_(r->job.place, nullptr, r->wall_s);
    } catch (...) {
      finish_(r->job.place, std::current_exception(), r->wall_s);
    }
  }
  if (log != nullptr) *log << remark_on_first_answers(set.samples, set.setup.options);
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
  std::vector<const GradeSample*> all;  // a block is graded whole: what is counted may depend on the samples beside one
  for (const GradeSample& s : prepared) all.push_back(&s);
  std::map<std::int32_t, ReplayedSample> recorded;
  for (const GradeSample& s : prepared)
    if (set.replayed.contains(s.sample->number)) recorded[s.sample->number] = record_sample(s, needs, set.setup);
  for (const auto& r : set.runs) {
    if (stop_) throw Interrupted{};
    if (r->failed) continue;
    if (std::all_of(prepared.begin(), prepared.end(), [&](const GradeSample& s) { return r->has(*s.sample); })) continue;
    const auto began = std::chrono::steady_clock::now();
    try {
      const std::vector<GradedAnswer> answers = grade(*set.model, r->recipe, all, set.setup.options);
      inputs_.require_unchanged(experiment_.runs[r->job.place]);  // before they are kept
      add_grades(*r, answers, recorded, set.setup.options.seed);
    } catch (...) {
      r->failed = true;
      finish_(r->job.place, std::current_exception(), r->wall_s);
    }
    r->wall_s += seconds_since(began);
  }
}

void GradedRuns::add_grades(Graded& r, std::span<const GradedAnswer> answers, const std::map<std::int32_t, ReplayedSample>& recorded,
                            std::uint64_t seed) {
  for (std::size_t i = 0; i < answers.size();) {
    std::size_t end = i;
    while (end < answers.size() && answers[end].sample == answers[i].sample) ++end;
    SampleGrades sample{{answers.begin() + static_cast<std::ptrdiff_t>(i), answers.begin() + static_cast<std::ptrdiff_t>(end)}, {}, {}};
    const auto found = recorded.find(answers[i].sample);
    if (found != recorded.end() && r.recipe.runs_in("replay")) add_replay(found->second, r.recipe, seed, sample);
    r.answers.add(sample);
    i = end;
  }
}

void GradedRuns::write(Set& set, Graded& r) {
  const RunSpec& run = experiment_.runs[r.job.place];
  inputs_.require_unchanged(run);
  RunFiles files(folder_.runs(), run.id, RunFiles::Tables::kNone);
  std::vector<const SampleGrades*> all;
  std::string answers = answers_header();
  for (const EvalSample& s : set.samples) {
    all.push_back(&r.answers.by_sample().at(s.number));
    for (std::size_t a = 0; a < all.back()->answers.size(); ++a)
      answers += answer_row(run.id, r.recipe, s, set.setup.options, *all.back(), a);
  }
  files.add_file("answers.csv", answers);
  std::string summary;
  for (const Fields& row : accuracy_rows(r.recipe, set.samples, all, set.setup.options)) {
    const std::string text = summary_csv(run.id, run.seed, row);
    summary += summary.empty() ? text : text.substr(text.find('\n') + 1);
  }
  files.add_file("summary.csv", summary);
  files.add_file("resolved.yaml", experiment_.resolved_in(folder_.runs() / run.id, run));
  nlohmann::ordered_json manifest = run_manifest(run, r.job.origin);
  manifest["model"] = set.model->config().name;
  manifest["backend"] = set.model->backend();
  manifest["recipe"] = r.recipe.name;
  const auto cache = set.model->make_cache(r.recipe, {});
  if (const std::string note = remark_on_prompts(cache->policy(), set.samples, set.setup.options); !note.empty()) manifest["note"] = note;
  manifest["wall_s"] = r.wall_s;
  files.commit(std::move(manifest));
  r.answers.remove_file();
}

}  // namespace kvlab
