#include <algorithm>

#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/scorer/whole_chunks/whole_chunks.h"

namespace kvlab {

namespace {

// The first score of each chunk.
struct GatherChunks {
  const std::int64_t *chunk_first, *score_first;
  const float* scores;
  std::int32_t chunk_tokens;
  float* out;
  __device__ std::int64_t count(int row) const { return chunk_first[row + 1] - chunk_first[row]; }
  __device__ void operator()(int row, std::int64_t i) const { out[chunk_first[row] + i] = scores[score_first[row] + i * chunk_tokens]; }
};

}  // namespace

void run_cuda(const WholeChunks& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  if (a.peer_ties) throw CudaError("whole_chunks: peer_ties runs on the CPU alone");
  const CudaContext::Frame frame(cuda);
  std::vector<std::int64_t> chunk_first(1, 0), score_first;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    chunk_first.push_back(chunk_first.back() + (a.len[r] + a.chunk_tokens - 1) / a.chunk_tokens);
    score_first.push_back(a.first[r] + a.begin[r]);
  }
  float* const gathered = cuda.scratch<float>(chunk_first.back());
  const auto [device_chunks, device_scores] =
      upload_all(cuda, host_array(chunk_first.data(), a.num_rows + 1), host_array(score_first.data(), a.num_rows));
  launch_over_rows("whole_chunks", cuda, a.num_rows, longest_row(chunk_first.data(), a.num_rows),
                   GatherChunks{device_chunks, device_scores, a.scores, a.chunk_tokens, gathered});
  const std::vector<float> host = download(cuda, gathered, chunk_first.back());
  std::vector<float> scores(static_cast<std::size_t>(a.first[a.num_rows]), 0.0F);
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    for (std::int64_t c = chunk_first[static_cast<std::size_t>(r)]; c < chunk_first[static_cast<std::size_t>(r) + 1]; ++c)
      scores[static_cast<std::size_t>(score_first[static_cast<std::size_t>(r)] +
                                      (c - chunk_first[static_cast<std::size_t>(r)]) * a.chunk_tokens)] = host[static_cast<std::size_t>(c)];
  WholeChunks on_host = a;
  on_host.scores = scores.data();
  run_cpu(on_host);
}

}  // namespace kvlab
