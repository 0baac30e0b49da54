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
plugml_step <- function(p, g, weight = 1, alone = NULL) {
  if (is.null(p)) return(alone)
  plugml_check(p)
  plugml_write(p, g)
  plugml_request(p, "step", weight)  # Once the stop rule has fired, the values stay what they were.
  plugml_read(p, g)
}

# The values of now, in the form of `w`; alone: `w`.
plugml_pull <- function(p, w = NULL) {
  if (is.null(p)) return(w)
  plugml_check(p)
  plugml_request(p, "pull")
  plugml_read(p, w)
}

# Offer first values for tables with init=program: the job's first offer is taken, and everybody gets it back.
plugml_init <- function(p, w) {
  if (is.null(p)) return(w)
  plugml_check(p)
  plugml_write(p, w)
  plugml_request(p, "init", 1)
  plugml_read(p, w)
}

# Push without ending the clock: several pushes may go into one.
plugml_push <- function(p, g, weight = 1) {
  if (is.null(p)) return(invisible(FALSE))
  plugml_check(p)
  plugml_write(p, g)
  plugml_request(p, "push", weight)
  invisible(TRUE)
}

plugml_pushpull <- function(p, g, weight = 1, alone = NULL) {
  if (is.null(p)) return(alone)
  plugml_check(p)
  plugml_write(p, g)
  plugml_request(p, "pushpull", weight)
  plugml_read(p, g)
}

# End this clock without a push.
plugml_tick <- function(p) {
  if (is.null(p)) return(invisible(FALSE))
  plugml_check(p)
  plugml_request(p, "clock")
  invisible(TRUE)
}

plugml_ping <- function(p) {
  if (is.null(p)) return(invisible(FALSE))
  plugml_check(p)
  plugml_request(p, "ping")
  invisible(TRUE)
}

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

# The data lie in their files.  `weight` NULL: nothing is pushed.
plugml_request <- function(p, verb, weight = NULL) {
  if (p$code == "SEQ") plugml_hello(p)  # Somebody else has used the channel: take up his count.
  seq <- p$seq + 1
  line <- sprintf("%s %.0f %.0f", verb, seq, p$clock)
  if (!is.null(weight)) line <- sprintf("%s n=%.0f w=%.17g", line, p$count, weight)
  reply <- plugml_ask(p, paste0(line, "\n"), seq)
  if (!reply$code %in% c("SEQ", "AGAIN")) p$seq <- seq  # Refused for good is answered, too.
  if (reply$stop || reply$code == "STOP") p$stop <- TRUE
  if (reply$code == "STOP") {  # No error: the loop has come to its end.
    p$code <- "STOP"
    return(invisible(FALSE))
  }
  if (!reply$ok) plugml_refused(p, reply)
  p$code <- "OK"
  p$lag <- reply$lag
  if (reply$version > 0) p$version <- reply$version
  p$clock <- reply$clock
  invisible(TRUE)
}

# Write the request, ring, wait.
plugml_ask <- function(p, line, seq) {
  pause <- 0.01
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
    number <- function(key) if (is.na(keys[key])) 0 else as.numeric(keys[[key]])
    ok <- words[1] == "ok"
    code <- if (!is.na(keys["code"])) keys[["code"]] else if (ok) "OK" else "INTERNAL"
    if (as.numeric(words[2]) == seq || code == "GONE")
      return(list(ok = ok, code = code, clock = as.numeric(words[3]), done = number("done"), version = number("v"),
                  lag = number("lag"), stop = number("stop") == 1))
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
  value <- as.double(value)
  if (!all(is.finite(value))) plugml_fail(p, "NONFINITE", sprintf("table %s counts whole numbers; NA, NaN or Inf was given", table$name))
  if (any(abs(value) > 2^53) || any(value != floor(value)))
    plugml_fail(p, "RANGE", sprintf("table %s counts whole numbers; R knows them exactly up to 2^53", table$name))
  plugml_halves(value)
}

# The values in `param`, in the form of `like`: a list, an array or a plain vector.
plugml_read <- function(p, like) {
  con <- file(file.path(p$dir, "param"), "rb")
  on.exit(close(con))
  values <- lapply(p$tables, function(table) {
    seek(con, table$offset, "start", "read")
    value <- plugml_numbers(con, table)
    if (length(value) != table$count) plugml_fail(p, "SIZE", "param is shorter than info promises")
    form <- if (is.list(like)) like[[table$name]] else like
    plain <- !is.null(form) && is.null(dim(form))
    if (plain || length(table$shape) < 2) return(value)
    if (table$order == "F") array(value, table$shape) else aperm(array(value, rev(table$shape)))
  })
  if (is.list(like) || length(values) != 1) values else values[[1]]
}

plugml_numbers <- function(con, table) {
  if (table$dtype != "i64") return(readBin(con, "double", table$count, size = plugml_size(table), endian = "little"))
  halves <- as.double(readBin(con, "integer", 2 * table$count, size = 4L, endian = "little"))
  halves[is.na(halves)] <- -2^31  # the bits of R's NA
  low <- halves[c(TRUE, FALSE)]
  halves[c(FALSE, TRUE)] * 2^32 + low + (low < 0) * 2^32
}

# 64-bit whole numbers as pairs of 32-bit ones, low half first.
plugml_halves <- function(value) {
  high <- floor(value / 2^32)
  low <- value - high * 2^32
  low <- low - (low >= 2^31) * 2^32
  suppressWarnings(as.integer(rbind(low, high)))  # -2^31 becomes NA, which has the bits that we want.
}

plugml_size <- function(table) if (table$dtype == "f64") 8L else 4L  # An i64 goes as two halves.

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
  p$tables <- list()
  for (line in strsplit(lines[is_table], " ")) {
    words <- plugml_pairs(line)
    if (words[["kind"]] != "dense") next
    p$tables[[words[["table"]]]] <- list(name = words[["table"]], dtype = words[["dtype"]], order = words[["order"]],
                                         offset = as.numeric(words[["offset"]]), count = as.numeric(words[["count"]]),
                                         shape = as.numeric(strsplit(words[["shape"]], ",")[[1]]))
  }
  p$count <- sum(vapply(p$tables, function(table) table$count, 0))
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
