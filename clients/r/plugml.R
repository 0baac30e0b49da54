# plugml.R: plug a serial R program into its channel.  Base R only: copy this file beside the program.
#
#     source("plugml.R")
#     p <- plugml_attach()                          # NULL: not plugged, the program runs alone
#     W <- plugml_pull(p, W)                        # alone: W as it is
#     step <- plugml_clock(p)                       # alone: 0
#     while (step < steps && !plugml_done(p)) {
#       G <- gradient(W)
#       step <- step + 1
#       W <- plugml_step(p, G, alone = W - lr * G)  # alone: evaluates and returns the last argument
#     }
#     plugml_bye(p)
#
# An error is a condition of class "plugml_error", and of class "plugml_SIZE" and the like; its `code` names it.  Nobody
# catches it: Rscript prints the sentence and ends with 1.
#
# Values.  A number table of several dimensions is an array whose dim() is the table's shape, in every language the same
# element at the same place: what the file's order is, C or F, is looked after here.  A plain vector is taken as it is, in
# the file's order.  A job with several tables takes and gives a named list.  i64 tables are doubles, exact up to 2^53.
#
# Rows of sparse tables.  `g` names them as list(rows, values), `want` the rows that shall come back:
#
#     W <- plugml_step(p, list(emb = list(rows, G)), want = list(emb = rows))      # W$emb[i, ] is row rows[i]
#
# Values are a matrix with a line for each row.  Rows of an index=u32 table are counted from 1, as those of a matrix.  Rows
# of u64 and str tables are keys, taken as they are: numbers up to 2^53, text of decimal digits for any u64, bit64's
# integer64; strings.  Dense tables take part iff `g` holds them.
#
# The order of what is done is the protocol (shm_protocol/SPEC.md): data, closed; `cmd`, closed; the bell; the wait.

plugml_codes <- c("OK", "SEQ", "FORMAT", "RANGE", "SIZE", "NONFINITE", "TIMEOUT", "AGAIN", "NOSERVER", "VERSION", "PERM",
                  "GONE", "NOSPC", "COLLIDE", "STOP", "INTERNAL", "FENCED")

# ---- beginning and end --------------------------------------------------------------------------------------------------

# Attach to the channel that PLUGML_DIR names and say hello.  NULL: there is none.
plugml_attach <- function() {
  dir <- Sys.getenv("PLUGML_DIR")
  if (!nzchar(dir)) return(NULL)

  p <- new.env(parent = emptyenv())
  class(p) <- "plugml"
  p$dir <- dir
  p$pid <- Sys.getpid()
  p$seq <- 0
  p$clock <- plugml_environment_number("PLUGML_CLOCK", 0)
  p$worker <- plugml_environment_number("PLUGML_WORKER", 0)
  p$workers <- 1
  p$lag <- 0
  p$version <- 0
  p$piece <- NULL
  p$turn <- 0
  p$code <- "OK"
  p$stop <- FALSE
  p$fatal <- FALSE
  plugml_read_info(p)
  plugml_open_bells(p)
  plugml_discard_replies(p)
  plugml_hello(p)
  p
}

# Say that this worker has finished.  A program that ends with exit code 0 and without it has finished, too.
plugml_bye <- function(p) {
  if (is.null(p) || p$pid != Sys.getpid()) return(invisible(FALSE))  # A forked child must not say bye for its parent.
  if (!p$fatal) plugml_request(p, "bye")
  p$fatal <- TRUE
  p$code <- "GONE"
  p$text <- "this program has said bye already"
  for (con in list(p$req, p$rep)) if (plugml_is_open(con, p$dir)) close(con)
  invisible(TRUE)
}

# ---- what a training loop calls -----------------------------------------------------------------------------------------

# Push the gradient `g`, end this clock, and return what the consistency model allows to see.
# `weight`: examples behind this push.  `alone`: evaluated and returned when the program is not plugged.
# `want`: rows of sparse tables; the result is a named list then, of these and of the dense tables that `g` holds.
# `timeout`: seconds.  After plugml_TIMEOUT a push or step is under way: it must not be repeated, and the clock counts it.
plugml_step <- function(p, g = list(), weight = 1, alone = NULL, want = NULL, timeout = NULL) {
  if (is.null(p)) return(alone)
  plugml_exchange(p, "step", g, weight, want, timeout)
}

