#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvlab {

struct Candidate {
  float score;  // a rank_value
  std::int64_t at;
};

inline float rank_value(float score) { return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score; }

inline bool better(const Candidate& a, const Candidate& b) { return a.score != b.score ? a.score > b.score : a.at < b.at; }

// Moves the k best to the front, k <= size. Ties go to the lower index; peer_ties: as torch.topk on a CPU.
inline void take_best(std::vector<Candidate>& row, std::int32_t k, bool peer_ties) {
  const auto by_score = [](const Candidate& a, const Candidate& b) { return a.score > b.score; };
  if (!peer_ties) {
    std::nth_element(row.begin(), row.begin() + k, row.end(), better);
  } else if (static_cast<std::size_t>(k) * 64 <= row.size()) {
    std::partial_sort(row.begin(), row.begin() + k, row.end(), by_score);
  } else if (k > 0) {
    std::nth_element(row.begin(), row.begin() + k - 1, row.end(), by_score);
  }
}

// With peer_ties, in torch.topk's order.
inline void take_ordered(std::vector<Candidate>& row, std::int32_t k) {
  const auto by_score = [](const Candidate& a, const Candidate& b) { return a.score > b.score; };
  take_best(row, k, true);
  if (static_cast<std::size_t>(k) * 64 > row.size()) std::sort(row.begin(), row.begin() + k - 1, by_score);
}

}  // namespace kvlab
