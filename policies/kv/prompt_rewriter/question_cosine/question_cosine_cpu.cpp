#include <Eigen/Core>
#include <algorithm>

#include "base/parallel.h"
#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"

namespace kvlab {

void run_cpu(const QuestionCosine& a) {
  using Vectors = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  constexpr std::int32_t kBlock = 256;
  const std::int32_t d = a.head_dim, asked = a.tokens - a.question_begin;
  const auto unit_vectors = [&](const float* from, std::int32_t begin, std::int32_t count) {
    Vectors rows = Eigen::Map<const Vectors>(from + std::int64_t{begin} * d, count, d);
    for (std::int32_t i = 0; i < count; ++i)
      if (const float norm = rows.row(i).norm(); norm > 0) rows.row(i) /= norm;
    return rows;
  };
  for_each_in_parallel((a.tokens + kBlock - 1) / kBlock, [&](std::int64_t block) {
    const std::int32_t begin = static_cast<std::int32_t>(block) * kBlock, count = std::min(kBlock, a.tokens - begin);
    Vectors sum = Vectors::Zero(count, asked);
    for (const float* const vectors : a.vectors)
      sum.noalias() += unit_vectors(vectors, begin, count) * unit_vectors(vectors, a.question_begin, asked).transpose();
    for (std::int32_t i = 0; i < count; ++i) a.out[begin + i] = sum.row(i).maxCoeff() / static_cast<float>(a.vectors.size());
  });
}

}  // namespace kvlab