# The values of now, in the form of `w`; alone: `w`.  With `want` its rows, and the dense tables iff `w` is given.
plugml_pull <- function(p, w = NULL, want = NULL, timeout = NULL) {
  if (is.null(p)) return(w)
  plugml_check(p)
  sections <- plugml_sections(p, list(), want)
  dense <- !length(sections) || !is.null(w)
  plugml_write_rows(p, sections, "want")
  plugml_request(p, "pull", plugml_words(p, sections, dense), timeout)
  plugml_read(p, w, sections, dense)
}

# Offer first values for tables with init=program: the job's first offer is taken, and everybody gets it back.
plugml_init <- function(p, w) {
  if (is.null(p)) return(w)
  plugml_check(p)
  plugml_write(p, w)
  plugml_request(p, "init", plugml_words(p, weight = 1))
  plugml_read(p, w)
}

# Push without ending the clock: several pushes may go into one.  With wait = FALSE it comes back when the push is accepted;
# one that fails later is told by the next request.
plugml_push <- function(p, g, weight = 1, wait = TRUE, timeout = NULL) {
  if (is.null(p)) return(invisible(FALSE))
  plugml_exchange(p, "push", g, weight, NULL, timeout, if (wait) "" else " async=1")
  invisible(TRUE)
}

plugml_pushpull <- function(p, g, weight = 1, alone = NULL, want = NULL, timeout = NULL) {
  if (is.null(p)) return(alone)
  plugml_exchange(p, "pushpull", g, weight, want, timeout)
}

# End this clock without a push.
plugml_tick <- function(p, timeout = NULL) {
  if (is.null(p)) return(invisible(FALSE))
  plugml_check(p)
  plugml_request(p, "clock", timeout = timeout)
  invisible(TRUE)
}

plugml_ping <- function(p) {
  if (is.null(p)) return(invisible(FALSE))
  plugml_check(p)
  plugml_request(p, "ping")
  invisible(TRUE)
}

# The next piece of input that this worker shall read: a file's name, or whatever the job's list says.  NULL: nothing is
# left.  Alone it gives `alone` back, so that one loop does for both:
#
#     piece <- plugml_next(p, path)
#     while (!is.null(piece)) {
#       ...
#       piece <- plugml_next(p)
#     }
plugml_next <- function(p, alone = NULL) {
  if (is.null(p)) return(alone)
  plugml_check(p)
  p$piece <- NULL
  plugml_request(p, "next")
  path <- file.path(p$dir, "data")
  length <- file.size(path)  # Not all replies say it: one that is repeated does not.
  if (length == 0) return(NULL)
  line <- rawToChar(readBin(path, "raw", length))
  words <- regmatches(line, regexec("^([0-9]+) ([0-9]+) ([^\n]*)", line, useBytes = TRUE))[[1]]
  if (length(words) != 4) plugml_fail(p, "INTERNAL", sprintf("the piece of input in %s/data cannot be read", p$dir))
  p$turn <- as.numeric(words[2])
  p$piece <- as.numeric(words[3])
  Encoding(words[4]) <- "UTF-8"
  words[4]
}

# Number of that piece, from 0 (NULL: there was none), and the pass over all pieces that it belongs to, from 0.
plugml_piece <- function(p) if (is.null(p)) NULL else p$piece
plugml_turn <- function(p) if (is.null(p)) 0 else p$turn

# Refuse to go on unless the channel holds `count` numbers (and, if given, of this dtype).
plugml_expect <- function(p, count, dtype = NULL) {
  if (is.null(p)) return(invisible(FALSE))
  plugml_check(p)
  dtypes <- vapply(p$tables, function(table) table$dtype, "")
  wrong <- if (p$count != count) sprintf("the job's tables have %.0f elements, the program has %.0f: make the shapes agree", p$count, count)
  else if (!is.null(dtype) && any(dtypes != dtype)) sprintf("the job's tables hold %s numbers, the program has %s", toString(unique(dtypes)), dtype)
  if (is.null(wrong)) return(invisible(TRUE))
  p$fatal <- TRUE
  plugml_fail(p, "SIZE", wrong)
}

# The loop is over: the job's stop rule has fired, or the last request failed.
plugml_done <- function(p) !is.null(p) && (p$stop || p$code != "OK")

# Only: the stop rule has fired.
plugml_stopped <- function(p) !is.null(p) && p$stop

