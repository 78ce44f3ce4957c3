#include "app/runs/accuracy/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "app/runs/accuracy/served_model.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/sweep/score_interval.h"
#include "base/csv.h"
#include "base/read_file.h"
#include "base/text.h"
#include "sim/replay/replay.h"

namespace kvlab {

namespace {

std::string fraction(double x) { return fmt::format("{:.6f}", x); }

std::int32_t prompt_tokens(const EvalSample& s, const GradeOptions& options) {
  return static_cast<std::int32_t>(s.context.size() + (options.compresses_question ? s.turns[0].question.size() : 0));
}

std::int32_t budget_tokens(const Recipe& recipe, const EvalSample& s, const GradeOptions& options) {
  const std::int32_t prompt = prompt_tokens(s, options);
  if (!recipe.has_budget) return prompt;
  return recipe.budget.tokens > 0 ? recipe.budget.tokens : std::min(prompt, recipe.budget.of(prompt));
}

// One task and length.
struct Cell {
  std::string task;
  std::int32_t length = 0;
  double answers = 0, exact = 0, full_exact = 0, lost = 0, won = 0;
  double tokens = 0, bytes = 0, bits_of_bytes = 0, kl = 0, agreeing = 0, resident = 0, budget = 0, prefix = 0;
  Fidelity fidelity;
  double replayed = 0;              // samples
  double looked_up = 0, found = 0;  // answers

