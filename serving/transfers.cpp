#include "serving/transfers.h"

#include <algorithm>
#include <utility>

namespace kvlab {

std::int64_t adjacent_runs(std::span<const BlockId> from, std::span<const BlockId> to) {
  std::int64_t runs = from.empty() ? 0 : 1;
  for (std::size_t i = 1; i < from.size(); ++i) {
    const bool follows = index(from[i]) == index(from[i - 1]) + 1 && index(to[i]) == index(to[i - 1]) + 1;
    runs += follows ? 0 : 1;
  }
  return runs;
}

Transfers::Transfers(const TransferSetup& setup, std::vector<LinkSetup> links)
    : setup_(setup), links_(std::move(links)), sides_(links_.size()) {}

Transfers::Times Transfers::begin(const KvFetch& fetch, Picoseconds at) {
  constexpr const char* kLong = "copies of KV between replicas end later than that (the links of 'pools' and 'transfer')";
  if (fetch.blocks == 0) return {0, at};
  Side &source = sides_[fetch.from], &target = sides_[fetch.to];
  const LinkSetup &a = links_[fetch.from], &b = links_[fetch.to];
  const LinkSetup link{std::min(a.bytes_per_s, b.bytes_per_s), std::max(a.call_time, b.call_time)};
  const std::int64_t calls = (setup_.merges_blocks ? fetch.runs : fetch.blocks) * setup_.places_per_block;
  const Picoseconds time = transfer_time(link, fetch.bytes, calls, kLong);
  const Picoseconds free = std::max(source.out_free, target.in_free);
  Picoseconds end;
  if (setup_.is_layerwise) {
    const std::int64_t layers = setup_.layers;
    const Picoseconds first_layer = fetch.begun + (fetch.ready - fetch.begun) / layers;
    const Picoseconds last_layer = add_time(at, time / layers, kLong);
    end = std::max(last_layer, add_time(std::max(free, first_layer), time, kLong));
  } else {
    end = add_time(std::max(free, at), time, kLong);
  }
  source.out_free = target.in_free = end;
  for (Use* use : {&source.out, &target.in}) {
    ++use->transfers;
    use->bytes += fetch.bytes;
    use->busy += time;
  }
  return {calls, end};
}

}  // namespace kvlab