# The last outcome: "OK" or one of plugml_codes.
plugml_code <- function(p) if (is.null(p)) "OK" else p$code

# ---- who and where am I -------------------------------------------------------------------------------------------------

plugml_plugged <- function(p) !is.null(p)
plugml_main <- function(p) is.null(p) || p$worker == 0  # Alone or worker 0: prints and saves.
plugml_worker <- function(p) if (is.null(p)) 0 else p$worker
plugml_workers <- function(p) if (is.null(p)) 1 else p$workers
plugml_clock <- function(p) if (is.null(p)) 0 else p$clock  # Clocks finished.
plugml_lag <- function(p) if (is.null(p)) 0 else p$lag      # How far the slowest worker is behind.
plugml_version <- function(p) if (is.null(p)) 0 else p$version

# The dense tables: a list by name, each with dtype, order, offset (bytes), count and shape.
plugml_tables <- function(p) if (is.null(p)) list() else p$tables

# The sparse tables: a list by name, each with dtype, rows (0: every number), width, index and batch.
plugml_sparse <- function(p) if (is.null(p)) list() else p$sparse

# ---- errors -------------------------------------------------------------------------------------------------------------

plugml_fail <- function(p, code, text) {
  p$code <- code
  p$text <- text
  if (code %in% c("GONE", "VERSION", "PERM", "FENCED")) p$fatal <- TRUE
  message <- sprintf("plugml: worker %.0f, clock %.0f: %s: %s", p$worker, p$clock, code, text)
  stop(structure(class = c(paste0("plugml_", code), "plugml_error", "error", "condition"),
                 list(message = message, call = NULL, code = code, text = text)))
}

# May this process make a request?
plugml_check <- function(p) {
  if (p$fatal) plugml_fail(p, p$code, p$text)
  if (p$pid != Sys.getpid())
    plugml_fail(p, "PERM", sprintf("process %d is a forked child of process %d, which owns the channel: call plugml from there",
                                   Sys.getpid(), p$pid))
}

# ---- one request --------------------------------------------------------------------------------------------------------

plugml_hello <- function(p) {
  reply <- plugml_ask(p, sprintf("hello 0 %.0f\n", p$clock), 0)
  if (!reply$ok) plugml_refused(p, reply)
  p$seq <- reply$done
  p$clock <- reply$clock
}

# Push, and read back what the verb gives: the step of `plugml_step` and its kin.
plugml_exchange <- function(p, verb, g, weight, want, timeout, words = "") {
  plugml_check(p)
  is_rows <- if (is.list(g)) names(g) %in% names(p$sparse) | (vapply(g, is.list, NA) & !names(g) %in% names(p$tables)) else FALSE
  sections <- plugml_sections(p, if (any(is_rows)) g[is_rows] else list(), want)
  if (is.list(g)) g <- g[!is_rows]
  dense <- !length(sections) || length(g) > 0
  if (dense && (length(g) || length(p$tables))) plugml_write(p, g)
  plugml_write_rows(p, sections, "gidx", dense)
  pulling <- verb != "push"
  if (pulling) plugml_write_rows(p, sections, "want")
  reply <- plugml_request(p, verb, paste0(plugml_words(p, sections, dense, weight), words), timeout)
  if (!pulling) return(NULL)
  # Once the stop rule has fired, dense values stay what they were; rows are pulled, which is served on.
  if (reply$code == "STOP" && length(want)) return(plugml_pull(p, want = want))
  plugml_read(p, g, sections, dense)
}

# What stands behind verb, seq and clock.  `weight` NULL: nothing is pushed.
plugml_words <- function(p, sections = list(), dense = TRUE, weight = NULL) {
  line <- if (dense && (!is.null(weight) || length(sections))) sprintf(" n=%.0f", p$count) else ""
  if (!is.null(weight)) line <- sprintf("%s w=%.17g", line, weight)
  for (section in sections) {
    line <- sprintf("%s table=%s", line, section$table$name)
    if (section$k > 0) line <- sprintf("%s k=%.0f", line, section$k)
    if (section$want > 0) line <- sprintf("%s want=%.0f", line, section$want)
  }
  line
}

