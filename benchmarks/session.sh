#!/usr/bin/env bash
# A session on a GPU that is lent for minutes, in calls of some minutes each: unpacks what a call has carried there, starts the
# studies that it names, and waits. What was started goes on between the calls; one without studies only waits.
#
#   bash benchmarks/session.sh --queue benchmarks/queue.yaml --jobs 15 --minutes 27       # all options of study.py
#   WAIT=300 bash benchmarks/session.sh benchmarks/study/vqa.yaml --jobs 6 --minutes 17   # more, beside it; waits 300 s
#   bash benchmarks/session.sh                                                            # until all is done, or for 540 s
#
# .carry has sets (NAME.npz, packed, and .tar), weights and packages, each as far as there are any; what was unpacked stays in
# LENT. OUT/*.tar.gz are all that has to come back. Code that was mended between two calls is taken over with RENEW=1.
# study/README.md says more.
set -euo pipefail
cd "$(dirname "$0")/.."
lent=${LENT:-$HOME/lent}
mkdir -p "$lent/sets" "$lent/weights" "$lent/records" "$lent/out" "$OUT"
shopt -s nullglob
# What is there, and never a second time: what runs already has it open. (Some versions of `cp -n` fail where there is
# something to leave.)
take() { [ ! -e "$1" ] || [ -e "$2/$(basename "$1")" ] || cp -r "$1" "$2"; }
for path in benchmarks/records/study-*.json benchmarks/records/begun; do take "$path" "$lent/records"; done
for path in .carry/weights/*; do take "$path" "$lent/weights"; done
for path in .carry/packages; do take "$path" "$lent"; done
for archive in .carry/sets/*.tar*; do tar xf "$archive" -C "$lent/sets"; done
# What runs between the calls has a copy of its own: each call sends the working tree anew.
if [ ! -d "$lent/repository" ] || [ "${RENEW:-}" ]; then
    mkdir -p "$lent/repository"
    cp -r src benchmarks "$lent/repository"
fi
packed_sets=("$PWD"/.carry/sets/*.npz)
cd "$lent/repository"
export PYTHONPATH="$PWD/src:$lent/packages" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
for packed in "${packed_sets[@]}"; do
    plain="$lent/sets/$(basename "$packed")"
    [ -e "$plain" ] || python3 benchmarks/study/unpack.py "$packed" --to "$plain" &
done
wait
if [ $# -gt 0 ]; then
    [ -e "$lent/mps" ] || setsid nvidia-cuda-mps-control -d || echo "no MPS: processes take turns on the GPU"
    touch "$lent/mps"
    name=$(date +%H%M%S)
    setsid nohup python3 benchmarks/study/study.py --data "$lent/sets" --weights "$lent/weights" --work "$lent/work" \
        --out "$lent/records" --archive "$lent/out/$name.tar.gz" "$@" > "$lent/out/$name.log" 2>&1 < /dev/null &
    echo $! > "$lent/$name.pid"
fi
running() { for file in "$lent"/*.pid; do kill -0 "$(cat "$file")" 2> /dev/null && return 0; done; return 1; }
end=$(($(date +%s) + ${WAIT:-540}))
bring() { for file in "$lent"/out/*; do cp "$file" "$OUT"; done; }
while running && [ "$(date +%s)" -lt "$end" ]; do sleep 5 && bring; done  # what is there comes back even if this is killed
bring
for log in "$lent"/out/*.log; do echo "== $log" && tail -n 60 "$log"; done
running && echo "studies go on: call again" || echo "all studies have ended"
