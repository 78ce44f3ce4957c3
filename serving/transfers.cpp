#include "serving/transfers.h"

#include <algorithm>
#include <utility>

namespace kvlab {

namespace {

constexpr const char* kLongTransfer = "copies of KV between replicas end later than that (the links of 'pools' and 'transfer')";

}  // namespace

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

LinkSetup Transfers::between(std::uint32_t from, std::uint32_t to) const {
  const LinkSetup &a = links_[from], &b = links_[to];
  return {std::min(a.bytes_per_s, b.bytes_per_s), std::max(a.call_time, b.call_time)};
}

double Transfers::seconds(std::uint32_t from, std::uint32_t to, std::int64_t bytes, std::int64_t calls, Picoseconds at) const {
  const Picoseconds free = std::max(sides_[from].out_free, sides_[to].in_free);
  const LinkSetup link = between(from, to);
  return to_s(std::max(Picoseconds{}, free - at)) + static_cast<double>(calls) * to_s(link.call_time) +
         static_cast<double>(bytes) / link.bytes_per_s;
}

void Transfers::occupy(std::uint32_t from, std::uint32_t to, std::int64_t bytes, Picoseconds time, Picoseconds end) {
  Side &source = sides_[from], &target = sides_[to];
  source.out_free = target.in_free = end;
  for (Use* use : {&source.out, &target.in}) {
    ++use->transfers;
    use->bytes += bytes;
    use->busy += time;
  }
}

Transfers::Times Transfers::begin(const KvFetch& fetch, Picoseconds at) {
  if (fetch.blocks == 0) return {0, at};
  const std::int64_t calls = fetch.calls > 0 ? fetch.calls : (setup_.merges_blocks ? fetch.runs : fetch.blocks) * setup_.places_per_block;
  const Picoseconds time = transfer_time(between(fetch.from, fetch.to), fetch.bytes, calls, kLongTransfer);
  const Picoseconds free = std::max(sides_[fetch.from].out_free, sides_[fetch.to].in_free);
  Picoseconds end;
  if (setup_.is_layerwise) {
    const std::int64_t layers = setup_.layers;
    const Picoseconds first_layer = fetch.begun + (fetch.ready - fetch.begun) / layers;
    const Picoseconds last_layer = add_time(at, time / layers, kLongTransfer);
    end = std::max(last_layer, add_time(std::max(free, first_layer), time, kLongTransfer));
  } else {
    end = add_time(std::max(free, at), time, kLongTransfer);
  }
  occupy(fetch.from, fetch.to, fetch.bytes, time, end);
  return {calls, end};
}

}  // namespace kvlab
