#!/usr/bin/env bash
# All that docs/results.md says of speed on an H200, one benchmark after the other on a GPU that nothing else uses: about ten
# minutes. What is done comes back even if the call is cut short.
#
#   OUT=records bash benchmarks/speed_session.sh
#   OUT=/tmp/small SMALL=1 bash benchmarks/speed_session.sh      # a try of the script on a CPU, in a few minutes
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
compile=--compile
[ "${SMALL:-}" ] && compile=  # compiling takes minutes on a CPU
mkdir -p "$OUT"

measure() {  # RECORD SECONDS SCRIPT OPTIONS...
    local record=$1 seconds=$2 script=$3 && shift 3
    local small=()
    [ "${SMALL:-}" ] && small=("${SMALLER[@]}")
    echo "== $record"
    timeout "$seconds" "$python" "benchmarks/$script" "$@" "${small[@]}" --out "$OUT/$record.json" > "$OUT/log.txt" 2>&1 \
        || { echo "failed or took longer than $seconds s" && tail -n 5 "$OUT/log.txt"; }
}

SMALLER=(--device cpu --img-size 32 --patch-size 8 --batch-size 4 --steps 2)
measure supernet_speed-h200 150 supernet_speed.py $compile        # compiles what the next one finds in the cache
measure supernet_speed-h200 120 supernet_speed.py $compile
measure supernet_speed-h200-32px 120 supernet_speed.py $compile --img-size 32 --patch-size 4 --batch-size 1024
measure supernet_speed-h200-32px 90 supernet_speed.py $compile --img-size 32 --patch-size 4 --batch-size 1024
SMALLER=(--device cpu --img-size 64 --batch-size 2 --steps 2 --archs 1 --turns 1)
measure supernet_speed-h200-s3 180 supernet_speed.py --space s3-tiny $compile --archs 2 --turns 2 --batch-size 256
measure supernet_speed-h200-trionet 180 supernet_speed.py --space trionet-small --img-size 32 $compile --archs 2 --turns 2
SMALLER=(--device cpu --img-size 64 --batch-size 2 --steps 1 --decoder-dim 16)
measure task_speed-h200 150 task_speed.py
SMALLER=(--device cpu --img-size 64 --batch-size 8 --images 32 --steps 2 --small)
measure feed_speed-h200 200 feed_speed.py $compile --images 3200 --steps 20
measure feed_stages-h200 60 feed_speed.py --stages --images 1200  # where the time of reading goes
[ "${SMALL:-}" ] || measure fused_mlp-h200 90 fused_mlp.py  # whether that kernel belongs into the library
rm -f "$OUT/log.txt"
ls -l "$OUT"
