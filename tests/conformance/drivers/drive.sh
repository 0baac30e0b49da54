# Does what its arguments say, with the shell client, and prints the outcome of each.  See test_clients_driven.py.
set -eu
. "$PLUGML_SH"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
w=$scratch/w g=$scratch/g

code=0
plugml_attach || code=$?
n=${plugml_count:-4}
[ "$n" -gt 0 ] || n=4
awk -v n="$n" 'BEGIN { while (n--) print -1 }' > "$w"

tell() { # OP OUTCOME
    done=0
    if plugml_done; then done=1; fi
    echo "$1 $2 $plugml_code clock=$plugml_clock done=$done w=$(awk 'NR <= 6 { printf "%s%.9g", sep, $1; sep = "," }' "$w")"
}

do_one() { # OP
    word=${1%%:*} rest=${1#*:} weight=1
    case $1 in *:*:*) weight=${rest#*:} ;; esac
    awk -v n="$n" -v c="${rest%%:*}" 'BEGIN { for (i = 0; i < n; i++) printf "%.17g\n", c + i }' > "$g"
    code=0
    case $word in
        step) plugml_step "$g" "$w" "$weight" || code=$? ;;
        push) plugml_push "$g" "$weight" || code=$? ;;
        pull) plugml_pull "$w" || code=$? ;;
        pushpull) plugml_pushpull "$g" "$w" "$weight" || code=$? ;;
        init) plugml_init "$g" || code=$?; if [ "$code" = 0 ] && plugml_plugged; then cat "$g" > "$w"; fi ;;
        tick) plugml_tick || code=$? ;;
        ping) plugml_ping || code=$? ;;
        expect) plugml_expect "$rest" || code=$? ;;
    esac
    case $code in 0) outcome=1 ;; 1) outcome=0 ;; 3) outcome=S ;; *) outcome=E ;; esac
    if ! plugml_plugged; then outcome=0; fi
    tell "$1" "$outcome"
}

# shellcheck disable=SC2046
if [ -n "${PLUGML_OPS-}" ]; then set -- $(cat "$PLUGML_OPS"); fi # docs/conform.md
for op; do
    case $op in
        bye) break ;;
        who)
            plugged=0 main=0
            if plugml_plugged; then plugged=1; fi
            if plugml_main; then main=1; fi
            echo "who plugged=$plugged main=$main worker=${PLUGML_WORKER:-0} of=${PLUGML_WORKERS:-1} clock=$plugml_clock"
            ;;
        pipeline) # both steps are done in a subshell, whose variables are lost
            printf '1\n1\n' | while read -r constant; do do_one "step:$constant"; done
            ;;
        close) exec 8>&- 9<&- ;;
        die:*)
            awk -v n="$n" -v c="${op#*:}" 'BEGIN { for (i = 0; i < n; i++) printf "%.17g\n", c + i }' > "$plugml_grad"
            kill -9 $$
            ;;
        *) do_one "$op" ;;
    esac
done
plugml_bye
