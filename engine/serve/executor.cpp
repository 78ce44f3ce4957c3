#include "engine/serve/executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

namespace {

PolicyCache::Options cache_options(const StepExecutor::Options& options) {
  PolicyCache::Options cache;
  cache.page_tokens = options.block_tokens;
  cache.seed = options.seed;
  cache.packs = cache.tiers = true;
  return cache;
}

// Growth copies, which counts as step time. A GPU's pool starts with all blocks.
constexpr std::int64_t kReservedBytes = std::int64_t{4} << 30, kReservedPinnedBytes = std::int64_t{1} << 30;

}  // namespace

BlockPages::BlockPages(KvPages& pages, std::int64_t num_blocks, std::int32_t pages_per_block)
    : pages_(pages), pages_per_block_(pages_per_block), blocks_(static_cast<std::size_t>(num_blocks)) {}

BlockPages::~BlockPages() {
  for (Entry& entry : blocks_) give_back(entry);
}

void BlockPages::give_back(Entry& entry) {
  if (entry.pages.empty()) return;
  for (const std::int32_t page : entry.pages) pages_.give_back(page);
  entry.pages.clear();
  entry.filled = 0;
  --mapped_;
}

const std::vector<std::int32_t>& BlockPages::pages_of(TakenBlock block) {
  Entry& entry = blocks_[index(block.id)];
  if (entry.takes != block.takes) give_back(entry);
  if (entry.pages.empty()) {
    for (std::int32_t i = 0; i < pages_per_block_; ++i) entry.pages.push_back(pages_.take());
    entry.takes = block.takes;
    ++mapped_;
  }
  return entry.pages;
}

std::int32_t BlockPages::filled(TakenBlock block) const {
  const Entry& entry = blocks_[index(block.id)];
  return entry.takes == block.takes ? entry.filled : 0;
}

void BlockPages::fill(TakenBlock block, std::int32_t tokens) {
  Entry& entry = blocks_[index(block.id)];
  if (entry.takes == block.takes) entry.filled = std::max(entry.filled, tokens);
}

void BlockPages::drop(BlockId block) { give_back(blocks_[index(block)]); }

void BlockPages::add_pages(std::set<std::int32_t>& pages) const {
  for (const Entry& entry : blocks_) pages.insert(entry.pages.begin(), entry.pages.end());
}

StepExecutor::StepExecutor(const EngineModel& model, const Recipe& recipe, const Options& options)
    : model_(model),
      options_(options),
      cache_(model.make_cache(recipe, cache_options(options))),
      host_(cache_->pages().head_dim(), cache_->pages().num_words(), options.block_tokens,
            cache_->pages().memory().on_host() ? TensorMemory() : TensorMemory::pinned(), cache_->pages().type()),
      pages_per_block_(cache_->shape().num_layers * cache_->shape().kv_heads),
      blocks_(cache_->pages(), options.num_blocks, pages_per_block_) {
  options_.shares_blocks = options_.shares_blocks && cache_->policy().shares_prefixes();
  reserve_pages();
}

// Packed sequences have pages of one layer at a time; two longest prompts run at once.
std::int64_t StepExecutor::pages_at_once() const {
  const std::int64_t all = options_.num_blocks * pages_per_block_;
  if (!cache_->may_rest() || options_.shares_blocks) return all;
  const std::int64_t longest = options_.longest_tokens > 0 ? options_.longest_tokens : model_.config().max_tokens;
  return std::min(all, all / cache_->shape().num_layers + 2 * (longest / options_.block_tokens + 1) * pages_per_block_);
}