# The data lie in their files.
plugml_request <- function(p, verb, words = "", timeout = NULL) {
  if (p$code == "SEQ") plugml_hello(p)  # Somebody else has used the channel: take up his count.
  seq <- p$seq + 1
  limit <- if (is.null(timeout)) "" else sprintf(" t=%.0f", ceiling(1000 * timeout))
  reply <- plugml_ask(p, sprintf("%s %.0f %.0f%s%s\n", verb, seq, p$clock, limit, words), seq)
  if (!reply$code %in% c("SEQ", "AGAIN")) p$seq <- seq  # Refused for good is answered, too.
  if (!reply$code %in% c("AGAIN", "GONE")) p$clock <- reply$clock  # After TIMEOUT a refusal moves it, too.
  if (reply$stop || reply$code == "STOP") p$stop <- TRUE
  if (reply$code == "STOP") {  # No error: the loop has come to its end.
    p$code <- "STOP"
    return(invisible(reply))
  }
  if (!reply$ok) plugml_refused(p, reply)
  p$code <- "OK"
  if (!is.na(reply$lag)) p$lag <- reply$lag
  if (reply$version > 0) p$version <- reply$version
  invisible(reply)
}

# Write the request, ring, wait.
plugml_ask <- function(p, line, seq) {
  pause <- 0.01  # AGAIN: 60 times, with pauses that grow to a second.
  if (!plugml_is_open(p$req, p$dir) || !plugml_is_open(p$rep, p$dir)) plugml_open_bells(p)
  for (try in 1:60) {
    plugml_write_file(p, "cmd", charToRaw(line))
    writeBin(as.raw(10L), p$req)
    reply <- plugml_wait(p, seq)
    if (reply$code != "AGAIN") break
    Sys.sleep(pause)
    pause <- min(2 * pause, 1)
  }
  reply
}

# Sleep until the agent has answered `seq`.  Older replies come again after an agent was restarted: they are passed over.
# The keeper of the channel answers GONE when there will be no agent any more, and it need not know our seq.
plugml_wait <- function(p, seq) {
  interrupted <- 0  # A signal ends the read with an error; so does a closed connection, and that one stays.
  repeat {
    record <- tryCatch(readBin(p$rep, "raw", 64L), error = function(e) NULL)
    if (is.null(record) && interrupted < 10) {
      interrupted <- interrupted + 1
      next
    }
    if (length(record) < 64L)
      plugml_fail(p, "GONE", "agent and launcher are gone; whether the last request was carried out is unknown; run the program again")
    words <- strsplit(rawToChar(record[record != as.raw(0L)]), "[ \n]+")[[1]]
    if (length(words) < 3 || !words[1] %in% c("ok", "err") || anyNA(suppressWarnings(as.numeric(words[2:3])))) {
      p$fatal <- TRUE
      plugml_fail(p, "INTERNAL", sprintf("the agent's reply cannot be read: is something else writing to %s/rep?", p$dir))
    }
    keys <- plugml_pairs(words[-(1:3)])
    number <- function(key, otherwise = 0) if (is.na(keys[key])) otherwise else as.numeric(keys[[key]])
    ok <- words[1] == "ok"
    code <- if (!is.na(keys["code"])) keys[["code"]] else if (ok) "OK" else "INTERNAL"
    if (as.numeric(words[2]) == seq || code == "GONE")
      return(list(ok = ok, code = code, clock = as.numeric(words[3]), done = number("done"), version = number("v"),
                  lag = number("lag", NA), stop = number("stop") == 1))
  }
}

# Raise the error that the agent has explained in `err`.
plugml_refused <- function(p, reply) {
  path <- file.path(p$dir, "err")
  text <- if (reply$code != "GONE" && file.exists(path)) readLines(path, n = 1L, warn = FALSE) else character()
  text <- if (length(text) && startsWith(text, reply$code)) sub("^[^:]*: *", "", text)
  if (!length(text) || !nzchar(text))
    text <- switch(reply$code,
                   GONE = "the agent is gone for good; whether the last request was carried out is unknown; end the program",
                   STOP = "the job's stop rule has fired; end the loop normally",
                   "the agent gave no reason; see its log")
  plugml_fail(p, reply$code, text)
}

# ---- values -------------------------------------------------------------------------------------------------------------

