#include "app/runs/sweep/chosen_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/runs/kinds/run_kind.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr int kCompared = 1000;  // requests of a trace; a dependence on the seed shows earlier

bool are_equal(const TraceRequest& a, const TraceRequest& b) {
  const bool same_facts = a.facts == nullptr || b.facts == nullptr ? a.facts == b.facts : *a.facts == *b.facts;
  return same_facts && a.arrival == b.arrival && a.prompt_tokens == b.prompt_tokens && a.output_tokens == b.output_tokens &&
         a.delay == b.delay && std::equal(a.hashes.begin(), a.hashes.end(), b.hashes.begin(), b.hashes.end());
}

// Closed loops draw think times apart from requests.
bool are_same(TraceSource& a, TraceSource& b) {
  TraceRequest of_a, of_b;
  const ClosedLoop loop_a = a.closed_loop(), loop_b = b.closed_loop();
  for (std::uint64_t i = 0; i < kCompared; ++i) {
    const bool has_more = a.next(of_a);
    if (has_more != b.next(of_b)) return false;
    if (!has_more) return true;
    if (!are_equal(of_a, of_b)) return false;
    if (loop_a.concurrency > 0 && loop_a.think_time(i) != loop_b.think_time(i)) return false;
  }
  return true;
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

constexpr long long kMostShards = 100'000;  // maximum runs of a sweep

fs::path folder_of_shards(const fs::path& whole) {
  fs::path plain = whole;
  if (!plain.has_filename()) plain = plain.parent_path();  // "results/NAME/"
  return plain.string() + ".shards";
}

}  // namespace

bool is_random(const PreparedRun& run, std::uint64_t seed) {
  const auto requests = run.only_draws(seed);
  return !requests || !are_same(*requests, *run.only_draws(seed + 1));
}

SeedCounts::SeedCounts(const Experiment& experiment) {
  for (const RunSpec& run : experiment.runs) ++counts_[run.labels];
}

KeptSeeds kept_seeds(const Experiment& experiment, const SeedCounts& counts, const std::function<bool(std::size_t)>& is_random) {
  std::vector<std::vector<std::string>> idle;
  std::map<std::vector<std::string>, bool> is_idle;  // set by a configuration's first run
  KeptSeeds kept;
  for (std::size_t i = 0; i < experiment.runs.size(); ++i) {
    const std::vector<std::string>& labels = experiment.runs[i].labels;
    const auto known = is_idle.find(labels);
    if (known == is_idle.end()) {
      const bool here = counts.has_several(experiment.runs[i]) && !is_random(i);
      is_idle[labels] = here;
      if (here) idle.push_back(labels);
    } else if (known->second) {
      continue;
    }
    kept.places.push_back(i);
  }
  if (!idle.empty()) kept.remark = remark_on(experiment, idle, counts.num_configurations());
  return kept;
}

std::string drop_idle_seeds(Experiment& experiment) {
  const SeedCounts counts(experiment);
  RunKinds kinds;
  if (counts.num_configurations() == experiment.runs.size() || runs_an_engine(kinds, experiment)) return "";
  KeptSeeds kept = kept_seeds(experiment, counts, [&](std::size_t i) {
    Params p = experiment.params(experiment.runs[i]);
    return is_random(*kinds.read(p, experiment.runs[i].seed), experiment.runs[i].seed);
  });
  std::vector<RunSpec> runs;
  for (const std::size_t i : kept.places) runs.push_back(std::move(experiment.runs[i]));
  experiment.runs = std::move(runs);
  return kept.remark;
}

Shard parse_shard(const std::string& text) {
  const std::size_t slash = text.find('/');
  long long index = 0, count = 0;
  const bool is_pair =
      slash != std::string::npos && parse_integer(text.substr(0, slash), index) && parse_integer(text.substr(slash + 1), count);
  if (!is_pair || count < 1 || count > kMostShards || index < 1 || index > count)
    throw InputError(fmt::format("--shard '{}': write I/N, the part I of N parts, such as 1/4 to 4/4", text));
  return {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(count)};
}

std::vector<std::size_t> places_of_shard(const std::vector<std::string>& run_ids, const Shard& shard) {
  std::map<std::string, std::uint32_t> shard_of;
  for (const std::string& id : run_ids) shard_of.emplace(id, 0);
  std::uint32_t next = 0;
  for (auto& [id, of] : shard_of) of = next++ % shard.count;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < run_ids.size(); ++i)
    if (shard_of.at(run_ids[i]) + 1 == shard.index) places.push_back(i);
  return places;
}

fs::path shard_folder(const fs::path& whole, const Shard& shard) {
  return folder_of_shards(whole) / fmt::format("{}-of-{}", shard.index, shard.count);
}

std::vector<fs::path> shard_folders(const fs::path& whole) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_of_shards(whole), error))
    if (entry.is_directory(error)) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace kvlab