void StepExecutor::reserve_pages() {
  KvPages& pages = cache_->pages();
  const auto fitting = [&](std::int64_t bytes) { return bytes / std::max<std::int64_t>(1, pages.page_bytes()); };
  const std::int64_t all = pages_at_once();
  if (pages.memory().on_host()) return pages.reserve(static_cast<std::int32_t>(std::min(fitting(kReservedBytes), all)));
  if (all > INT32_MAX)
    throw InputError(fmt::format("memory.num_blocks = {} are {} pages, more than can be numbered", options_.num_blocks, all));
  try {
    pages.reserve(static_cast<std::int32_t>(all));
  } catch (const InputError& e) {
    const char* const hint = cache_->may_rest() && options_.shares_blocks
                                 ? "; with 'prefix_caching: false' sequences are stored packed, and need pages of one layer at a time"
                                 : "";
    throw InputError(fmt::format("memory.num_blocks = {}: {}{}", options_.num_blocks, e.what(), hint));
  }
  host_.reserve(static_cast<std::int32_t>(std::min(fitting(kReservedPinnedBytes), options_.host_blocks * pages_per_block_)));
}

StepExecutor::~StepExecutor() = default;

StepExecutor::Served& StepExecutor::at(std::uint64_t request) {
  const auto found = served_.find(request);
  if (found == served_.end()) throw InternalError("a step names a request that the engine does not have");
  return found->second;
}

void StepExecutor::apply(const ExecutorAction& action) {
  using Kind = ExecutorAction::Kind;
  Served& s = at(action.request);
  switch (action.kind) {
    case Kind::kSwapOut:
      return move(s, cache_->pages(), host_, false, {});
    case Kind::kSwapIn:
      return move(s, host_, cache_->pages(), true, action.blocks);
    case Kind::kRun:
      return add_row(action);
    case Kind::kForget:
      return forget(s);
    case Kind::kFinish:
      forget(s);
      if (options_.keeps_tokens) tokens_[action.request] = std::move(s.emitted);
      served_.erase(action.request);
  }
}

void StepExecutor::forget(Served& s) {
  if (s.is_swapped) {
    give_back(host_, s.sequence.rows);
    s.sequence.rows.clear();
  }
  if (s.has_started) cache_->release(s.sequence);
  s.has_started = s.is_in_blocks = s.is_uncut = s.is_swapped = false;
  s.blocks.clear();
}

// `back`: full pages go into the blocks.
void StepExecutor::move(Served& s, KvPages& from, KvPages& to, bool back, const std::vector<TakenBlock>& blocks) {
  std::vector<KvStore::Sequence> old = std::move(s.sequence.rows);
  s.sequence.rows.assign(old.size(), {});
  for (std::size_t l = 0; l < old.size(); ++l) {
    s.sequence.rows[l].len = old[l].len;
    s.sequence.rows[l].pages.resize(old[l].pages.size());
  }
  s.is_swapped = !back;
  s.blocks.clear();
  if (back) give_blocks(s, blocks);
  std::vector<std::int32_t> sources, targets;
  for (std::size_t l = 0; l < old.size(); ++l) {
    for (std::size_t h = 0; h < old[l].pages.size(); ++h) {
      std::int32_t left = old[l].len[h];
      std::vector<std::int32_t>& row = s.sequence.rows[l].pages[h];
      for (std::size_t i = 0; i < old[l].pages[h].size(); ++i, left -= options_.block_tokens) {
        const std::int32_t page = old[l].pages[h][i];
        if (left > 0) {
          if (i == row.size()) row.push_back(to.take());
          sources.push_back(page), targets.push_back(row[i]);
        }
      }
    }
  }
  to.copy_pages(from, sources, targets);
  give_back(from, old);
  cache_->move_rest(s.sequence, !back);
  cache_->pages_moved(s.sequence);
  if (s.is_in_blocks && back) fill(s, 0, s.sequence.seen_tokens);
}

// Blocks are only memory if the sequence owns its pages.
void StepExecutor::give_blocks(Served& s, const std::vector<TakenBlock>& blocks) {
  if (!s.is_in_blocks) {
    for (const TakenBlock& block : blocks) blocks_.drop(block.id);
    return;
  }
  const auto heads = static_cast<std::size_t>(cache_->shape().kv_heads);
  for (const TakenBlock& block : blocks) {
    const std::vector<std::int32_t>& pages = blocks_.pages_of(block);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      cache_->pages().share(pages[i]);
      s.sequence.rows[i / heads].pages[i % heads].push_back(pages[i]);
    }
    s.blocks.push_back(block);
  }
}