# Put `value`, one table's or a named list of all tables', into `grad`.
plugml_write <- function(p, value) {
  if (!is.list(value)) {
    if (length(p$tables) != 1)
      plugml_fail(p, "SIZE", sprintf("the job has %d tables (%s): give a named list", length(p$tables), toString(names(p$tables))))
    value <- structure(list(value), names = names(p$tables))
  }
  strange <- setdiff(names(value), names(p$tables))
  if (length(strange)) plugml_fail(p, "RANGE", sprintf("the job has no dense table %s; it has %s", strange[1], toString(names(p$tables))))
  if (!setequal(names(value), names(p$tables)))
    plugml_fail(p, "SIZE", sprintf("nothing is given for table %s", setdiff(names(p$tables), names(value))[1]))
  bytes <- lapply(p$tables, function(table) plugml_bytes(p, table, value[[table$name]]))
  con <- file(file.path(p$dir, "grad"), "r+b")  # Not "wb": that would give the file's memory back to the system.
  on.exit(close(con))
  for (table in p$tables) {
    seek(con, table$offset, "start", "write")
    writeBin(bytes[[table$name]], con, size = plugml_size(table), endian = "little")
  }
}

# A table's numbers in the file's order, ready for writeBin.
plugml_bytes <- function(p, table, value) {
  if (!is.numeric(value) && !is.logical(value)) plugml_fail(p, "FORMAT", sprintf("table %s takes numbers, not %s", table$name, class(value)[1]))
  if (length(value) != table$count)
    plugml_fail(p, "SIZE", sprintf("table %s has %.0f elements, %.0f were given", table$name, table$count, length(value)))
  if (!is.null(dim(value)) && length(table$shape) > 1) {
    if (!identical(as.numeric(dim(value)), table$shape))
      plugml_fail(p, "SIZE", sprintf("table %s has shape %s, an array of %s was given: transpose it, or declare the table so",
                                     table$name, paste(table$shape, collapse = "x"), paste(dim(value), collapse = "x")))
    if (table$order == "C") value <- aperm(value)  # R counts the first index fastest, C the last one.
  }
  if (table$dtype != "i64") return(as.double(value))
  plugml_whole(p, table, value)
}

# Numbers for an i64 table.
plugml_whole <- function(p, table, value) {
  value <- as.double(value)
  if (!all(is.finite(value))) plugml_fail(p, "NONFINITE", sprintf("table %s counts whole numbers; NA, NaN or Inf was given", table$name))
  if (any(abs(value) > 2^53) || any(value != floor(value)))
    plugml_fail(p, "RANGE", sprintf("table %s counts whole numbers; R knows them exactly up to 2^53", table$name))
  plugml_halves(floor(value / 2^32), value %% 2^32)
}

# The values in `param`, in the form of `like`: a list, an array or a plain vector.  With sections a list of all that came.
plugml_read <- function(p, like, sections = list(), dense = TRUE) {
  con <- file(file.path(p$dir, "param"), "rb")
  on.exit(close(con))
  values <- if (dense) plugml_read_tables(p, con, like) else list()
  if (length(sections)) c(values, plugml_read_rows(p, con, sections, dense))
  else if (is.list(like) || length(values) != 1) values else values[[1]]
}

plugml_read_tables <- function(p, con, like) {
  lapply(p$tables, function(table) {
    seek(con, table$offset, "start", "read")
    value <- plugml_numbers(con, table)
    if (length(value) != table$count) plugml_fail(p, "SIZE", "param is shorter than info promises")
    form <- if (is.list(like)) like[[table$name]] else like
    plain <- !is.null(form) && is.null(dim(form))
    if (plain || length(table$shape) < 2) return(value)
    if (table$order == "F") array(value, table$shape) else aperm(array(value, rev(table$shape)))
  })
}

plugml_numbers <- function(con, table) {
  if (table$dtype != "i64") return(readBin(con, "double", table$count, size = plugml_size(table), endian = "little"))
  halves <- as.double(readBin(con, "integer", 2 * table$count, size = 4L, endian = "little"))
  halves[is.na(halves)] <- -2^31  # the bits of R's NA
  low <- halves[c(TRUE, FALSE)]
  halves[c(FALSE, TRUE)] * 2^32 + low + (low < 0) * 2^32
}

# 64-bit whole numbers as pairs of 32-bit ones, low half first.
plugml_halves <- function(high, low) plugml_words32(rbind(low, high))

# 32 bits each, from numbers of either sign.
plugml_words32 <- function(value) suppressWarnings(as.integer(value - (value >= 2^31) * 2^32))  # -2^31 becomes NA, which has the bits that we want.

