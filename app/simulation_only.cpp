// The parts that kvlab_sim has in place of all commands but `run`, of comparisons, replay, the engine and the CPU's kernels. The front door
// (./kvlab) runs it only for experiments that use none of them; the errors are for who starts it by hand.
#include "app/commands/other_commands.h"
#include "app/compare/validate.h"
#include "app/runs/host_pairs.h"
#include "app/runs/kinds/replay.h"
#include "base/error.h"
#include "kernels/attention/append_kv/append_rows.h"
#include "kernels/attention/attend/attend.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/model/rope/rope.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

namespace {

[[noreturn]] void refuse() { throw InputError("kvlab_sim only simulates serving: build the whole program with './kvlab build'"); }

}  // namespace

void add_other_commands(CLI::App&, Command&) {}

void validate_results(const std::string&, ResultsFolder&, std::ostream*) { refuse(); }

bool compare_hosts(const Experiment&, ResultsFolder&, double, std::ostream*) { return false; }  // the engine is refused before

Fields fidelity_fields(Params&, const Recipe&, std::uint64_t) { refuse(); }

void run_cpu(const AppendRows&) { refuse(); }
void run_cpu(const Attend&) { refuse(); }
void run_cpu(const Rope&) { refuse(); }
void run_cpu(const SparsePrefill&) { refuse(); }
void run_cpu(const TopK&) { refuse(); }

}  // namespace kvlab
