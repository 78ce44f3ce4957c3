#include <algorithm>

#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/unit_list.h"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/sentences/sentences.h"

namespace kvlab {

namespace {

struct SplitRow {
  std::int32_t* sentence_of;
  std::int64_t step;  // the start of its entries of `steps`
  std::int32_t begin, end;
};

// steps: 1 where a sentence begins. One block per sequence.
__global__ void __launch_bounds__(kRowThreads) split_sentences(const SplitRow* rows, const std::uint8_t* steps, std::int32_t span_tokens) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const SplitRow row = rows[blockIdx.x];
  std::int32_t sentence = steps != nullptr && row.begin > 0 && row.begin < row.end ? row.sentence_of[row.begin - 1] : 0;
  for (std::int32_t at = row.begin; at < row.end; at += kRowThreads) {
    const std::int32_t i = at + static_cast<std::int32_t>(threadIdx.x);
    if (steps == nullptr) {
      if (i < row.end) row.sentence_of[i] = i / span_tokens;
      continue;
    }
    const std::int32_t step = i < row.end ? steps[row.step + i - row.begin] : 0;
    std::int32_t all;
    const std::int32_t before = block_scan_exclusive(step, shared, all);
    if (i < row.end) row.sentence_of[i] = sentence + before + step;
    sentence += all;
  }
}

struct Means {
  DeviceRows kv;
  const std::int32_t* const* sentence_of;
  const UnitList* listed;
  const std::int32_t *dense_begin, *dense_end;
  const std::int64_t* first;  // [num_rows + 1] candidates
  float* const* means;
  std::int32_t *const *token, *const *sentence;
  std::int32_t *start, *count;  // start: first candidate of each sentence
  int most;                     // candidates of a row

  __device__ std::int32_t candidates(int row) const { return static_cast<std::int32_t>(first[row + 1] - first[row]); }
  __device__ std::int32_t token_of(int row, std::int32_t i) const {
    const auto n = static_cast<std::int32_t>(listed[row].n);
    return i < n ? listed[row].unit[i] : dense_begin[row] + i - n;
  }
  __device__ std::int32_t sentence_at(int row, std::int32_t i) const {
    return sentence_of[row / kv.kv_heads][kv.position[kv.slot(row, token_of(row, i))]];
  }
};

// One block per row.
__global__ void __launch_bounds__(kRowThreads) number_sentences(Means a) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const int row = blockIdx.x;
  const std::int32_t n = a.candidates(row);
  std::int32_t sentences = 0;
  for (std::int32_t at = 0; at < n; at += kRowThreads) {
    const std::int32_t i = at + static_cast<std::int32_t>(threadIdx.x);
    const bool begins = i < n && (i == 0 || a.sentence_at(row, i) != a.sentence_at(row, i - 1));
    std::int32_t all;
    const std::int32_t mine = sentences + block_scan_exclusive(begins ? 1 : 0, shared, all) + (begins ? 1 : 0) - 1;
    if (i < n) a.token[row][i] = a.token_of(row, i), a.sentence[row][i] = mine;
    if (begins) a.start[a.first[row] + mine] = i;
    sentences += all;
  }
  if (threadIdx.x == 0) a.count[row] = sentences;
}

// A warp per sentence.
template <class T>
__global__ void __launch_bounds__(kRowThreads) mean_keys(Means a) {
  const std::int64_t item = warp_item();
  const auto row = static_cast<int>(item / a.most), sentence = static_cast<int>(item % a.most), d = a.kv.head_dim;
  if (row >= a.kv.num_rows || sentence >= a.count[row]) return;
  const std::int32_t* const start = a.start + a.first[row];
  const std::int32_t begin = start[sentence], end = sentence + 1 < a.count[row] ? start[sentence + 1] : a.candidates(row);
  for (int c = lane_index(); c < d; c += kWarpSize) {
    float sum = 0;
    for (std::int32_t i = begin; i < end; ++i) sum += load_float(key_at<T>(a.kv, row, a.token_of(row, i)) + c);
    a.means[row][std::int64_t{sentence} * d + c] = sum / static_cast<float>(end - begin);
  }
}

