#include "app/runs/accuracy/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <span>

#include "app/results/results.h"
#include "app/results/run_files.h"
#include "app/runs/accuracy/served_model.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/plan/kv_memory.h"
#include "app/runs/report/report.h"
#include "base/error.h"
#include "engine/grade/grader.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvlab {

namespace {

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Read on first use.
class LazyTokenizer {
 public:
  LazyTokenizer(std::string model_dir, std::int32_t bos_id) : model_dir_(std::move(model_dir)), bos_id_(bos_id) {}

  std::vector<std::int32_t> encode(std::string_view text, bool is_start) {
    return is_start ? get().encode_prompt(text, bos_id_) : get().encode(text, false);
  }
  // 0 without a tokenizer that knows the ids.
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

// A block decodes together within a few gigabytes.
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

// On answers that cannot distinguish policies, or "".
std::string remark_on_first_answers(std::span<const EvalSample> samples, const GradeOptions& options) {
  const auto short_ones = std::count_if(samples.begin(), samples.end(), [](const EvalSample& s) { return s.turns[0].answer.size() == 1; });
  if (!options.compresses_question || short_ones == 0) return "";
  return fmt::format(
      "{} of {} first answers {} one token, which is predicted before the policy acts: {} nothing about it; "
      "'question: decoded' asks after it acted\n",
      short_ones, samples.size(), short_ones == 1 ? "has" : "have", short_ones == 1 ? "it says" : "they say");
}

// Throws InputError.
std::vector<EvalSample> read_samples(const AccuracySetup& setup) {
  const ModelConfig model = read_model_config(setup.model);
  LazyTokenizer tokenizer(setup.model, model.bos_id);
  return read_eval_set(
      setup.eval_file, setup.choice, [&](std::string_view text, bool is_start) { return tokenizer.encode(text, is_start); },
      {model.name, model.max_tokens, model.vocab_size}, [&](std::span<const std::int32_t> ids) { return tokenizer.count_bytes(ids); });
}

struct GradedRun final : PreparedRun {
  GradedRun(RunKind& kind, Params& p, std::uint64_t seed) : PreparedRun(kind), setup(read_accuracy(p, seed)) {
    static_cast<void>(load_recipe("full"));  // the reference
    recipe = read_named_recipe(p, "grade");
    require_engine(p, recipe);
    refuse_orders(p);
    p.reject_unread();
  }
  [[nodiscard]] bool has(const EvalSample& s) const { return answers->by_sample().contains(s.number); }

  Findings run(RunFiles& files, const RunOptions& /*options*/) override {
    if (!answers) throw InternalError("runs that grade are done in a batch");
    const EngineModel& model = shared_model(setup.model, setup.backend);
    std::vector<const SampleGrades*> all;
    std::string csv = answers_header();
    for (const EvalSample& s : samples) {
      all.push_back(&answers->by_sample().at(s.number));
      for (std::size_t a = 0; a < all.back()->answers.size(); ++a) csv += answer_row(files.id(), recipe, s, setup.options, *all.back(), a);
    }
    files.add_file("answers.csv", csv);
    Findings findings;
    findings.rows = accuracy_rows(recipe, samples, all, setup.options);
    findings.manifest = {{"model", model.config().name}, {"backend", model.backend()}, {"recipe", recipe.name}};
    findings.add_note(remark_on_prompts(model.make_cache(recipe, {})->policy(), samples, setup.options));
    findings.wall_s = wall_s;
    return findings;
  }

  AccuracySetup setup;
  Recipe recipe;
  std::span<const EvalSample> samples;
  // Set by the batch.
  std::size_t place = 0;
  RunOrigin origin;
  std::optional<PartialAnswers> answers;
  bool failed = false;
  double wall_s = 0;
};

// They share model, samples and full-cache prefills. Grades are stored in partial/, so interrupted runs can continue.
class GradedSet {
 public:
  GradedSet(const RunBatch& batch, std::unique_ptr<GradedRun> first) : batch_(batch), samples_(first->samples) { add(std::move(first)); }
  [[nodiscard]] bool takes(const GradedRun& r) const {
    return setup().text == r.setup.text && setup().options.seed == r.setup.options.seed;
  }
  void add(std::unique_ptr<GradedRun> run) { runs_.push_back(std::move(run)); }

  void run() {
    try {
      run_all();
    } catch (...) {
      for (const auto& r : runs_)
        if (!r->failed) batch_.finish(r->place, std::current_exception(), r->wall_s);
    }
  }

