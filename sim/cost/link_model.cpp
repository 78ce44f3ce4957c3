#include "sim/cost/link_model.h"

#include "base/time.h"
#include "sim/cost/hardware_spec.h"

namespace kvlab {

namespace {

// Shares of the datasheet's rate that long messages reach in AISimulate's tables (docs/cost-model.md): NVLink of A100, H100 and H200 0.66
// to 0.79; two GPUs over PCIe 0.61; through the host, all ranks together 0.47 to 0.50 of one GPU's link.
constexpr double kMeshFrac = 0.7, kPeerFrac = 0.6, kHostFrac = 0.5;

// vLLM's own all-reduce (custom_all_reduce.py and .cuh): 2, 4, 6 or 8 ranks, messages below 8 MiB. In one shot each rank reads the whole
// message of all others: always over 2 ranks, and below these sizes over more.
constexpr double kCustomBytes = 8192 << 10, kOneShotOf4 = 512 << 10, kOneShotOf8 = 256 << 10;

bool is_custom(Collective op, double bytes, int ranks) {
  return op == Collective::kAllReduce && ranks % 2 == 0 && ranks <= 8 && bytes < kCustomBytes;
}

bool is_one_shot(double bytes, int ranks) { return ranks == 2 || bytes < (ranks <= 4 ? kOneShotOf4 : kOneShotOf8); }

// Bytes that a rank sends, as a share of the message.
double sent_share(Collective op, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (op == Collective::kP2p) return 1;
  return op == Collective::kAllReduce ? 2 * others : others;
}

// How often the ranks wait for each other in NCCL: the small messages of AISimulate's tables take 2 to 3 times as long as vLLM's.
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

double LinkModel::ps(Collective op, double bytes, int ranks) const {
  if (ranks < 2 || bytes <= 0) return 0;
  const auto time = [&](int waits, double sent, double share) {
    return waits * latency_ns * static_cast<double>(kPsPerNs) + sent / (share * bytes_per_s) * kPsPerSecond;
  };
  const double sent = sent_share(op, ranks) * bytes;
  const bool by_peers = is_mesh || (ranks == 2 && has_peer_access);
  if (!by_peers) return time(waits_of_nccl(op), sent * (op == Collective::kP2p ? 1 : ranks), kHostFrac);
  const double share = is_mesh ? kMeshFrac : kPeerFrac;
  if (!is_custom(op, bytes, ranks)) return time(waits_of_nccl(op), sent, share);
  return is_one_shot(bytes, ranks) ? time(1, (ranks - 1) * bytes, share) : time(2, sent, share);
}

double LinkModel::least_ps(Collective op, double bytes, int ranks) const {
  const double share = op == Collective::kAllReduce ? 1 : sent_share(op, ranks);
  return share * bytes / bytes_per_s * kPsPerSecond;
}

}  // namespace kvlab
