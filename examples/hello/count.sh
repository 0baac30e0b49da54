#!/bin/sh
# A counter, to find out whether a push is ever lost or doubled: whole numbers that depend on worker and clock.
#
#     plugml run -n 3 --table w=1000,dtype=i64,optimizer=add -- sh count.sh STEPS [SECONDS]
#
# In clock c worker k pushes (c + 1) (k + 1) + i to element i.  At the end it prints its clock and the first and last sum.
. "${PLUGML_SH:-$(dirname "$0")/../../clients/sh/plugml.sh}"

steps=${1:-10} seconds=${2:-0}
LC_ALL=C export LC_ALL
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
w=$scratch/w g=$scratch/g

plugml_attach || exit
n=${plugml_count:-4} worker=${PLUGML_WORKER:-0}
awk -v n="$n" 'BEGIN { while (n--) print 0 }' > "$w"
plugml_pull "$w"
step=$plugml_clock
while [ "$step" -lt "$steps" ] && ! plugml_done; do
    [ "$seconds" = 0 ] || sleep "$seconds"
    step=$((step + 1))
    awk -v n="$n" -v start="$((step * (worker + 1)))" 'BEGIN { for (i = 0; i < n; i++) printf "%.0f\n", start + i }' > "$g"
    plugml_step "$g" "$w" || plugml_plugged || {
        awk 'FNR == NR { g[n++] = $1; next } { printf "%.0f\n", $1 + g[i++] }' "$g" "$w" > "$w.new" && mv "$w.new" "$w"
    }
done
echo "count worker=$worker clock=$step first=$(head -n 1 "$w") last=$(tail -n 1 "$w")"
plugml_bye
