#pragma once

#include <cmath>

#include "kernels/rows/team.h"
#include "kernels/select/mark_blocks/mark_blocks.h"

// Bodies of MarkBlocks for a team (kernels/rows/team.h) with
//   mark(words, i): sets bit i; threads may share words
//   dot(x, y, n): one thread's product
//   soften(row, n): row = softmax(row)
//   best(n, k, score, f): f(i) for the k largest score(i), ties to the lower index, in any order
//   best_while(n, score, start, more, f): as best, while more(`start` + earlier scores, score(i)), which stays false after the first false.
//   Returns the
//     number taken.
//   falling_sum(n, score): sum of score(i) in double
namespace kvlab::mark_blocks {

struct Room {
  float* at;
  KVLAB_BOTH float* floats(std::int64_t n) {
    float* const begin = at;
    at += n;
    return begin;
  }
};

template <class Team>
KVLAB_BODY void fill(const Team& team, float* x, std::int64_t n, float value) {
  team.each(n, [&](std::int64_t i) { x[i] = value; });
}

KVLAB_BODY inline std::int32_t* words_of(const MarkBlocks& a, std::int64_t head, std::int64_t query_block) {
  return a.marks + (head * a.prompt.num_query_blocks() + query_block) * a.prompt.mark_words();
}

KVLAB_BODY inline float score_scale(const PromptBlocks& p) { return 1.0F / std::sqrt(static_cast<float>(p.head_dim)); }

// Means [blocks, head_dim] of x [tokens, heads, head_dim]; block 0 holds position `first_position`.
template <class Team>
KVLAB_BODY float* block_means(const Team& team, const PromptBlocks& p, const float* x, std::int64_t tokens, std::int64_t heads,
                              std::int64_t head, std::int64_t first_position, Room& room) {
  const std::int64_t d = p.head_dim, first = first_position / p.block, blocks = query_blocks(tokens, first_position, p.block);
  float* const means = room.floats(blocks * d);
  team.each(blocks * d, [&](std::int64_t at) {
    const std::int64_t b = first + at / d, c = at % d, from = b * p.block - first_position, to = from + p.block;
    const std::int64_t begin = from < 0 ? 0 : from, end = to < tokens ? to : tokens;
    float sum = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += x[(i * heads + head) * d + c];
    means[at] = sum / static_cast<float>(end - begin);
  });
  return means;
}

struct BlockMeans {
  const float *q, *k;
};

template <class Team>
KVLAB_BODY BlockMeans means_of(const Team& team, const PromptBlocks& p, std::int64_t head, Room& room) {
  const float* const q = block_means(team, p, p.q, p.new_tokens, p.q_heads, head, p.kv_before, room);
  return {q, block_means(team, p, p.k, p.end(), p.kv_heads, head / p.group(), 0, room)};
}

// The chunk's last w queries.
struct WindowSums {
  float *columns, *diagonals;  // [end]
};

template <class Team>
KVLAB_BODY WindowSums window_sums(const Team& team, const PromptBlocks& p, std::int64_t w, std::int64_t head, Room& room) {
  const std::int64_t n = p.end();
  const float scale = score_scale(p);
  const WindowSums sums{room.floats(n), room.floats(n)};
  float* const row = room.floats(n);
  fill(team, sums.columns, n, 0.0F);
  fill(team, sums.diagonals, n, 0.0F);
  for (std::int64_t i = p.new_tokens - w; i < p.new_tokens; ++i) {
    const std::int64_t visible = p.kv_before + i + 1;
    team.each(visible, [&](std::int64_t j) { row[j] = scale * team.dot(p.query(i, head), p.key(j, head), p.head_dim); });
    team.soften(row, visible);
    team.each(visible, [&](std::int64_t j) {
      sums.columns[j] += row[j];
      sums.diagonals[visible - 1 - j] += row[j];
    });
  }
  return sums;
}

template <class Team>
KVLAB_BODY void mark_local(const Team& team, const MarkBlocks& a, std::int64_t head) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t sinks = ceil_div(a.first[head], p.block), recent = ceil_div(a.second[head], p.block);
  for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
    const std::int64_t own = p.first_block() + b;
    team.each(own + 1, [&](std::int64_t j) {
      if (j < sinks || own - j <= recent) team.mark(words_of(a, head, b), j);
    });
  }
}

template <class Team>
KVLAB_BODY void mark_pooled(const Team& team, const MarkBlocks& a, std::int64_t head, Room room) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t d = p.head_dim;
  const BlockMeans means = means_of(team, p, head, room);
  float* const products = room.floats(p.num_key_blocks());
  for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
    const std::int64_t own = p.first_block() + b;
    team.each(own, [&](std::int64_t j) { products[j] = team.dot(means.q + b * d, means.k + j * d, d); });
    std::int32_t* const words = words_of(a, head, b);
    team.best(
        own, a.first[head] - 1, [&](std::int64_t j) { return products[j]; }, [&](std::int64_t j) { team.mark(words, j); });
    team.once([&] { team.mark(words, own); });
  }
}

