# plugml.sh: plug a serial shell program into its channel.  For any POSIX sh: copy this file beside the program.
#
#     . ./plugml.sh
#     plugml_attach w.txt || exit                       # w.txt becomes the values of now; alone it stays
#     step=$plugml_clock                                # the clock to go on at; alone: 0
#     while [ "$step" -lt "$steps" ] && ! plugml_done; do
#         gradient > g.txt                              # awk, bc or anything: one number a line
#         step=$((step + 1))
#         plugml_step g.txt w.txt || plugml_plugged || update     # update: your own step, when alone
#     done
#     plugml_bye
#
# plugml_step and plugml_pushpull return 0 plugged, 1 alone, 2 error, 3 the job's stop rule has fired.  All others return 0
# alone, too.  An error is printed; its code is in $plugml_code (OK if there is none) and its text in $plugml_error.
#
# Numbers are text, one a line, with a decimal point: set LC_ALL=C for awk.  Give 17 digits (%.17g) for f64, 9 for f32.
# All dense tables follow each other, as `info` lists them.
#
# Rows of sparse tables go with the next request; files hold one row number (from 0 on) or key a line, and `width` numbers
# a row, one a line.  The dense tables take part iff a file is named for them:
#
#     plugml_rows emb rows.txt g.txt                    # push g.txt to the rows that rows.txt lists
#     plugml_want emb next.txt e.txt                    # e.txt becomes the rows that next.txt lists
#     plugml_step '' '' || plugml_plugged || update
#
# Descriptors 8 (the bell) and 9 (the replies) are ours; children inherit them and need not care.  A pipeline such as
# `... | while read x; do plugml_step ...; done` runs in a subshell and its variables are lost: before each request we look
# whether `cmd` still holds our own last line, and if not, hello tells where the channel stands.
#
# Only POSIX sh is used, and nothing but the shell's own commands, cat, od and sleep; for rows awk and tail.  Names that begin
# with plugml_ are ours.  $plugml_timeout may hold the milliseconds that a request may take; after TIMEOUT a push or step is
# under way: it must not be repeated, and $plugml_clock counts it.

plugml_code=OK plugml_error='' plugml_clock=0 plugml_lag=0 plugml_version=0 plugml_stop=0
plugml_timeout='' plugml_text='' plugml_piece='' plugml_turn=0
plugml_sections_=0 plugml_mistake_='' plugml_sparse_='' plugml_seq_=0 plugml_line_='' plugml_fatal_=0 plugml_attached_=0 plugml_worker_=${PLUGML_WORKER:-0}

# True with a channel, false alone.
plugml_plugged() { [ -n "${PLUGML_DIR-}" ]; }

# True alone and in worker 0: prints and saves.
plugml_main() { [ "$plugml_worker_" = 0 ]; }

# True when the loop is over: the job's stop rule has fired, or the last request failed.
plugml_done() { [ "$plugml_stop" = 1 ] || [ "$plugml_code" != OK ]; }

# True only when the stop rule has fired.
plugml_stopped() { [ "$plugml_stop" = 1 ]; }

