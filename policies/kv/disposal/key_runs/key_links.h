#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv_rows.h"

namespace kvlab {

// linked [kv.len[row] + 1]: tokens i - 1 and i of the row have keys of a cosine of min_cosine or more. A key of norm 0 has no links.
void find_links(const KvRows& kv, std::int32_t row, float min_cosine, std::vector<char>& linked);

}  // namespace kvlab
