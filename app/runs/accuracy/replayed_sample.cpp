#include <algorithm>
#include <span>

#include "app/runs/accuracy/accuracy.h"
#include "app/runs/accuracy/shared_model.h"
#include "sim/replay/fidelity.h"

namespace kvlab {

namespace {

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

}  // namespace

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

}  // namespace kvlab