  void add(const GradedAnswer& a) {
    ++answers;
    exact += a.is_exact() ? 1 : 0;
    full_exact += a.is_full_exact ? 1 : 0;
    lost += a.is_full_exact && !a.is_exact() ? 1 : 0;
    won += !a.is_full_exact && a.is_exact() ? 1 : 0;
    tokens += a.tokens, bytes += a.bytes, bits_of_bytes += a.bytes > 0 ? a.bits : 0, kl += a.kl_nats, agreeing += a.agreeing,
        resident += a.resident_bytes_frac;
    prefix += static_cast<double>(a.first_diverging < 0 ? a.tokens : a.first_diverging) / a.tokens;
  }
  void add(const Fidelity& f, std::span<const std::optional<bool>> answers_found) {
    fidelity += f, ++replayed;
    for (const std::optional<bool>& a : answers_found) looked_up += a.has_value() ? 1 : 0, found += a.value_or(false) ? 1 : 0;
  }
  [[nodiscard]] std::string fidelity_of(double Fidelity::*part) const {
    return replayed == 0 ? "" : fmt::format("{:.6g}", fidelity.*part / replayed);
  }
};

Fields fields_of(const Cell& c, const Recipe& recipe) {
  const auto [low, high] = wilson_interval(c.exact, c.answers);
  const PairedAnswers paired{c.exact - c.won, c.won, c.lost, c.answers - c.exact - c.lost};
  const auto [paired_low, paired_high] = paired_interval(paired);
  const double half_width = std::max(paired.difference() - paired_low, paired_high - paired.difference());
  return {{"recipe", recipe.name},
          {"budget_tokens", fmt::format("{:.0f}", c.budget / c.answers)},
          {"task", c.task},
          {"length", std::to_string(c.length)},
          {"num_answers", fmt::format("{:.0f}", c.answers)},
          {"exact_match_frac", fraction(c.exact / c.answers)},
          {"kl_to_full", fmt::format("{:.6g}", c.kl / c.tokens)},
          {"bits_per_byte", c.bytes > 0 ? fmt::format("{:.6g}", c.bits_of_bytes / c.bytes) : ""},
          {"resident_bytes_frac", fraction(c.resident / c.answers)},
          {"exact_match_lo", fraction(low)},
          {"exact_match_hi", fraction(high)},
          {"full_exact_match_frac", fraction(c.full_exact / c.answers)},
          {"lost_answers", fmt::format("{:.0f}", c.lost)},
          {"won_answers", fmt::format("{:.0f}", c.won)},
          {"paired_half_width", fraction(half_width)},
          {"paired_lo", fraction(paired_low)},
          {"paired_hi", fraction(paired_high)},
          {"token_agreement_frac", fraction(c.agreeing / c.tokens)},
          {"agreeing_prefix_frac", fraction(c.prefix / c.answers)},
          {"attention_mass", c.fidelity_of(&Fidelity::attention_mass)},
          {"output_rel_err", c.fidelity_of(&Fidelity::output_rel_err)},
          {"topk_recall", c.fidelity_of(&Fidelity::topk_recall)},
          {"replay_kl_nats", c.fidelity_of(&Fidelity::kl)},
          {"far_mass_kept", c.replayed > 0 ? fmt::format("{:.6g}", c.fidelity.far_share()) : ""},
          {"needle_mass_kept", c.replayed > 0 ? fmt::format("{:.6g}", c.fidelity.needle_mass_share()) : ""},
          {"needle_found_frac", c.looked_up > 0 ? fraction(c.found / c.looked_up) : ""},
          {"family", family_of(recipe)}};
}

// Ranges of an answer in the prompt.
ReplayedSample::Spans needles_of(const GradeSample& s, const EvalTurn& turn) {
  constexpr std::size_t kFewest = 3;  // shorter answers match by chance
  ReplayedSample::Spans spans;
  const auto begin = s.ids.begin(), end = begin + s.prompt_tokens;
  std::span<const std::int32_t> needle = turn.answer;
  // If the prompt lacks the whole answer, its last token is an end marker.
  if (std::search(begin, end, needle.begin(), needle.end()) == end) needle = needle.first(needle.size() - 1);
  if (needle.size() < kFewest) return spans;
  for (auto at = std::search(begin, end, needle.begin(), needle.end()); at != end;
       at = std::search(at + 1, end, needle.begin(), needle.end()))
    spans.emplace_back(static_cast<std::int32_t>(at - begin), static_cast<std::int32_t>(at - begin + std::ssize(needle)));
  return spans;
}

// Steps that choose an answer's tokens. The prompt's last token may choose the first.
std::pair<std::int32_t, std::int32_t> steps_of(const GradeSample& s, std::int32_t turn) {
  std::int32_t begin = 0, end = 0;
  for (const GradeSample::Place& place : s.places) {
    const std::int32_t step = place.position - s.prompt_tokens;
    if (place.turn != turn || step < 0) continue;
    if (end == 0) begin = step;
    end = step + 1;
  }
  return {begin, end};
}

// Number, count of answers, answers, replay results (found: 1, 0, or -1 for none), "end".
std::string line_of(const SampleGrades& sample) {
  std::string line = fmt::format("{} {}", sample.answers.front().sample, sample.answers.size());
  for (const GradedAnswer& a : sample.answers)
    line += fmt::format(" {} {} {} {} {} {} {} {:.17g} {:.17g} {:.17g}", a.turn, a.tokens, a.bytes, a.first_wrong, a.first_diverging,
                        a.agreeing, a.is_full_exact ? 1 : 0, a.bits, a.kl_nats, a.resident_bytes_frac);
  if (const auto& f = sample.replayed) {
    line += fmt::format(" replayed {:.17g} {:.17g} {:.17g} {:.17g} {:.17g} {:.17g} {:.17g} {:.17g}", f->attention_mass, f->output_rel_err,
                        f->topk_recall, f->kl, f->far_mass, f->far_mass_kept, f->needle_mass, f->needle_mass_kept);
    for (const std::optional<bool>& found : sample.found) line += fmt::format(" {}", found ? static_cast<int>(*found) : -1);
  }
  return line + " end\n";
}

// Empty answers: truncated or invalid.
SampleGrades read_line(const std::string& line) {
  std::istringstream in(line);
  std::int32_t number = 0, count = 0;
  if (!(in >> number >> count)) return {};
  SampleGrades sample;
  for (std::int32_t i = 0; i < count; ++i) {
    GradedAnswer a;
    a.sample = number;
    if (!(in >> a.turn >> a.tokens >> a.bytes >> a.first_wrong >> a.first_diverging >> a.agreeing >> a.is_full_exact >> a.bits >>
          a.kl_nats >> a.resident_bytes_frac))
      return {};
    sample.answers.push_back(a);
  }
  std::string word;
  if (!(in >> word)) return {};
  if (word == "replayed") {
    Fidelity f;
    if (!(in >> f.attention_mass >> f.output_rel_err >> f.topk_recall >> f.kl >> f.far_mass >> f.far_mass_kept >> f.needle_mass >>
          f.needle_mass_kept))
      return {};
    for (std::int32_t i = 0, found = 0; i < count; ++i) {
      if (!(in >> found)) return {};
      sample.found.push_back(found < 0 ? std::nullopt : std::optional<bool>(found == 1));
    }
    sample.replayed = f;
    if (!(in >> word)) return {};
  }
  return word == "end" ? sample : SampleGrades{};
}

}  // namespace

AccuracySetup read_accuracy(Params& p, std::uint64_t seed) {
  AccuracySetup a;
  a.text = fmt::format("{}\n{}\n{}\n{}\n{}", p.inline_text("model", ""), p.inline_text("eval", ""), p.inline_text("question", ""),
                       p.inline_text("chunk_tokens", ""), p.inline_text("backend", "cpu") + p.inline_text("replay", ""));
  std::error_code error;
  const std::string model = p.text("model", "model folder in Hugging Face layout: config.json, safetensors, tokenizer.json");
  a.model = read_model_folder(p, model);
  if (!std::filesystem::is_directory(a.model, error)) p.fail_at("model", fmt::format("'model': no folder '{}'", a.model));
  a.backend = read_backend(p);
  check_backend(p, a.backend);
  Params eval = p.child_or_text("eval", "file", "eval");
  a.eval_file = eval.resolve_file(eval.text("file", "samples: JSON lines of {task, length, prompt, turns: [{question, answer}]}"));
  if (!std::filesystem::exists(a.eval_file, error)) eval.fail_at("file", open_error(a.eval_file));
  if (eval.has("tasks")) a.choice.tasks = eval.words("tasks", "tasks to take; absent: all");
  if (eval.has("lengths"))
    for (const double n : eval.numbers("lengths", 0, 1 << 28, "lengths to take; absent: all")) {
      if (n != std::floor(n)) eval.fail_at("lengths", "'lengths': not a whole number: '" + number_text(n) + "'");
      a.choice.lengths.push_back(static_cast<std::int32_t>(n));
    }
  a.choice.per_task = eval.optional<std::int32_t>("per_task", 0, 0, 1 << 20, "the first so many samples of each task and length; 0: all");
  eval.reject_unread();
  a.options.compresses_question =
      p.choice("question", {"compressed", "decoded"}, 0,
               "is the first question part of the prompt that is compressed, or does it come after, unknown to the policy") == 0;
  a.options.chunk_tokens =
      p.optional<std::int32_t>("chunk_tokens", 0, 0, 1 << 28, "prefill in such chunks for policies that act inside it; 0: in one piece");
  a.options.seed = seed;
  Params replay = p.optional_child("replay", "replay");
  a.replay_per_task = replay.optional<std::int32_t>("per_task", p.has("replay") ? 1 : 0, 0, 1 << 20,
                                                    "replay the first so many samples of each task and length, too; 0: none");
  a.replay_steps = replay.optional<std::int32_t>("steps", 64, 1, 1 << 20, "tokens behind the prompt that are replayed, at most");
  replay.reject_unread();
  return a;
}

std::string answers_header() {
  return "run,recipe,budget_tokens,task,length,sample,turn,exact,neg_log2,answer_bytes,answer_tokens,first_wrong,first_diverging,"
         "kl_nats,full_exact,resident_bytes_frac,needle_found\n";
}

std::string answer_row(const std::string& run_id, const Recipe& recipe, const EvalSample& sample, const GradeOptions& options,
                       const SampleGrades& grades, std::size_t answer) {
  const GradedAnswer& a = grades.answers[answer];
  const std::optional<bool> found = grades.found.empty() ? std::nullopt : grades.found[answer];
  return fmt::format("{},{},{},{},{},{},{},{},{:.6f},{},{},{},{},{:.6g},{},{:.6f},{}\n", run_id, recipe.name,
                     budget_tokens(recipe, sample, options), csv_field(sample.task), sample.length, a.sample, a.turn, a.is_exact() ? 1 : 0,
                     a.bits, a.bytes, a.tokens, a.first_wrong, a.first_diverging, a.kl_nats, a.is_full_exact ? 1 : 0, a.resident_bytes_frac,
                     found ? (*found ? "1" : "0") : "");
}

std::string remark_on_prompts(const KvPolicy& policy, std::span<const EvalSample> samples, const GradeOptions& options) {
  const auto over =
      std::count_if(samples.begin(), samples.end(), [&](const EvalSample& s) { return policy.exceeds_budget(prompt_tokens(s, options)); });
  return remark_on_budget(static_cast<std::uint64_t>(over), samples.size(), "samples");
}

std::vector<Fields> accuracy_rows(const Recipe& recipe, std::span<const EvalSample> samples, std::span<const SampleGrades* const> grades,
                                  const GradeOptions& options) {
  std::vector<Cell> cells;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const EvalSample& s = samples[i];
    auto cell = std::find_if(cells.begin(), cells.end(), [&](const Cell& c) { return c.task == s.task && c.length == s.length; });
    if (cell == cells.end()) {
      cell = cells.emplace(cells.end());
      cell->task = s.task, cell->length = s.length;
    }
    for (const GradedAnswer& a : grades[i]->answers) {
      cell->add(a);
      cell->budget += budget_tokens(recipe, s, options);
    }
    if (grades[i]->replayed) cell->add(*grades[i]->replayed, grades[i]->found);
  }
  std::vector<Fields> rows;
  for (const Cell& c : cells) rows.push_back(fields_of(c, recipe));
  return rows;
}

