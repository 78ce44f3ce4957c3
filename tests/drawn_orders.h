#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/request_facts.h"
#include "tests/drawn.h"
#include "tests/test_files.h"

// Drawn orders and predictors with their parameters, and facts for them.
namespace kvlab::test {

struct DrawnOrder {
  std::string order, options, predictor, predictor_options;
};

// A confusion matrix for outputs of up to some 200 tokens. The file exists until the program ends.
inline const std::string& confusion_file() {
  static const TempFolder folder;
  static const std::string file =
      folder.write("confusion.csv", "output_tokens,10,40,160\n10,0.6,0.3,0.1\n40,0.2,0.5,0.3\n160,0.1,0.2,0.7\n");
  return file;
}

inline std::pair<std::string, std::string> drawn_predictor(Drawn& draw) {
  switch (draw.from(0, 5)) {
    case 0:
      return {"exact", "{}"};
    case 1:
      return {"bucket", "{max_output_tokens: 160, buckets: 8, accuracy_frac: 0.6}"};
    case 2:
      return {"lognormal", "{sigma: 1}"};
    case 3:
      return {"confusion", "{file: " + confusion_file() + "}"};
    case 4:
      return {"recorded", "{}"};
    default:
      return {"history", fmt::format("{{per: {}, first_tokens: 20}}", draw.of<std::string>({"all", "client", "class"}))};
  }
}

// Promotions come seldom: where overtaken requests are computed anew, none would ever finish with many.
inline std::pair<std::string, std::string> drawn_mlfq(Drawn& draw, double step_ms, const std::string& mode) {
  const double quantum = step_ms * draw.of<double>({1, 4, 50}), starvation = step_ms * draw.of<double>({0, 1000});
  const std::int32_t scan = draw.of<std::int32_t>({1, 20, 1000}), levels = draw.of<std::int32_t>({1, 3, 16});
  return {"mlfq", fmt::format("{{quantum_ms: {:g}, starvation_ms: {:g}, scan_steps: {}, levels: {}, preemption: {}}}", quantum, starvation,
                              scan, levels, mode)};
}

inline std::pair<std::string, std::string> drawn_andes(Drawn& draw, double step_ms, const std::string& mode) {
  const double ttft = step_ms * draw.of<double>({1, 20, 500}), speed = draw.of<double>({20, 500}) / step_ms;
  const double pressure = draw.of<double>({0, 0.3, 0.9});
  const std::int32_t renewals = draw.of<std::int32_t>({1, 2, 64});
  return {"andes", fmt::format("{{ttft_ms: {:g}, tokens_per_s: {:g}, horizon_s: {:g}, pressure_frac: {:g}, renewals: {}, preemption: {}}}",
                               ttft, speed, step_ms, pressure, renewals, mode)};
}

using Orders = std::vector<std::pair<std::string, std::string>>;  // with their parameters

// Orders by what was learned of classes, by cached prefixes and by chance, and orders that swap ahead, to draw from beside those of
// drawn_order().
inline Orders drawn_further_orders(Drawn& draw, bool overtakes, double step_ms) {
  const std::string mode = draw.one_in(2) ? "swap" : "recompute";
  const std::int32_t ahead = draw.of<std::int32_t>({1, 6, 12}), most_waiting = draw.of<std::int32_t>({0, 3, 128});
  const std::int32_t scale = draw.from(0, 1), quantum = draw.of<std::int32_t>({2, 8}), sizes = draw.from(2, 4);
  const double queue = step_ms * draw.of<double>({5, 50}), age = std::max(0.001, step_ms * draw.of<double>({20, 1e6}) / 1e3);
  Orders orders = {{"etc_u", fmt::format("{{confidence_scale: {}}}", scale)},
                   {"ucb_u", fmt::format("{{confidence_scale: {}}}", scale)},
                   {"vtc", "{weights: {0: 2, 3: 0.7}}"},
                   {"dfs_weight", fmt::format("{{most_waiting: {}}}", most_waiting)},
                   {"longest_output", "{}"},
                   {"random", "{}"}};
  if (!overtakes) return orders;
  const std::string swaps = fmt::format("preemption: {}, swap_ahead_blocks: {}", draw.one_in(2) ? "keep" : "swap", ahead);
  const std::string queues = fmt::format("first_queue_ms: {:g}, age_s: {:g}", queue, age);
  orders.emplace_back("etc_rr", fmt::format("{{confidence_scale: {}, quantum_steps: {}, preemption: {}}}", scale, quantum, mode));
  orders.emplace_back("ucb_rr", fmt::format("{{confidence_scale: {}, quantum_steps: {}, preemption: {}}}", scale, quantum, mode));
  orders.emplace_back("alise", fmt::format("{{{}, preemption: {}}}", queues, mode));
  orders.emplace_back("alise", fmt::format("{{{}, {}}}", queues, swaps));
  orders.emplace_back("mlfq", fmt::format("{{quantum_ms: {:g}, {}}}", queue, swaps));
  orders.emplace_back("andes", fmt::format("{{horizon_s: {:g}, pressure_frac: 0.3, batch_sizes: {}}}", step_ms, sizes));
  orders.emplace_back("fastswitch_priority", fmt::format("{{frequency: 0.04, preemption: {}}}", mode));
  orders.emplace_back("fastswitch_priority", "{frequency: 0.1, pattern: markov}");
  return orders;
}

// Times are multiples of step_ms, a step's usual duration. `overtakes`: the scheduler lets waiting requests overtake. `further`: others to
// draw from.
inline DrawnOrder drawn_order(Drawn& draw, bool overtakes, double step_ms, const Orders& further = {}) {
  const std::string mode = draw.one_in(2) ? "swap" : "recompute";
  const bool counts_prompt = draw.one_in(2);
  const std::int32_t most_waiting = draw.of<std::int32_t>({0, 3, 128});
  Orders orders = {{"fcfs", "{}"},
                   {"priority", "{}"},
                   {"sjf", fmt::format("{{counts_prompt: {}}}", counts_prompt)},
                   {"sjf", "{counts_prompt: true, counts_output: false, window: 5}"},
                   {"srpt", "{preemptive: false}"},
                   {"vtc", "{}"},
                   {"vtc", "{charge_predicted: true}"},
                   {"vtc", "{charge_predicted: true, cost: profiled}"},
                   {"edf", "{}"},
                   {"longest_prefix", fmt::format("{{most_waiting: {}}}", most_waiting)}};
  if (overtakes) {
    for (int i = 0; i < 2; ++i) {
      orders.emplace_back("priority", "{preemptive: true}");
      orders.emplace_back("srpt", fmt::format("{{preemption: {}}}", mode));
      orders.push_back(drawn_mlfq(draw, step_ms, mode));
      orders.push_back(drawn_andes(draw, step_ms, mode));
    }
  }
  orders.insert(orders.end(), further.begin(), further.end());
  const auto [order, options] = draw.of(orders);
  const auto [predictor, predictor_options] = drawn_predictor(draw);
  return {order, options, predictor, predictor_options};
}

// All that the orders and predictors above ask for.
inline RequestFacts drawn_facts(Drawn& draw, double step_ms) {
  RequestFacts facts;
  facts.client = draw.from(0, 4);
  facts.priority = draw.from(0, 2);
  facts.request_class = ClassName(draw.one_in(2) ? "chat" : "batch");
  facts.ttft_slo = Span(static_cast<std::int64_t>(step_ms * 1e6 * draw.from(1, 500)));
  if (draw.one_in(2)) facts.tpot_slo = Span(static_cast<std::int64_t>(step_ms * 1e5 * draw.from(1, 100)));
  facts.predicted_output = draw.from(1, 200);
  return facts;
}

}  // namespace kvlab::test