template <class Team>
KVLAB_BODY void mark_diagonal(const Team& team, const MarkBlocks& a, std::int64_t head, std::int64_t distance) {
  const PromptBlocks& p = a.prompt;
  for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
    const std::int64_t from = (p.first_block() + b) * p.block, to = from + p.block;
    const std::int64_t begin = from < p.kv_before ? p.kv_before : from, last = (to < p.end() ? to : p.end()) - 1;
    if (last < distance) continue;
    const std::int64_t first = begin < distance ? 0 : begin - distance;
    for (std::int64_t j = first / p.block; j <= (last - distance) / p.block; ++j) team.mark(words_of(a, head, b), j);
  }
}

template <class Team>
KVLAB_BODY void mark_vertical_slash(const Team& team, const MarkBlocks& a, std::int64_t head, Room room) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t n = p.end(), w = a.window_queries < p.new_tokens ? a.window_queries : p.new_tokens;
  const WindowSums sums = window_sums(team, p, w, head, room);
  fill(team, sums.columns, a.first_columns < n ? a.first_columns : n, INFINITY);
  fill(team, sums.diagonals, a.near_diagonals < n ? a.near_diagonals : n, INFINITY);
  std::int32_t* const columns = a.column_marks + head * p.column_words();
  team.best(
      n, a.first[head], [&](std::int64_t i) { return sums.columns[i]; }, [&](std::int64_t i) { team.mark(columns, i); });
  team.best(
      n, a.second[head], [&](std::int64_t i) { return sums.diagonals[i]; }, [&](std::int64_t i) { mark_diagonal(team, a, head, i); });
}

// Over the first `blocks` mean keys.
template <class Team>
KVLAB_BODY void pooled_row(const Team& team, const PromptBlocks& p, const float* query, const float* keys, std::int64_t blocks,
                           float* row) {
  const float scale = score_scale(p);
  team.each(blocks, [&](std::int64_t j) { row[j] = scale * team.dot(query, keys + j * p.head_dim, p.head_dim); });
  team.soften(row, blocks);
}

template <class Team>
KVLAB_BODY void add_in_blocks(const Team& team, const PromptBlocks& p, const float* x, float* sums) {
  team.each(p.num_key_blocks(), [&](std::int64_t b) {
    float sum = 0;
    for (std::int64_t i = b * p.block; i < (b + 1) * p.block && i < p.end(); ++i) sum += x[i];
    sums[b] = sum;
  });
}

template <class Team>
KVLAB_BODY double divergence_root(const Team& team, const float* a, const float* b, std::int64_t n) {
  constexpr double kTiny = 1e-12;
  const auto sum = team.template sum<double>(n, [&](std::int64_t i) {
    const double x = static_cast<double>(a[i]) + kTiny, y = static_cast<double>(b[i]) + kTiny, mean = (x + y) / 2;
    return (x * std::log(x / mean) + y * std::log(y / mean)) / 2;
  });
  return sum > 0 ? std::sqrt(sum) : 0.0;
}

// As many columns or diagonals as tokens that hold the share of the mass, over 128.
template <class Team, class F>
KVLAB_BODY void best_blocks(const Team& team, const MarkBlocks& a, const float* tokens, bool is_query_aware, float* sums, F&& f) {
  constexpr std::int64_t kTokensPerBlock = 128;  // for any block, as in the authors' code
  const auto score = [&](std::int64_t i) { return tokens[i]; };
  std::int64_t wanted = 0;
  if (!is_query_aware) {
    const double mass = a.share * team.falling_sum(a.prompt.end(), score);
    wanted = team.best_while(
                 a.prompt.end(), score, 0.0, [&](double held, float) { return held < mass; }, [](std::int64_t) {}) /
                 kTokensPerBlock +
             1;
  }
  const std::int64_t most = a.max_blocks < a.min_blocks ? a.min_blocks : a.max_blocks;
  const std::int64_t count = wanted < a.min_blocks ? a.min_blocks : wanted > most ? most : wanted;
  add_in_blocks(team, a.prompt, tokens, sums);
  team.once([&] { sums[0] = INFINITY; });
  team.best(
      a.prompt.num_key_blocks(), count, [&](std::int64_t i) { return sums[i]; }, f);
}

template <class Team>
KVLAB_BODY void mark_columns_and_diagonals(const Team& team, const MarkBlocks& a, std::int64_t head, const WindowSums& sums,
                                           bool is_query_aware, float* block_sums) {
  const std::int64_t first = a.prompt.first_block(), lists = a.prompt.num_query_blocks();
  best_blocks(team, a, sums.columns, is_query_aware, block_sums, [&](std::int64_t j) {
    for (std::int64_t b = 0; b < lists; ++b)
      if (j <= first + b) team.mark(words_of(a, head, b), j);
  });
  best_blocks(team, a, sums.diagonals, is_query_aware, block_sums, [&](std::int64_t offset) {
    for (std::int64_t b = 0; b < lists; ++b)
      if (offset <= first + b) team.mark(words_of(a, head, b), first + b - offset);
  });
}

