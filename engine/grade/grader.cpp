#include "engine/grade/grader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "engine/grade/grading.h"
#include "engine/model/config.h"

namespace kvlab {

namespace {

void add(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& more) { to.insert(to.end(), more.begin(), more.end()); }

// In one piece.
std::vector<float> hidden_at_places(const EngineModel& model, const GradeSample& s) {
  std::vector<float> hidden;
  if (!s.places.empty() && s.places.front().position == s.prompt_tokens - 1) hidden = s.prompt.last_hidden;
  const auto rest = static_cast<std::int32_t>(s.ids.size()) - 1 - s.prompt_tokens;  // without the last
  if (rest <= 0) return hidden;
  PolicyCache::Options options;
  options.page_tokens = kGradePageTokens;
  const std::unique_ptr<PolicyCache> cache = model.make_cache(load_recipe("full"), options);
  EngineSequence sequence;
  sequence.prompt_tokens = s.prompt_tokens;
  cache->start(sequence);
  cache->adopt(sequence, s.prompt);
  sequence.prompt_tokens = static_cast<std::int32_t>(s.ids.size());  // attend like a prompt
  const std::vector<std::int32_t> positions = consecutive(s.prompt_tokens, rest);
  std::vector<std::int32_t> rows;
  for (const GradeSample::Place& p : s.places)
    if (p.position >= s.prompt_tokens) rows.push_back(p.position - s.prompt_tokens);
  const StepPiece piece{&sequence, rest};
  const std::span<const std::int32_t> ids = std::span(s.ids).subspan(place_of(s.prompt_tokens), place_of(rest));
  const std::vector<float> more = model.forward(*cache, {&piece, 1}, {ids, positions}, rows);
  hidden.insert(hidden.end(), more.begin(), more.end());
  cache->release(sequence);
  return hidden;
}

using Gradings = std::vector<std::unique_ptr<Grading>>;

// Caches that exist at a time: of all samples, or of one.
std::size_t caches_together(const EngineModel& model, std::span<const GradeSample* const> samples, bool one_sample) {
  constexpr double kMostBytes = 2e9;
  constexpr std::size_t kMost = 64;
  if (model.transformer() == nullptr) return 1;  // a GPU's memory is for one
  const ModelConfig& c = model.config();
  double tokens = 0;
  for (const GradeSample* s : samples) {
    const auto own = static_cast<double>(s->ids.size());
    tokens = one_sample ? std::max(tokens, own) : tokens + own;
  }
  const double bytes = std::max(1.0, 8.0 * tokens * c.layers * c.kv_heads * c.head_dim);
  return std::clamp<std::size_t>(static_cast<std::size_t>(kMostBytes / bytes), 1, kMost);
}

// All tokens after the prompt in one step.
void by_sample(const EngineModel& model, const Gradings& all) {
  for (std::size_t i = 0; i < all.front()->size(); ++i) {
    for (const auto& g : all) g->start(i);
    StepsTogether steps(model);
    for (const auto& g : all) steps.add(*g, {&g->run(i)}, std::max(0, g->run(i).left()));
    steps.run();
    for (const auto& g : all) g->finish(i);
  }
}

// Token by token; samples that end leave.
void by_step(const EngineModel& model, const Gradings& all) {
  const auto for_all = [&](auto&& f) {
    for (const auto& g : all)
      for (std::size_t i = 0; i < g->size(); ++i) f(*g, i);
  };
  for_all([](Grading& g, std::size_t i) { g.start(i); });
  for (bool goes_on = true; goes_on;) {
    StepsTogether steps(model);
    goes_on = false;
    for (const auto& g : all) {
      std::vector<Grading::Run*> left = g->those_left();
      goes_on |= !left.empty();
      steps.add(*g, std::move(left), 1);
    }
    steps.run();
  }
  for_all([](Grading& g, std::size_t i) { g.finish(i); });
}

constexpr int kTimes = 3;

// The fastest of three: interference would add hours.
double time_of(const auto& work) {
  double fastest = 0;
  for (int i = 0; i < kTimes; ++i) {
    const auto began = std::chrono::steady_clock::now();
    work();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    fastest = i == 0 ? seconds : std::min(fastest, seconds);
  }
  return fastest;
}

}  // namespace

GradeNeeds needs_of(const EngineModel& model, std::span<const Recipe> recipes) {
  GradeNeeds all;
  for (const Recipe& recipe : recipes) {
    const std::unique_ptr<PolicyCache> cache = model.make_cache(recipe, {});
    const Needs& needs = cache->policy().needs();
    if (!needs.pass.empty() && std::find(all.passes.begin(), all.passes.end(), needs.pass) == all.passes.end())
      all.passes.push_back(needs.pass);
    Needs rest = needs;
    rest.pass.clear();
    all.needs.add(rest);
  }
  return all;
}

bool rests_after_prompt(const Recipe& recipe) {
  return !recipe.make_trigger()->in_decode() && recipe.selector == "all" && recipe.format == "native" && recipe.disposal == "drop";
}

GradeSample prepare_sample(const EngineModel& model, const EvalSample& sample, const GradeOptions& options, const Needs& needs,
                           std::span<const std::string> passes) {
  const ModelConfig& c = model.config();
  GradeSample s;
  s.sample = &sample;
  if (sample.num_tokens() > c.max_tokens)
    throw InputError(fmt::format("sample {} (task '{}') has {} tokens, more than the {} that model '{}' takes", sample.number, sample.task,
                                 sample.num_tokens(), c.max_tokens, c.name));
  s.ids = sample.context;
  for (std::size_t t = 0; t < sample.turns.size(); ++t) {
    const EvalTurn& turn = sample.turns[t];
    const auto question_at = static_cast<std::int32_t>(s.ids.size());
    add(s.ids, turn.question);
    if (t == 0 && options.compresses_question) s.question_begin = question_at, s.prompt_tokens = static_cast<std::int32_t>(s.ids.size());
    for (std::size_t i = 0; i < turn.answer.size(); ++i)
      s.places.push_back({static_cast<std::int32_t>(s.ids.size() + i) - 1, static_cast<std::int32_t>(t)});
    add(s.ids, turn.answer);
  }
  if (!options.compresses_question) s.prompt_tokens = static_cast<std::int32_t>(sample.context.size());
  for (const std::int32_t id : s.ids) s.draws = hash_combine(s.draws, static_cast<std::uint64_t>(id));
  RecordOptions record = options.passes;
  record.hidden = needs.pass_hidden;
  record.question_begin = s.question_begin;
  s.prompt = model.run_prompt(std::span(s.ids).first(place_of(s.prompt_tokens)), needs, passes, record);
  s.full_logits = model.head(hidden_at_places(model, s));
  return s;
}

std::vector<GradedAnswer> grade(const EngineModel& model, const Recipe& recipe, std::span<const GradeSample* const> samples,
                                const GradeOptions& options) {
  const Recipe* const one = &recipe;
  return std::move(grade(model, std::span(&one, 1), samples, options)[0]);
}

std::vector<std::vector<GradedAnswer>> grade(const EngineModel& model, std::span<const Recipe* const> recipes,
                                             std::span<const GradeSample* const> samples, const GradeOptions& options) {
  std::vector<std::vector<GradedAnswer>> answers(recipes.size());
  for (const bool rests : {true, false}) {
    std::vector<std::size_t> some;
    for (std::size_t i = 0; i < recipes.size(); ++i)
      if (rests_after_prompt(*recipes[i]) == rests) some.push_back(i);
    const std::size_t most = caches_together(model, samples, rests);
    for (std::size_t begin = 0; begin < some.size(); begin += most) {
      std::vector<std::unique_ptr<Grading>> together;
      const auto places = std::span(some).subspan(begin, std::min(most, some.size() - begin));
      for (const std::size_t i : places) together.push_back(std::make_unique<Grading>(model, *recipes[i], samples, options));
      if (rests)
        by_sample(model, together);
      else
        by_step(model, together);
      for (std::size_t i = 0; i < places.size(); ++i) answers[places[i]] = together[i]->answers();
    }
  }
  return answers;
}

void GradeWork::add(const EvalSample& sample, const Recipe& recipe) {
  const ModelConfig& c = model_.config();
  const ModelWork work(c);
  const double n = sample.num_tokens(),
               prompt = static_cast<double>(sample.context.size() + (options_.compresses_question ? sample.turns[0].question.size() : 0));
  if (sample.number != last_sample_) prompt_flops_ += work.forward_flops(0, n);  // with the full cache's answers
  last_sample_ = sample.number;
  const double kept = recipe.has_budget && recipe.trigger != "never"
                          ? std::min<double>(prompt, recipe.budget.of(static_cast<std::int32_t>(prompt)))
                          : prompt;
  const double row_bytes = 8.0 * c.layers * c.kv_heads * c.head_dim;
  copied_bytes_ += prompt * row_bytes;
  if (!recipe.computes_whole_prompts()) chunk_flops_ += work.forward_flops(0, prompt);  // its own prompt run: an upper bound
  if (rests_after_prompt(recipe)) {
    chunk_flops_ += work.forward_flops(kept, kept + n - prompt);
  } else {
    decode_tokens_ += n - prompt;
    decode_kv_bytes_ += (n - prompt) * kept * row_bytes;
  }
}

double GradeWork::seconds() const {
  constexpr std::int32_t kPrompt = 256, kBatch = 8, kSteps = 4;
  const std::vector<std::int32_t> ids(kPrompt + kTimes * kSteps, 1);
  PromptTensors prompt = model_.run_prompt(std::span(ids).first(1), {}, {}, {});  // warm-up
  const double prompt_s = time_of([&] { prompt = model_.run_prompt(std::span(ids).first(kPrompt), {}, {}, {}); });
  const std::unique_ptr<PolicyCache> cache = model_.make_cache(load_recipe("full"), {});
  std::vector<EngineSequence> sequences(kBatch);
  std::vector<StepPiece> pieces;
  for (std::int32_t i = 0; i < kBatch; ++i) {
    EngineSequence& s = sequences[static_cast<std::size_t>(i)];
    s.index = i, s.prompt_tokens = kPrompt, s.ids = ids;
    cache->start(s);
    cache->adopt(s, prompt);
    pieces.push_back({&s, 1});
  }
  const std::vector<std::int32_t> last{kBatch - 1};
  std::int32_t position = kPrompt;
  const double step_s = time_of([&] {
                          for (std::int32_t t = 0; t < kSteps; ++t, ++position) {
                            const std::vector<std::int32_t> one(kBatch, 1), positions(kBatch, position);
                            static_cast<void>(model_.forward(*cache, pieces, {one, positions}, last));
                          }
                        }) /
                        kSteps;
  constexpr double kReadBytesPerS = 10e9;  // K and V, for policies that read them too
  const double flops_per_s = ModelWork(model_.config()).forward_flops(0, kPrompt) / prompt_s;
  return (prompt_flops_ + 2 * chunk_flops_) / flops_per_s + 3 * decode_tokens_ * step_s / kBatch +
         (decode_kv_bytes_ + copied_bytes_) / kReadBytesPerS;
}

std::string GradeWork::describe() const {
  const double s = seconds();
  const std::string time = s < 90     ? fmt::format("{:.0f} seconds", std::max(1.0, s))
                           : s < 5400 ? fmt::format("{:.0f} minutes", s / 60)
                                      : fmt::format("{:.1f} hours", s / 3600);
  return "about " + time + " on this machine";
}

}  // namespace kvlab
