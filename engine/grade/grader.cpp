#include "engine/grade/grader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "engine/model/config.h"

namespace kvlab {

namespace {

constexpr std::int32_t kPageTokens = 64;

std::size_t place_of(std::int64_t i) { return static_cast<std::size_t>(i); }

void add(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& more) { to.insert(to.end(), more.begin(), more.end()); }

double log_sum(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float z : logits) sum += std::exp(z - most);
  return most + std::log(sum);
}

double divergence(std::span<const float> full, std::span<const float> other) {
  const double a = log_sum(full), b = log_sum(other);
  double kl = 0;
  for (std::size_t i = 0; i < full.size(); ++i) {
    const double log_p = full[i] - a;
    kl += std::exp(log_p) * (log_p - (other[i] - b));
  }
  return std::max(kl, 0.0);
}

std::int32_t best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct Run {
  const GradeSample* sample = nullptr;
  EngineSequence sequence;
  std::size_t next_place = 0;
  std::vector<GradedAnswer> answers;
  double held_bytes = 0;  // on the GPU
  double resident = 0;    // sum of held bytes over the full cache's
  std::int32_t resident_steps = 0;

  [[nodiscard]] std::int32_t left() const { return static_cast<std::int32_t>(sample->ids.size()) - 1 - sequence.seen_tokens; }
};

class Grading {
 public:
  Grading(const EngineModel& model, const Recipe& recipe, std::span<const GradeSample* const> samples, const GradeOptions& options)
      : model_(model), recipe_(recipe), options_(options), cache_(model.make_cache(recipe, cache_options(model, options))) {
    runs_.resize(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) start(runs_[i], *samples[i], static_cast<std::int32_t>(i));
  }

  std::vector<GradedAnswer> run() {
    std::vector<GradedAnswer> answers;
    if (rests_after_prompt(recipe_)) {
      for (Run* r : those_left()) step({r}, r->left());
    } else {
      for (std::vector<Run*> going = those_left(); !going.empty(); going = those_left()) step(going, 1);
    }
    for (Run& r : runs_) {
      for (GradedAnswer& a : r.answers) {
        a.resident_bytes_frac = resident_frac(r);
        answers.push_back(a);
      }
      cache_->release(r.sequence);
    }
    return answers;
  }

 private:
  static PolicyCache::Options cache_options(const EngineModel& model, const GradeOptions& options) {
    PolicyCache::Options o;
    o.kv_bytes = static_cast<std::int32_t>(element_bytes(model.kv_type()));
    o.seed = options.seed;
    o.passes = options.passes;
    o.page_tokens = kPageTokens;
    o.packs = o.tiers = true;
    return o;
  }

  void start(Run& r, const GradeSample& sample, std::int32_t index) {
    r.sample = &sample;
    for (std::size_t t = 0; t < sample.sample->turns.size(); ++t) {
      const EvalTurn& turn = sample.sample->turns[t];
      GradedAnswer a;
      a.sample = sample.sample->number, a.turn = static_cast<std::int32_t>(t);
      a.tokens = static_cast<std::int32_t>(turn.answer.size()), a.bytes = turn.answer_bytes;
      r.answers.push_back(a);
    }
    r.sequence.index = index;
    r.sequence.draws = sample.draws;
    r.sequence.prompt_tokens = sample.prompt_tokens;
    r.sequence.question_begin = sample.question_begin;
    r.sequence.ids = sample.ids;
    cache_->start(r.sequence);
    const bool in_chunks = options_.chunk_tokens > 0 && recipe_.make_trigger()->inside_prefill();
    if (in_chunks || !recipe_.computes_whole_prompts()) {
      const std::int32_t chunk = options_.chunk_tokens > 0 ? options_.chunk_tokens : sample.prompt_tokens;
      while (r.sequence.seen_tokens < sample.prompt_tokens) step({&r}, std::min(chunk, sample.prompt_tokens - r.sequence.seen_tokens));
      return;
    }
    cache_->adopt(r.sequence, sample.prompt);
    r.held_bytes = held_bytes(r);
    const std::size_t places = places_before(r, sample.prompt_tokens);
    grade_hidden(r, places, sample.prompt.last_hidden);
  }

  std::vector<Run*> those_left() {
    std::vector<Run*> left;
    for (Run& r : runs_)
      if (r.left() > 0) left.push_back(&r);
    return left;
  }

