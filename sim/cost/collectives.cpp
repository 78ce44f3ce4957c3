#include "sim/cost/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/ceil_div.h"
#include "base/error.h"
#include "base/text.h"
#include "base/time.h"
#include "sim/cost/hardware_spec.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

namespace {

// Share of the datasheet's rate for long messages (docs/cost-model.md): NVLink of A100, H100, H200 0.66 to 0.79 (AISimulate's tables);
// PCIe: two GPUs 0.61, rings 0.37 to 0.47 (RTX PRO 6000), all ranks through CPU memory 0.47 to 0.50 of one link (L40S).
constexpr double kMeshFrac = 0.7, kPeerFrac = 0.6, kRingFrac = 0.45, kHostFrac = 0.5;
// PCIe rings wait in proportion: 14 us for 4, 27 us for 8 RTX PRO 6000.
constexpr double kRanksOfWaits = 4;

// vLLM's all-reduce (custom_all_reduce.py and .cuh): 2, 4, 6 or 8 ranks, below 8 MiB. One shot for 2 ranks and below these sizes.
constexpr double kCustomBytes = 8192 << 10, kOneShotOf4 = 512 << 10, kOneShotOf8 = 256 << 10;

bool is_custom(Collective op, double bytes, int ranks) {
  return op == Collective::kAllReduce && ranks % 2 == 0 && ranks <= 8 && bytes < kCustomBytes;
}

bool is_one_shot(double bytes, int ranks) { return ranks == 2 || bytes < (ranks <= 4 ? kOneShotOf4 : kOneShotOf8); }

double sent_share(Collective op, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (op == Collective::kP2p) return 1;
  return op == Collective::kAllReduce ? 2 * others : others;
}

// NCCL's small messages take 2 to 3 times vLLM's time in AISimulate's tables.
int waits_of_nccl(Collective op) { return op == Collective::kP2p ? 1 : op == Collective::kAllReduce ? 3 : 2; }

std::string ranks_in(const CollectiveTables& from, Collective op) {
  std::set<int> ranks;
  for (const CollectiveTable& t : from.tables)
    if (t.op == op) ranks.insert(t.ranks);
  std::vector<std::string> all;
  for (const int n : ranks) all.push_back(std::to_string(n));
  return join(all, ", ");
}

using Chosen = std::map<std::pair<Collective, int>, const CollectiveTable*>;

// Chooses by operation and ranks: the engine's library, else the first; then the version.
Chosen choose(const CollectiveTables& from, const EngineName& engine) {
  const std::vector<int> running = version_numbers(engine.version);
  const auto is_better = [&](const CollectiveTable& t, const CollectiveTable& best) {
    const std::vector<int> a = version_numbers(t.version), b = version_numbers(best.version);
    if (best.library != engine.name || running.empty()) return a > b;
    if ((a <= running) != (b <= running)) return a <= running;
    return a <= running ? a > b : a < b;
  };
  Chosen chosen;
  const auto take = [&](const CollectiveTable& t) {
    const auto [at, is_new] = chosen.try_emplace({t.op, t.ranks}, &t);
    if (!is_new && t.library == at->second->library && is_better(t, *at->second)) at->second = &t;
  };
  for (const CollectiveTable& t : from.tables)
    if (t.library == engine.name) take(t);
  for (const CollectiveTable& t : from.tables) take(t);
  return chosen;
}

using Severity = LintFinding::Severity;

void check_point(const CollectiveTable& t, std::size_t i, const LinkModel& links, std::vector<LintFinding>& found) {
  const SampleGrid::Sample& s = t.points.samples()[i];
  const auto bytes = static_cast<double>(s.at[0]), ps = s.time.real();
  const std::string what = fmt::format("{}: {} over {} ranks: {} bytes", t.places[i], collective_name(t.op), t.ranks, s.at[0]);
  if (const double least = links.least_ps(t.op, bytes, t.ranks); ps * kDatasheetMargin < least)
    found.push_back(
        {Severity::kError, fmt::format("{} in {:.4g} us is {:.3g} times as fast as the link of {} ({:.4g} bytes/s); elements for bytes, or "
                                       "another unit of time?",
                                       what, ps * 1e-6, least / ps, links.card, links.bytes_per_s)});
  if (i == 0) return;
  const SampleGrid::Sample& before = t.points.samples()[i - 1];
  if (const auto was = before.time.real(); ps < (1 - kFallTolerance) * was)
    found.push_back({Severity::kWarning, fmt::format("{} take {:.4g} us, and {} bytes {:.4g} us: a longer message takes no less time", what,
                                                     ps * 1e-6, before.at[0], was * 1e-6)});
}

}  // namespace

const char* collective_name(Collective op) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"};
  return kNames[static_cast<std::size_t>(op)];
}

std::optional<Collective> collective_of(const std::string& name) {
  for (const Collective op : kAllCollectives)
    if (name == collective_name(op)) return op;
  return std::nullopt;
}

double LinkModel::ps(Collective op, double bytes, int ranks, int stride) const {
  if (ranks < 2 || bytes <= 0) return 0;
  return leaves_machine(ranks, stride) ? across_ps(op, bytes, ranks, stride) : inside_ps(op, bytes, ranks);
}