template <class Team>
KVLAB_BODY void mark_pairs(const Team& team, const MarkBlocks& a, std::int64_t head, const BlockMeans& means, float* pairs) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t first = p.first_block(), lists = p.num_query_blocks();
  const auto begin = [&](std::int64_t b) { return b * first + b * (b + 1) / 2; };  // of row b
  for (std::int64_t b = 0; b < lists; ++b) pooled_row(team, p, means.q + b * p.head_dim, means.k, first + b + 1, pairs + begin(b));
  const double most = a.share * static_cast<double>(lists);
  team.best_while(
      begin(lists), [&](std::int64_t i) { return pairs[i]; }, 0.0,
      [&](double held, float x) { return held + static_cast<double>(x) <= most; },
      [&](std::int64_t i) {
        std::int64_t low = 0, high = lists;  // the row is the last that begins at or before i
        while (high - low > 1) {
          const std::int64_t middle = (low + high) / 2;
          (begin(middle) <= i ? low : high) = middle;
        }
        team.mark(words_of(a, head, low), i - begin(low));
      });
}

template <class Team>
KVLAB_BODY void mark_flex(const Team& team, const MarkBlocks& a, std::int64_t head, Room room) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t d = p.head_dim, w = p.block < p.new_tokens ? p.block : p.new_tokens, blocks = p.num_key_blocks();
  const WindowSums sums = window_sums(team, p, w, head, room);
  team.each(p.end(), [&](std::int64_t j) { sums.columns[j] /= static_cast<float>(w); });
  const BlockMeans means = means_of(team, p, head, room);
  float *const last = room.floats(d), *const estimated = room.floats(blocks), *const block_sums = room.floats(blocks);
  team.each(d, [&](std::int64_t c) {
    last[c] = 0;
    for (std::int64_t i = p.new_tokens - w; i < p.new_tokens; ++i) last[c] += p.query(i, head)[c] / static_cast<float>(w);
  });
  pooled_row(team, p, last, means.k, blocks, estimated);
  add_in_blocks(team, p, sums.columns, block_sums);
  const bool is_query_aware = divergence_root(team, estimated, block_sums, blocks) < a.tau;
  mark_columns_and_diagonals(team, a, head, sums, is_query_aware, block_sums);
  if (is_query_aware) mark_pairs(team, a, head, means, room.floats(p.causal_blocks()));
}

// First and own block, then others by falling sum up to the share.
template <class Team>
KVLAB_BODY void mark_mass(const Team& team, const MarkBlocks& a, const double* sums, std::int64_t own, std::int32_t* words) {
  const double wanted = a.share * team.template sum<double>(own + 1, [&](std::int64_t j) { return sums[j]; });
  team.once([&] { team.mark(words, 0), team.mark(words, own); });
  if (own < 2) return;
  team.best_while(
      own - 1, [&](std::int64_t i) { return sums[i + 1]; }, sums[own] + sums[0],
      [&](double held, double) { return a.share >= 1 || held < wanted; }, [&](std::int64_t i) { team.mark(words, i + 1); });
}

// Floats per head; kAntidiagonal: per list.
inline std::int64_t room_of(const MarkBlocks& a) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t blocks = p.num_key_blocks(), means = (p.num_query_blocks() + blocks) * p.head_dim;
  switch (a.kind) {
    case MarkBlocks::Kind::kLocal:
      return 0;
    case MarkBlocks::Kind::kPooled:
      return means + blocks;
    case MarkBlocks::Kind::kVerticalSlash:
      return 3 * p.end();
    case MarkBlocks::Kind::kFlex:
      return 3 * p.end() + means + p.head_dim + 2 * blocks + p.causal_blocks();
    case MarkBlocks::Kind::kAntidiagonal:
      return 2 * (blocks + ceil_div(p.end(), std::int64_t{a.stride}));
  }
  return 0;
}

// All kinds but kAntidiagonal.
template <class Team>
KVLAB_BODY void mark_head(const Team& team, const MarkBlocks& a, std::int64_t head) {
  if (!a.marks_head(head)) return;
  const Room room{team.room()};
  if (a.kind == MarkBlocks::Kind::kLocal) mark_local(team, a, head);
  if (a.kind == MarkBlocks::Kind::kPooled) mark_pooled(team, a, head, room);
  if (a.kind == MarkBlocks::Kind::kVerticalSlash) mark_vertical_slash(team, a, head, room);
  if (a.kind == MarkBlocks::Kind::kFlex) mark_flex(team, a, head, room);
}

}  // namespace kvlab::mark_blocks
