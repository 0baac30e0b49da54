#!/bin/sh
# The smallest trainer: push a constant gradient, print what the model has become.
#
#     sh hello.sh STEPS [SECONDS] [CONSTANT]            alone: four numbers, lr 0.1
#     plugml run -n 2 --table w=4,lr=0.1 -- sh hello.sh 10
. "${PLUGML_SH:-$(dirname "$0")/../../clients/sh/plugml.sh}"

steps=${1:-10} seconds=${2:-0} constant=${3:-1}
LC_ALL=C export LC_ALL
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
w=$scratch/w g=$scratch/g

plugml_attach || exit
awk -v n="${plugml_count:-4}" 'BEGIN { while (n--) print 0 }' > "$w"
plugml_pull "$w"
step=$plugml_clock
while [ "$step" -lt "$steps" ] && ! plugml_done; do
    [ "$seconds" = 0 ] || sleep "$seconds"
    step=$((step + 1))
    awk -v g="$constant" '{ print g }' "$w" > "$g"
    plugml_step "$g" "$w" || plugml_plugged || {
        awk -v g="$constant" '{ printf "%.17g\n", $1 - 0.1 * g }' "$w" > "$w.new" && mv "$w.new" "$w"
    }
done
echo "clock=$step w=$(awk 'NR <= 8 { printf "%s%.9g", sep, $1; sep = "," }' "$w")"
plugml_bye
