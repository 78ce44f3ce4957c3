#include "policies/kv/step_ops.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace kvlab {

namespace {

// f on each count, but shared bytes are counted once.
template <class F>
OpCall combined(const OpCall& a, const OpCall& b, F&& f) {
  const std::int64_t shared = std::max(a.shared_bytes, b.shared_bytes), own = f(a.bytes - a.shared_bytes, b.bytes - b.shared_bytes);
  return {a.op, f(a.rows, b.rows), f(a.tokens, b.tokens), f(a.outputs, b.outputs), own + shared, f(a.flops, b.flops), shared};
}

bool same_operations(const std::vector<std::vector<OpCall>>& a, const std::vector<std::vector<OpCall>>& b) {
  const auto same_op = [](const OpCall& x, const OpCall& y) { return x.op == y.op; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const auto& x, const auto& y) { return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_op); });
}

// f on each pair of calls; both have the same operations.
template <class F>
std::vector<std::vector<OpCall>> each(std::vector<std::vector<OpCall>> a, const std::vector<std::vector<OpCall>>& b, F&& f) {
  for (std::size_t l = 0; l < a.size(); ++l)
    for (std::size_t i = 0; i < a[l].size(); ++i) a[l][i] = combined(a[l][i], b[l][i], f);
  return a;
}

// Classes of layers in which both `a` and `b` are the same, and the calls of each.
std::pair<LayerCalls, LayerCalls> classes(const std::vector<std::vector<OpCall>>& a, const std::vector<std::vector<OpCall>>& b) {
  LayerCalls x, y;
  for (std::size_t l = 0; l < a.size(); ++l) {
    std::size_t c = 0;
    while (c < x.calls.size() && !(x.calls[c] == a[l] && y.calls[c] == b[l])) ++c;
    if (c == x.calls.size()) x.calls.push_back(a[l]), y.calls.push_back(b[l]);
    x.class_of_layer.push_back(static_cast<std::int32_t>(c));
  }
  y.class_of_layer = x.class_of_layer;
  return {x, y};
}

LayerCalls classes(const std::vector<std::vector<OpCall>>& a) { return classes(a, a).first; }

// The sequence as it was or will be by so many tokens later, if nothing else happens; nothing where there was no such time.
std::optional<ShapeRun::Seq> moved(const ShapeRun::Seq& seq, std::int32_t by, bool only_whole_grow) {
  ShapeRun::Seq other = seq;
  other.seen_tokens += by;
  if (other.seen_tokens < 2) return std::nullopt;
  other.prompt_tokens = by == 0 ? seq.prompt_tokens : std::min(seq.prompt_tokens, other.seen_tokens - 1);
  for (std::int32_t& h : other.held)
    if (!only_whole_grow || h == seq.seen_tokens)
      if ((h += by) < 0) return std::nullopt;
  return other;
}

}  // namespace

void add_fetches(const ShapeRun::Result& result, std::size_t layer, std::vector<OpCall>& calls) {
  calls.push_back({kFetch, 0, 0, 0, result.fetched[layer], 0});
  calls.push_back({kReadDisk, 0, 0, 0, result.disk[layer], 0});
}

StepOps::StepOps(const Recipe& recipe, const ModelShape& model)
    : model_(model),
      budget_(recipe.budget),
      fetches_(!recipe.selects_all),
      shapes_(recipe, model),
      alike_(std::size_t{1} << kStages, AlikeLayers(shapes_.policy().alike_layers())),
      companies_(1) {
  for (std::int32_t l = 0; l < model.num_layers; ++l) every_layer_.push_back(l);
  company_ids_[{}] = 0;
  probe_prompts();
}

StepOps::PerLayer StepOps::run(std::span<const Seq> batch, std::span<const std::int32_t> layers) {
  shapes_.run_only(layers);
  const ShapeRun::Result result = shapes_.step(batch);
  PerLayer calls;
  for (std::size_t l = 0; l + 1 < result.first_call.size(); ++l) {
    calls.emplace_back(result.calls.begin() + static_cast<std::ptrdiff_t>(result.first_call[l]),
                       result.calls.begin() + static_cast<std::ptrdiff_t>(result.first_call[l + 1]));
    if (fetches_) add_fetches(result, l, calls.back());
  }
  return calls;
}