# plugml_attach [VALUES]: attach to the channel that PLUGML_DIR names, say hello, and pull into the file if one is named.
plugml_attach() {
    plugml_plugged || return 0
    plugml_clock=${PLUGML_CLOCK:-0}
    plugml_grad=$PLUGML_DIR/grad.txt # may be written at once: plugml_step "$plugml_grad" ...
    plugml_param=$PLUGML_DIR/param.txt # may be read at once
    plugml_fatal_=1
    if ! [ -p "$PLUGML_DIR/req" ] || ! [ -p "$PLUGML_DIR/rep" ] || ! [ -r "$PLUGML_DIR/info" ]; then
        plugml_fail_ GONE "there is no channel in $PLUGML_DIR; is PLUGML_DIR of an earlier run?"
        return 2
    fi
    plugml_count=0 plugml_version_='' plugml_bell_=''
    while IFS='=' read -r plugml_key_ plugml_value_; do
        case $plugml_key_ in
            version) plugml_version_=$plugml_value_ ;;
            worker) plugml_worker_=$plugml_value_ ;;
            count) plugml_count=$plugml_value_ ;;
            bell) plugml_bell_=$plugml_value_ ;;
            table)
                case $plugml_value_ in *' kind=sparse '*) # name:width:index
                    plugml_sparse_="$plugml_sparse_ ${plugml_value_%% *}"
                    plugml_value_=${plugml_value_#*" width="}
                    plugml_sparse_="$plugml_sparse_:${plugml_value_%% *}"
                    plugml_value_=${plugml_value_#*" index="}
                    plugml_sparse_="$plugml_sparse_:${plugml_value_%% *}" ;;
                esac ;;
        esac
    done < "$PLUGML_DIR/info"
    if [ "$plugml_version_" != 1 ]; then
        plugml_fail_ VERSION "the channel speaks version ${plugml_version_:-none}, this client speaks 1: use the plugml.sh that belongs to this plugml"
        return 2
    fi
    if [ "$plugml_bell_" != fifo ]; then
        plugml_fail_ VERSION "the channel wakes its program by bell=$plugml_bell_, which a shell cannot wait for: run the job with bell=fifo"
        return 2
    fi
    plugml_page_=$(od -A n -t u2 -j 8 -N 2 "$PLUGML_DIR/ctl" 2> /dev/null) || plugml_page_=''
    if [ -n "$plugml_page_" ] && [ "$((plugml_page_))" != 1 ]; then
        plugml_fail_ VERSION "$PLUGML_DIR/ctl has a layout that this client does not know: use the plugml.sh that belongs to this plugml"
        return 2
    fi
    plugml_open_ || return
    plugml_fatal_=0 plugml_attached_=1
    plugml_hello_ || { plugml_fatal_=1; return 2; }
    if [ -n "${1-}" ]; then plugml_pull "$1"; fi
}

# plugml_expect COUNT: refuse to go on unless the channel holds so many numbers.
plugml_expect() {
    plugml_plugged || return 0
    plugml_ready_ || return
    [ "$plugml_count" -ne "$1" ] || return 0
    plugml_fatal_=1
    plugml_fail_ SIZE "the job's tables have $plugml_count elements, the program has $1: make the shapes agree"
}

# plugml_rows TABLE ROWS GRADIENT, plugml_want TABLE ROWS VALUES: rows of a sparse table for the next request that pushes or
# pulls.  In any order; a row that is pushed twice is added up.  A mistake is told at once, and the request is refused, too.
plugml_rows() {
    plugml_plugged || return 0
    plugml_ready_ || return
    plugml_section_ "$1" "$2" rows || { plugml_mistake_=$plugml_code; return 2; }
    eval "plugml_k_$plugml_at_=\$plugml_lines_ plugml_rows_$plugml_at_=\$2 plugml_numbers_$plugml_at_=\$3"
}

plugml_want() {
    plugml_plugged || return 0
    plugml_ready_ || return
    plugml_section_ "$1" "$2" wanted || { plugml_mistake_=$plugml_code; return 2; }
    eval "plugml_want_$plugml_at_=\$plugml_lines_ plugml_wanted_$plugml_at_=\$2 plugml_into_$plugml_at_=\$3"
}

# plugml_step GRADIENT VALUES [WEIGHT]: push a file of numbers, end this clock, fill the other file with what the consistency
# model allows to see.  An empty name stands for the channel's own file.  The weight counts the examples behind this push.
plugml_step() {
    plugml_plugged || return 1
    plugml_exchange_ step "${1-}" "${2-}" "${3-1}"
}

# plugml_push GRADIENT [WEIGHT]: several pushes may go into one clock.  plugml_push_async comes back when the push is
# accepted; one that fails later is told by the next request.
plugml_push() {
    plugml_plugged || return 0
    plugml_exchange_ push "${1-}" '' "${2-1}"
}

plugml_push_async() {
    plugml_plugged || return 0
    plugml_exchange_ push "${1-}" '' "${2-1}" async=1
}

# plugml_pull VALUES
plugml_pull() {
    plugml_plugged || return 0
    plugml_exchange_ pull '' "${1-}"
}

# plugml_pushpull GRADIENT VALUES [WEIGHT]
plugml_pushpull() {
    plugml_plugged || return 1
    plugml_exchange_ pushpull "${1-}" "${2-}" "${3-1}"
}

# plugml_init VALUES: offer first values; the file becomes the job's.
plugml_init() {
    plugml_plugged || return 0
    plugml_ready_ || return
    plugml_put_ "${1-}" && plugml_ask_ init "n=$plugml_count fmt=text" && plugml_get_ "${1-}"
}

# End this clock without a push.
plugml_tick() {
    plugml_plugged || return 0
    plugml_ask_ clock
}

plugml_ping() {
    plugml_plugged || return 0
    plugml_ask_ ping
}

# plugml_next [ALONE]: the next piece of input that this worker shall read, in $plugml_text (a file's name, or whatever the
# job's list says), with its number in $plugml_piece and the pass over all pieces in $plugml_turn.  Returns 1 when nothing is
# left.  Alone it gives ALONE back, if there is one, so that one loop does for both:
#
#     own=$1; while plugml_next "$own"; do own=; ... "$plugml_text" ...; done
plugml_next() {
    plugml_text=${1-} plugml_piece=0 plugml_turn=0
    if ! plugml_plugged; then [ -n "$plugml_text" ]; return; fi
    plugml_text='' plugml_piece=''
    plugml_ask_ next || return
    if ! [ -s "$PLUGML_DIR/data" ]; then return 1; fi
    IFS=' ' read -r plugml_turn plugml_piece plugml_value_ < "$PLUGML_DIR/data" || :
    IFS= read -r plugml_text < "$PLUGML_DIR/data" || :
    plugml_text=${plugml_text#*" "}
    plugml_text=${plugml_text#*" "}
}

# Say that this worker has finished.  Returns 2 if the last request failed: end the script with it.
plugml_bye() {
    plugml_plugged || return 0
    if [ "$plugml_fatal_" = 1 ]; then return 2; fi
    # After an error the exit code speaks: the launcher decides whether to start the worker again.
    case $plugml_code in OK | STOP) ;; *) return 2 ;; esac
    plugml_ask_ bye || return
    exec 8>&- 9<&-
    plugml_fatal_=1 plugml_error='this program has said bye already'
}

# ---- below: not for callers -----------------------------------------------------------------------------------------------

plugml_fail_() { # CODE TEXT
    plugml_code=$1 plugml_error=$2
    case $1 in GONE | VERSION | PERM | FENCED) plugml_fatal_=1 ;; esac
    printf 'plugml: worker %s, clock %s: %s: %s\n' "$plugml_worker_" "$plugml_clock" "$1" "$2" >&2
    return 2
}

