#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "tests/kv/selector_fixture.h"

namespace kvlab::test {

// A budget of the whole row attends to everything; so does set_budget.
inline bool large_budget_selects_everything(const std::string& part, const std::string& parameters, std::int32_t prompt = 40) {
  auto selector = make_part<SelectorRegistry>(part, parameters);
  Decode d({4, 6, 2, 8, 16}, 2, prompt, 11, true, selector->num_words());
  d.window_tokens = selector->needs().window_queries;
  selector->set_budget({10 * prompt});
  d.prefill(*selector);
  for (std::int32_t t = 0; t < 3; ++t)
    for (const auto& row : d.decode(*selector))
      if (static_cast<std::int32_t>(row.size()) != d.tokens()) return false;
  return true;
}

// How many of `now` are not in `before`.
inline std::int64_t newcomers(const std::vector<std::int32_t>& now, const std::vector<std::int32_t>& before) {
  std::vector<std::int32_t> out;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(), std::back_inserter(out));
  return static_cast<std::int64_t>(out.size());
}

// Records counts that depend on data, then plays them where there are only shapes.
class Played final : public CountSource {
 public:
  void fill(std::string_view purpose, int, std::span<std::int32_t> counts) override {
    for (std::int32_t& c : counts) {
      if (!plays_) {
        all_.emplace_back(purpose, c);
      } else if (at_ == all_.size() || all_[at_].first != purpose || all_[at_].second > c) {
        fits_ = false;  // asked for something else, or the recorded count exceeds its bound
      } else {
        c = all_[at_++].second;
      }
    }
  }
  void play() { plays_ = true; }
  [[nodiscard]] bool fitted() const { return fits_ && at_ == all_.size(); }

 private:
  bool plays_ = false, fits_ = true;
  std::vector<std::pair<std::string, std::int32_t>> all_;
  std::size_t at_ = 0;
};

// The attention output of a decode step over the selection and the segments that the selector adds.
inline std::vector<float> attended_output(Decode& d, Selector& selector) {
  d.append(1);
  LayerStep s = d.step();
  selector.update(s);
  const Selection chosen = selector.select(s);
  std::vector<Segment> segments(1);
  segments[0].kv = s.kv;
  segments[0].index_first = chosen.index_first, segments[0].index = chosen.index;
  selector.add_segments(s, segments);
  const auto width = static_cast<std::size_t>(d.model.q_heads * d.model.head_dim);
  std::vector<float> out(d.k.size() * width);
  std::vector<float*> rows;
  for (std::size_t i = 0; i < d.k.size(); ++i) rows.push_back(out.data() + i * width);
  d.ops(Attend{segments.data(), static_cast<std::int32_t>(segments.size()), d.queries.data(), rows.data()});
  return out;
}

// softmax(z) . rows of v, each of length d.
inline std::vector<double> attend_plain(const std::vector<double>& z, const std::vector<std::vector<double>>& v) {
  const double top = *std::max_element(z.begin(), z.end());
  std::vector<double> out(v.front().size(), 0.0);
  double sum = 0;
  for (const double x : z) sum += std::exp(x - top);
  for (std::size_t i = 0; i < z.size(); ++i)
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += std::exp(z[i] - top) / sum * v[i][c];
  return out;
}

// With recorded counts, shapes alone give the same log, the same tokens attended to and the same traffic.
inline bool same_log_with_recorded_counts(const std::string& part, const std::string& parameters, std::int32_t prompt, std::int32_t steps) {
  const ModelShape shape{4, 8, 2, 8, 16};
  auto a = make_part<SelectorRegistry>(part, parameters), b = make_part<SelectorRegistry>(part, parameters);
  Decode with(shape, 2, prompt, 5, true, a->num_words()), without(shape, 2, prompt, 5, false, b->num_words());
  with.window_tokens = without.window_tokens = a->needs().window_queries;
  with.ids.assign(2, {});
  for (auto& ids : with.ids)
    for (std::int32_t i = 0; i < prompt + steps; ++i) ids.push_back(i * 7 % 5);
  Played counts;
  with.ops.take_counts_from(&counts), without.ops.take_counts_from(&counts);
  std::vector<std::int64_t> attended;
  with.prefill(*a);
  for (std::int32_t t = 0; t < steps; ++t) with.decode(*a), attended.push_back(with.attended);
  counts.play();
  without.prefill(*b);
  for (std::int32_t t = 0; t < steps; ++t) {
    without.decode(*b);
    if (without.attended != nth(attended, t)) return false;
  }
  const Traffic x = a->take_traffic(), y = b->take_traffic();
  return counts.fitted() && !with.ops.log().empty() && with.ops.log() == without.ops.log() && x.fetched_bytes == y.fetched_bytes &&
         x.asked_units == y.asked_units && x.hit_units == y.hit_units;
}

// The promises of a selector: `runs` and `log` are numbers of prompt tokens and of decode steps.
struct PromisedRun {
  std::int32_t prompt, steps;
};
inline void expect_promises(const std::string& part, const std::string& parameters, const std::vector<PromisedRun>& runs, PromisedRun log,
                            std::int32_t window = 0) {
  EXPECT_TRUE(large_budget_selects_everything(part, parameters)) << part << parameters;
  for (const PromisedRun& run : runs)
    EXPECT_TRUE(deterministic_and_well_formed(part, parameters, run.prompt, run.steps, window)) << part << parameters << run.prompt;
  EXPECT_TRUE(same_log_with_recorded_counts(part, parameters, log.prompt, log.steps)) << part << parameters;
}

}  // namespace kvlab::test