StepOps::PerLayer StepOps::run(std::span<const Seq> batch) {
  ++runs_;
  const bool rows_alike = std::all_of(batch.begin(), batch.end(), [](const Seq& seq) {
    return std::all_of(seq.held.begin(), seq.held.end(), [&](std::int32_t h) { return h == seq.held.front(); });
  });
  if (!rows_alike) return run(batch, every_layer_);
  std::size_t stages = 0;
  for (const Seq& seq : batch) stages |= std::size_t{1} << standing(seq).stage;
  AlikeLayers& alike = alike_[stages];
  if (alike.wants_all()) {
    PerLayer all = run(batch, every_layer_);
    alike.see(all, [&] { return run(batch, alike.chosen()); });
    return all;
  }
  alike.note_trusted();
  return alike.spread(run(batch, alike.chosen()));
}

StepOps::Standing StepOps::standing(const Seq& seq) const {
  Standing at;
  at.target = shapes_.targets(seq).common;
  const auto whole = std::count(seq.held.begin(), seq.held.end(), seq.seen_tokens), rows = std::ssize(seq.held);
  const Stage cuts = whole == rows ? kCutsWhole : kCuts;
  at.stage = seq.seen_tokens == seq.prompt_tokens ? kFirst : at.target == ShapeRun::kNoCut ? kKeeps : cuts;
  at.only_whole_grow = whole > 0 && whole < rows && at.target != ShapeRun::kNoCut;
  at.length = at.only_whole_grow ? seq.seen_tokens : seq.held.front();
  return at;
}

// Compares a sequence with one of its length that lost other tokens, or as many and has another prompt.
void StepOps::compare(const Seq& reference, const Seq& other) {
  const Standing a = standing(reference), b = standing(other);
  if (a.target != b.target || pattern_of(reference, a) != pattern_of(other, b)) return;
  if (run(std::span(&reference, 1)) == run(std::span(&other, 1))) return;
  (reference.seen_tokens == other.seen_tokens ? prompt_matters_ : lost_matters_)[b.stage] = true;
}

void StepOps::probe_prompts() {
  const std::int32_t budget = budget_.tokens > 0 ? budget_.tokens : 256;
  const std::int32_t lengths[] = {8, 40, 200, budget - 1, budget, budget + 1, budget + 33, 2 * budget + 5};
  const std::int32_t decoded[] = {1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 100, 127, 128, 256, 500, 512, 1000, 1024};
  std::size_t turn = 0;
  const auto at = [](std::int32_t held, std::int32_t prompt, std::int32_t t) { return Seq{prompt + t, 1, prompt, {held}, {}}; };
  for (const std::int32_t t : decoded) {
    const std::int32_t held = std::max(1, lengths[turn++ % std::size(lengths)]), prompt = held + 11 + t;
    const Seq reference = at(held, prompt, 9);
    compare(reference, at(held, prompt, t));
    compare(reference, at(held, 2 * prompt, t));
    compare(reference, at(held, prompt + 9 - t, t));
    compare(reference, at(held, 1, prompt + 8));
    for (const std::int32_t u : {1, 9})
      if (std::max(t, u) < held) compare(at(held, held - u, u), at(held, held - t, t));
  }
  for (const std::int32_t length : lengths) {
    const std::int32_t held = std::max(2, length);
    compare(at(held, held - 1, 1), at(held, held, 0));
    compare(at(held, held + 50, 9), at(held, held + 50, 0));
  }
}

// Rows as they differ from the first, and which length is that of a whole row.
std::int32_t StepOps::pattern_of(const Seq& seq, const Standing& at) {
  const std::int32_t from = at.only_whole_grow ? 0 : seq.held.front();
  std::vector<std::int32_t> pattern;
  for (const std::int32_t h : seq.held) pattern.push_back(at.only_whole_grow && h == seq.seen_tokens ? -1 : h - from);
  if (std::all_of(pattern.begin(), pattern.end(), [](std::int32_t d) { return d == 0; })) pattern.clear();
  const bool any_whole = !at.only_whole_grow && std::find(seq.held.begin(), seq.held.end(), seq.seen_tokens) != seq.held.end();
  pattern.push_back(any_whole ? seq.seen_tokens - from : -1);
  return patterns_.try_emplace(std::move(pattern), static_cast<std::int32_t>(patterns_.size())).first->second;
}