plugml_open_() {
    # Replies read-only, so that the end of all writers is seen as end of file; by way of 8, since opening would wait for a
    # writer.  A failing `exec` would end the script, `command exec` does not.
    command exec 8<> "$PLUGML_DIR/rep" && command exec 9< "$PLUGML_DIR/rep" && command exec 8<> "$PLUGML_DIR/req" ||
        plugml_fail_ GONE "cannot open the FIFOs in $PLUGML_DIR: the channel has ended; end the program"
}

plugml_ready_() {
    if [ "$plugml_fatal_" = 1 ]; then
        if [ "$plugml_code" = OK ]; then plugml_fail_ GONE "$plugml_error"; fi
        return 2
    fi
    [ "$plugml_attached_" = 1 ] || plugml_fail_ SEQ 'call plugml_attach first'
}

plugml_exchange_() { # VERB GRADIENT VALUES [WEIGHT] [KEY]
    plugml_ready_ || return
    plugml_status_=0
    plugml_carry_out_ "$@" || plugml_status_=$?
    plugml_sections_=0 plugml_mistake_=''
    return "$plugml_status_"
}

# Beside rows the dense tables take part iff a file is named for them.
plugml_carry_out_() { # as above
    if [ -n "$plugml_mistake_" ]; then
        plugml_fail_ "$plugml_mistake_" 'nothing was asked, since the rows that were named for this request had been refused'
        return 2
    fi
    plugml_dense_=1 plugml_given_=$2
    if [ "$1" = pull ]; then plugml_given_=$3; fi
    if [ "$plugml_sections_" -gt 0 ] && [ -z "$plugml_given_" ]; then plugml_dense_=0; fi
    if [ "$plugml_dense_" = 0 ] && [ -n "$3" ]; then
        plugml_fail_ FORMAT 'the dense tables are pulled where they are pushed, too: name their gradient beside the rows, or pull them alone'
        return 2
    fi
    plugml_keys_=fmt=text
    case $1 in
        pull) ;;
        *)
            plugml_keys_="w=${4##* } fmt=text${5:+ $5}" # the last word: the blanks of `wc -l` do no harm
            if [ "$plugml_dense_" = 1 ]; then plugml_put_ "$2" || return; fi
            ;;
    esac
    if [ "$plugml_dense_" = 1 ] && { [ "$1" != pull ] || [ "$plugml_sections_" -gt 0 ]; }; then plugml_keys_="n=$plugml_count $plugml_keys_"; fi
    if [ "$plugml_sections_" -gt 0 ]; then plugml_put_rows_ "$1" || return; fi
    plugml_ask_ "$1" "$plugml_keys_" || return
    if [ "$1" = push ]; then return 0; fi
    if [ "$plugml_sections_" = 0 ]; then plugml_get_ "$3"; else plugml_get_rows_ "$3"; fi
}