plugml_size <- function(table) if (table$dtype == "f64") 8L else 4L  # An i64 goes as two halves.

# ---- rows of sparse tables ----------------------------------------------------------------------------------------------

plugml_names <- function(tables) if (length(tables)) toString(names(tables)) else "none"

# What a request says of each sparse table: list(table, k, rows, values, want, wanted), rows as `plugml_named` makes them.
plugml_sections <- function(p, pushed, want) {
  if (!is.null(want) && (!is.list(want) || is.null(names(want)))) plugml_fail(p, "FORMAT", "want is a named list: want = list(table = rows)")
  lapply(unique(c(names(pushed), names(want))), function(name) {
    table <- p$sparse[[name]]
    if (is.null(table)) plugml_fail(p, "RANGE", sprintf("the job has no sparse table %s; it has %s", name, plugml_names(p$sparse)))
    section <- list(table = table, k = 0, want = 0)
    if (!is.null(pushed[[name]])) {
      pair <- pushed[[name]]
      if (!is.list(pair) || length(pair) != 2) plugml_fail(p, "FORMAT", sprintf("table %s is sparse: give list(rows, values)", name))
      section$rows <- plugml_named(p, table, pair[[1]])
      section$k <- length(pair[[1]])
      section$values <- plugml_row_values(p, table, pair[[2]], section$k)
    }
    if (!is.null(want[[name]])) {
      section$wanted <- plugml_named(p, table, want[[name]])
      section$want <- length(want[[name]])
    }
    section
  })
}

# Row numbers as 32-bit words of the file (integer64: as doubles with the same bits), or keys as UTF-8.
plugml_named <- function(p, table, rows) {
  wrong <- function(code, text) plugml_fail(p, code, sprintf("rows of table %s: %s", table$name, text))
  if (length(rows) > table$batch) wrong("RANGE", sprintf("%.0f are given, one request takes at most %.0f (the table's batch=)", length(rows), table$batch))
  if (anyNA(rows)) wrong("RANGE", "NA is none")
  if (table$index == "str") {
    if (!is.character(rows)) wrong("FORMAT", "they are named by strings")
    if (any(grepl("\n", rows, fixed = TRUE, useBytes = TRUE))) wrong("FORMAT", "a key holds a newline")
    # In a locale without letters beyond ASCII the bytes are what they are: R would write <c3> for them.
    return(if (any(unlist(l10n_info()[c("UTF-8", "Latin-1")])) || any(Encoding(rows) == "latin1")) enc2utf8(rows) else rows)
  }
  if (inherits(rows, "integer64") && table$index == "u64") return(as.vector(unclass(rows)))
  if (is.character(rows) && table$index == "u64") return(plugml_digits(rows, wrong))
  if (!is.numeric(rows)) wrong("FORMAT", "they are numbers")
  first <- if (table$index == "u32") 1 else 0  # The rows of a matrix are counted from 1; keys are what they are.
  rows <- as.double(rows) - first
  if (any(rows != floor(rows)) || any(rows < 0)) wrong("RANGE", sprintf("they are whole numbers from %d on", first))
  if (table$index == "u64") {
    if (any(rows > 2^53)) wrong("RANGE", "R knows whole numbers exactly up to 2^53: give larger keys as text of decimal digits")
    return(plugml_halves(floor(rows / 2^32), rows %% 2^32))
  }
  if (any(rows >= 2^32)) wrong("RANGE", "they are at most 2^32")
  plugml_words32(rows)
}

# Decimal digits of 64-bit numbers, which R has no numbers for: 9 digits at a time, into two halves.
plugml_digits <- function(text, wrong) {
  if (!all(grepl("^[0-9]{1,20}$", text))) wrong("FORMAT", "text is 1 to 20 decimal digits")
  text <- paste0(strrep("0", 20 - nchar(text)), text)
  high <- low <- rep(0, length(text))
  for (part in list(c(1, 5), c(6, 10), c(11, 15), c(16, 20))) {
    low <- low * 1e5 + as.numeric(substr(text, part[1], part[2]))
    high <- high * 1e5 + floor(low / 2^32)
    low <- low %% 2^32
  }
  if (any(high >= 2^32)) wrong("RANGE", "a key is above 2^64 - 1")
  plugml_halves(high, low)
}