StepOps::Group StepOps::group(const Seq& seq, const Standing& at, std::int32_t company) {
  Group g;
  g.company = company;
  g.target = at.target;
  g.pattern = pattern_of(seq, at);
  const bool by_prompt = at.target == ShapeRun::kLayersDiffer || prompt_matters_[at.stage];
  if (by_prompt) g.prompt = seq.prompt_tokens;
  if ((by_prompt || lost_matters_[at.stage]) && !at.only_whole_grow) g.lost = seq.seen_tokens - seq.held.front();
  return g;
}

// Which operations the layers call. A kind met alone gets the sequence as its member.
std::int32_t StepOps::kind_of(const PerLayer& calls, const Seq& seq, std::int32_t company) {
  std::vector<std::string_view> names;
  for (const auto& layer : calls) {
    names.emplace_back();
    for (const OpCall& c : layer) names.push_back(c.op);
  }
  const auto kind = static_cast<std::size_t>(kinds_.try_emplace(std::move(names), static_cast<std::int32_t>(kinds_.size())).first->second);
  if (kind == member_.size()) member_.emplace_back(), proven_.push_back(0);
  if (company == 0 && !member_[kind]) member_[kind] = seq;
  return static_cast<std::int32_t>(kind);
}

// What the sequence adds to the calls of its company; nothing where it changes which operations are called.
std::optional<StepOps::PerLayer> StepOps::added(const Seq& seq, std::int32_t company) {
  const Company& with = companies_[static_cast<std::size_t>(company)];
  std::vector<Seq> batch = with.members;
  batch.push_back(seq);
  PerLayer calls = run(batch);
  if (company == 0) return calls;
  if (!same_operations(calls, with.calls)) return std::nullopt;
  return each(std::move(calls), with.calls, [](std::int64_t a, std::int64_t b) { return a - b; });
}

// A line over the lengths of the sequence's block, or over all but the last or the first, where a page is completed or begun.
std::optional<StepOps::Line> StepOps::fit(const Seq& seq, const Standing& now, std::int32_t company, const Group& of) {
  const std::int32_t n = now.length, begin = n / kBlockTokens * kBlockTokens, end = begin + kBlockTokens;
  for (const auto& [from, to] : {std::pair{begin, end}, std::pair{begin, end - 1}, std::pair{begin + 1, end}}) {
    if (n < from || n >= to) continue;
    if (std::optional<Line> line = fit(seq, now, company, of, from, to)) return line;
  }
  return std::nullopt;
}

// A line through the first two lengths that meets the last one, and in the first blocks of a kind every other one.
std::optional<StepOps::Line> StepOps::fit(const Seq& seq, const Standing& now, std::int32_t company, const Group& of, std::int32_t begin,
                                          std::int32_t end) {
  const auto seq_at = [&](std::int32_t offset) { return moved(seq, begin + offset - now.length, now.only_whole_grow); };
  const auto at = [&](std::int32_t offset) -> std::optional<PerLayer> {
    const std::optional<Seq> other = seq_at(offset);
    return other && group(*other, standing(*other), company) == of ? added(*other, company) : std::nullopt;
  };
  const std::optional<PerLayer> first = at(0), second = first ? at(1) : std::nullopt;
  if (!second || !same_operations(*first, *second)) return std::nullopt;
  const PerLayer slope = each(*second, *first, [](std::int64_t a, std::int64_t b) { return a - b; });
  const auto meets = [&](std::int32_t offset) {
    return at(offset) == each(*first, slope, [offset](std::int64_t a, std::int64_t b) { return a + b * offset; });
  };
  if (!meets(end - begin - 1)) return std::nullopt;
  const std::int32_t kind = kind_of(*first, *seq_at(0), company);
  if (proven_[static_cast<std::size_t>(kind)] < kProvenBlocks) {
    for (std::int32_t i = 2; i + 1 < end - begin; ++i) lines_hold_ = lines_hold_ && meets(i);
    ++proven_[static_cast<std::size_t>(kind)];
    if (!lines_hold_) return std::nullopt;
  }
  auto [base, per_token] = classes(*first, slope);
  return Line{begin, end, kind, std::move(base), std::move(per_token)};
}

