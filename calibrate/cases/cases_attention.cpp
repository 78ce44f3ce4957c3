// Decode attention and KV append on the CPU.
#include <cmath>

#include "calibrate/cases/model_checks.h"
#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attend/attend.h"
#include "kernels/attention/attention_decode/attention_decode.h"

namespace kvlab {

namespace {

// One query per sequence.
Attend decode_attend(Buffers& b, const Shape& s) {
  const KvRows kv = paged_rows(b, rows_spec(s));
  Segment segment;
  segment.kv = kv;
  Attend a;
  a.segments = b.host(std::vector<Segment>{segment}), a.num_segments = 1;
  a.queries = queries_at_end(b, kv, 1);
  std::vector<float*> out;
  for (std::int32_t i = 0; i < kv.num_sequences(); ++i)
    out.push_back(b.activations().room<float>(std::int64_t{kv.kv_heads} * kv.group * kv.head_dim));
  a.out = b.host(std::move(out));
  return a;
}

bool attend_matches(TimedDevice& device, const Attend& a, const Run& run) {
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
  add_policy_families<Attend>("attend", kDecodeAxes,
                              {{{8, 1024, 8, 2, 64}}, {{2, 21, 4, 2, 16}}, {{64, 4096, 32, 8, 128}, {1, 32768, 32, 8, 128}}}, decode_attend,
                              attend_matches, families);
}

// Named as the model's operation.
KernelFamily decode_attention() {
  const auto work = [](const Attend&, const Shape& s) {
    const AttentionDecodeShape shape{s.at("batch"), s.at("batch") * s.at("len"), s.at("q_heads"), s.at("kv_heads"), s.at("head_dim"), 4, 4};
    return CaseWork{bytes(shape), flops(shape), {}};
  };
  return family_of<Attend>("decode_attention", DeviceKind::kCpu, kDecodeAxes,
                           {{1, 4096, 8, 2, 64}, {16, 4096, 8, 2, 64}, {4, 4096, 32, 8, 128}}, {{2, 21, 4, 2, 16}},
                           {ElementType::kF32, decode_attend, work, attend_matches});
}

// Drops a remainder that does not divide evenly.
AppendRows build_append(Buffers& b, const Shape& s) {
  const std::int64_t tokens = s.at("tokens"), sequences = s.at("sequences");
  RowsSpec spec;
  spec.batch = sequences, spec.kv_heads = s.at("kv_heads"), spec.head_dim = s.at("head_dim"), spec.len = tokens / sequences;
  AppendRows a;
  a.kv = paged_rows(b, spec), a.type = ElementType::kF32;
  const std::int64_t each = spec.len * spec.kv_heads * spec.head_dim;
  const float *k = b.activations().floats(sequences * each), *v = b.activations().floats(sequences * each);
  std::vector<AppendedTokens> news;
  for (std::int64_t i = 0; i < sequences; ++i)
    news.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(spec.len), 0, k + i * each, v + i * each});
  a.news = {b.host(std::move(news)), static_cast<std::size_t>(sequences)};
  return a;
}

KernelFamily append_kv() {
  const auto work = [](const AppendRows&, const Shape& s) {
    const AppendKvShape shape{s.at("tokens"), s.at("kv_heads"), s.at("head_dim"), 4, 4};
    return CaseWork{bytes(shape), flops(shape), {}};
  };
  return family_of<AppendRows>("append_kv", DeviceKind::kCpu, {{"tokens", "t"}, {"sequences", "s"}, {"kv_heads", "kv"}, {"head_dim", "d"}},
                               {{64, 64, 8, 128}, {1024, 2, 2, 64}}, {{3, 3, 2, 16}, {40, 2, 2, 16}},
                               {ElementType::kF32, build_append, work, append_matches});
}

bool sparse_prefill_matches(TimedDevice& device, const SparsePrefill& a, const Run& run) {
  run();
  RelativeError error;
  for (const std::int64_t t : sampled(a.new_tokens, 3))
    for (const std::int64_t h : sampled(a.q_heads, 2))
      add_prefill_error(device, a, t, h, seen_positions(a.keys, query_blocks(a), a.kv_before, h, t), error);
  return error.below(tolerance_of(ElementType::kF32));
}

KernelFamily sparse_prefill() {
  const auto build = [](Buffers& b, const Shape& s) {
    SparsePrefill a;
    take_prefill_operands(b.activations(), s, a);
    a.keys = draw_sparse_lists(b, a.new_tokens, a.kv_before, a.q_heads, s.at("percent"));
    return a;
  };
  return family_of<SparsePrefill>("sparse_prefill", DeviceKind::kCpu, sparse_axes(),
                                  {{4096, 0, 8, 2, 64, 100}, {4096, 0, 8, 2, 64, 50}, {4096, 0, 8, 2, 64, 10}}, {{70, 40, 4, 2, 16, 40}},
                                  {ElementType::kF32, build, work_of_call<SparsePrefill>, sparse_prefill_matches});
}

}  // namespace

void add_attention_cases(std::vector<KernelFamily>& families) {
  families.push_back(decode_attention());
  add_attend(families);
  families.push_back(append_kv());
  families.push_back(sparse_prefill());
}

}  // namespace kvlab