void StepExecutor::fill(Served& s, std::int32_t begin, std::int32_t end) {
  const std::int32_t b = options_.block_tokens;
  for (auto i = static_cast<std::size_t>(begin / b); i < s.blocks.size(); ++i)
    blocks_.fill(s.blocks[i], std::clamp(end - static_cast<std::int32_t>(i) * b, 0, b));
}

// Its first blocks may hold others' tokens.
void StepExecutor::begin(Served& s, const ExecutorAction& row) {
  cache_->start(s.sequence);
  s.has_started = true;
  s.is_uncut = !row.blocks.empty();
  s.is_in_blocks = s.is_uncut && (row.is_published || !cache_->may_rest());
  s.sequence.shares_pages = s.is_in_blocks;
  ++started_;
  if (s.is_in_blocks && cache_->may_rest() && cache_->policy().recipe().prefix_reuse == Recipe::PrefixReuse::kSamePolicy) ++kept_decoded_;
  give_blocks(s, row.blocks);
  const std::int32_t b = options_.block_tokens;
  std::int32_t found = 0;
  while (s.is_in_blocks && found < row.share.computed_before && blocks_.filled(s.blocks[static_cast<std::size_t>(found / b)]) == b)
    found += b;
  repaired_ += row.share.computed_before - found;
  s.sequence.seen_tokens = found;
  for (KvStore::Sequence& layer : s.sequence.rows) std::fill(layer.len.begin(), layer.len.end(), found);
}

void StepExecutor::add_row(const ExecutorAction& row) {
  Served& s = at(row.request);
  EngineSequence& sequence = s.sequence;
  // Traces have no questions.
  sequence.question_begin = cache_->policy().needs().assumed_question(row.prompt_tokens);
  if (!s.has_started)
    begin(s, row);
  else
    give_blocks(s, row.blocks);
  sequence.prompt_tokens = row.prompt_tokens;
  if (row.share.leaves_hashed) sequence.shares_pages = false;
  fill(s, sequence.seen_tokens, row.end());
  for (std::int32_t i = sequence.seen_tokens; i < row.end(); ++i) {
    ids_.push_back(sequence.ids[static_cast<std::size_t>(i)]);
    positions_.push_back(i);
  }
  pieces_.push_back({&sequence, row.end() - sequence.seen_tokens, row.share.leaves_hashed && row.is_published && s.is_in_blocks});
  if (row.share.emits)
    draws_.push_back({static_cast<std::int32_t>(ids_.size()) - 1, options_.temperature,
                      sampling_key(options_.seed, sequence.draws, static_cast<std::uint64_t>(row.end()))});
}

void StepExecutor::run(StepJob job) {
  for (EngineSequence& sequence : job.arrived) {
    const std::uint64_t number = sequence.draws;
    served_[number].sequence = std::move(sequence);
  }
  for (const BlockId block : job.split) blocks_.drop(block);
  pieces_.clear(), ids_.clear(), positions_.clear(), draws_.clear();
  for (const ExecutorAction& action : job.actions) apply(action);
  if (pieces_.empty()) return;
  const std::vector<std::int32_t> tokens = model_.sample_step(*cache_, pieces_, {ids_, positions_}, draws_);
  std::erase_if(job.actions, [](const ExecutorAction& action) { return action.kind != ExecutorAction::Kind::kRun; });
  std::size_t next = 0;
  for (const ExecutorAction& row : job.actions)
    if (row.share.emits) emit(at(row.request), row.end(), tokens[next++]);
  for (const ExecutorAction& row : job.actions) check_uncut(at(row.request), row);
  for (const ExecutorAction& row : job.actions) {
    if (!row.share.leaves_hashed) continue;
    at(row.request).is_in_blocks = at(row.request).is_uncut = false;
    at(row.request).blocks.clear();
  }
}

// Fails if shared tokens were cut without a copy.
void StepExecutor::check_uncut(const Served& s, const ExecutorAction& row) const {
  if (!s.is_uncut || row.share.leaves_hashed) return;
  for (const KvStore::Sequence& layer : s.sequence.rows)
    for (const std::int32_t len : layer.len)
      if (len != s.sequence.seen_tokens)
        throw InputError(fmt::format("recipe '{}' cut request {} at {} tokens, where its sizes did not say so; the engine cannot serve it",
                                     cache_->policy().recipe().name, s.sequence.draws, s.sequence.seen_tokens));
}

