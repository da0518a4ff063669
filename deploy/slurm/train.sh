#!/bin/bash
# A training run as a Slurm job: a server and ACTORS actors on each node, the trainer on the first one.
#
#   sbatch --nodes=3 deploy/slurm/train.sh --env ALE/Pong-v5
#
# Arguments are flags of replay-train; ALE/... needs the extra atari. Variables, all optional:
#   ACTORS       actors per node; default 4
#   RUN          directory of the run, on a file system that all nodes share; default replay-JOBID
#   SERVER_ARGS  flags of replay-server, such as "--memory-dir /scratch/me"
#
#SBATCH --job-name=replay
#SBATCH --cpus-per-task=8
#SBATCH --requeue
# Two minutes before the time limit, the trainer saves the run. If the job is queued again, the run resumes.
#SBATCH --signal=B:TERM@120
set -euo pipefail

run=$(realpath --canonicalize-missing "${RUN:-replay-$SLURM_JOB_ID}")
port=$((20000 + SLURM_JOB_ID % 20000))
export port SERVER_ARGS=${SERVER_ARGS:-}

# Other users of the nodes reach the ports, so this run has a token. It does not protect from those who can read the
# network.
umask 077
mkdir -p "$run"
[ -e "$run/token" ] || openssl rand -hex 32 >"$run/token"
REPLAY_TOKEN=$(cat "$run/token")
export REPLAY_TOKEN tokens=$run/tokens.toml
cat >"$tokens" <<END
[[tokens]]
name = "run"
token_sha256 = "$(printf %s "$REPLAY_TOKEN" | sha256sum | cut -d' ' -f1)"
rights = ["read", "write", "admin"]
END

trainer=
stop() {
    trap - EXIT TERM
    [ -z "$trainer" ] || { kill -TERM "$trainer" 2>/dev/null && wait "$trainer"; } || true
    # shellcheck disable=SC2046  # one process id per word
    kill $(jobs -p) 2>/dev/null || true
    wait
}
trap stop EXIT
trap 'stop; exit 143' TERM

# One task that fails leaves the others alone.
step=(srun --overlap --kill-on-bad-exit=0)
# Each server has its own port, so that several of them may share a node.
# shellcheck disable=SC2016  # each task expands its own variables
"${step[@]}" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --output="$run/server-%t.log" bash -c \
    'exec replay-server --host 0.0.0.0 --port $((port + SLURM_PROCID)) --tokens "$tokens" $SERVER_ARGS' &
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
servers=
for number in "${!nodes[@]}"; do servers+=${servers:+,}${nodes[number]}:$((port + number)); done
if [ "${#nodes[@]}" -gt 1 ]; then
    for attempt in $(seq 60); do
        replay shards set "$servers" >"$run/shards.log" 2>&1 && break
        [ "$attempt" -lt 60 ] || { cat "$run/shards.log" >&2; exit 1; }
        sleep 2
    done
fi

if [ -e "$run/learner/settings.json" ]; then
    flags=(--resume "$run/learner")
else
    flags=(--runs-dir "$run" --name learner)
fi
replay-train "${flags[@]}" --server "$servers" --no-progress "$@" &
trainer=$!
if [ "${ACTORS:-4}" -gt 0 ]; then
    "${step[@]}" --ntasks-per-node="${ACTORS:-4}" --ntasks=$((${#nodes[@]} * ${ACTORS:-4})) --output="$run/actor-%t.log" \
        bash -c 'exec replay-actor --server "$1" --run learner --name "actor-$SLURM_PROCID" --trainer-timeout-s 600' _ "$servers" &
fi
wait "$trainer"
