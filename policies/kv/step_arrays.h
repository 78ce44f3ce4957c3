#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/score/protect_op.h"
#include "kernels/score/score_map_op.h"
#include "policies/kv/step.h"

// From lengths and positions only.
namespace kvlab {

template <class F>
const std::int64_t* prefix_sums(Ops& ops, std::int64_t n, F&& count) {
  std::int64_t* first = ops.host_longs(n + 1);
  first[0] = 0;
  for (std::int32_t i = 0; i < n; ++i) first[i + 1] = first[i] + count(i);
  return first;
}

template <class F>
std::int32_t* per_row(Ops& ops, std::int64_t n, F&& value) {
  std::int32_t* x = ops.host_ints(n);
  for (std::int32_t i = 0; i < n; ++i) x[i] = value(i);
  return x;
}

template <class F>
const std::int64_t* prefix_sums(const LayerStep& step, F&& count) {
  return prefix_sums(step.ops, step.kv.num_rows, count);
}

template <class F>
std::int32_t* per_row(const LayerStep& step, F&& value) {
  return per_row(step.ops, step.kv.num_rows, value);
}

// Of value() of each row.
template <class F>
std::int64_t sum_rows(const KvRows& kv, F&& value) {
  std::int64_t sum = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) sum += value(r);
  return sum;
}

// value() of each sequence.
template <class F>
std::int32_t* per_sequence(const LayerStep& step, F&& value) {
  return per_row(step.ops, std::ssize(step.seqs), [&](std::int32_t s) { return value(step.seqs[static_cast<std::size_t>(s)]); });
}

inline bool all_decode(std::span<const SeqStep> seqs) {
  return std::all_of(seqs.begin(), seqs.end(), [](const SeqStep& seq) { return seq.decoding(); });
}

inline const SeqStep& seq_of(const LayerStep& step, std::int32_t row) { return step.seqs[static_cast<std::size_t>(step.kv.sequence(row))]; }

// One past each sequence's last token.
inline const std::int32_t* end_positions(const LayerStep& step) {
  return per_sequence(step, [](const SeqStep& seq) { return seq.end(); });
}

inline void protect_ends(const LayerStep& step, const Protected& stay, float* scores, bool above_max = false) {
  const std::int32_t* begin = per_sequence(step, [&](const SeqStep&) { return stay.sinks; });
  const std::int32_t* end = per_sequence(step, [&](const SeqStep& seq) { return seq.end() - stay.recent; });
  step.ops(Protect{step.kv, begin, end, scores, false, above_max});
}

// Per sequence and layer.
inline const std::int64_t* sequence_seeds(const LayerStep& step) {
  std::int64_t* seeds = step.ops.host_longs(static_cast<std::int64_t>(step.seqs.size()));
  for (std::size_t s = 0; s < step.seqs.size(); ++s)
    seeds[s] =
        static_cast<std::int64_t>(Draw{step.seed, Purpose::kPolicy, step.seqs[s].draws, 0, static_cast<std::uint64_t>(step.layer)}.bits());
  return seeds;
}

inline Queries queries_from(const Queries& q, std::int32_t first_position, const ModelShape& model) {
  const std::int32_t skipped = std::clamp(first_position - q.first_position, 0, q.count);
  const std::int64_t values = static_cast<std::int64_t>(skipped) * model.q_heads * model.head_dim;
  return {q.data == nullptr ? nullptr : q.data + values, q.count - skipped, q.first_position + skipped};
}

inline std::vector<Queries> last_queries(std::span<const Queries> all, std::int32_t count, const ModelShape& model) {
  std::vector<Queries> last;
  for (const Queries& q : all) last.push_back(queries_from(q, q.first_position + q.count - (count < q.count ? count : q.count), model));
  return last;
}

inline void clear_scores(const LayerStep& step, float* scores, bool decode_only = false) {
  const std::int32_t* begin = per_row(step, [](std::int32_t) { return 0; });
  const std::int32_t* end = per_row(step, [&](std::int32_t r) { return decode_only && !seq_of(step, r).decoding() ? 0 : step.kv.len[r]; });
  step.ops(ScoreMap::fill(step.kv.num_rows, step.kv.first, begin, end, 0.0F, 0.0F, scores));
}

// Attention summed over queries, mean over the group.
inline void sum_attention(const LayerStep& step, const Queries* queries, float* scores) {
  clear_scores(step, scores);
  step.ops(AttentionStats{.kv = step.kv, .queries = queries, .sum = scores});
}

// Radians per position [num_sequences, head_dim / 2], for lengths after the step plus `more_tokens`. Empty without RoPE or on shapes.
inline std::vector<float> rope_frequencies(const LayerStep& step, std::int64_t more_tokens) {
  std::vector<float> all;
  if (step.model.rope.base == 0 || !step.ops.computes()) return all;
  const Rotary rotary(step.model.rope, step.model.head_dim);
  for (const SeqStep& seq : step.seqs) {
    const std::vector<float> own = rotary.frequencies(seq.end() + more_tokens);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

inline const float* or_null(const std::vector<float>& frequencies) { return frequencies.empty() ? nullptr : frequencies.data(); }

}  // namespace kvlab
