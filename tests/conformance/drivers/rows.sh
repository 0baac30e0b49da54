# Does what its arguments say with rows of sparse tables, with the shell client, and prints the outcome of each.  See rows.py.
set -eu
. "$PLUGML_SH"
if [ -n "${UNPAUSED-}" ]; then sleep() { :; }; fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
w=$scratch/w g=$scratch/g
wanted='' number=0

plugml_attach || :

width_of() { # TABLE
    awk -v table="table=$1" '$1 == table { for (i = 2; i <= NF; i++) if ($i ~ /^width=/) print substr($i, 7); exit }' "$PLUGML_DIR/info"
}

shown_of() { # FILE WIDTH
    awk -v width="$2" '{ printf "%s%.9g", NR == 1 ? "" : (NR - 1) % width ? "," : ";", $1 }' "$1"
}

keys_of() { # KEYS
    case $1 in '') ;; *) printf '%s\n' "$1" | tr , '\n' ;; esac
}

tell() { # OP CODE SHOWN
    case $2 in 0) outcome=1 ;; 1) outcome=0 ;; 3) outcome=S ;; *) outcome=E ;; esac
    if ! plugml_plugged; then outcome=0; fi
    stopped=0 shown=$3
    if plugml_stopped; then stopped=1; fi
    case $outcome in E | S) shown= ;; esac
    echo "$1 $outcome $plugml_code clock=$plugml_clock stopped=$stopped lag=$plugml_lag$shown"
}

do_request() { # OP VERB [DENSE]
    from='' into='' code=0
    if [ $# -gt 2 ] && [ "${plugml_count:-0}" -gt 0 ]; then
        into=$w
        if [ -n "$3" ]; then
            from=$g
            awk -v n="$plugml_count" -v c="$3" 'BEGIN { for (i = 0; i < n; i++) printf "%.17g\n", c + i }' > "$g"
        fi
    fi
    case $2 in
        step) plugml_step "$from" "$into" || code=$? ;;
        pushpull) plugml_pushpull "$from" "$into" || code=$? ;;
        pull) plugml_pull "$into" || code=$? ;;
        push) plugml_push "$from" || code=$? ;;
        async) plugml_push_async "$from" || code=$? ;;
    esac
    line=
    if [ "$code" = 0 ] && [ -n "$into" ]; then case $2 in push | async) ;; *) line=" w=$(shown_of "$w" "$plugml_count")" ;; esac; fi
    if [ "$code" = 0 ]; then for item in $wanted; do line="$line ${item%%:*}=$(shown_of "${item#*:}" "$(width_of "${item%%:*}")")"; done; fi
    wanted=''
    tell "$1" "$code" "$line"
}

for op; do
    verb=${op%%:*} rest=${op#*:} code=0
    case $op in
        bye) break ;;
        end) exit 0 ;;
        rows:*)
            number=$((number + 1)) table=${rest%%:*} rest=${rest#*:}
            keys_of "${rest%%:*}" > "$scratch/rows.$number"
            width=$(if plugml_plugged; then width_of "$table"; fi)
            awk -v width="${width:-1}" -v c="${rest#*:}" '{ for (j = 0; j < width; j++) if (c == "nan") print c; else printf "%.17g\n", c + 10 * (NR - 1) + j }' \
                "$scratch/rows.$number" > "$scratch/numbers.$number"
            plugml_rows "$table" "$scratch/rows.$number" "$scratch/numbers.$number" || :
            ;;
        want:*)
            number=$((number + 1)) table=${rest%%:*}
            keys_of "${rest#*:}" > "$scratch/want.$number"
            : > "$scratch/came.$number"
            plugml_want "$table" "$scratch/want.$number" "$scratch/came.$number" || continue
            wanted="$wanted $table:$scratch/came.$number"
            ;;
        timeout:*) plugml_timeout=$rest; if [ "$rest" = 0 ]; then plugml_timeout=''; fi ;;
        next)
            plugml_next || code=$?
            line=" $plugml_piece:$plugml_turn:$plugml_text"
            if [ "$code" = 1 ]; then code=0 line=' none'; fi
            tell next "$code" "$line"
            ;;
        tick) plugml_tick || code=$?; tell "$op" "$code" '' ;;
        ping) plugml_ping || code=$?; tell "$op" "$code" '' ;;
        *:*) do_request "$op" "$verb" "$rest" ;;
        *) do_request "$op" "$op" ;;
    esac
done
plugml_bye