// The trace's token replaces the sampled one: later requests expect it.
void StepExecutor::emit(Served& s, std::int32_t end, std::int32_t token) {
  s.emitted.push_back(token);
  if (std::ssize(s.sequence.ids) == end) s.sequence.ids.push_back(token);
}

std::int64_t StepExecutor::explained_pages() const {
  std::set<std::int32_t> pages;
  blocks_.add_pages(pages);
  for (const auto& [number, s] : served_) {
    if (s.is_swapped) continue;
    for (const KvStore::Sequence& layer : s.sequence.rows)
      for (const auto& row : layer.pages) pages.insert(row.begin(), row.end());
  }
  return static_cast<std::int64_t>(pages.size());
}

std::string StepExecutor::remark() const {
  const std::string of_model = model_.remark(*cache_);
  if (kept_decoded_ == 0) return of_model;
  return fmt::format(
      "{}{}{} of {} sequences lay decoded in blocks that others may find, in more memory than the blocks say; "
      "'prefix_caching: false' stores them as '{}' does",
      of_model, of_model.empty() ? "" : "; ", kept_decoded_, started_, cache_->policy().recipe().name);
}

PolicyCache::HeldBytes StepExecutor::held() const {
  PolicyCache::HeldBytes all;
  for (const auto& [number, s] : served_) {
    if (!s.has_started || s.is_swapped) continue;
    const PolicyCache::HeldBytes held = cache_->held(s.sequence);
    all.kv += held.kv, all.beside += held.beside, all.host += held.host;
  }
  return all;
}

void StepExecutor::run_some(PolicyCache& cache, std::int32_t tokens, std::int32_t longest) {
  constexpr int kSteps = 3;
  std::vector<EngineSequence> sequences(static_cast<std::size_t>((tokens + longest - 1) / longest));
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    sequences[s].index = static_cast<std::int32_t>(s);
    sequences[s].prompt_tokens = std::min(longest, tokens - static_cast<std::int32_t>(s) * longest);
    cache.start(sequences[s]);
  }
  for (int i = 0; i < kSteps; ++i) {
    pieces_.clear(), positions_.clear(), draws_.clear();
    for (EngineSequence& s : sequences) {
      pieces_.push_back({&s, i == 0 ? s.prompt_tokens : 1});
      for (std::int32_t t = 0; t < pieces_.back().new_tokens; ++t) positions_.push_back(s.seen_tokens + t);
      draws_.push_back({static_cast<std::int32_t>(positions_.size()) - 1, options_.temperature, 0});
    }
    ids_.assign(positions_.size(), 0);
    static_cast<void>(model_.sample_step(cache, pieces_, {ids_, positions_}, draws_));
  }
  for (EngineSequence& s : sequences) cache.release(s);
}

void StepExecutor::warm_up(const EngineModel::Load& most) {
  constexpr std::int32_t kTokens = 64, kSteps = 2, kTouchedTokens = 4096;
  if (const Transformer* transformer = model_.transformer())
    cache_->touch_memory(*transformer, std::min(kTouchedTokens, model_.config().max_tokens));
  model_.prepare(*cache_, most);
  if (model_.transformer() != nullptr || !cache_->policy().recipe().keeps_everything())
    return run_some(*model_.make_cache(load_recipe("full"), {}), kTokens, kTokens);
  // Last blocks may be nearly empty; decode steps need room.
  const std::int32_t longest = std::max(1, most.tokens - kSteps), block = options_.block_tokens;
  const std::int64_t sequences = (most.step_tokens + longest - 1) / longest;
  const std::int64_t room = options_.num_blocks * block - sequences * (block + kSteps);
  if (room > 0) run_some(*cache_, static_cast<std::int32_t>(std::min<std::int64_t>(most.step_tokens, room)), longest);
}

}  // namespace kvlab
