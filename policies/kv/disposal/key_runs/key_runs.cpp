#include "policies/kv/disposal/key_runs/key_runs.h"

#include <vector>

#include "policies/kv/disposal/key_runs/key_links.h"

namespace kvlab {

OpCall call(const KeyRuns& a) {
  const KvRows& kv = a.rows.kv;
  const std::int64_t n = kv.total(), dropped = a.rows.total_dropped();
  return {.op = "key_runs",
          .rows = kv.num_rows,
          .tokens = n,
          .outputs = dropped,
          .bytes = n * (kv.head_dim * kv.kv_bytes + 4) + 4 * dropped,
          .flops = 4 * n * kv.head_dim};
}
KVLAB_WITHOUT_CUDA(KeyRuns)

void run_cpu(const KeyRuns& a) {
  std::vector<char> linked;
  for (std::int32_t r = 0; r < a.rows.kv.num_rows; ++r) {
    find_links(a.rows.kv, r, a.min_cosine, linked);
    const std::int32_t* kept = a.rows.kept + a.rows.kept_first[r];
    const std::int32_t *dropped = a.rows.dropped + a.rows.dropped_first[r], count = a.rows.num_dropped(r), n = a.rows.kv.len[r];
    std::int32_t* target = a.target + a.rows.dropped_first[r];
    for (std::int32_t i = 0, kept_before = 0; i < count;) {  // a gap between kept tokens: dropped[i .. end)
      std::int32_t end = i + 1;
      while (end < count && dropped[end] == dropped[end - 1] + 1) ++end;
      while (kept_before < a.rows.num_kept(r) && kept[kept_before] < dropped[i]) ++kept_before;
      const auto is_linked = [&](std::int32_t token) { return token < n && linked[static_cast<std::size_t>(token)] != 0; };
      std::int32_t from_left = i, from_right = end;
      while (from_left < end && is_linked(dropped[from_left])) ++from_left;
      while (from_right > i && is_linked(dropped[from_right - 1] + 1)) --from_right;
      for (std::int32_t j = i; j < end; ++j) {
        const bool left = j < from_left, right = j >= from_right;
        target[j] = left && (!right || j - i <= end - 1 - j) ? kept_before - 1 : right ? kept_before : -1;
      }
      i = end;
    }
  }
}

}  // namespace kvlab
