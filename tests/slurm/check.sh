#!/usr/bin/env bash
# A sweep as a Slurm job array on this machine: a cluster of one node on the loopback interface, a task that is cancelled in its middle and
# requeued, and the merged result compared with that of one program. Needs root and Debian's packages slurm-wlm and munge.
#   tests/slurm/check.sh          42: Slurm is missing or cannot start here
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
program=${KVLAB_PROGRAM:-$root/build/release/kvlab}
work=$(mktemp -d "${TMPDIR:-/tmp}/kvlab-slurm.XXXXXX")
export SLURM_CONF=$work/slurm.conf
pids=()

finish() {
  kill "${pids[@]}" 2>/dev/null || true
  wait "${pids[@]}" 2>/dev/null || true
  rm -rf "$work" || true
}
trap finish EXIT

skip() { echo "$1"; exit 42; }
wait_for() {  # wait_for SECONDS COMMAND...
  local left=$((10 * $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((left-- > 0)) || return 1
    sleep 0.1
  done
}

for name in munged slurmctld slurmd sbatch; do
  command -v "$name" >/dev/null || skip "no $name: apt-get install slurm-wlm munge"
done
[[ $(id -u) == 0 ]] || skip "slurmd needs root"

start_cluster() {
  local host
  host=$(hostname -s)
  mkdir -p "$work/state" "$work/spool" "$work/munge"
  chmod 700 "$work/munge"
  dd if=/dev/urandom of="$work/munge/key" bs=1 count=1024 2>/dev/null
  chmod 400 "$work/munge/key"
  munged --foreground --force --key-file "$work/munge/key" --socket "$work/munge/socket" --pid-file "$work/munge/pid" \
    --log-file "$work/munge/log" --seed-file "$work/munge/seed" 2>/dev/null &
  pids+=($!)
  cat >"$SLURM_CONF" <<TEXT
ClusterName=kvlab
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=26817
SlurmdPort=26818
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SchedulerParameters=batch_sched_delay=1,sched_interval=1,sched_min_interval=100000
KillWait=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
TEXT
  slurmctld -D -c >/dev/null 2>&1 &
  pids+=($!)
  slurmd -D >/dev/null 2>&1 &
  pids+=($!)
  wait_for 30 bash -c 'sinfo -h -o %T | grep -q idle' || {
    tail -n 5 "$work"/*.log
    skip "Slurm does not start here"
  }
}

is_over() { [[ -z $(squeue -h -j "$1" 2>/dev/null) ]]; }

# Files of the runs and the tables, without the times that runs took.
content_of() {
  (cd "$1" && find . -type f ! -name '.*' ! -path ./manifest.json ! -path './figures/*' | sort | while read -r file; do
    echo "$file $(grep -v '"wall_s"' "$file" | sha256sum)"
  done)
}

start_cluster
cd "$work"
cat >sweep.yaml <<'TEXT'
name: sweep
model: llama-3.1-8b
hardware: h100
scheduler: [sarathi, vllm_v1]
trace: {generate: {requests: 3000, arrival: {poisson: {rate_per_s: [2, 4, 6]}}, prompt_tokens: {lognormal: {median: 500, mean: 600}}, output_tokens: {lognormal: {median: 100, mean: 150}}}}
seeds: 4
TEXT
export KVLAB_NO_FIGURES=1
"$program" run sweep.yaml --out whole --quiet
sent=$("$program" submit sweep.yaml --slurm --send --shards 4 --out parts)
echo "$sent"
array=$(grep -o '^job [0-9]*' <<<"$sent" | head -n 1 | cut -d' ' -f2)
merge=$(grep -o '^job [0-9]*' <<<"$sent" | tail -n 1 | cut -d' ' -f2)
wait_for 60 test -n "$(find parts.shards -path '*/runs/*' -name summary.csv 2>/dev/null | head -n 1)" || true
if scontrol requeue "${array}_2"; then echo "requeued task 2"; else echo "task 2 was over before it could be requeued"; fi
wait_for 300 is_over "$array" || { squeue; exit 1; }
wait_for 60 is_over "$merge" || { squeue; exit 1; }
cat kvlab-sweep-merge-*.log
diff <(content_of whole) <(content_of parts) && echo "merged results are those of one program: $(find parts/runs -mindepth 1 -maxdepth 1 -type d ! -name '.*' | wc -l) runs"
