#include "app/runs/seeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "app/runs/run_kind.h"
#include "app/runs/slow_count.h"
#include "base/text.h"

namespace kvlab {

namespace {

constexpr int kCompared = 1000;  // requests of a trace; one that depends on the seed differs earlier

bool are_equal(const TraceRequest& a, const TraceRequest& b) {
  const bool same_facts = a.facts == nullptr || b.facts == nullptr ? a.facts == b.facts : *a.facts == *b.facts;
  return same_facts && a.arrival == b.arrival && a.prompt_tokens == b.prompt_tokens && a.output_tokens == b.output_tokens &&
         a.delay == b.delay && std::equal(a.hashes.begin(), a.hashes.end(), b.hashes.begin(), b.hashes.end());
}

// True where two seeds give one trace. In a closed loop the times to think are drawn beside the requests.
bool are_same(TraceSource& a, TraceSource& b) {
  TraceRequest of_a, of_b;
  for (int i = 0; i < kCompared; ++i) {
    const bool has_more = a.next(of_a);
    if (has_more != b.next(of_b)) return false;
    if (!has_more) return true;
    if (!are_equal(of_a, of_b)) return false;
    if (a.concurrency() > 0 && a.think_time(static_cast<std::uint64_t>(i)) != b.think_time(static_cast<std::uint64_t>(i))) return false;
  }
  return true;
}

// True where runs with this one's choices and other seeds may differ.
bool is_random(RunKinds& kinds, const Experiment& experiment, const RunSpec& run) {
  Params p = experiment.params(run);
  const std::unique_ptr<PreparedRun> prepared = kinds.read(p, run.seed);
  const auto requests = prepared->only_draws(run.seed);
  return !requests || !are_same(*requests, *prepared->only_draws(run.seed + 1));
}

bool runs_an_engine(RunKinds& kinds, const Experiment& experiment) {
  const Choices* last = nullptr;
  return std::any_of(experiment.runs.begin(), experiment.runs.end(), [&](const RunSpec& run) {
    if (std::exchange(last, run.choices.get()) == run.choices.get()) return false;
    Params p(experiment.config, run.choices, "the experiment");
    return kinds.choose(p).runs_engine();
  });
}

std::string remark_on(const Experiment& experiment, const std::vector<std::vector<std::string>>& idle, std::size_t configurations) {
  constexpr std::size_t kNamed = 3;
  const std::string why = "their requests are recorded and no dispatcher draws. They are done once, so n = 1";
  if (idle.size() == configurations) return fmt::format("note: seeds change nothing in these runs: {}\n", why);
  std::vector<std::string> names;
  for (std::size_t k = 0; k < std::min(idle.size(), kNamed); ++k) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < idle[k].size(); ++i)
      if (!idle[k][i].empty()) parts.push_back(experiment.axes[i] + "=" + idle[k][i]);
    names.push_back(join(parts, " "));
  }
  if (idle.size() > kNamed) names.push_back(fmt::format("and {} more", idle.size() - kNamed));
  return fmt::format("note: seeds change nothing in {} of {} configurations ({}): {}\n", idle.size(), configurations, join(names, "; "),
                     why);
}

}  // namespace

std::string drop_idle_seeds(Experiment& experiment, std::ostream* err, bool is_terminal) {
  std::map<std::vector<std::string>, std::size_t> counts;
  for (const RunSpec& run : experiment.runs) ++counts[run.labels];
  RunKinds kinds;
  if (counts.size() == experiment.runs.size() || runs_an_engine(kinds, experiment)) return "";
  std::vector<std::vector<std::string>> idle;
  std::map<std::vector<std::string>, bool> is_idle;  // from a configuration's second run on
  std::vector<RunSpec> kept;
  SlowCount progress(err, is_terminal, "reading", experiment.runs.size());
  for (const RunSpec& run : experiment.runs) {
    progress.next();
    const auto known = is_idle.find(run.labels);
    if (known == is_idle.end()) {
      const bool here = counts[run.labels] > 1 && !is_random(kinds, experiment, run);
      is_idle[run.labels] = here;
      if (here) idle.push_back(run.labels);
    } else if (known->second) {
      continue;
    }
    kept.push_back(run);
  }
  if (idle.empty()) return "";
  experiment.runs = std::move(kept);
  return remark_on(experiment, idle, counts.size());
}

}  // namespace kvlab