// Hierarchical (BlueConnect, Cho et al., MLSys 2019): an all-reduce is a reduce-scatter per machine, an all-reduce between machines, and an
// all-gather per machine. Others have one step inside and one between.
double LinkModel::across_ps(Collective op, double bytes, int ranks, int stride) const {
  const int here = std::max(1, machines.gpus / stride), count = (ranks + here - 1) / here;
  const auto network = [&](Collective part, double sent) {
    return waits_of_nccl(part) * machines.latency_ns * static_cast<double>(kPsPerNs) +
           sent / (kMeshFrac * machines.bytes_per_s) * kPsPerSecond;
  };
  const auto inside = [&](Collective part, double message) { return here < 2 ? 0.0 : inside_ps(part, message, here); };
  const double share = bytes / here;
  if (op == Collective::kP2p) return network(op, bytes);
  if (op == Collective::kAllReduce)
    return inside(Collective::kReduceScatter, bytes) + network(op, sent_share(op, count) * share) + inside(Collective::kAllGather, bytes);
  if (op == Collective::kAllToAll) return inside(op, bytes / count) + network(op, sent_share(op, count) * bytes);
  return inside(op, bytes) + network(op, sent_share(op, count) * share);
}

double LinkModel::inside_ps(Collective op, double bytes, int ranks) const {
  const auto time = [&](double waits, double sent, double share) {
    return waits * latency_ns * static_cast<double>(kPsPerNs) + sent / (share * bytes_per_s) * kPsPerSecond;
  };
  const double sent = sent_share(op, ranks) * bytes;
  if (!is_mesh && !has_peer_access) return time(waits_of_nccl(op), sent * (op == Collective::kP2p ? 1 : ranks), kHostFrac);
  const bool is_ring = !is_mesh && ranks > 2;  // vLLM's all-reduce of over two ranks needs NVLink
  if (is_ring) return time(waits_of_nccl(op) * std::max(1.0, ranks / kRanksOfWaits), sent, kRingFrac);
  const double share = is_mesh ? kMeshFrac : kPeerFrac;
  if (!is_custom(op, bytes, ranks)) return time(waits_of_nccl(op), sent, share);
  return is_one_shot(bytes, ranks) ? time(1, (ranks - 1) * bytes, share) : time(2, sent, share);
}

double LinkModel::least_ps(Collective op, double bytes, int ranks) const {
  const double share = op == Collective::kAllReduce ? 1 : sent_share(op, ranks);
  return share * bytes / bytes_per_s * kPsPerSecond;
}

SampleGrid::Value CollectiveTable::at(double bytes) const {
  const std::vector<SampleGrid::Sample>& all = points.samples();
  const auto size = [](const SampleGrid::Sample& s) { return static_cast<double>(s.at[0]); };
  const auto time = [](const SampleGrid::Sample& s) { return s.time.real(); };
  const auto above = std::lower_bound(all.begin(), all.end(), bytes, [&](const auto& s, double b) { return size(s) < b; });
  if (above == all.end()) return {time(all.back()) * bytes / size(all.back()), Footing::kExtrapolated};
  if (size(*above) == bytes) return {time(*above), Footing::kInside};
  if (above == all.begin()) return {time(*above), Footing::kExtrapolated};
  const SampleGrid::Sample& below = *std::prev(above);
  const double share = std::log(bytes / size(below)) / std::log(size(*above) / size(below));
  return {time(below) * std::pow(time(*above) / time(below), share), Footing::kInterpolated};
}

std::vector<CollectiveUse> collectives_of(const ModelSpec& model, const Parallel& parallel) {
  std::vector<CollectiveUse> uses;
  if (parallel.tp > 1) uses.push_back({Collective::kAllReduce, parallel.tp});
  if (model.is_moe() && parallel.dp > 1) {
    const auto [before, after] = exchange_collectives(parallel);
    uses.push_back(before);
    if (after.op != before.op) uses.push_back(after);
  } else if (model.is_moe() && parallel.data_ranks() > 1) {
    uses.push_back({Collective::kAllToAll, parallel.ep});
  }
  if (parallel.pp > 1) uses.push_back({Collective::kP2p, 2});
  return uses;
}

double message_bytes(const ModelSpec& model, const Parallel& parallel, Collective op, std::int64_t tokens) {
  if (parallel.dp > 1 && op != Collective::kAllReduce && op != Collective::kP2p) {
    GroupTokens group;
    for (int rank = 0; rank < parallel.dp; ++rank) group.add(tokens, tokens);
    return exchange_message_bytes(model, parallel, group);
  }
  const std::int64_t own = ceil_div(tokens, op == Collective::kAllToAll ? parallel.ep : parallel.data_ranks());
  const std::int64_t copies = op == Collective::kAllToAll ? model.experts_per_token : 1;
  return static_cast<double>(own * copies * model.hidden * model.activation_bytes());
}

