#include "policies/kv/allocator/counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

// "3" or "3.1".
bool parse_place(const std::string& text, TableEntry& entry) {
  const std::size_t dot = text.find('.');
  long long layer = 0, head = -1;
  if (!parse_integer(text.substr(0, dot), layer) || layer < 0 || layer > 1 << 16) return false;
  if (dot != std::string::npos && (!parse_integer(text.substr(dot + 1), head) || head < 0 || head > 1 << 16)) return false;
  entry.layer = static_cast<std::int32_t>(layer), entry.head = static_cast<std::int32_t>(head);
  return true;
}

double usable(double weight) { return std::isfinite(weight) && weight > 0 ? weight : 0; }

// Adds `amount` (may be below 0) by `weights`, cumulatively rounded, within the bounds. Returns the rest.
std::int64_t place(std::span<const double> weights, std::int64_t amount, std::span<const std::int32_t> floor,
                   std::span<const std::int32_t> cap, std::span<std::int32_t> counts) {
  double sum = 0;
  for (const double w : weights) sum += w;
  double before = 0;
  std::int64_t placed = 0, asked = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    before += weights[i];
    const auto upto = static_cast<std::int64_t>(std::llround(static_cast<double>(amount) * before / sum));
    const std::int64_t wanted = counts[i] + upto - asked;
    const auto now = static_cast<std::int32_t>(std::clamp<std::int64_t>(wanted, floor[i], cap[i]));
    placed += now - counts[i];
    counts[i] = now;
    asked = upto;
  }
  return amount - placed;
}

}  // namespace

void split_total(std::span<const double> weights, std::int64_t total, std::span<const std::int32_t> floor,
                 std::span<const std::int32_t> cap, Excess excess, std::span<std::int32_t> counts) {
  if (counts.empty()) return;
  std::vector<double> w(weights.size()), open(weights.size());
  std::transform(weights.begin(), weights.end(), w.begin(), usable);
  if (std::all_of(w.begin(), w.end(), [](double x) { return x == 0; })) std::fill(w.begin(), w.end(), 1.0);
  std::fill(counts.begin(), counts.end(), 0);
  std::int64_t rest = place(w, total, floor, cap, counts);
  // Every round fills at least one member, or places the rest.
  for (std::size_t round = 0; excess != Excess::kLost && rest != 0 && round < 2 * counts.size(); ++round) {
    bool any = false;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const bool has_room = rest > 0 ? counts[i] < cap[i] : counts[i] > floor[i];
      open[i] = !has_room ? 0 : excess == Excess::kEven ? 1 : std::max(w[i], 1e-12);
      any |= has_room;
    }
    if (!any) return;
    rest = place(open, rest, floor, cap, counts);
  }
}

std::vector<double> softmax_of_negative(std::span<const double> x, double temperature) {
  std::vector<double> weights(x.begin(), x.end());
  const double least = x.empty() ? 0 : *std::min_element(x.begin(), x.end());
  for (double& w : weights) w = std::exp(-(w - least) / temperature);
  return weights;
}

void share_out(Ops& ops, std::span<const std::vector<double>> weights, const std::int64_t* total, const std::int32_t* floor,
               const std::int32_t* cap, Excess excess, std::int32_t* counts) {
  const std::size_t members = weights.empty() ? 0 : weights.front().size();
  const auto sequences = std::ssize(weights), n = sequences * static_cast<std::int64_t>(members);
  const auto split = [&] {
    for (std::size_t s = 0, at = 0; s < weights.size() && ops.computes(); ++s, at += members)
      split_total(weights[s], total[s], {floor + at, members}, {cap + at, members}, excess, {counts + at, members});
  };
  ops.timed({.op = "share_out", .rows = sequences, .outputs = n, .bytes = 16 * n, .flops = 8 * n}, split, true);
}

void pass_on(std::span<std::int32_t> counts, std::span<const std::int32_t> len, std::int64_t total) {
  std::int64_t left = total;
  std::vector<double> equal(counts.size(), 1.0);
  std::vector<std::int32_t> room(counts.size()), none(counts.size(), 0), more(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    left -= counts[i];
    room[i] = len[i] - counts[i];
  }
  if (left <= 0) return;
  split_total(equal, left, none, room, Excess::kEven, more);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += more[i];
}

