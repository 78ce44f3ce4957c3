// Attention of a decode step on the CPU, and the new keys and values that it writes.
#include <algorithm>
#include <cmath>

#include "bench/kernel/model_checks.h"
#include "bench/kernel/policy_family.h"
#include "bench/kernel/registry.h"
#include "bench/kernel/rows.h"
#include "kernels/append_kv/append_kv.h"
#include "kernels/attend/attend.h"
#include "kernels/attention_decode/attention_decode.h"

namespace kvlab {

namespace {

using Axes = std::vector<std::pair<std::string, std::string>>;

Shape decode_shape(std::int64_t batch, std::int64_t len, std::int64_t q_heads, std::int64_t kv_heads, std::int64_t d) {
  return {{"batch", batch}, {"len", len}, {"q_heads", q_heads}, {"kv_heads", kv_heads}, {"head_dim", d}};
}
const Axes kDecodeAxes{{"batch", "b"}, {"len", "n"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}};

// One query per sequence over all of its tokens.
Attend decode_attend(Buffers& b, const Shape& s) {
  const KvRows kv = paged_rows(b, rows_spec(s));
  Segment segment;
  segment.kv = kv;
  Attend a;
  a.segments = b.host(std::vector<Segment>{segment}), a.num_segments = 1;
  a.queries = queries_at_end(b, kv, 1);
  std::vector<float*> out;
  for (std::int32_t i = 0; i < kv.num_sequences(); ++i) out.push_back(b.room<float>(std::int64_t{kv.kv_heads} * kv.group * kv.head_dim));
  a.out = b.host(std::move(out));
  return a;
}

bool attend_matches(Device& device, const Attend& a, const Run& run) {
  run();
  const KvRows& kv = a.segments[0].kv;
  const std::int64_t d = kv.head_dim;
  RelativeError error;
  for (const std::int64_t r : sampled(kv.num_rows, 3)) {
    const auto row = static_cast<std::int32_t>(r);
    const std::vector<float> k = row_vectors(device, kv, row, false), v = row_vectors(device, kv, row, true);
    const std::int64_t head = r % kv.kv_heads * kv.group * d;
    const std::vector<float> q = read_floats(device, a.queries[kv.sequence(row)].data + head, d),
                             out = read_floats(device, a.out[kv.sequence(row)] + head, d);
    add_attention_error(q, k, v, kv.len[r], 1 / std::sqrt(static_cast<double>(d)), out, error);
  }
  return error.below(tolerance_of(kv.type));
}

void add_attend(std::vector<KernelFamily>& families) {
  add_policy_families<Attend>(
      {"attend", "", DeviceKind::kCpu, kDecodeAxes, {decode_shape(8, 1024, 8, 2, 64)}, {decode_shape(2, 21, 4, 2, 16)}, nullptr},
      decode_attend, attend_matches, {decode_shape(64, 4096, 32, 8, 128), decode_shape(1, 32768, 32, 8, 128)}, ElementType::kBf16,
      families);
}

// The same under the name of the model's operation: what a decode step runs on the CPU.
KernelFamily decode_attention() {
  OpRecipe<Attend> recipe{ElementType::kF32, decode_attend,
                          [](const Attend&, const Shape& s) {
                            const AttentionDecodeShape shape{
                                s.at("batch"), s.at("batch") * s.at("len"), s.at("q_heads"), s.at("kv_heads"), s.at("head_dim"), 4, 4};
                            return CaseWork{bytes(shape), flops(shape), {}};
                          },
                          attend_matches};
  return {"decode_attention",
          "f32",
          DeviceKind::kCpu,
          kDecodeAxes,
          {decode_shape(1, 4096, 8, 2, 64), decode_shape(16, 4096, 8, 2, 64), decode_shape(4, 4096, 32, 8, 128)},
          {decode_shape(2, 21, 4, 2, 16)},
          preparing(recipe)};
}

// New keys and values of one token per sequence into the pages, as the CPU's cache takes them.
struct HostAppend {
  KvRows kv;
  const float *k = nullptr, *v = nullptr;  // [num_rows, head_dim]
};

void run_cpu(const HostAppend& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t slot = a.kv.slot(r, a.kv.len[r]) * a.kv.head_dim, from = std::int64_t{r} * a.kv.head_dim;
    std::copy_n(a.k + from, a.kv.head_dim, a.kv.k + slot);
    std::copy_n(a.v + from, a.kv.head_dim, a.kv.v + slot);
  }
}

KernelFamily append_kv() {
  OpRecipe<HostAppend> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    RowsSpec spec;
    spec.batch = s.at("tokens"), spec.kv_heads = s.at("kv_heads"), spec.head_dim = s.at("head_dim"), spec.room = 1;
    HostAppend a;
    a.kv = paged_rows(b, spec);
    a.k = b.floats(std::int64_t{a.kv.num_rows} * a.kv.head_dim), a.v = b.floats(std::int64_t{a.kv.num_rows} * a.kv.head_dim);
    return a;
  };
  recipe.work = [](const HostAppend&, const Shape& s) {
    const AppendKvShape shape{s.at("tokens"), s.at("kv_heads"), s.at("head_dim"), 4, 4};
    return CaseWork{bytes(shape), flops(shape), {}};
  };
  recipe.matches = [](Device& device, const HostAppend& a, const Run& run) {
    run();
    for (const std::int64_t r : sampled(a.kv.num_rows, 16)) {
      const std::int64_t d = a.kv.head_dim, slot = a.kv.slot(static_cast<std::int32_t>(r), a.kv.len[r]) * d;
      if (read_floats(device, a.kv.k + slot, d) != read_floats(device, a.k + r * d, d)) return false;
      if (read_floats(device, a.kv.v + slot, d) != read_floats(device, a.v + r * d, d)) return false;
    }
    return true;
  };
  return {"append_kv",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"kv_heads", "kv"}, {"head_dim", "d"}},
          {{{"tokens", 64}, {"kv_heads", 8}, {"head_dim", 128}}, {{"tokens", 1024}, {"kv_heads", 2}, {"head_dim", 64}}},
          {{{"tokens", 3}, {"kv_heads", 2}, {"head_dim", 16}}},
          preparing(recipe)};
}

}  // namespace

void add_attention_cases(std::vector<KernelFamily>& families) {
  families.push_back(decode_attention());
  add_attend(families);
  families.push_back(append_kv());
}

}  // namespace kvlab
