#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/parallel.h"
#include "kernels/attention/agreement/agreement.h"
#include "kernels/attention/attend/attend.h"
#include "sim/replay/replay.h"

namespace kvlab {

namespace {

constexpr std::int32_t kStandIn = -1;  // not one recorded token

// Recorded positions by column.
std::vector<std::int32_t> columns_of(const AttendedRow& a) {
  std::vector<std::int32_t> columns;
  for (const Segment& s : a.segments) {
    for (std::int64_t i = 0; i < s.tokens(a.row); ++i) {
      const std::int32_t token = s.index == nullptr ? static_cast<std::int32_t>(i) : s.index[s.index_first[a.row] + i];
      const bool stands_in = s.log_weight != nullptr || s.head_log_weight != nullptr || s.weighed_queries > 0;
      columns.push_back(stands_in ? kStandIn : s.kv.position[s.kv.slot(a.row, token)]);
    }
  }
  return columns;
}

double relative_error(const float* got, const float* expected, std::int32_t n) {
  double difference = 0, size = 0;
  for (std::int32_t c = 0; c < n; ++c) {
    const double truth = static_cast<double>(expected[c]), off = static_cast<double>(got[c]) - truth;
    difference += off * off;
    size += truth * truth;
  }
  return difference == 0 ? 0 : std::sqrt(difference / std::max(size, 1e-30));
}

double needle_share(const std::vector<bool>& attended, const std::vector<std::pair<std::int32_t, std::int32_t>>& needles) {
  double held = 0, all = 0;
  for (const auto& [begin, end] : needles)
    for (std::int32_t i = begin; i < end; ++i) held += attended[static_cast<std::size_t>(i)] ? 1 : 0, all += 1;
  return all > 0 ? held / all : 1;
}

constexpr std::int32_t kSinks = 4, kRecent = 64;

// Adds the full cache's probabilities of tokens [begin, end) to `all`, of attended ones to `kept`.
void add_mass(const float* p, const std::vector<bool>& attended, std::int32_t begin, std::int32_t end, double& all, double& kept) {
  for (std::int32_t i = begin; i < end; ++i) {
    all += p[i];
    if (attended[static_cast<std::size_t>(i)]) kept += p[i];
  }
}

constexpr double Fidelity::*kSums[] = {
    &Fidelity::attention_mass,  &Fidelity::output_rel_err, &Fidelity::topk_recall,   &Fidelity::kl,          &Fidelity::needle,
    &Fidelity::attended_tokens, &Fidelity::far_mass,       &Fidelity::far_mass_kept, &Fidelity::needle_mass, &Fidelity::needle_mass_kept};

// Largest probabilities per query head; ties to the lower position.
std::vector<std::int32_t> most_attended(const AttentionReference::Step& step, std::int32_t q_heads, std::int32_t top_k) {
  const std::int32_t k = std::min(top_k, step.tokens);
  std::vector<std::int32_t> top(static_cast<std::size_t>(q_heads) * static_cast<std::size_t>(k));
  for_each_in_parallel(q_heads, [&](std::int64_t h) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(step.tokens));
    std::iota(order.begin(), order.end(), 0);
    const float* p = step.probability.data() + h * step.tokens;
    const auto better = [p](std::int32_t a, std::int32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; };
    std::partial_sort(order.begin(), order.begin() + k, order.end(), better);
    std::copy_n(order.begin(), k, top.begin() + h * k);
  });
  return top;
}

}  // namespace

Fidelity& Fidelity::operator+=(const Fidelity& o) {
  for (const auto sum : kSums) this->*sum += o.*sum;
  return *this;
}

Fidelity& Fidelity::operator*=(double factor) {
  for (const auto sum : kSums) this->*sum *= factor;
  return *this;
}

