#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "serving/link.h"

namespace kvlab {

// How KV goes from one replica to another.
struct TransferSetup {
  std::int32_t layers = 1;
  // Number of places that hold a block's KV: one per layer, for keys and values apart; 1: the block comes first in the layout (FlowKV, Li
  // et al. 2025).
  std::int32_t places_per_block = 1;
  // One call copies a run of blocks that are adjacent on both sides; false: one block.
  bool merges_blocks = true;
  // The KV of a layer is sent when the prompt has passed it; false: after the last layer.
  bool is_layerwise = false;
};

// Blocks of KV that a replica fetches; or embeddings of images, as one block in one call.
struct KvFetch {
  std::uint32_t from = 0, to = 0;  // replicas
  std::int64_t blocks = 0, bytes = 0, runs = 0;
  Picoseconds begun{}, ready{};  // when the prompt was begun, and done, on `from`
  std::int64_t calls = 0;        // 0: by blocks or runs, as set in the setup
};

// The number of runs of blocks that are adjacent on both sides. Both lists have the same length.
std::int64_t adjacent_runs(std::span<const BlockId> from, std::span<const BlockId> to);

// The links between replicas. Each replica has one for each direction, and a transfer occupies one on either side, at the lower bandwidth;
// transfers that share a link go one after another.
class Transfers {
 public:
  Transfers(const TransferSetup& setup, std::vector<LinkSetup> links);

  struct Times {
    std::int64_t calls = 0;
    Picoseconds end{};
  };
  // Starts a transfer at `at`. Layer-wise it began with the prompt, if the links were free: with C the time of the prompt and T that of the
  // transfer over L layers, its last layer leaves after the prompt's, so that it ends at the later of ready + T / L and begun + C / L + T.
  Times begin(const KvFetch& fetch, Picoseconds at);
  // Seconds from `at` to the end of a transfer in that number of calls that would begin then.
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
