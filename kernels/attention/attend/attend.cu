#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/attention/attend/attend.h"
#include "kernels/attention/attend/attend_lines.cuh"

namespace kvlab {

namespace {

using namespace attending;  // NOLINT

const DeviceSegment* upload_segments(const Attend& a, CudaContext& cuda) {
  std::vector<DeviceSegment> segments;
  for (std::int32_t i = 0; i < a.num_segments; ++i) {
    const Segment& s = a.segments[i];
    if (s.weighed_queries > 0) refuse_on_gpu("attend with weights per query");
    DeviceSegment d{};
    const Segment& first = a.segments[0];  // segments of one pool share its rows
    const bool shares = i > 0 && s.kv.len == first.kv.len && s.kv.page == first.kv.page && s.kv.page_begin == first.kv.page_begin &&
                        s.kv.k == first.kv.k && s.kv.v == first.kv.v && s.kv.page_tokens == first.kv.page_tokens;
    d.kv = shares ? segments[0].kv : on_device(s.kv, cuda);
    d.type = s.kv.type;
    d.index_first = cuda.upload(s.index_first, s.kv.num_rows + 1);
    d.index = s.index;
    d.log_weight = cuda.upload(s.log_weight, s.kv.num_rows);
    d.head_log_weight = s.head_log_weight;
    d.token_log_weight = s.token_log_weight;
    segments.push_back(d);
  }
  return cuda.upload(segments.data(), a.num_segments);
}

struct Batch {
  std::vector<std::int32_t> first{0}, position, sequence;
  std::int32_t most = 0;  // most queries of a sequence
};

Batch batch_of(const Attend& a) {
  Batch b;
  for (std::int32_t s = 0; s < a.segments[0].kv.num_sequences(); ++s) {
    const Queries& q = a.queries[s];
    b.first.push_back(b.first.back() + q.count);
    b.position.push_back(q.first_position);
    b.sequence.insert(b.sequence.end(), static_cast<std::size_t>(q.count), s);
    b.most = std::max(b.most, q.count);
  }
  return b;
}

std::int64_t longest_row(const Attend& a) {
  std::int64_t longest = 0;
  for (std::int32_t r = 0; r < a.segments[0].kv.num_rows; ++r) {
    std::int64_t n = 0;
    for (std::int32_t i = 0; i < a.num_segments; ++i) n += a.segments[i].tokens(r);
    longest = std::max(longest, n);
  }
  return longest;
}

template <int Width, int Count>
void run(AttendArgs args, const Batch& batch, std::int64_t longest, CudaContext& cuda) {
  constexpr std::int64_t kLeast = 128, kMostSplits = 64;  // kLeast: tokens per split
  const auto heads = static_cast<unsigned>(args.kv_heads * args.group), tokens = static_cast<unsigned>(batch.first.back());
  args.line_blocks = static_cast<std::int32_t>(ceil_div(static_cast<std::int64_t>(batch.most) * args.group, Count));
  args.lines = static_cast<std::int64_t>(tokens) * heads;
  const auto blocks = static_cast<std::int64_t>(batch.position.size()) * args.kv_heads * args.line_blocks;
  args.splits = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(4 * cuda.gpu().multiprocessors / blocks, 1, std::clamp<std::int64_t>(longest / kLeast, 1, kMostSplits)));
  args.parts = cuda.scratch<float>(args.splits * args.lines * args.head_dim);
  args.part_sums = cuda.scratch<float>(args.splits * args.lines);
  launch("attend", cuda, blocks_of(grid_of(blocks, args.splits), kThreads), attend_lines<Width, Count>, args);
  auto* line_sums = cuda.scratch<float>(args.lines);
  const std::int32_t* sequence = cuda.upload(batch.sequence.data(), tokens);
  launch("attend_join", cuda, blocks_of(dim3(tokens, heads), 64), join_splits, args, sequence, line_sums);
  if (args.probabilities == nullptr) return;
  const std::int64_t columns = std::max<std::int64_t>(512, ceil_div(longest, kMostGridY));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ceil_div(longest, columns)));
  launch("attend_probabilities", cuda, blocks_of(grid, kThreads), attend_probabilities<Width, Count>, args,
         static_cast<const float*>(line_sums), static_cast<int>(columns));
}

}  // namespace

void run_cuda(const Attend& a, CudaContext& cuda) {
  if (a.num_segments == 0 || a.segments[0].kv.num_rows == 0) return;
  const KvRows& kv = a.segments[0].kv;
  const Batch batch = batch_of(a);
  const std::int64_t sequences = kv.num_sequences();
  if (batch.most == 0) return;
  if (kv.head_dim > 256) throw CudaError("attend: head_dim " + std::to_string(kv.head_dim) + "; 256 at most");
  const CudaContext::Frame frame(cuda);
  std::vector<const float*> q;
  for (std::int64_t s = 0; s < sequences; ++s) q.push_back(a.queries[s].data);
  AttendArgs args{};
  args.segments = upload_segments(a, cuda), args.num_segments = a.num_segments;
  args.q = cuda.upload(q.data(), sequences);
  args.out = cuda.upload(a.out, sequences);
  args.log_sum = cuda.upload(a.log_sum, sequences);
  args.probabilities = cuda.upload(a.probabilities, kv.num_rows);
  args.first = cuda.upload(batch.first.data(), sequences + 1), args.position = cuda.upload(batch.position.data(), sequences);
  args.kv_heads = kv.kv_heads, args.group = kv.group, args.head_dim = kv.head_dim;
  args.window = a.window == 0 ? std::numeric_limits<std::int32_t>::max() : a.window;
  args.scale = kLog2E / std::sqrt(static_cast<float>(kv.head_dim));
  const std::int64_t longest = longest_row(a);
  const std::int64_t lines = std::int64_t{batch.most} * kv.group;
  const int lanes = kv.head_dim <= 64 ? 8 : kv.head_dim <= 128 ? 16 : 32, together = lines == 1 ? 1 : lines <= 4 ? 4 : 8;
  for_value<8, 16, 32>(lanes, [&](auto width) {
    for_value<1, 4, 8>(together, [&](auto count) { run<decltype(width)::value, decltype(count)::value>(args, batch, longest, cuda); });
  });
}

}  // namespace kvlab