# What is pushed to `k` rows, in the file's order: row after row.
plugml_row_values <- function(p, table, value, k) {
  if (!is.numeric(value) && !is.logical(value)) plugml_fail(p, "FORMAT", sprintf("table %s takes numbers, not %s", table$name, class(value)[1]))
  if (length(value) != k * table$width || (is.matrix(value) && !identical(as.numeric(dim(value)), as.numeric(c(k, table$width)))))
    plugml_fail(p, "SIZE", sprintf("%.0f rows of table %s need a matrix of %.0fx%.0f, %s was given", k, table$name, k, table$width,
                                   if (is.matrix(value)) paste(dim(value), collapse = "x") else sprintf("a vector of %d", length(value))))
  if (is.matrix(value)) value <- base::t(value)
  if (table$dtype == "i64") plugml_whole(p, table, value) else as.double(value)
}

# Where the rows of each section lie, given the bytes of one row, behind a part of `start` bytes.
plugml_places <- function(sections, counts, bytes, start) {
  at <- numeric(length(sections))
  end <- start
  for (i in seq_along(sections)) {
    at[i] <- ceiling(end / 8) * 8
    end <- at[i] + counts[i] * bytes[i]
  }
  at
}

plugml_rows_start <- function(p, dense) if (dense) ceiling(p$dense_bytes / 64) * 64 else 0

# Write what is pushed and the rows that it goes to (`which` gidx), or the rows that are wanted (want).
plugml_write_rows <- function(p, sections, which, dense = FALSE) {
  if (!length(sections)) return(invisible())
  pushed <- which == "gidx"
  tables <- lapply(sections, function(section) section$table)
  rows <- lapply(sections, function(section) if (pushed) section$rows else section$wanted)
  counts <- vapply(sections, function(section) if (pushed) section$k else section$want, 0)
  if (pushed)
    plugml_write_parts(p, "grad", lapply(sections, function(section) section$values), lapply(tables, plugml_size),
                       plugml_places(sections, counts, vapply(tables, plugml_row_bytes, 0), plugml_rows_start(p, dense)))
  strings <- vapply(tables, function(table) table$index == "str", NA)
  if (any(strings)) {
    con <- file(file.path(p$dir, if (pushed) "gkey" else "wkey"), "wb")
    on.exit(close(con))
    writeLines(as.character(unlist(rows[strings])), con, useBytes = TRUE)
    rows[strings] <- list(NULL)
  }
  index <- vapply(tables, function(table) switch(table$index, u32 = 4, u64 = 8, 0), 0)
  plugml_write_parts(p, which, rows, lapply(rows, function(numbers) if (is.double(numbers)) 8L else 4L), plugml_places(sections, counts, index, 0))
}

# Vectors at their places in a file; NULL is none.
plugml_write_parts <- function(p, name, parts, sizes, places) {
  if (!any(lengths(parts) > 0)) return(invisible())
  con <- file(file.path(p$dir, name), "r+b")
  on.exit(close(con))
  for (i in which(lengths(parts) > 0)) {
    seek(con, places[i], "start", "write")
    writeBin(parts[[i]], con, size = sizes[[i]], endian = "little")
  }
}

# The rows that were wanted: a named list of matrices, one line for each row.
plugml_read_rows <- function(p, con, sections, dense) {
  counts <- vapply(sections, function(section) section$want, 0)
  bytes <- vapply(sections, function(section) plugml_row_bytes(section$table), 0)
  places <- plugml_places(sections, counts, bytes, plugml_rows_start(p, dense))
  values <- lapply(seq_along(sections), function(i) {
    table <- sections[[i]]$table
    seek(con, places[i], "start", "read")
    matrix(plugml_numbers(con, list(dtype = table$dtype, count = counts[i] * table$width)), counts[i], table$width, byrow = TRUE)
  })
  names(values) <- vapply(sections, function(section) section$table$name, "")
  values[vapply(sections, function(section) !is.null(section$wanted), NA)]
}

plugml_row_bytes <- function(table) table$width * if (table$dtype == "f32") 4 else 8

# ---- files --------------------------------------------------------------------------------------------------------------

plugml_write_file <- function(p, name, bytes) {
  con <- file(file.path(p$dir, name), "r+b")
  on.exit(close(con))
  writeBin(bytes, con)
}

