#!/usr/bin/env bash
# A session on a GPU that is lent for minutes: unpacks what was carried there and goes on with the queue of studies.
#
#   bash benchmarks/session.sh --minutes 9        # further options are those of study.py
#
# .carry has sets (NAME.npz, packed, and .tar), weights and packages, each as far as there are any; what was unpacked stays in
# LENT, so a second call carries only what is new. OUT/study.tar.gz is all that has to come back. study/README.md says more.
set -euo pipefail
cd "$(dirname "$0")/.."
lent=${LENT:-$HOME/lent}
mkdir -p "$lent/sets" "$lent/weights" "$lent/records" "$OUT"
export PYTHONPATH="$PWD/src:$PWD/.carry/packages" PYTHONUNBUFFERED=1
nvidia-cuda-mps-control -d || echo "no MPS: processes take turns on the GPU"
shopt -s nullglob
for record in benchmarks/records/study-*.json; do cp -n "$record" "$lent/records"; done
[ -d benchmarks/records/begun ] && cp -rn benchmarks/records/begun "$lent/records"
for weights in .carry/weights/*; do cp -n "$weights" "$lent/weights"; done
for archive in .carry/sets/*.tar; do tar xf "$archive" -C "$lent/sets"; done
for packed in .carry/sets/*.npz; do
    plain="$lent/sets/$(basename "$packed")"
    [ -e "$plain" ] || python3 benchmarks/study/unpack.py "$packed" --to "$plain" &
done
wait
exec python3 benchmarks/study/study.py --queue benchmarks/queue.yaml --data "$lent/sets" --weights "$lent/weights" \
    --work "$lent/work" --out "$lent/records" --archive "$OUT/study.tar.gz" --jobs 15 "$@"
