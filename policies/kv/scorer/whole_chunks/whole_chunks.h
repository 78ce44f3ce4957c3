#pragma once

#include "kernels/ops.h"

namespace kvlab {

// Counts that keep whole chunks. Tokens [begin, begin + len) of a row form chunks of `chunk_tokens` (the last may be shorter) with equal
// scores; other tokens stay. Chunks are taken by score (ties: the earlier) until the next one does not fit into keep[r] with the other
// tokens, or num_chunks[r] of them. keep[r] becomes the number of tokens kept; unchanged in rows without chunks.
struct WholeChunks {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;                  // [num_rows + 1]
  const std::int32_t *begin = nullptr, *len = nullptr;  // [num_rows]
  std::int32_t chunk_tokens = 1;
  const float* scores = nullptr;             // [first[num_rows]]
  const std::int32_t* num_chunks = nullptr;  // [num_rows]; null: all that fit
  std::int32_t* keep = nullptr;              // [num_rows] in, out
  // CPU only: ties as in torch.topk; tokens of the chunks that go get -infinity here. Needs num_chunks.
  float* lowered = nullptr;  // [first[num_rows]], may be `scores`
  bool peer_ties = false;
};
OpCall call(const WholeChunks&);
void run_cpu(const WholeChunks&);
void run_cuda(const WholeChunks&, CudaContext&);  // `keep` is in CPU memory; waits for the stream.

}  // namespace kvlab