 private:
  using Recordings = std::map<std::int32_t, ReplayedSample>;  // by sample number
  [[nodiscard]] const AccuracySetup& setup() const { return runs_.front()->setup; }

  void run_all() {
    std::ostream* const log = batch_.log;
    model_ = &shared_model(setup().model, setup().backend);
    const std::size_t left = refuse_early();
    if (left == 0) return;
    if (log != nullptr) {
      GradeWork work(*model_, setup().options);
      for (const EvalSample& s : samples_)
        for (const auto& r : runs_)
          if (!r->failed && !r->has(s)) work.add(s, r->recipe);
      *log << fmt::format("{} sample{}, {} {}: {}\n", samples_.size(), samples_.size() == 1 ? "" : "s", left,
                          left == 1 ? "policy" : "policies", work.describe())
           << std::flush;
    }
    std::map<std::pair<std::string, std::int32_t>, std::int32_t> taken;
    for (const EvalSample& s : samples_)
      if (taken[{s.task, s.length}]++ < setup().replay_per_task) replayed_.insert(s.number);
    for (std::size_t begin = 0; begin < samples_.size();) {
      const std::size_t end = block_end(samples_, begin, model_->config());
      grade_block(begin, end);
      begin = end;
    }
    for (const auto& r : runs_) {
      if (r->failed) continue;
      r->failed = true;  // reported in any case
      try {
        write(*r);
        batch_.finish(r->place, nullptr, r->wall_s);
      } catch (...) {
        batch_.finish(r->place, std::current_exception(), r->wall_s);
      }
    }
    if (log != nullptr) *log << remark_on_first_answers(samples_, setup().options);
  }

  // Reports recipes that the model cannot run. Returns the number of others.
  std::size_t refuse_early() {
    std::size_t left = 0;
    for (const auto& r : runs_) {
      const Params p(batch_.experiment.config, batch_.experiment.runs[r->place].choices, "the experiment");
      try {
        try {
          static_cast<void>(model_->make_cache(r->recipe, {}));
        } catch (const InputError& e) {
          p.fail_at("kv_policy", e.what());
        }
        ++left;
      } catch (const InputError&) {
        r->failed = true;
        batch_.finish(r->place, std::current_exception(), 0);
      }
    }
    return left;
  }

  void grade_block(std::size_t begin, std::size_t end) {
    std::vector<Recipe> recipes;
    for (const auto& r : runs_) {
      const bool is_open =
          !r->failed && std::any_of(samples_.begin() + static_cast<std::ptrdiff_t>(begin),
                                    samples_.begin() + static_cast<std::ptrdiff_t>(end), [&](const EvalSample& s) { return !r->has(s); });
      if (is_open) recipes.push_back(r->recipe);
    }
    if (recipes.empty()) return;
    const GradeNeeds needs = needs_of(*model_, recipes);
    std::vector<GradeSample> prepared;
    for (std::size_t i = begin; i < end; ++i) {
      if (batch_.stop) throw Interrupted{};
      prepared.push_back(prepare_sample(*model_, samples_[i], setup().options, needs.needs, needs.passes));
    }
    std::vector<const GradeSample*> all;  // results may depend on the batch
    for (const GradeSample& s : prepared) all.push_back(&s);
    Recordings recorded;
    for (const GradeSample& s : prepared)
      if (replayed_.contains(s.sample->number)) recorded[s.sample->number] = record_sample(s, needs, setup());
    std::vector<GradedRun*> open;
    for (const auto& r : runs_)
      if (!r->failed && !std::all_of(prepared.begin(), prepared.end(), [&](const GradeSample& p) { return r->has(*p.sample); }))
        open.push_back(r.get());
    grade_together(open, all, recorded);
  }

  // One by one after an error, so that others go on. Interrupted between sets.
  void grade_together(std::span<GradedRun* const> runs, std::span<const GradeSample* const> samples, const Recordings& recorded) {
    const std::size_t most = model_->transformer() != nullptr ? 16 : 1;
    if (runs.empty()) return;
    if (batch_.stop) throw Interrupted{};
    if (runs.size() > most) {
      grade_together(runs.first(most), samples, recorded);
      return grade_together(runs.subspan(most), samples, recorded);
    }
    std::vector<const Recipe*> recipes;
    for (const GradedRun* r : runs) recipes.push_back(&r->recipe);
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::vector<GradedAnswer>> answers;
    std::exception_ptr error;
    try {
      answers = grade(*model_, recipes, samples, setup().options);
    } catch (...) {
      error = std::current_exception();
    }
    for (GradedRun* r : runs) r->wall_s += seconds_since(began) / static_cast<double>(runs.size());
    if (error != nullptr && runs.size() > 1) {
      for (std::size_t i = 0; i < runs.size(); ++i) grade_together(runs.subspan(i, 1), samples, recorded);
      return;
    }
    for (std::size_t i = 0; i < runs.size(); ++i)
      end_block(*runs[i], error, error == nullptr ? answers[i] : std::vector<GradedAnswer>{}, recorded);
  }

