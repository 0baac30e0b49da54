# Does what its arguments say with rows of sparse tables, with the R client, and prints the outcome of each.  See rows.py.
source(Sys.getenv("PLUGML_R"))
if (nzchar(Sys.getenv("UNPAUSED"))) Sys.sleep <- function(seconds) stopifnot(seconds > 0, seconds <= 1)

p <- plugml_attach()
pushed <- wanted <- list()
limit <- NULL

keys_of <- function(table, text) {
  words <- if (nzchar(text)) strsplit(text, ",")[[1]] else character()
  index <- plugml_sparse(p)[[table]]$index
  if (identical(index, "u32")) as.numeric(words) + 1 else if (identical(index, "u64") && all(nchar(words) < 10)) as.numeric(words) else words
}

numbers_of <- function(row) paste(sprintf("%.9g", row), collapse = ",")

do_request <- function(verb, rest) {
  g <- pushed
  want <- if (length(wanted)) wanted
  pushed <<- wanted <<- list()
  dense <- if (length(rest) && length(plugml_tables(p))) plugml_tables(p)[[1]]
  if (!is.null(dense) && nzchar(rest)) g[[dense$name]] <- as.numeric(rest) + seq_len(dense$count) - 1
  w <- if (!is.null(dense)) structure(list(numeric(dense$count)), names = dense$name)
  got <- switch(verb,
                step = plugml_step(p, g, want = want, timeout = limit),
                pushpull = plugml_pushpull(p, g, want = want, timeout = limit),
                pull = plugml_pull(p, w, want = want, timeout = limit),
                push = { plugml_push(p, g, timeout = limit); NULL },
                async = { plugml_push(p, g, wait = FALSE, timeout = limit); NULL })
  shown <- if (!is.null(dense) && is.list(got)) paste0(" w=", numbers_of(got[[dense$name]])) else ""
  if (is.list(got))
    for (table in names(want)) shown <- paste0(shown, " ", table, "=", paste(apply(got[[table]], 1, numbers_of), collapse = ";"))
  shown
}

do_one <- function(op) {
  words <- strsplit(paste0(op, ":"), ":", fixed = TRUE)[[1]]  # keeps an empty last word
  verb <- words[1]
  rest <- words[-1]
  if (verb == "rows") {
    rows <- keys_of(rest[1], rest[2])
    width <- if (is.null(plugml_sparse(p)[[rest[1]]])) 1 else plugml_sparse(p)[[rest[1]]]$width
    pushed[[rest[1]]] <<- list(rows, as.numeric(rest[3]) + outer(10 * (seq_along(rows) - 1), seq_len(width) - 1, "+"))
    return(invisible())
  }
  if (verb == "want") {
    wanted[[rest[1]]] <<- keys_of(rest[1], if (length(rest) > 1) rest[2] else "")
    return(invisible())
  }
  if (verb == "timeout") {
    limit <<- if (as.numeric(rest) > 0) as.numeric(rest) / 1000
    return(invisible())
  }
  shown <- ""
  outcome <- tryCatch({
    if (verb == "next") {
      piece <- plugml_next(p)
      shown <- if (is.null(piece)) " none" else sprintf(" %.0f:%.0f:%s", plugml_piece(p), plugml_turn(p), piece)
    } else if (verb == "tick") {
      plugml_tick(p, timeout = limit)
    } else if (verb == "ping") {
      plugml_ping(p)
    } else {
      shown <- do_request(verb, rest)
    }
    if (!plugml_plugged(p)) "0" else if (plugml_stopped(p) && verb != "next" && plugml_code(p) == "STOP") "S" else "1"
  }, plugml_error = function(e) {
    message(conditionMessage(e))
    "E"
  })
  if (outcome %in% c("E", "S")) shown <- ""
  cat(sprintf("%s %s %s clock=%.0f stopped=%d lag=%.0f%s\n", op, outcome, plugml_code(p), plugml_clock(p), plugml_stopped(p), plugml_lag(p), shown))
}

for (op in commandArgs(trailingOnly = TRUE)) {
  if (op == "bye") break
  if (op == "end") quit(status = 0)
  do_one(op)
}
if (!plugml_code(p) %in% c("OK", "STOP")) quit(status = 1)
plugml_bye(p)