std::int32_t tokens_by_remainder(std::span<const float> shares, std::int32_t head, std::int32_t n) {
  std::vector<float> ideal;
  float sum = 0;
  std::int64_t down = 0;
  for (const float share : shares) {
    ideal.push_back(std::clamp(share, 0.0F, 1.0F) * static_cast<float>(n));
    sum += ideal.back(), down += static_cast<std::int64_t>(ideal.back());
  }
  const auto rest = [&](std::int32_t h) { return ideal[static_cast<std::size_t>(h)] - std::floor(ideal[static_cast<std::size_t>(h)]); };
  const auto heads = static_cast<std::int32_t>(shares.size());
  std::int64_t before = 0;  // heads with a larger remainder
  for (std::int32_t h = 0; h < heads; ++h) before += rest(h) > rest(head) || (rest(h) == rest(head) && h < head) ? 1 : 0;
  const std::int64_t left = std::max<std::int64_t>(heads, std::llround(std::nearbyint(sum))) - down;
  const auto whole = static_cast<std::int32_t>(ideal[static_cast<std::size_t>(head)]) + (before < left ? 1 : 0);
  return std::clamp(whole, 1, n);
}

std::vector<TableEntry> read_table(Params& p, const std::string& key, bool with_values, double min, double max,
                                   const std::string& meaning) {
  std::string text = p.text(key, "", meaning);
  std::replace(text.begin(), text.end(), ',', ' ');
  std::vector<TableEntry> table;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    TableEntry entry;
    const std::size_t equals = word.find('=');
    const bool good = with_values == (equals != std::string::npos) && parse_place(word.substr(0, equals), entry) &&
                      (!with_values || (parse_real(word.substr(equals + 1), entry.value) && entry.value >= min && entry.value <= max));
    if (!good)
      p.fail_at(key, with_values ? fmt::format("'{}' in '{}': expected LAYER=VALUE or LAYER.HEAD=VALUE with a value in [{}, {}]", word, key,
                                               number_text(min), number_text(max))
                                 : fmt::format("'{}' in '{}': expected LAYER.HEAD or LAYER", word, key));
    table.push_back(entry);
  }
  return table;
}

std::string refuses_table(const std::vector<TableEntry>& table, const std::string& key, const ModelShape& model) {
  for (const TableEntry& e : table)
    if (e.layer >= model.num_layers || e.head >= model.kv_heads)
      return fmt::format("'{}' names layer {}{}, the model has {} layers of {} KV heads", key, e.layer,
                         e.head < 0 ? "" : fmt::format(" head {}", e.head), model.num_layers, model.kv_heads);
  return "";
}

const TableEntry* find_entry(const std::vector<TableEntry>& table, std::int32_t layer, std::int32_t head) {
  const TableEntry* found = nullptr;
  for (const TableEntry& e : table)
    if (e.layer == layer && (e.head == head || (e.head < 0 && (found == nullptr || found->head < 0)))) found = &e;
  return found;
}

std::vector<std::int32_t> largest(std::span<const float> values, std::size_t count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(count, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

HeadLabels::HeadLabels(std::shared_ptr<const TrainedTensors> weights, HeadLabel label, double frac, double echo_frac)
    : weights_(std::move(weights)), label_(label) {
  const std::vector<std::int64_t> shape = weights_->shape(tensor());
  if (shape.size() != 2) throw InputError(fmt::format("{}: tensor '{}' is no table [layers, KV heads]", weights_->name(), tensor()));
  const double rows = static_cast<double>(shape[0] * shape[1]);
  const auto count = static_cast<std::size_t>(std::lround(frac * rows));
  std::vector<float> ranks;
  for (const float x : weights_->floats(tensor())) ranks.push_back(x);
  if (label_ == HeadLabel::kInduction) {
    if (weights_->shape("kv_echo") != shape)
      throw InputError(weights_->name() + ": tensors 'kv_induction' and 'kv_echo' have different shapes");
    const auto echoes = std::min(count, static_cast<std::size_t>(std::lround(echo_frac * rows)));
    for (const std::int32_t row : largest(weights_->floats("kv_echo"), echoes))
      ranks[static_cast<std::size_t>(row)] = std::numeric_limits<float>::infinity();
  }
  for (const std::int32_t row : largest(ranks, count))
    heads_.push_back({row / static_cast<std::int32_t>(shape[1]), row % static_cast<std::int32_t>(shape[1]), 0});
}

std::string HeadLabels::refuses(const ModelShape& model) const {
  return weights_->refuses(tensor(), {model.num_layers, model.kv_heads}, "layers, KV heads");
}

}  // namespace kvlab
