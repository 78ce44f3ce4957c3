#include "policies/kv/scorer/token_lists/token_lists.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace kvlab {

OpCall call(const ListCandidates& a) {
  const std::int64_t n = std::int64_t{a.kv.kv_heads} * (a.num_listed + a.end - a.begin);
  return {.op = "list_candidates", .rows = a.kv.kv_heads, .tokens = n, .outputs = n, .bytes = 12 * n};
}

void run_cpu(const ListCandidates& a) {
  const std::int64_t all = a.num_listed + a.end - a.begin;
  for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
    std::int32_t* token = a.token + h * all;
    std::copy_n(a.listed + std::int64_t{h} * a.num_listed, a.num_listed, token);
    std::iota(token + a.num_listed, token + all, a.begin);
    for (std::int64_t i = 0; i < all; ++i)
      a.slot[h * all + i] = static_cast<std::int32_t>(a.kv.slot(a.sequence * a.kv.kv_heads + h, token[i]));
  }
}

OpCall call(const ListChosen& a) {
  const std::int64_t n = std::int64_t{a.heads} * a.num_listed;
  return {.op = "list_chosen", .rows = a.heads, .tokens = n, .outputs = n, .bytes = 12 * n};
}

void run_cpu(const ListChosen& a) {
  for (std::int64_t h = 0; h < a.heads; ++h)
    for (std::int64_t j = 0; j < a.num_listed; ++j) {
      const std::int64_t at = h * a.num_listed + j;
      a.listed[at] = a.is_first ? static_cast<std::int32_t>(j) : a.token[h * a.num_candidates + a.index[at]];
    }
}

OpCall call(const KeepListed& a) {
  const std::int64_t n = std::int64_t{a.kv.kv_heads} * a.num_listed;
  return {.op = "keep_listed", .rows = a.kv.kv_heads, .tokens = n, .outputs = n, .bytes = 8 * n};
}

void run_cpu(const KeepListed& a) {
  std::vector<char> stays;
  for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
    const std::int32_t row = a.sequence * a.kv.kv_heads + h;
    stays.assign(static_cast<std::size_t>(a.kv.len[row]), 0);
    for (std::int64_t j = 0; j < a.num_listed; ++j) stays[static_cast<std::size_t>(a.listed[std::int64_t{h} * a.num_listed + j])] = 1;
    for (std::int32_t i = 0; i < a.kv.len[row]; ++i)
      if (stays[static_cast<std::size_t>(i)] == 0) a.scores[a.kv.first[row] + i] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace kvlab
