#pragma once

#include <vector>

#include "kernels/kv_rows.h"

namespace kvlab {

// Query heads as KV heads, over the same pages.
struct HeadsApart {
  explicit HeadsApart(const KvRows& rows) : kv(rows) {
    first.push_back(0);
    for (std::int32_t r = 0; r < rows.num_rows; ++r)
      for (std::int32_t g = 0; g < rows.group; ++g) {
        len.push_back(rows.len[r]), page_begin.push_back(rows.page_begin[r]);
        first.push_back(first.back() + rows.len[r]);
      }
    kv.num_rows *= rows.group, kv.kv_heads *= rows.group, kv.group = 1;
    kv.len = len.data(), kv.first = first.data(), kv.page_begin = page_begin.data();
  }
  std::vector<std::int32_t> len, page_begin;
  std::vector<std::int64_t> first;
  KvRows kv;
};

}  // namespace kvlab