plugml_put_() { # FILE
    case $1 in '' | "$plugml_grad") return 0 ;; esac
    if ! [ -r "$1" ]; then
        plugml_fail_ FORMAT "cannot read $1, which should hold the numbers to push"
        return 2
    fi
    cat < "$1" > "$plugml_grad" || plugml_fail_ NOSPC "cannot write $plugml_grad: is the channel root full?"
}

plugml_get_() { # FILE
    case $1 in '' | "$plugml_param") return 0 ;; esac
    cat < "$plugml_param" > "$1" || plugml_fail_ NOSPC "cannot write $1"
}

# Set plugml_at_ to the number of the table's section, a new one if there is none, and plugml_lines_ to the lines of the file.
plugml_section_() { # TABLE FILE rows|wanted
    case "$plugml_sparse_ " in
        *" $1:"*) ;;
        *)
            plugml_value_=''
            for plugml_key_ in $plugml_sparse_; do plugml_value_="$plugml_value_, ${plugml_key_%%:*}"; done
            plugml_value_=${plugml_value_#, }
            plugml_fail_ RANGE "the job has no sparse table $1; it has ${plugml_value_:-none}"
            return 2 ;;
    esac
    if ! [ -r "$2" ]; then
        plugml_fail_ FORMAT "cannot read $2, which should list rows of table $1"
        return 2
    fi
    plugml_lines_=$(awk 'END { print NR }' < "$2")
    plugml_at_=0
    while [ "$plugml_at_" -lt "$plugml_sections_" ]; do
        plugml_at_=$((plugml_at_ + 1))
        eval "plugml_value_=\$plugml_table_$plugml_at_"
        if [ "$plugml_value_" != "$1" ]; then continue; fi
        eval "plugml_value_=\$plugml_$3_$plugml_at_"
        if [ -z "$plugml_value_" ]; then return 0; fi
        plugml_fail_ FORMAT "table $1 has its rows for this request already: name all of them in one file"
        return 2
    done
    plugml_sections_=$((plugml_sections_ + 1)) plugml_at_=$((plugml_at_ + 1))
    plugml_value_=${plugml_sparse_#*" $1:"}
    plugml_value_=${plugml_value_%% *}
    eval "plugml_table_$plugml_at_=\$1 plugml_width_$plugml_at_=\${plugml_value_%:*} plugml_index_$plugml_at_=\${plugml_value_#*:}"
    eval "plugml_k_$plugml_at_=0 plugml_want_$plugml_at_=0 plugml_rows_$plugml_at_= plugml_wanted_$plugml_at_="
}

# Lay out the files of all sections, and name them in plugml_keys_.
plugml_put_rows_() { # VERB
    plugml_i_=0
    for plugml_name_ in gidx.txt want.txt gkey wkey; do
        if [ -e "$PLUGML_DIR/$plugml_name_" ]; then : > "$PLUGML_DIR/$plugml_name_"; fi
    done
    if [ "$1" != pull ] && [ "$plugml_dense_" = 0 ]; then
        : > "$plugml_grad"
    elif [ "$1" != pull ] && [ -n "$(tail -c 1 "$plugml_grad")" ]; then
        echo >> "$plugml_grad" # its last line had no end
    fi
    while [ "$plugml_i_" -lt "$plugml_sections_" ]; do
        plugml_i_=$((plugml_i_ + 1))
        eval "plugml_table_=\$plugml_table_$plugml_i_ plugml_index_=\$plugml_index_$plugml_i_ plugml_k_=\$plugml_k_$plugml_i_ plugml_want_=\$plugml_want_$plugml_i_"
        plugml_keys_="$plugml_keys_ table=$plugml_table_"
        if [ "$plugml_k_" -gt 0 ]; then
            plugml_keys_="$plugml_keys_ k=$plugml_k_"
            eval "plugml_add_ \"\$plugml_rows_$plugml_i_\" g && plugml_append_ \"\$plugml_numbers_$plugml_i_\" grad.txt" || return
        fi
        if [ "$plugml_want_" -gt 0 ]; then
            plugml_keys_="$plugml_keys_ want=$plugml_want_"
            eval "plugml_add_ \"\$plugml_wanted_$plugml_i_\" w" || return
        fi
    done
}

plugml_add_() { # FILE g|w
    case $plugml_index_$2 in
        strg) plugml_append_ "$1" gkey ;;
        strw) plugml_append_ "$1" wkey ;;
        *g) plugml_append_ "$1" gidx.txt ;;
        *) plugml_append_ "$1" want.txt ;;
    esac
}