// Candidates and sentences ascend: of equal scores the earlier candidate is the earlier sentence's, or earlier in it. One block per row.
__global__ void __launch_bounds__(kRowThreads) take_sentences(TakeSentences a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x;
  const float* const scores = a.scores + a.score_first[row];
  std::int32_t* const out = a.index + a.index_first[row];
  const auto key = [&](std::int32_t i) { return ordered_key(scores[a.sentence[row][i]]); };
  const auto keep = static_cast<std::int32_t>(a.index_first[row + 1] - a.index_first[row]);
  block_choose(a.candidates[row], block_cut(a.candidates[row], keep, key, counts), key, sums,
               [&](std::int32_t i, bool chosen, std::int32_t before) {
                 if (chosen) out[before] = a.token[row][i];
               });
}

}  // namespace

void run_cuda(const SplitSentences& a, CudaContext& cuda) {
  if (a.num_sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<SplitRow> rows;
  std::vector<std::uint8_t> steps;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    rows.push_back({a.sentence_of[s], static_cast<std::int64_t>(steps.size()), a.begin[s], a.end[s]});
    const auto closes = [&](std::int32_t i) { return std::binary_search(a.closing, a.closing + a.num_closing, a.ids[s][i]); };
    for (std::int32_t i = a.begin[s]; a.num_closing > 0 && i < a.end[s]; ++i) steps.push_back(i > 0 && closes(i - 1) && !closes(i) ? 1 : 0);
  }
  const auto [device_rows, device_steps] = upload_all(cuda, std::span<const SplitRow>(rows), std::span<const std::uint8_t>(steps));
  launch("split_sentences", cuda, block_each(a.num_sequences), split_sentences, device_rows, a.num_closing > 0 ? device_steps : nullptr,
         a.span_tokens);
}

void run_cuda(const SentenceMeans& a, CudaContext& cuda) {
  const std::int32_t rows = a.kv.num_rows;
  if (rows == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<std::int64_t> first(1, 0);
  std::int64_t most = 0;
  for (std::int32_t r = 0; r < rows; ++r) {
    first.push_back(first.back() + a.candidates(r));
    most = std::max(most, a.candidates(r));
  }
  const std::vector<UnitList> listed = unit_list_of(a.listed, rows);
  Means m{};
  m.kv = on_device(a.kv, cuda), m.most = static_cast<int>(most);
  std::tie(m.sentence_of, m.listed, m.dense_begin, m.dense_end, m.first, m.means, m.token, m.sentence) =
      upload_all(cuda, host_array(a.sentence_of, a.kv.num_sequences()), std::span<const UnitList>(listed), host_array(a.dense_begin, rows),
                 host_array(a.dense_end, rows), std::span<const std::int64_t>(first), host_array(a.means, rows), host_array(a.token, rows),
                 host_array(a.sentence, rows));
  m.start = cuda.scratch<std::int32_t>(first.back()), m.count = cuda.scratch<std::int32_t>(rows);
  launch("sentence_means", cuda, block_each(rows), number_sentences, m);
  for_type(a.kv.type, [&](auto zero) { launch("sentence_means", cuda, warp_each(rows * most), mean_keys<decltype(zero)>, m); });
  const std::vector<std::int32_t> count = download(cuda, m.count, rows);
  std::copy(count.begin(), count.end(), a.count);
}

void run_cuda(const TakeSentences& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.index_first[a.num_rows] == a.index_first[0]) return;
  const CudaContext::Frame frame(cuda);
  TakeSentences on_gpu = a;
  std::tie(on_gpu.score_first, on_gpu.candidates, on_gpu.token, on_gpu.sentence, on_gpu.index_first) =
      upload_all(cuda, host_array(a.score_first, a.num_rows + 1), host_array(a.candidates, a.num_rows), host_array(a.token, a.num_rows),
                 host_array(a.sentence, a.num_rows), host_array(a.index_first, a.num_rows + 1));
  launch("take_sentences", cuda, block_each(a.num_rows), take_sentences, on_gpu);
}

}  // namespace kvlab