  void end_block(GradedRun& r, const std::exception_ptr& error, const std::vector<GradedAnswer>& answers, const Recordings& recorded) {
    try {
      if (error != nullptr) std::rethrow_exception(error);
      batch_.inputs.require_unchanged(batch_.experiment.runs[r.place]);  // before storing them
      add_grades(r, answers, recorded);
    } catch (...) {
      r.failed = true;
      batch_.finish(r.place, std::current_exception(), r.wall_s);
    }
  }

  void add_grades(GradedRun& r, std::span<const GradedAnswer> answers, const Recordings& recorded) const {
    for (std::size_t i = 0; i < answers.size();) {
      std::size_t end = i;
      while (end < answers.size() && answers[end].sample == answers[i].sample) ++end;
      SampleGrades sample{{answers.begin() + static_cast<std::ptrdiff_t>(i), answers.begin() + static_cast<std::ptrdiff_t>(end)}, {}, {}};
      const auto found = recorded.find(answers[i].sample);
      if (found != recorded.end() && r.recipe.runs_in("replay")) add_replay(found->second, r.recipe, setup().options.seed, sample);
      r.answers->add(sample);
      i = end;
    }
  }

  void write(GradedRun& r) const {
    const RunSpec& run = batch_.experiment.runs[r.place];
    const auto is_valid = [&] { batch_.inputs.require_unchanged(run); };
    is_valid();
    execute_prepared(r, {batch_.experiment, run, batch_.folder.runs(), r.origin, is_valid}, {});
    r.answers->remove_file();
  }

  const RunBatch& batch_;
  std::span<const EvalSample> samples_;
  std::vector<std::unique_ptr<GradedRun>> runs_;
  const EngineModel* model_ = nullptr;
  std::set<std::int32_t> replayed_;  // sample numbers
};

// `host: engine` without a trace.
class Accuracy final : public RunKind {
 public:
  using RunKind::RunKind;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) override { return read_graded(p, seed); }
  [[nodiscard]] std::set<std::string> tables() const override { return {"answers.csv"}; }
  [[nodiscard]] bool runs_engine() const override { return true; }

  bool run_together(const RunBatch& batch) override {
    std::vector<std::unique_ptr<GradedSet>> sets;
    for (const std::size_t place : batch.places) {
      try {
        Params p = batch.experiment.params(batch.experiment.runs[place]);
        read_kind(p);
        std::unique_ptr<GradedRun> run = read_graded(p, batch.experiment.runs[place].seed);
        run->place = place;
        run->origin = batch.origin_of(place);
        run->answers.emplace(batch.folder.partial_of(run->origin.input_key));
        const auto set = std::find_if(sets.begin(), sets.end(), [&](const auto& s) { return s->takes(*run); });
        if (set != sets.end())
          (*set)->add(std::move(run));
        else
          sets.push_back(std::make_unique<GradedSet>(batch, std::move(run)));
      } catch (...) {
        batch.finish(place, std::current_exception(), 0);
      }
    }
    for (const auto& set : sets) set->run();
    return true;
  }

  void report(const SweepReport& report, std::ostream& out) const override { print_accuracy(report.summary, out); }

 private:
  std::unique_ptr<GradedRun> read_graded(Params& p, std::uint64_t seed) {
    auto run = std::make_unique<GradedRun>(*this, p, seed);
    auto known = samples_.find(run->setup.text);
    if (known == samples_.end()) known = samples_.emplace(run->setup.text, read_samples(run->setup)).first;
    run->samples = known->second;
    return run;
  }

  std::map<std::string, std::vector<EvalSample>> samples_;  // by AccuracySetup::text
};

KVLAB_REGISTER(RunKind, Accuracy, "accuracy", "answers of a real model under a KV policy, graded", "");

}  // namespace

}  // namespace kvlab