# A program may have closed all connections (closeAllConnections), and the number may belong to another one now.
plugml_is_open <- function(con, dir) {
  !is.null(con) && tryCatch(isOpen(con) && dirname(summary(con)$description) == path.expand(dir), error = function(e) FALSE)
}

plugml_open_bells <- function(p) {
  req <- file.path(p$dir, "req")
  rep <- file.path(p$dir, "rep")
  opened <- function(path, ...) if (file.exists(path)) tryCatch(suppressWarnings(fifo(path, ...)), error = function(e) NULL)
  # Opening a FIFO to read waits for a writer, for ever if there is none.  Opening to write without waiting tells: it fails.
  probe <- opened(rep, "wb", blocking = FALSE)
  if (is.null(probe)) plugml_fail(p, "GONE", sprintf("nobody keeps %s open: the channel has ended; end the program", rep))
  p$req <- opened(req, "w+b", blocking = TRUE)  # Both directions: a ring never waits and never meets a closed pipe.
  p$rep <- opened(rep, "rb", blocking = TRUE)
  close(probe)
  if (is.null(p$req) || is.null(p$rep)) plugml_fail(p, "PERM", sprintf("cannot open the FIFOs in %s", p$dir))
}

# Throw away what waits in rep: an earlier program of this generation may have died before it read its reply.
plugml_discard_replies <- function(p) {
  con <- fifo(file.path(p$dir, "rep"), "rb", blocking = FALSE)
  on.exit(close(con))
  while (length(tryCatch(readBin(con, "raw", 4096L), error = function(e) raw())) > 0) NULL  # Nothing there is an error in R.
}

plugml_read_info <- function(p) {
  if (!file.exists(file.path(p$dir, "info")))
    plugml_fail(p, "GONE", sprintf("there is no channel in %s; is PLUGML_DIR of an earlier run?", p$dir))
  page <- readBin(file.path(p$dir, "ctl"), "raw", 10L)
  if (length(page) < 10L || !identical(page[1:8], charToRaw("PLUGMLC1")) || page[9] != as.raw(1L) || page[10] != as.raw(0L))
    plugml_fail(p, "VERSION", sprintf("%s/ctl has a layout that this client does not know: use the plugml.R that belongs to this plugml", p$dir))
  lines <- readLines(file.path(p$dir, "info"), warn = FALSE)
  is_table <- startsWith(lines, "table=")
  head <- plugml_pairs(lines[!is_table])
  if (!identical(head[["version"]], "1"))
    plugml_fail(p, "VERSION", sprintf("the channel speaks version %s, this client speaks 1: use the plugml.R that belongs to this plugml", head["version"]))
  p$worker <- as.numeric(head[["worker"]])
  p$workers <- as.numeric(head[["workers"]])
  if (!identical(head[["bell"]], "fifo"))
    plugml_fail(p, "VERSION", sprintf("the channel wakes its program by bell=%s, which R cannot wait for: run the job with bell=fifo", head["bell"]))
  p$tables <- p$sparse <- list()
  for (line in strsplit(lines[is_table], " ")) {
    words <- plugml_pairs(line)
    if (words[["kind"]] == "sparse")
      p$sparse[[words[["table"]]]] <- list(name = words[["table"]], dtype = words[["dtype"]], index = words[["index"]],
                                           rows = as.numeric(sub(",.*", "", words[["shape"]])), width = as.numeric(words[["width"]]),
                                           batch = as.numeric(words[["batch"]]))
    if (words[["kind"]] != "dense") next
    p$tables[[words[["table"]]]] <- list(name = words[["table"]], dtype = words[["dtype"]], order = words[["order"]],
                                         offset = as.numeric(words[["offset"]]), count = as.numeric(words[["count"]]),
                                         shape = as.numeric(strsplit(words[["shape"]], ",")[[1]]))
  }
  p$count <- sum(vapply(p$tables, function(table) table$count, 0))
  p$dense_bytes <- max(0, vapply(p$tables, function(table) table$offset + table$count * (if (table$dtype == "f32") 4 else 8), 0))
}

# `key=value` words as a named vector.
plugml_pairs <- function(words) {
  words <- words[nzchar(words)]
  structure(sub("^[^=]*=", "", words), names = sub("=.*", "", words))
}

plugml_environment_number <- function(name, otherwise) {
  value <- suppressWarnings(as.numeric(Sys.getenv(name)))
  if (is.na(value)) otherwise else value
}
