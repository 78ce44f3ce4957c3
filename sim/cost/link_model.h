#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvlab {

// Bytes of each rank: all_reduce: input; all_gather: output; reduce_scatter, all_to_all: input with its own part; p2p: sent.
enum class Collective : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kP2p };
inline constexpr Collective kAllCollectives[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                                 Collective::kAllToAll, Collective::kP2p};
const char* collective_name(Collective op);  // "all_reduce"
std::optional<Collective> collective_of(const std::string& name);

// gpus: per machine; bytes_per_s: a GPU's share of the network, one direction.
struct MachineLinks {
  int gpus = 1 << 20;
  double bytes_per_s = 1e9, latency_ns = 0;
};

struct LinkModel {
  std::string card;
  double bytes_per_s = 0;       // per GPU and direction
  bool is_mesh = false;         // all-to-all NVLink, else PCIe through the CPU
  bool has_peer_access = true;  // PCIe: GPUs read each other's memory
  double latency_ns = 0;        // per wait between ranks
  MachineLinks machines{};

  // stride: in GPUs.
  [[nodiscard]] bool leaves_machine(int ranks, int stride = 1) const { return std::int64_t{ranks} * stride > machines.gpus; }
  [[nodiscard]] double ps(Collective op, double bytes, int ranks, int stride = 1) const;
  // Each rank's bytes cross its link once, summed on the way.
  [[nodiscard]] double least_ps(Collective op, double bytes, int ranks) const;

 private:
  [[nodiscard]] double inside_ps(Collective op, double bytes, int ranks) const;
  [[nodiscard]] double across_ps(Collective op, double bytes, int ranks, int stride) const;
};

}  // namespace kvlab
