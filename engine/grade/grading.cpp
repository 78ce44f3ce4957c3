#include "engine/grade/grading.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/ceil_div.h"
#include "engine/model/config.h"

namespace kvlab {

namespace {

constexpr std::size_t kTokensTogether = 512;  // activations stay near

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

void grade_token(Grading::Run& r, std::size_t place, std::span<const float> logits, std::span<const float> full) {
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

Grading::Run run_of(const GradeSample& sample, std::int32_t index) {
  Grading::Run r;
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
  return r;
}

}  // namespace

Grading::Grading(const EngineModel& model, const Recipe& recipe, std::span<const GradeSample* const> samples, const GradeOptions& options)
    : model_(model), recipe_(recipe), options_(options) {
  for (std::size_t i = 0; i < samples.size(); ++i) runs_.push_back(run_of(*samples[i], static_cast<std::int32_t>(i)));
  cache_ = model.make_cache(recipe, cache_options());
}

PolicyCache::Options Grading::cache_options() const {
  PolicyCache::Options o;
  o.kv_bytes = static_cast<std::int32_t>(element_bytes(model_.kv_type()));
  o.seed = options_.seed;
  o.passes = options_.passes;
  o.page_tokens = kGradePageTokens;
  o.packs = o.tiers = true;
  return o;
}

void Grading::start(std::size_t i) {
  Run& r = runs_[i];
  const GradeSample& sample = *r.sample;
  cache_->start(r.sequence);
  const bool in_chunks = options_.chunk_tokens > 0 && recipe_.make_trigger()->inside_prefill();
  if (in_chunks || !recipe_.computes_whole_prompts()) return prefill(r);
  cache_->adopt(r.sequence, sample.prompt);
  r.held_bytes = held_bytes(r);
  const std::size_t places = places_before(r, sample.prompt_tokens);
  grade_hidden(r, places, sample.prompt.last_hidden);
}

void Grading::prefill(Run& r) {
  const std::int32_t end = r.sample->prompt_tokens, chunk = options_.chunk_tokens > 0 ? options_.chunk_tokens : end;
  while (r.sequence.seen_tokens < end) {
    const Step step = step_of({&r}, std::min(chunk, end - r.sequence.seen_tokens));
    take(step, model_.forward(of_cache(step)));
  }
}

void Grading::finish(std::size_t i) {
  Run& r = runs_[i];
  const double of_prompt = r.held_bytes / full_bytes(r.sample->prompt_tokens);  // if no token follows
  for (GradedAnswer& a : r.answers) a.resident_bytes_frac = r.resident_steps > 0 ? r.resident / r.resident_steps : of_prompt;
  cache_->release(r.sequence);
}

std::vector<Grading::Run*> Grading::those_left() {
  std::vector<Run*> left;
  for (Run& r : runs_)
    if (r.left() > 0) left.push_back(&r);
  return left;
}

Grading::Step Grading::step_of(std::vector<Run*> runs, std::int32_t tokens) {
  Step s;
  s.tokens = tokens;
  for (Run* const r : runs) {
    const std::int32_t first = r->sequence.seen_tokens, before = static_cast<std::int32_t>(s.ids.size());
    s.pieces.push_back({&r->sequence, tokens});
    for (std::int32_t i = 0; i < tokens; ++i) s.positions.push_back(first + i), s.ids.push_back(r->sample->ids[place_of(first + i)]);
    s.places.push_back(places_before(*r, first + tokens));
    for (std::size_t p = r->next_place; p < s.places.back(); ++p) s.rows.push_back(before + r->sample->places[p].position - first);
  }
  s.runs = std::move(runs);
  return s;
}

void Grading::take(const Step& step, std::span<const float> hidden) {
  for (std::size_t i = 0; i < step.runs.size(); ++i) {
    Run& r = *step.runs[i];
    const std::size_t own = (step.places[i] - r.next_place) * place_of(model_.config().hidden_dim);
    count_resident(r, step.tokens);
    grade_hidden(r, step.places[i], hidden.first(own));
    hidden = hidden.subspan(own);
  }
}

std::vector<GradedAnswer> Grading::answers() const {
  std::vector<GradedAnswer> all;
  for (const Run& r : runs_) all.insert(all.end(), r.answers.begin(), r.answers.end());
  return all;
}

double Grading::full_bytes(std::int32_t tokens) const {
  const ModelShape& m = cache_->shape();
  return 2.0 * tokens * m.num_layers * m.kv_heads * m.head_dim * m.kv_bytes;
}

// A piece counts as single tokens.
void Grading::count_resident(Run& r, std::int32_t tokens) {
  const std::int32_t end = r.sequence.seen_tokens;
  if (end < r.sample->prompt_tokens) return;
  const double before = r.held_bytes, after = held_bytes(r);
  r.held_bytes = after;
  if (end == r.sample->prompt_tokens) return;
  for (std::int32_t i = 1; i <= tokens; ++i) r.resident += (before + (after - before) * i / tokens) / full_bytes(end - tokens + i);
  r.resident_steps += tokens;
}

// First ungraded place not before `position`.
std::size_t Grading::places_before(const Run& r, std::int32_t position) {
  std::size_t at = r.next_place;
  while (at < r.sample->places.size() && r.sample->places[at].position < position) ++at;
  return at;
}

// [n, hidden_dim], places up to `end`.
void Grading::grade_hidden(Run& r, std::size_t end, std::span<const float> hidden) {
  const std::size_t begin = std::exchange(r.next_place, end);
  if (begin == end) return;
  const std::vector<float> logits = model_.head(hidden);
  const auto vocab = place_of(model_.config().vocab_size);
  for (std::size_t i = begin; i < end; ++i)
    grade_token(r, i, std::span(logits).subspan((i - begin) * vocab, vocab), std::span(r.sample->full_logits).subspan(i * vocab, vocab));
}

void StepsTogether::add(Grading& grading, std::vector<Grading::Run*> runs, std::int32_t tokens) {
  const std::size_t more = runs.size() * place_of(tokens);
  if (more == 0) return;
  if (tokens_ + more > kTokensTogether) run();
  steps_.emplace_back(&grading, Grading::step_of(std::move(runs), tokens));
  tokens_ += more;
}

void StepsTogether::run() {
  std::vector<CacheStep> all;
  for (auto& [grading, step] : steps_) all.push_back(grading->of_cache(step));
  const std::vector<std::vector<float>> hidden = model_.forward_together(all);
  for (std::size_t i = 0; i < steps_.size(); ++i) steps_[i].first->take(steps_[i].second, hidden[i]);
  steps_.clear();
  tokens_ = 0;
}

}  // namespace kvlab
