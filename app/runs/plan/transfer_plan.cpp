#include "app/runs/plan/transfer_plan.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"

namespace kvlab {

namespace {

// Rates in one direction; the first is the default.
std::vector<std::pair<std::string, double>> links_of(const HardwareSpec& card) {
  std::vector<std::pair<std::string, double>> links;
  if (card.network_bytes_per_s > 0) links.emplace_back("network", card.network_bytes_per_s);
  if (card.has_nvlink) links.emplace_back("nvlink", card.link_bytes_per_s);
  links.emplace_back("pcie", card.pcie_bytes_per_s);
  return links;
}

double rate_of(const Params& transfer, const HardwareSpec& card, const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [link, rate] : links_of(card)) {
    if (link == name) return rate;
    known.push_back(link);
  }
  transfer.fail_at(
      "link", fmt::format("{} has no link '{}', only {}; 'bytes_per_s' beside 'link' gives its rate for one GPU, or '{}' in {}", card.name,
                          name, join(known, " and "), name + "_bytes_per_s", card.file));
}

struct LinkChoice {
  std::string name;        // "": the card's default
  double bytes_per_s = 0;  // per GPU; 0: the card's
  Span call_time{};
};

LinkChoice read_links(Params& transfer) {
  const std::vector<std::string> names{"auto", "network", "nvlink", "pcie"};
  LinkChoice choice;
  const std::size_t link = transfer.choice("link", names, 0, "which of the card's links; auto: the network, else NVLink, else PCIe");
  if (link > 0) choice.name = names[link];
  choice.bytes_per_s = transfer.optional<double>("bytes_per_s", 0, 0, 1e15, "rate of one GPU, one direction; 0: the link's own");
  choice.call_time = from_seconds(transfer.optional<double>("call_us", 1, 0, 1e6, "time of one copy call") * 1e-6);
  return choice;
}

// Plan: PoolPlan or EncodePoolPlan.
template <class Plan>
LinkSetup link_of(const Params& transfer, const LinkChoice& choice, Plan& pool) {
  const HardwareSpec& card = pool.cost.hardware;
  const bool is_given = choice.bytes_per_s > 0;
  pool.link_name = !choice.name.empty() ? choice.name : is_given ? "given" : links_of(card).front().first;
  const double per_gpu = is_given ? choice.bytes_per_s : rate_of(transfer, card, pool.link_name);
  return {per_gpu * pool.cost.parallel.gpus(), choice.call_time};
}

}  // namespace

void read_transfer(Params& p, ServingPlan& plan) {
  SimSetup& setup = plan.setup;
  Params transfer = p.optional_child("transfer", "transfer");
  if (setup.pools.empty()) {
    if (p.has_own("transfer")) p.fail_at("transfer", "'transfer' says how KV goes from pool to pool: it needs 'pools'");
    return;
  }
  const LinkChoice choice = read_links(transfer);
  for (std::size_t i = 0; i < plan.pools.size(); ++i) {
    plan.pools[i].link = link_of(transfer, choice, plan.pools[i]);
    setup.pools[i].link = plan.pools[i].link;
  }
  for (EncodePoolPlan& pool : plan.encode_pools) {
    pool.link = link_of(transfer, choice, pool);
    setup.images.pools.push_back(pool);
  }
  const auto layers = static_cast<std::int32_t>(plan.cost.model.layers);
  const bool is_per_layer = transfer.choice("layout", {"per_layer", "blocks"}, 0,
                                            "where the KV of a block is: keys and values of each layer apart, or in one piece") == 0;
  setup.transfer.layers = layers;
  setup.transfer.places_per_block = is_per_layer ? 2 * layers : 1;
  setup.transfer.is_layerwise = transfer.flag("layerwise", false, "KV of a layer is sent when the prompt has passed it");
  setup.transfer.merges_blocks = transfer.flag("merge_blocks", true, "one call copies all blocks that are adjacent on both sides");
  transfer.reject_unread();
}

}  // namespace kvlab