ReplayedSample record_sample(const GradeSample& s, const GradeNeeds& needs, const AccuracySetup& setup) {
  RecordOptions options = setup.options.passes;
  options.pre_rope = needs.needs.pre_rope_queries || needs.needs.pre_rope_keys;
  options.hidden = needs.needs.hidden || needs.needs.pass_hidden || needs.needs.guessed_query;
  options.w_q = needs.needs.guessed_query;
  options.w_o = needs.needs.output_weights;
  options.passes = needs.passes;
  options.chunk_tokens = setup.options.chunk_tokens;
  const std::span<const std::int32_t> rest = std::span(s.ids).subspan(static_cast<std::size_t>(s.prompt_tokens));
  const std::size_t steps = std::min(rest.size(), static_cast<std::size_t>(setup.replay_steps));
  options.continuation.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(steps));
  ReplayedSample recorded;
  recorded.draws = s.draws;
  AttentionTrace& trace = recorded.sample.trace;
  trace = record(*shared_model(setup.model).transformer(), std::span(s.ids).first(static_cast<std::size_t>(s.prompt_tokens)), options);
  trace.question_begin = s.question_begin;
  for (std::size_t turn = 0; turn < s.sample->turns.size(); ++turn) {
    const ReplayedSample::Spans needles = needles_of(s, s.sample->turns[turn]);
    trace.needles.insert(trace.needles.end(), needles.begin(), needles.end());
    const auto span = steps_of(s, static_cast<std::int32_t>(turn));
    const bool is_there = !needles.empty() && span.second <= static_cast<std::int32_t>(steps);
    recorded.answer_steps.push_back(is_there ? span : std::pair<std::int32_t, std::int32_t>());
  }
  recorded.sample.reference = full_attention(trace);
  return recorded;
}