# awk ends the last line where the file does not.
plugml_append_() { # FILE NAME
    awk 1 < "$1" >> "$PLUGML_DIR/$2" || plugml_fail_ FORMAT "cannot copy $1 into $PLUGML_DIR/$2"
}

# Cut param.txt into the dense values and the rows of each section.
plugml_get_rows_() { # FILE
    plugml_i_=0
    case $1 in '' | "$plugml_param") set -- /dev/null ;; esac
    set -- "$((plugml_dense_ * plugml_count))" "$1"
    while [ "$plugml_i_" -lt "$plugml_sections_" ]; do
        plugml_i_=$((plugml_i_ + 1))
        eval "plugml_want_=\$plugml_want_$plugml_i_ plugml_width_=\$plugml_width_$plugml_i_"
        if [ "$plugml_want_" -gt 0 ]; then eval "set -- \"\$@\" \"\$((plugml_want_ * plugml_width_))\" \"\$plugml_into_$plugml_i_\""; fi
    done
    awk 'BEGIN {
        from = ARGV[1]
        for (i = 2; i < ARGC; i += 2) {
            printf "" > ARGV[i + 1]
            for (n = ARGV[i]; n > 0 && (getline line < from) > 0; n--) print line > ARGV[i + 1]
            close(ARGV[i + 1])
        }
    }' "$plugml_param" "$@" || plugml_fail_ NOSPC 'cannot write the rows that came'
}

# Ask where this generation stands.  The answer to hello has seq 0 and names the last request that was answered.
plugml_hello_() {
    plugml_ring_ "hello 0 $plugml_clock" 0 || return
    while :; do
        if [ "$plugml_outcome_" != ok ]; then plugml_refused_; return 2; fi
        plugml_key_ done 0
        # An earlier program of this generation may not have lived to read its answer: then the page knows another count, and
        # ours is still to come.
        plugml_page_=$(od -A n -t u8 -j 128 -N 8 "$PLUGML_DIR/ctl" 2> /dev/null) && [ "$((plugml_page_))" != "$plugml_value_" ] || break
        plugml_wait_ 0 || return
    done
    plugml_seq_=$plugml_value_ plugml_clock=$plugml_told_
}