// The line that gives this sequence's calls; none where these are no sum.
StepOps::Place StepOps::find(const Seq& seq, std::int32_t company) {
  const Standing at = standing(seq);
  const Group g = group(seq, at, company);
  const std::int32_t n = at.length;
  Block& block = blocks_[{g, n / kBlockTokens}];
  if (block.tries < kTries && !block.line && lines_hold_ && g.target != ShapeRun::kLayersDiffer && g.prompt < 0) {
    block.line = fit(seq, at, company, g);
    ++block.tries;
  }
  if (block.line && n >= block.line->begin && n < block.line->end) return {&*block.line, n - block.line->begin};
  const auto known = block.exact.find(n);
  if (known != block.exact.end()) return {&known->second, 0};
  const std::optional<PerLayer> calls = added(seq, company);
  if (!calls) return {};
  Line point{n, n + 1, kind_of(*calls, seq, company), classes(*calls), {}};
  point.slope = point.base;
  for (auto& layer : point.slope.calls)
    for (OpCall& c : layer) c = {c.op};
  return {&block.exact.emplace(n, std::move(point)).first->second, 0};
}

// The set of kinds in a batch.
std::int32_t StepOps::company_of(std::span<const Place> places) {
  std::set<std::int32_t> kinds;
  for (const Place& p : places) kinds.insert(p.line->kind);
  if (kinds.size() == 1) return 0;
  const auto [at, is_new] = company_ids_.try_emplace(std::vector(kinds.begin(), kinds.end()), static_cast<std::int32_t>(companies_.size()));
  if (is_new) {
    Company company;
    for (const std::int32_t kind : kinds) company.members.push_back(*member_[static_cast<std::size_t>(kind)]);
    company.calls = run(company.members);
    companies_.push_back(std::move(company));
  }
  return at->second;
}

LayerCalls StepOps::decode(std::span<const Seq> batch) {
  std::vector<Place> places;
  for (const Seq& seq : batch) {
    if (seq.new_tokens != 1 || seq.seen_tokens < seq.prompt_tokens || seq.held.empty() || !seq.extras.pass.empty())
      throw InternalError("a decode step has one new token per sequence, and tokens held before it");
    places.push_back(find(seq, 0));
  }
  if (batch.empty()) return {std::vector<std::int32_t>(static_cast<std::size_t>(model_.num_layers), 0), {{}}};
  if (const std::int32_t company = company_of(places); company != 0)
    for (std::size_t s = 0; s < batch.size(); ++s)
      if (places[s] = find(batch[s], company); places[s].line == nullptr) return classes(run(batch));
  return sum(places);
}

LayerCalls StepOps::sum(std::span<const Place> places) const {
  const auto add = [&](std::size_t s, const std::vector<OpCall>& base, const std::vector<OpCall>& slope, std::vector<OpCall>& to) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const OpCall call = combined(base[i], slope[i], [&](std::int64_t a, std::int64_t b) { return a + b * places[s].further; });
      to[i] = s == 0 ? call : combined(to[i], call, [](std::int64_t a, std::int64_t b) { return a + b; });
    }
  };
  LayerCalls total = places[0].line->base;
  const bool one_split =
      std::all_of(places.begin(), places.end(), [&](const Place& p) { return p.line->base.class_of_layer == total.class_of_layer; });
  if (one_split) {
    for (std::size_t s = 0; s < places.size(); ++s)
      for (std::size_t c = 0; c < total.calls.size(); ++c)
        add(s, places[s].line->base.calls[c], places[s].line->slope.calls[c], total.calls[c]);
    return total;
  }
  PerLayer layers;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    layers.push_back(total.of_layer(l));
    for (std::size_t s = 0; s < places.size(); ++s)
      add(s, places[s].line->base.of_layer(l), places[s].line->slope.of_layer(l), layers.back());
  }
  return classes(layers);
}

}  // namespace kvlab
