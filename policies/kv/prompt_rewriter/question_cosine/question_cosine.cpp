#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"

namespace kvlab {

OpCall call(const QuestionCosine& a) {
  const std::int64_t n = a.tokens, asked = a.tokens - a.question_begin, kinds = std::ssize(a.vectors), d = a.head_dim;
  return {.op = "question_cosine",
          .rows = 1,
          .tokens = n,
          .outputs = n,
          .bytes = 4 * (n * kinds * d + n),
          .flops = 2 * n * kinds * d * (asked + 1) + n * asked};
}
KVLAB_WITHOUT_CUDA(QuestionCosine)

}  // namespace kvlab