plugml_ask_() { # VERB [KEYS]
    plugml_ready_ || return
    plugml_seen_=''
    IFS= read -r plugml_seen_ < "$PLUGML_DIR/cmd" || :
    if [ "$plugml_seen_" != "$plugml_line_" ] || [ "$plugml_code" = SEQ ]; then plugml_hello_ || return; fi
    plugml_next_=$((plugml_seq_ + 1)) plugml_limit_=''
    case $1 in push | pull | pushpull | step | clock) plugml_limit_=${plugml_timeout:+t=$plugml_timeout} ;; esac
    plugml_ring_ "$1 $plugml_next_ $plugml_clock${plugml_limit_:+ $plugml_limit_}${2:+ $2}" "$plugml_next_" || return
    case $plugml_answer_ in SEQ | AGAIN) ;; *) plugml_seq_=$plugml_next_ ;; esac # refused for good is answered, too
    case $plugml_answer_ in AGAIN | GONE) ;; *) plugml_clock=$plugml_told_ ;; esac # after TIMEOUT a refusal moves it, too
    plugml_key_ stop 0
    if [ "$plugml_value_" = 1 ]; then plugml_stop=1; fi
    if [ "$plugml_answer_" = STOP ]; then # no error: the loop has come to its end
        plugml_stop=1 plugml_code=STOP plugml_error="the job's stop rule has fired"
        return 3
    fi
    if [ "$plugml_outcome_" != ok ]; then plugml_refused_; return 2; fi
    plugml_code=OK plugml_error=''
    plugml_key_ lag "$plugml_lag"; plugml_lag=$plugml_value_
    plugml_key_ v "$plugml_version"; plugml_version=$plugml_value_
}

# Write the request line, ring, and wait.
plugml_ring_() { # LINE SEQ
    plugml_tries_=0
    # A program may have closed all descriptors that it does not know.
    if ! { command : >&8 && command : <&9; } 2> /dev/null; then plugml_open_ || return; fi
    while :; do
        plugml_line_=$1
        # 1<> does not truncate, and the line goes out in one write.
        if ! { printf '%s\n' "$1" 1<> "$PLUGML_DIR/cmd" && printf '\n' >&8; } 2> /dev/null; then
            plugml_fail_ GONE "cannot write to $PLUGML_DIR: the channel has ended; end the program"
            return 2
        fi
        plugml_wait_ "$2" || return
        plugml_tries_=$((plugml_tries_ + 1))
        if [ "$plugml_answer_" != AGAIN ] || [ "$plugml_tries_" -ge 60 ]; then return 0; fi
        case $plugml_tries_ in 1 | 2) plugml_pause_=0.02 ;; 3 | 4) plugml_pause_=0.1 ;; 5 | 6) plugml_pause_=0.5 ;; *) plugml_pause_=1 ;; esac
        sleep "$plugml_pause_" 2> /dev/null || sleep 1 # POSIX knows whole seconds only
    done
}

# Sleep until the agent has answered.  Older replies come again after an agent was restarted: they are passed over.  The
# launcher answers GONE when there will be no agent any more, and may not know our seq.
plugml_wait_() { # SEQ
    plugml_ends_=0
    while :; do
        plugml_outcome_='' plugml_got_='' plugml_told_='' plugml_rest_=''
        if ! IFS=' ' read -r plugml_outcome_ plugml_got_ plugml_told_ plugml_rest_ <&9; then
            # Either the end of the file or a signal with a trap; only the end stays.
            plugml_ends_=$((plugml_ends_ + 1))
            if [ "$plugml_ends_" -lt 10 ]; then continue; fi
            plugml_fail_ GONE 'agent and launcher are gone; whether the last request was carried out is unknown; run the program again'
            return 2
        fi
        plugml_ends_=0
        plugml_key_ code OK
        plugml_answer_=$plugml_value_
        if [ "$plugml_got_" = "$1" ] || [ "$plugml_answer_" = GONE ]; then return 0; fi
    done
}

# Raise the error that the agent has explained in `err`.
plugml_refused_() {
    plugml_text_=''
    if [ "$plugml_answer_" != GONE ]; then IFS= read -r plugml_text_ < "$PLUGML_DIR/err" || :; fi
    case $plugml_text_ in "$plugml_answer_"*": "*) plugml_text_=${plugml_text_#*: } ;; *) plugml_text_='' ;; esac
    if [ "$plugml_answer_" = GONE ]; then
        plugml_text_='the agent is gone for good; whether the last request was carried out is unknown; end the program'
    fi
    plugml_fail_ "$plugml_answer_" "${plugml_text_:-the agent gave no reason; see its log}"
}

# Set plugml_value_ to the value of a key in the reply.
plugml_key_() { # KEY OTHERWISE
    case " $plugml_rest_ " in
        *" $1="*)
            plugml_value_=" $plugml_rest_"
            plugml_value_=${plugml_value_#*" $1="}
            plugml_value_=${plugml_value_%% *}
            ;;
        *) plugml_value_=$2 ;;
    esac
}