  void step(const std::vector<Run*>& runs, std::int32_t tokens) {
    std::vector<StepPiece> pieces;
    std::vector<std::int32_t> ids, positions;
    for (Run* r : runs) {
      const std::int32_t seen = r->sequence.seen_tokens;
      pieces.push_back({&r->sequence, tokens});
      for (std::int32_t i = 0; i < tokens; ++i) positions.push_back(seen + i), ids.push_back(r->sample->ids[place_of(seen + i)]);
    }
    std::vector<std::int32_t> rows;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Run& r = *runs[i];
      const std::int32_t first = r.sequence.seen_tokens;
      places.push_back(places_before(r, first + tokens));
      for (std::size_t p = r.next_place; p < places.back(); ++p)
        rows.push_back(static_cast<std::int32_t>(i) * tokens + r.sample->places[p].position - first);
    }
    const std::vector<float> hidden = model_.forward(*cache_, pieces, {ids, positions}, rows);
    std::span<const float> left = hidden;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      Run& r = *runs[i];
      const std::size_t own = (places[i] - r.next_place) * place_of(model_.config().hidden_dim);
      count_resident(r, tokens);
      grade_hidden(r, places[i], left.first(own));
      left = left.subspan(own);
    }
  }

  [[nodiscard]] double full_bytes(std::int32_t tokens) const {
    const ModelShape& m = cache_->shape();
    return 2.0 * tokens * m.num_layers * m.kv_heads * m.head_dim * m.kv_bytes;
  }
  double held_bytes(Run& r) { return static_cast<double>(cache_->resident(r.sequence).gpu); }

  // The prompt's share if no token follows.
  [[nodiscard]] double resident_frac(const Run& r) const {
    return r.resident_steps > 0 ? r.resident / r.resident_steps : r.held_bytes / full_bytes(r.sample->prompt_tokens);
  }

  // A piece counts as single tokens.
  void count_resident(Run& r, std::int32_t tokens) {
    const std::int32_t end = r.sequence.seen_tokens;
    if (end < r.sample->prompt_tokens) return;
    const double before = r.held_bytes, after = held_bytes(r);
    r.held_bytes = after;
    if (end == r.sample->prompt_tokens) return;
    for (std::int32_t i = 1; i <= tokens; ++i) r.resident += (before + (after - before) * i / tokens) / full_bytes(end - tokens + i);
    r.resident_steps += tokens;
  }

  // First ungraded place not before `position`.
  static std::size_t places_before(const Run& r, std::int32_t position) {
    std::size_t at = r.next_place;
    while (at < r.sample->places.size() && r.sample->places[at].position < position) ++at;
    return at;
  }

  // [n, hidden_dim], places up to `end`.
  void grade_hidden(Run& r, std::size_t end, std::span<const float> hidden) {
    const std::size_t begin = std::exchange(r.next_place, end);
    if (begin == end) return;
    const std::vector<float> logits = model_.head(hidden);
    const auto vocab = place_of(model_.config().vocab_size);
    for (std::size_t i = begin; i < end; ++i)
      grade_token(r, i, std::span(logits).subspan((i - begin) * vocab, vocab), std::span(r.sample->full_logits).subspan(i * vocab, vocab));
  }

  static void grade_token(Run& r, std::size_t place, std::span<const float> logits, std::span<const float> full) {
    const auto [position, turn] = r.sample->places[place];
    GradedAnswer& a = r.answers[place_of(turn)];
    std::size_t first = place;
    while (first > 0 && r.sample->places[first - 1].turn == turn) --first;
    const auto token = static_cast<std::int32_t>(place - first);
    const std::int32_t truth = r.sample->ids[place_of(position + 1)], chosen = best(logits);
    if (chosen != truth && a.first_wrong < 0) a.first_wrong = token;
    if (best(full) != truth) a.is_full_exact = false;
    if (chosen == best(full))
      ++a.agreeing;
    else if (a.first_diverging < 0)
      a.first_diverging = token;
    a.bits += (log_sum(logits) - logits[place_of(truth)]) / std::log(2.0);
    a.kl_nats += divergence(full, logits);
  }

  const EngineModel& model_;
  const Recipe& recipe_;
  const GradeOptions& options_;
  std::unique_ptr<PolicyCache> cache_;
  std::vector<Run> runs_;
};

// In one piece.
std::vector<float> hidden_at_places(const EngineModel& model, const GradeSample& s) {
  std::vector<float> hidden;
  if (!s.places.empty() && s.places.front().position == s.prompt_tokens - 1) hidden = s.prompt.last_hidden;
  const auto rest = static_cast<std::int32_t>(s.ids.size()) - 1 - s.prompt_tokens;  // without the last
  if (rest <= 0) return hidden;
  PolicyCache::Options options;
  options.page_tokens = kPageTokens;
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
  return Grading(model, recipe, samples, options).run();
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