Fidelity fidelity_of_row(const AttendedRow& a, const AttentionReference::Step& full, const ModelShape& model,
                         const std::vector<std::pair<std::int32_t, std::int32_t>>& needles) {
  const std::vector<std::int32_t> columns = columns_of(a);
  std::vector<bool> attended(static_cast<std::size_t>(full.tokens), false);
  for (const std::int32_t position : columns)
    if (position != kStandIn) attended[static_cast<std::size_t>(position)] = true;
  Fidelity f;
  const auto top_k = static_cast<std::int64_t>(full.top.size()) / model.q_heads;
  for (std::int32_t g = 0; g < model.group(); ++g) {
    const std::int32_t head = a.row * model.group() + g;
    const float* p = full.probability.data() + static_cast<std::int64_t>(head) * full.tokens;
    const float* own = a.probability + static_cast<std::int64_t>(g) * static_cast<std::int64_t>(columns.size());
    const AgreementSums agreement = run_cpu(Agreement{p, own, columns.data(), static_cast<std::int64_t>(columns.size())});
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < top_k; ++i)
      found += attended[static_cast<std::size_t>(full.top[static_cast<std::size_t>(head * top_k + i)])] ? 1 : 0;
    add_mass(p, attended, kSinks, full.tokens - kRecent, f.far_mass, f.far_mass_kept);
    for (const auto& [begin, end] : needles) add_mass(p, attended, begin, end, f.needle_mass, f.needle_mass_kept);
    f.attention_mass += agreement.mass;
    f.kl += agreement.kl;
    f.topk_recall += top_k > 0 ? static_cast<double>(found) / static_cast<double>(top_k) : 1;
    f.output_rel_err += relative_error(a.output + static_cast<std::int64_t>(head) * model.head_dim,
                                       full.output.data() + static_cast<std::int64_t>(head) * model.head_dim, model.head_dim);
  }
  f *= 1.0 / model.group();
  f.needle = needle_share(attended, needles);
  f.attended_tokens = static_cast<double>(columns.size());
  return f;
}

bool finds_needles(std::span<const Fidelity> steps) {
  constexpr double kLooks = 0.5, kFinds = 0.5;
  double most = 0;
  for (const Fidelity& f : steps) most = std::max(most, f.needle_mass);
  return std::all_of(steps.begin(), steps.end(), [&](const Fidelity& f) {
    return f.needle_mass == 0 || f.needle_mass < kLooks * most || f.needle_mass_kept >= kFinds * f.needle_mass;
  });
}

AttentionReference full_attention(const AttentionTrace& trace, std::int32_t top_k) {
  AttentionReference reference;
  reference.num_steps = trace.num_tokens - trace.prompt_tokens;
  const ModelShape model = shape_of(trace, 2);
  const std::int64_t kv_width = static_cast<std::int64_t>(model.kv_heads) * model.head_dim,
                     q_width = static_cast<std::int64_t>(model.q_heads) * model.head_dim;
  for (const LayerTensors& l : trace.layers) {
    KvStore store(model, 1, 0, true);
    store.reserve(trace.num_tokens);
    store.append(0, l.k.data(), l.v.data(), trace.prompt_tokens, 0);
    for (std::int32_t t = trace.prompt_tokens; t < trace.num_tokens; ++t) {
      store.append(0, l.k.data() + t * kv_width, l.v.data() + t * kv_width, 1, t);
      AttentionReference::Step step;
      step.tokens = t + 1;
      step.probability.resize(static_cast<std::size_t>(model.q_heads) * static_cast<std::size_t>(step.tokens));
      step.output.resize(static_cast<std::size_t>(q_width));
      Segment all;
      all.kv = store.rows();
      const Queries query{l.q.data() + t * q_width, 1, t};
      float* out = step.output.data();
      std::vector<float*> lines;
      for (std::int32_t h = 0; h < model.kv_heads; ++h)
        lines.push_back(step.probability.data() + static_cast<std::int64_t>(h) * model.group() * step.tokens);
      run_cpu(Attend{&all, 1, &query, &out, nullptr, lines.data()});
      step.top = most_attended(step, model.q_heads, top_k);
      reference.steps.push_back(std::move(step));
    }
  }
  return reference;
}

}  // namespace kvlab