Collectives::Collectives(CollectiveTables profile, std::shared_ptr<const CollectiveTables> card, LinkModel links, const EngineName& engine)
    : profile_(std::move(profile)), card_(std::move(card)), links_(std::move(links)), chosen_(choose(profile_, engine)) {
  chosen_.merge(choose(*card_, engine));
}

const CollectiveTable* Collectives::find(Collective op, int ranks) const {
  const auto found = chosen_.find({op, ranks});
  return found == chosen_.end() ? nullptr : found->second;
}

SampleGrid::Value Collectives::time(Collective op, double bytes, int ranks, int stride) const {
  if (ranks < 2 || bytes <= 0) return {};
  const CollectiveTable* table = find(op, ranks);
  if (table != nullptr && (stride == 1 || !links_.leaves_machine(ranks, stride))) return table->at(bytes);
  return {links_.ps(op, bytes, ranks, stride), Footing::kDatasheet};
}

std::string Collectives::basis(const CollectiveUse& use) const {
  const std::string what = fmt::format("{} over {} ranks by ", collective_name(use.op), use.ranks);
  const CollectiveTable* table = find(use.op, use.ranks);
  if (table == nullptr && links_.leaves_machine(use.ranks))
    return what + fmt::format(
                      "the datasheet of {} and a network of {:.3g} GB/s for each GPU between machines of {} ('network_bytes_per_s', "
                      "'gpus_per_machine')",
                      links_.card, links_.machines.bytes_per_s * 1e-9, links_.machines.gpus);
  if (table == nullptr) return what + "the datasheet of " + links_.card;
  const std::string library = table->library.empty() ? "the table" : table->library + (table->version.empty() ? "" : " " + table->version);
  return what + library + ", " + table->places.front();
}

void Collectives::require(const CollectiveUse& use) const {
  for (const CollectiveTables* from : {&profile_, card_.get()}) {
    const auto is_of_op = [&](const CollectiveTable& t) { return t.op == use.op; };
    const auto is_wanted = [&](const CollectiveTable& t) { return is_of_op(t) && t.ranks == use.ranks; };
    if (std::any_of(from->tables.begin(), from->tables.end(), is_wanted)) return;
    const auto first = std::find_if(from->tables.begin(), from->tables.end(), is_of_op);
    if (first == from->tables.end() || from->falls_back) continue;
    throw InputError(fmt::format("{}: no {} over {} ranks, which 'parallel' needs; there is {}; add it, or let '{}' fill the gap",
                                 first->places.front(), collective_name(use.op), use.ranks, ranks_in(*from, use.op),
                                 from == &profile_ ? "missing: roofline" : "missing: datasheet"));
  }
}

std::vector<LintFinding> check_collectives(const std::vector<CollectiveTable>& tables, const LinkModel& links) {
  std::vector<LintFinding> found;
  for (const CollectiveTable& t : tables) {
    for (std::size_t i = 0; i < t.points.samples().size(); ++i) check_point(t, i, links, found);
    const SampleGrid::Sample& last = t.points.samples().back();
    const auto ps = last.time.real();
    if (const double factor = ps / links.ps(t.op, static_cast<double>(last.at[0]), t.ranks); factor > kUnitFactor)
      found.push_back(
          {Severity::kError, fmt::format("{}: {} over {} ranks: {} bytes in {:.4g} us is {:.3g} times what the link of {} takes; is the "
                                         "unit of time right?",
                                         t.places.back(), collective_name(t.op), t.ranks, last.at[0], ps * 1e-6, factor, links.card)});
  }
  return found;
}

double share_of_gpus(const ModelSpec& model, int gpus) {
  const auto experts = static_cast<double>(model.experts), elsewhere = experts - experts / gpus;
  double none = 1;
  for (std::int64_t i = 0; i < model.experts_per_token; ++i)
    none *= std::max(0.0, elsewhere - static_cast<double>(i)) / (experts - static_cast<double>(i));
  return 1 - none;
}

// all_gather: each GPU receives the other ranks' tokens; the rank with the fewest receives most. deepep: a rank's GPUs split its tokens,
// and each sends its part.
std::int64_t exchange_volume(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group) {
  const std::int64_t token_bytes = model.hidden * model.activation_bytes();
  if (parallel.exchange == ExpertExchange::kAllGather) return (group.computed - group.smallest) * token_bytes;
  const auto own = static_cast<double>(ceil_div<std::int64_t>(group.largest, parallel.tp));
  const double others = (parallel.ep - 1) * share_of_gpus(model, parallel.ep);
  return std::llround(own * others * static_cast<double>(token_bytes));
}

std::array<CollectiveUse, 2> exchange_collectives(const Parallel& parallel) {
  if (parallel.exchange == ExpertExchange::kDeepEp) return {{{Collective::kAllToAll, parallel.ep}, {Collective::kAllToAll, parallel.ep}}};
  return {{{Collective::kAllGather, parallel.dp}, {Collective::kReduceScatter, parallel.dp}}};
}

double exchange_message_bytes(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group) {
  const double ranks = exchange_collectives(parallel).front().ranks;
  return static_cast<double>(exchange_volume(model, parallel, group)) * ranks / (ranks - 1);
}

}  // namespace kvlab
