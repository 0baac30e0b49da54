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
# Descriptors 8 (the bell) and 9 (the replies) are ours; children inherit them and need not care.  A pipeline such as
# `... | while read x; do plugml_step ...; done` runs in a subshell and its variables are lost: before each request we look
# whether `cmd` still holds our own last line, and if not, hello tells where the channel stands.
#
# Only POSIX sh is used, and nothing but the shell's own commands, cat, od and sleep.  Names that begin with plugml_ are ours.

plugml_code=OK plugml_error='' plugml_clock=0 plugml_lag=0 plugml_version=0 plugml_stop=0
plugml_seq_=0 plugml_line_='' plugml_fatal_=0 plugml_attached_=0 plugml_worker_=${PLUGML_WORKER:-0}

# True with a channel, false alone.
plugml_plugged() { [ -n "${PLUGML_DIR-}" ]; }

# True alone and in worker 0: prints and saves.
plugml_main() { [ "$plugml_worker_" = 0 ]; }

# True when the loop is over: the job's stop rule has fired, or the last request failed.
plugml_done() { [ "$plugml_stop" = 1 ] || [ "$plugml_code" != OK ]; }

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
    plugml_count=0 plugml_version_=''
    while IFS='=' read -r plugml_key_ plugml_value_; do
        case $plugml_key_ in
            version) plugml_version_=$plugml_value_ ;;
            worker) plugml_worker_=$plugml_value_ ;;
            count) plugml_count=$plugml_value_ ;;
        esac
    done < "$PLUGML_DIR/info"
    if [ "$plugml_version_" != 1 ]; then
        plugml_fail_ VERSION "the channel speaks version ${plugml_version_:-none}, this client speaks 1: use the plugml.sh that belongs to this plugml"
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

# plugml_step GRADIENT VALUES [WEIGHT]: push a file of numbers, end this clock, fill the other file with what the consistency
# model allows to see.  An empty name stands for the channel's own file.  The weight counts the examples behind this push.
plugml_step() {
    plugml_plugged || return 1
    plugml_put_ "${1-}" "${3-1}" && plugml_ask_ step "$plugml_keys_" && plugml_get_ "${2-}"
}

# plugml_push GRADIENT [WEIGHT]: several pushes may go into one clock.
plugml_push() {
    plugml_plugged || return 0
    plugml_put_ "${1-}" "${2-1}" && plugml_ask_ push "$plugml_keys_"
}

# plugml_pull VALUES
plugml_pull() {
    plugml_plugged || return 0
    plugml_ask_ pull fmt=text && plugml_get_ "${1-}"
}

# plugml_pushpull GRADIENT VALUES [WEIGHT]
plugml_pushpull() {
    plugml_plugged || return 1
    plugml_put_ "${1-}" "${3-1}" && plugml_ask_ pushpull "$plugml_keys_" && plugml_get_ "${2-}"
}

# plugml_init VALUES: offer first values; the file becomes the job's.
plugml_init() {
    plugml_plugged || return 0
    plugml_put_ "${1-}" 1 && plugml_ask_ init "$plugml_keys_" && plugml_get_ "${1-}"
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

plugml_put_() { # FILE WEIGHT
    plugml_ready_ || return
    plugml_keys_="n=$plugml_count w=${2##* } fmt=text" # the last word: the blanks of `wc -l` do no harm
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
    plugml_next_=$((plugml_seq_ + 1))
    plugml_ring_ "$1 $plugml_next_ $plugml_clock${2:+ $2}" "$plugml_next_" || return
    case $plugml_answer_ in SEQ | AGAIN) ;; *) plugml_seq_=$plugml_next_ ;; esac # refused for good is answered, too
    plugml_key_ stop 0
    if [ "$plugml_value_" = 1 ]; then plugml_stop=1; fi
    if [ "$plugml_answer_" = STOP ]; then # no error: the loop has come to its end
        plugml_stop=1 plugml_code=STOP plugml_error="the job's stop rule has fired"
        return 3
    fi
    if [ "$plugml_outcome_" != ok ]; then plugml_refused_; return 2; fi
    plugml_code=OK plugml_error=''
    plugml_key_ lag 0; plugml_lag=$plugml_value_
    plugml_key_ v "$plugml_version"; plugml_version=$plugml_value_
    plugml_clock=$plugml_told_
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
        sleep 1
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
