// The parts of the program that kvlab_sim has in place of the engine, replay and the CPU's kernels. The front door (./kvlab) runs it only
// for experiments that use none of them; the errors are for who starts it by hand.
#include "app/commands/engine_commands.h"
#include "app/commands/trace.h"
#include "app/runs/kinds/replay.h"
#include "base/error.h"
#include "kernels/attention/append_kv/append_rows.h"
#include "kernels/attention/attend/attend.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/model/rope/rope.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

namespace {

[[noreturn]] void refuse_engine() {
  throw InputError("kvlab_sim has neither engine nor tokenizer: build the whole program with './kvlab build'");
}

}  // namespace

void add_engine_commands(CLI::App&, Command&) {}

TokenCounter token_counter(const std::string&) { refuse_engine(); }

Fields fidelity_fields(Params&, const Recipe&, std::uint64_t) { refuse_engine(); }

void run_cpu(const AppendRows&) { refuse_engine(); }
void run_cpu(const Attend&) { refuse_engine(); }
void run_cpu(const Rope&) { refuse_engine(); }
void run_cpu(const SparsePrefill&) { refuse_engine(); }
void run_cpu(const TopK&) { refuse_engine(); }

}  // namespace kvlab
