#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "policies/kv/prefill_selector/prefill_selector.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"

// A prompt's queries, keys and values of one layer, and its attention with and without a prefill selector.
namespace kvlab::test {

struct PromptLayer {
  ModelShape model{1, 4, 2, 16, 64, 2, 1e4};
  std::int32_t tokens;
  std::vector<float> q, k, v;

  explicit PromptLayer(std::int32_t n, std::uint64_t stream = 1) : tokens(n) {
    const auto rows = static_cast<std::size_t>(n) * 16;
    q = sample_normals(rows * 4, 10 * stream), k = sample_normals(rows * 2, 10 * stream + 1), v = sample_normals(rows * 2, 10 * stream + 2);
    for (float& x : q) x *= 2;  // attention that is not even
  }
  [[nodiscard]] std::int64_t width() const { return 64; }

  // Attention over all tokens.
  [[nodiscard]] std::vector<float> dense() const {
    std::vector<float> out(q.size());
    AttentionPrefill op;
    op.q = q.data(), op.k = k.data(), op.v = v.data(), op.out = out.data();
    op.new_tokens = tokens, op.q_heads = 4, op.kv_heads = 2, op.head_dim = 16, op.scale = 0.25F;
    std::vector<float> scratch(static_cast<std::size_t>(scratch_floats(op)));
    op.scratch = scratch.data();
    run_cpu(op);
    return out;
  }
  // A selector's attention; chunks end at `ends`, then at the prompt's end.
  std::vector<float> sparse(PrefillSelector& selector, std::vector<std::int32_t> ends = {}) const {
    Ops ops(Ops::Backend::kCpu);
    std::vector<float> out(q.size());
    ends.push_back(tokens);
    std::int32_t begin = 0;
    for (const std::int32_t end : ends) {
      const Ops::Frame frame(ops);
      const std::int64_t at = begin * width();
      selector.attend({ops, model, 0, {0, begin, end - begin, tokens, -1}, q.data() + at, k.data(), v.data(), out.data() + at});
      begin = end;
    }
    return out;
  }
};

inline std::unique_ptr<PrefillSelector> prefill_part(const std::string& name, const std::string& parameters = "{}") {
  return make_part<PrefillSelectorRegistry>(name, parameters);
}

// The largest difference; infinite where a number is not finite.
inline double most_apart(const std::vector<float>& a, const std::vector<float>& b, std::size_t end) {
  double most = 0;
  for (std::size_t i = 0; i < end; ++i) {
    const double x = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(x <= most)) most = std::isfinite(x) ? x : HUGE_VAL;
  }
  return most;
}
inline double most_apart(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() ? most_apart(a, b, a.size()) : HUGE_VAL;
}

}  // namespace kvlab::test
