#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/attend/attend.h"
#include "policies/kv/step.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

struct Acting {
  std::vector<std::int32_t> which;  // indices in PolicyStep::seqs
  std::vector<std::int32_t> target;
  std::vector<SeqStep> seqs;
  bool is_scored = true;  // false: found by position

  struct View {
    std::vector<std::int32_t> len, page_begin;
    std::vector<std::int64_t> first;
    std::vector<Queries> step, window, pre_rope_queries, future;
    std::vector<const float*> pre_rope_keys, hidden, hidden_before;
    std::vector<const std::int32_t*> ids;
    std::vector<std::span<const PassQueries>> pass;
  };
  std::vector<std::unique_ptr<View>> views;

  template <class T>
  std::vector<T> pick(std::span<const T> all) const {
    std::vector<T> some;
    if (!all.empty())
      for (const std::int32_t s : which) some.push_back(all[static_cast<std::size_t>(s)]);
    return some;
  }

  LayerStep view(const LayerStep& all) {
    if (which.size() == all.seqs.size() && !all.ops.computes()) return all;
    views.push_back(std::make_unique<View>());
    View& v = *views.back();
    LayerStep some{all.ops, all.model, all.layer, seqs, all.kv, {}, all.seed, all.tensors, all.keeper};
    const std::size_t rows = which.size() * static_cast<std::size_t>(all.kv.kv_heads);
    v.len.reserve(rows), v.page_begin.reserve(rows), v.first.reserve(rows + 1);
    v.first.push_back(0);
    for (const std::int32_t s : which) {
      for (std::int32_t h = 0; h < all.kv.kv_heads; ++h) {
        const std::int32_t row = s * all.kv.kv_heads + h;
        v.len.push_back(all.kv.len[row]);
        v.page_begin.push_back(all.kv.page_begin[row]);
        v.first.push_back(v.first.back() + all.kv.len[row]);
      }
    }
    some.kv.num_rows = static_cast<std::int32_t>(v.len.size());
    some.kv.len = v.len.data(), some.kv.page_begin = v.page_begin.data(), some.kv.first = v.first.data();
    some.in.step = v.step = pick(all.in.step);
    some.in.window = v.window = pick(all.in.window);
    some.in.pre_rope_queries = v.pre_rope_queries = pick(all.in.pre_rope_queries);
    some.in.future = v.future = pick(all.in.future);
    some.in.pre_rope_keys = v.pre_rope_keys = pick(all.in.pre_rope_keys);
    some.in.hidden = v.hidden = pick(all.in.hidden);
    some.in.hidden_before = v.hidden_before = pick(all.in.hidden_before);
    some.in.ids = v.ids = pick(all.in.ids);
    some.in.pass = v.pass = pick(all.in.pass);
    some.in.w_o = all.in.w_o, some.in.w_q = all.in.w_q;
    return some;
  }
};

// `positions: renumbered` (kernels/storage/renumber): points `rows` to scratch copies of its listed tokens, rotated to consecutive
// positions, without lists.
void place_selected(const LayerStep& step, Segment& rows);

}  // namespace kvlab
