#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvlab {

// Operations of several ranks. Their message, in bytes: all_reduce: what each rank contributes, and gets; all_gather: what each rank has at
// the end; reduce_scatter and all_to_all: what each rank has at the beginning, its own part included; p2p: what is sent.
enum class Collective : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kP2p };
inline constexpr Collective kAllCollectives[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                                 Collective::kAllToAll, Collective::kP2p};
const char* collective_name(Collective op);  // "all_reduce"
std::optional<Collective> collective_of(const std::string& name);

// The links between the GPUs of a machine, by the datasheet, and the time of a collective that no table has.
struct LinkModel {
  std::string card;
  double bytes_per_s = 0;       // of one GPU in one direction: NVLink, else PCIe
  bool is_mesh = false;         // NVLink between all GPUs, else PCIe through the host
  bool has_peer_access = true;  // over PCIe: two GPUs read each other's memory
  double latency_ns = 0;        // of the ranks waiting for each other once

  [[nodiscard]] double ps(Collective op, double bytes, int ranks) const;
  // The shortest time that the link allows: each rank's bytes once over it, sums made on the way.
  [[nodiscard]] double least_ps(Collective op, double bytes, int ranks) const;
};

}  // namespace kvlab
