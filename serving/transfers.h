#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "serving/link.h"

namespace kvlab {

struct TransferSetup {
  std::int32_t layers = 1;
  // Memory ranges of a block: one per layer for keys and one for values; 1: block-major layout (FlowKV, Li et al. 2025).
  std::int32_t places_per_block = 1;
  // One call copies a run of blocks adjacent on both sides; false: one block.
  bool merges_blocks = true;
  // Each layer's KV is sent once the prompt has passed it; false: after the last layer.
  bool is_layerwise = false;
};

// KV blocks that a replica fetches; or image embeddings, as one block in one call.
struct KvFetch {
  std::uint32_t from = 0, to = 0;  // replicas
  std::int64_t blocks = 0, bytes = 0, runs = 0;
  Picoseconds begun{}, ready{};  // times of the prompt on `from`
  std::int64_t calls = 0;        // 0: by blocks or runs
};

// Runs of blocks that are adjacent on both sides; equal list lengths.
std::int64_t adjacent_runs(std::span<const BlockId> from, std::span<const BlockId> to);

// One link per replica and direction. A transfer occupies one on either side, at the lower bandwidth; transfers on a link are serial.
class Transfers {
 public:
  Transfers(const TransferSetup& setup, std::vector<LinkSetup> links);

  struct Times {
    std::int64_t calls = 0;
    Picoseconds end{};
  };
  // Layer-wise, a transfer began with the prompt if the links were free. With prompt time C and transfer time T over L layers, it ends at
  // max(ready + T / L, begun + C / L + T).
  Times begin(const KvFetch& fetch, Picoseconds at);
  // Seconds from `at` to the end of a transfer begun at `at`.
  [[nodiscard]] double seconds(std::uint32_t from, std::uint32_t to, std::int64_t bytes, std::int64_t calls, Picoseconds at) const;

  struct Use {
    std::uint64_t transfers = 0;
    std::int64_t bytes = 0;
    Picoseconds busy{};
  };
  [[nodiscard]] const Use& egress(std::size_t replica) const { return sides_[replica].out; }
  [[nodiscard]] const Use& ingress(std::size_t replica) const { return sides_[replica].in; }

 private:
  struct Side {
    Picoseconds out_free{}, in_free{};
    Use out, in;
  };
  [[nodiscard]] LinkSetup between(std::uint32_t from, std::uint32_t to) const;
  void occupy(std::uint32_t from, std::uint32_t to, std::int64_t bytes, Picoseconds time, Picoseconds end);

  TransferSetup setup_;
  std::vector<LinkSetup> links_;
  std::vector<Side> sides_;
};

}  // namespace kvlab
