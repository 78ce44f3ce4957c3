#include "sim/kv_cost/scan_costs.h"

#include <algorithm>

#include "sim/kv_cost/shape_run.h"
#include "sim/kv_cost/step_ops.h"

namespace kvlab {

void add_scan(PromptRewriter& rewriter, const ModelShape& model, const SeqStep& prompt, PolicyWork& work) {
  const std::int32_t n = prompt.end();
  const std::int32_t question_tokens = prompt.question_begin < 0 ? 0 : n - prompt.question_begin;
  if (rewriter.kept(n, question_tokens) >= n) return;
  const PromptRewriter::Scan scan = rewriter.scan(model);
  Params p = Params::from_text(scan.policy, "the scan's kv_policy");
  ModelShape scanning = model;
  scanning.num_layers = std::max(1, scan.layers - 1);
  ShapeRun run(read_recipe(p), scanning);
  ShapeRun::Seq chunk{0, 0, n, {}, {prompt.question_begin, 0, {}}};
  for (std::int32_t seen = 0; seen < n; seen += chunk.new_tokens) {
    chunk.seen_tokens = seen, chunk.new_tokens = std::min(scan.chunk_tokens, n - seen);
    work.passes.push_back({chunk.new_tokens, chunk.held.empty() ? 0 : chunk.held.front(), scan.layers});
    const ShapeRun::Result done = run.step({&chunk, 1});
    for (const OpCall& call : done.calls) add_calls(work.ops, call, 1);
    chunk.held = done.held;
  }
  Ops ops(Ops::Backend::kShapes);
  const std::vector<const float*> vectors(rewriter.reads(model).size(), nullptr);
  rewriter.choose({ops, model, prompt, vectors});
  for (const OpCall& call : ops.log()) add_calls(work.ops, call, 1);
}

}  // namespace kvlab
