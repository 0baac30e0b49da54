#!/bin/sh
# Multinomial logistic regression by full-batch gradient descent: awk computes, the shell repeats.
#
#     sh trainer.sh shard.txt 200 weights.txt [lr]
#
# Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16.  The model is w[10][65], a row
# of 64 pixels and a bias for each digit, and starts from zeros.  At the end it lies in weights.txt, one number a line.
#
# The lines marked "plugml" are all that was added to train it on many workers.  Without PLUGML_DIR they do nothing.
. "${PLUGML_SH:-./plugml.sh}" # plugml

[ $# -ge 3 ] || { echo "usage: sh trainer.sh SHARD STEPS WEIGHTS [LR]" >&2; exit 2; }
shard=$1 steps=$2 out=$3 lr=${4:-1.0}
LC_ALL=C export LC_ALL # a decimal point, whatever the user's language
[ -r "$shard" ] || { echo "trainer.sh: cannot read $shard" >&2; exit 2; }
rows=$(wc -l < "$shard")

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
w=$scratch/w g=$scratch/g

# Print the mean gradient over the shard, one number a line; the mean loss goes to standard error.
gradient() {
    awk -v loss_to="$scratch/loss" '
        FNR == NR { w[n++] = $1; next }
        {
            x[64] = 1
            for (j = 0; j < 64; j++) x[j] = $(j + 2) / 16
            for (k = 0; k < 10; k++) {
                z = 0; base = k * 65
                for (j = 0; j < 65; j++) z += w[base + j] * x[j]
                p[k] = z
                if (k == 0 || z > top) top = z
            }
            sum = 0
            for (k = 0; k < 10; k++) sum += p[k] = exp(p[k] - top)
            for (k = 0; k < 10; k++) {
                miss = p[k] / sum - (k == $1); base = k * 65
                for (j = 0; j < 65; j++) if (x[j]) g[base + j] += miss * x[j]
            }
            loss -= log(p[$1] / sum); rows++
        }
        END {
            for (i = 0; i < 650; i++) printf "%.17g\n", g[i] / rows
            printf "%.6f\n", loss / rows > loss_to
        }' "$w" "$shard" > "$g"
}

# w = w - lr * g
update() {
    awk -v lr="$lr" 'FNR == NR { g[n++] = $1; next } { printf "%.17g\n", $1 - lr * g[i++] }' "$g" "$w" > "$w.new" && mv "$w.new" "$w"
}

awk 'BEGIN { for (i = 0; i < 650; i++) print 0 }' > "$w"
plugml_attach "$w" || exit # plugml
step=${plugml_clock:-0} # plugml: was 0
while [ "$step" -lt "$steps" ] && ! plugml_done; do # plugml: was only the count
    gradient || exit 1
    step=$((step + 1))
    case $step in 1 | *50 | *00) echo "step $step loss $(cat "$scratch/loss")" ;; esac
    plugml_step "$g" "$w" "$rows" || plugml_plugged || update || exit 1 # plugml: was only the update
done
cp "$w" "$out" || exit 1
plugml_bye # plugml
