#include "sim/cost/link_model.h"

#include <algorithm>

#include "base/time.h"
#include "sim/cost/hardware_spec.h"

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

}  // namespace kvlab