void add_replay(const ReplayedSample& recorded, const Recipe& recipe, std::uint64_t seed, SampleGrades& grades) {
  ReplayOptions options;
  options.seed = seed;
  options.draws = recorded.draws;
  const ReplayResult result = replay(recorded.sample.trace, recorded.sample.reference, recipe, options);
  grades.replayed = result.mean;
  for (const auto& [begin, end] : recorded.answer_steps) {
    const std::span<const Fidelity> steps(result.by_step.data() + begin, static_cast<std::size_t>(end - begin));
    grades.found.push_back(steps.empty() ? std::nullopt : std::optional<bool>(finds_needles(steps)));
  }
}

PartialAnswers::PartialAnswers(std::filesystem::path file) : file_(std::move(file)) {
  std::ifstream stream(file_);
  for (std::string line; std::getline(stream, line);) {
    is_cut_off_ = stream.eof();
    SampleGrades sample = read_line(line);
    if (!sample.answers.empty()) by_sample_[sample.answers.front().sample] = std::move(sample);
  }
}

void PartialAnswers::add(const SampleGrades& sample) {
  by_sample_[sample.answers.front().sample] = sample;
  std::filesystem::create_directories(file_.parent_path());
  errno = 0;
  std::ofstream stream(file_, std::ios::app);
  if (std::exchange(is_cut_off_, false)) stream << '\n';
  stream << line_of(sample) << std::flush;
  if (!stream) throw std::runtime_error(file_.string() + ": cannot be written: " + std::strerror(errno));
}

void PartialAnswers::remove_file() const {
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
  std::filesystem::remove(file_.parent_path(), ignored);  // succeeds if empty
}

}  // namespace kvlab
