!> Plug a serial Fortran program into its channel.  Fortran 2018, no C code: files are reached through iso_c_binding.  Linux.
!>
!>     use plugml
!>     type(plug) :: p
!>     do while (p%more(w, step, steps))                    ! was do step = 1, steps
!>       call gradient(w, g)
!>       if (.not. p%step(g, w)) w = w - lr * g             ! alone: your own update
!>     end do
!>
!> It attaches at the first call.  Without PLUGML_DIR in the environment the program runs alone: every function does nothing and gives .false.
!> Arrays are real(real32), real(real64) or integer(int64), contiguous, of any rank.  One of rank 1 is taken in the file's order; one of more has
!> the table's shape, and element (i, j) is the same number in every language: where the table has order=C it is turned here, with order=F as it is.
!> Rows of index=u32 tables are counted from 1, as everything in Fortran; keys of u64 tables are what they are.
!>
!> Errors: with stat= a function gives the number of the code there (0: none), and the word and the sentence lie in p%code and p%text; without it
!> the program ends by `error stop` with the sentence.  The order of system calls is the protocol (shm_protocol/SPEC.md): data, then cmd, then
!> the bell, then the wait.
module plugml
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int8, int32, int64, real32, real64
  implicit none
  private
  public :: plug, plug_table

  integer(c_int), parameter :: O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_TRUNC = 512, O_NONBLOCK = 2048, &
    O_CLOEXEC = 524288
  integer(c_int), parameter :: ENOENT = 2, EINTR = 4, EAGAIN = 11, ENOSPC = 28, F_GETFD = 1
  real(real64), parameter :: WEIGHT_MAX = 9007199254740992.0_real64
  character, parameter :: NL = achar(10)
  integer, parameter :: CODES = 16

  !> A table of the job.  A sparse one has a width above 0.
  type :: plug_table
    character(:), allocatable :: name, dtype, index          ! dtype f32, f64 or i64; index u32, u64 or str
    character :: order = 'C'                                 ! C: the last index runs fastest; F: the first one
    integer(int64), allocatable :: shape(:)
    integer(int64) :: count = 0, offset = 0                  ! dense: elements; bytes from the start of grad and param
    integer(int64) :: width = 0, batch = 0                   ! sparse: elements of a row; most rows of one request
  end type

  !> An array of the caller's.
  type :: view
    type(c_ptr) :: start = c_null_ptr
    character(3) :: dtype = ''
    integer(int64) :: count = 0
    integer :: rank = 0
    integer(int64) :: shape(15) = 0
  end type

  !> What the next request says of one sparse table, as bytes for the files.
  type :: section
    integer :: table = 0
    logical :: pushes = .false., wants = .false.
    integer(int64) :: k = 0, want = 0
    integer(int8), allocatable :: keys(:), values(:), wanted(:), came(:)
  end type

  type :: answer
    character(9) :: code = 'OK'
    integer(int64) :: seq = 0, clock = 0, done = 0, lag = -1, version = 0
    logical :: stop = .false.
  end type

  !> A program's side of one channel.  To be read: code .. turn; to be set: weight, timeout.
  type :: plug
    real(real64) :: weight = 1                               ! of all following pushes: how many examples are behind them
    integer(int64) :: timeout = 0                            ! milliseconds, of all following requests; 0: for ever
    character(9) :: code = 'OK'                              ! of the last request
    character(:), allocatable :: text                        ! the sentence of the last error
    integer(int64) :: clock = 0, lag = 0, &
      version = 0        ! clocks finished; clocks that the slowest is behind; of the values
    integer(int64) :: worker = 0, workers = 1, piece = -1, turn = 0
    logical :: stopped = .false.                             ! the job's stop rule has fired
    type(plug_table), allocatable :: tables(:)
    character(:), allocatable, private :: dir
    logical, private :: begun = .false., handed = .false., fault = .false., put_any = .false., ended = .false.
    integer(c_int), private :: req = -1, rep = -1, owner = 0
    integer(int64), private :: seq = 0, count = 0, nbytes = 0, counted = 0
    type(section), allocatable, private :: sections(:), last(:)
    character(9), private :: fatal = '', mistake = ''
    character(:), allocatable, private :: fatal_text, mistake_text
  contains
    procedure :: attach, bye, plugged, main, done, tick, ping, next, expect, table
    procedure, private :: step_none, push_none, push_async_none, pull_none, pushpull_none
    procedure, private :: more_f32, more_f64, more_i64
    generic :: more => more_f32, more_f64, more_i64
    procedure, private :: step_f32, step_f64, step_i64
    generic :: step => step_f32, step_f64, step_i64, step_none
    procedure, private :: pushpull_f32, pushpull_f64, pushpull_i64
    generic :: pushpull => pushpull_f32, pushpull_f64, pushpull_i64, pushpull_none
    procedure, private :: push_f32, push_f64, push_i64
    generic :: push => push_f32, push_f64, push_i64, push_none
    procedure, private :: push_async_f32, push_async_f64, push_async_i64
    generic :: push_async => push_async_f32, push_async_f64, push_async_i64, push_async_none
    procedure, private :: pull_f32, pull_f64, pull_i64
    generic :: pull => pull_f32, pull_f64, pull_i64, pull_none
    procedure, private :: init_f32, init_f64, init_i64
    generic :: init => init_f32, init_f64, init_i64
    procedure, private :: put_f32, put_f64, put_i64
    generic :: put => put_f32, put_f64, put_i64
    procedure, private :: get_f32, get_f64, get_i64
    generic :: get => get_f32, get_f64, get_i64
    procedure, private :: want_int, want_long, want_str
    generic :: want => want_int, want_long, want_str
    procedure, private :: rows_int_f32, rows_int_f64, rows_int_i64, rows_long_f32, rows_long_f64, &
      rows_long_i64, rows_str_f32, rows_str_f64, rows_str_i64
    generic :: rows => rows_int_f32, rows_int_f64, rows_int_i64, rows_long_f32, rows_long_f64, &
      rows_long_i64, rows_str_f32, rows_str_f64, rows_str_i64
    procedure, private :: came_f32, came_f64, came_i64
    generic :: came => came_f32, came_f64, came_i64
  end type

  interface look
    procedure :: look_f32, look_f64, look_i64
  end interface

  interface
    function c_open(path, flags) bind(C, name='open') result(fd)
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int), value :: flags
      integer(c_int) :: fd
    end function
    function c_close(fd) bind(C, name='close') result(status)
      import :: c_int
      integer(c_int), value :: fd
      integer(c_int) :: status
    end function
    function c_fcntl(fd, command) bind(C, name='fcntl') result(status)
      import :: c_int
      integer(c_int), value :: fd, command
      integer(c_int) :: status
    end function
    function c_seek(fd, offset, whence) bind(C, name='lseek') result(at)
      import :: c_int, c_long
      integer(c_int), value :: fd, whence
      integer(c_long), value :: offset
      integer(c_long) :: at
    end function
    function c_read(fd, into, length) bind(C, name='read') result(got)
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: fd
      type(c_ptr), value :: into
      integer(c_size_t), value :: length
      integer(c_size_t) :: got
    end function
    function c_write(fd, from, length) bind(C, name='write') result(done)
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: fd
      type(c_ptr), value :: from
      integer(c_size_t), value :: length
      integer(c_size_t) :: done
    end function
    function c_pread(fd, into, length, at) bind(C, name='pread') result(got)
      import :: c_int, c_ptr, c_size_t, c_long
      integer(c_int), value :: fd
      type(c_ptr), value :: into
      integer(c_size_t), value :: length
      integer(c_long), value :: at
      integer(c_size_t) :: got
    end function
    function c_pwrite(fd, from, length, at) bind(C, name='pwrite') result(done)
      import :: c_int, c_ptr, c_size_t, c_long
      integer(c_int), value :: fd
      type(c_ptr), value :: from
      integer(c_size_t), value :: length
      integer(c_long), value :: at
      integer(c_size_t) :: done
    end function
    function c_getpid() bind(C, name='getpid') result(pid)
      import :: c_int
      integer(c_int) :: pid
    end function
    function c_usleep(microseconds) bind(C, name='usleep') result(status)
      import :: c_int
      integer(c_int), value :: microseconds
      integer(c_int) :: status
    end function
    function c_errno() bind(C, name='__errno_location') result(place)
      import :: c_ptr
      type(c_ptr) :: place
    end function
  end interface

contains

  ! ---- what a training loop calls ------------------------------------------------------------------------------------

  !> Is there a step to do?  The first call fills w with the values of now; step is its number, from 1.
  logical function more_f32(p, w, step, steps, stat)
    class(plug), intent(inout) :: p
    real(real32), intent(inout), contiguous, target :: w(..)
    integer, intent(out) :: step
    integer, intent(in) :: steps
    integer, intent(out), optional :: stat
    more_f32 = loop(p, look(w), step, steps, stat)
  end function

  logical function more_f64(p, w, step, steps, stat)
    class(plug), intent(inout) :: p
    real(real64), intent(inout), contiguous, target :: w(..)
    integer, intent(out) :: step
    integer, intent(in) :: steps
    integer, intent(out), optional :: stat
    more_f64 = loop(p, look(w), step, steps, stat)
  end function

  logical function more_i64(p, w, step, steps, stat)
    class(plug), intent(inout) :: p
    integer(int64), intent(inout), contiguous, target :: w(..)
    integer, intent(out) :: step
    integer, intent(in) :: steps
    integer, intent(out), optional :: stat
    more_i64 = loop(p, look(w), step, steps, stat)
  end function

  !> Push g, end this clock, and fill w with what the consistency model allows to see.  .false.: alone.
  logical function step_f32(p, g, w, weight, stat)
    class(plug), intent(inout) :: p
    real(real32), intent(in), contiguous, target :: g(..)
    real(real32), intent(inout), contiguous, target :: w(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    step_f32 = request(p, 'step', look(g), look(w), weight, '', stat)
  end function

  logical function step_f64(p, g, w, weight, stat)
    class(plug), intent(inout) :: p
    real(real64), intent(in), contiguous, target :: g(..)
    real(real64), intent(inout), contiguous, target :: w(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    step_f64 = request(p, 'step', look(g), look(w), weight, '', stat)
  end function

  logical function step_i64(p, g, w, weight, stat)
    class(plug), intent(inout) :: p
    integer(int64), intent(in), contiguous, target :: g(..)
    integer(int64), intent(inout), contiguous, target :: w(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    step_i64 = request(p, 'step', look(g), look(w), weight, '', stat)
  end function

  !> Push g, then pull w.
  logical function pushpull_f32(p, g, w, weight, stat)
    class(plug), intent(inout) :: p
    real(real32), intent(in), contiguous, target :: g(..)
    real(real32), intent(inout), contiguous, target :: w(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    pushpull_f32 = request(p, 'pushpull', look(g), look(w), weight, '', stat)
  end function

  logical function pushpull_f64(p, g, w, weight, stat)
    class(plug), intent(inout) :: p
    real(real64), intent(in), contiguous, target :: g(..)
    real(real64), intent(inout), contiguous, target :: w(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    pushpull_f64 = request(p, 'pushpull', look(g), look(w), weight, '', stat)
  end function

  logical function pushpull_i64(p, g, w, weight, stat)
    class(plug), intent(inout) :: p
    integer(int64), intent(in), contiguous, target :: g(..)
    integer(int64), intent(inout), contiguous, target :: w(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    pushpull_i64 = request(p, 'pushpull', look(g), look(w), weight, '', stat)
  end function

  !> Push without ending the clock: several pushes may go into one.
  logical function push_f32(p, g, weight, stat)
    class(plug), intent(inout) :: p
    real(real32), intent(in), contiguous, target :: g(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    push_f32 = request(p, 'push', look(g), view(), weight, '', stat)
  end function

  logical function push_f64(p, g, weight, stat)
    class(plug), intent(inout) :: p
    real(real64), intent(in), contiguous, target :: g(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    push_f64 = request(p, 'push', look(g), view(), weight, '', stat)
  end function

  logical function push_i64(p, g, weight, stat)
    class(plug), intent(inout) :: p
    integer(int64), intent(in), contiguous, target :: g(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    push_i64 = request(p, 'push', look(g), view(), weight, '', stat)
  end function

  !> Come back when the push is accepted; what fails later is told by the next request.
  logical function push_async_f32(p, g, weight, stat)
    class(plug), intent(inout) :: p
    real(real32), intent(in), contiguous, target :: g(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    push_async_f32 = request(p, 'push', look(g), view(), weight, ' async=1', stat)
  end function

  logical function push_async_f64(p, g, weight, stat)
    class(plug), intent(inout) :: p
    real(real64), intent(in), contiguous, target :: g(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    push_async_f64 = request(p, 'push', look(g), view(), weight, ' async=1', stat)
  end function

  logical function push_async_i64(p, g, weight, stat)
    class(plug), intent(inout) :: p
    integer(int64), intent(in), contiguous, target :: g(..)
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    push_async_i64 = request(p, 'push', look(g), view(), weight, ' async=1', stat)
  end function

  !> Fill w with the values of now.
  logical function pull_f32(p, w, stat)
    class(plug), intent(inout) :: p
    real(real32), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    pull_f32 = request(p, 'pull', view(), look(w), stat=stat, more='')
  end function

  logical function pull_f64(p, w, stat)
    class(plug), intent(inout) :: p
    real(real64), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    pull_f64 = request(p, 'pull', view(), look(w), stat=stat, more='')
  end function

  logical function pull_i64(p, w, stat)
    class(plug), intent(inout) :: p
    integer(int64), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    pull_i64 = request(p, 'pull', view(), look(w), stat=stat, more='')
  end function

  !> Offer w as first values of tables with init=program; w becomes what the job took.
  logical function init_f32(p, w, stat)
    class(plug), intent(inout) :: p
    real(real32), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    init_f32 = request(p, 'init', look(w), look(w), 1.0_real64, '', stat)
  end function

  logical function init_f64(p, w, stat)
    class(plug), intent(inout) :: p
    real(real64), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    init_f64 = request(p, 'init', look(w), look(w), 1.0_real64, '', stat)
  end function

  logical function init_i64(p, w, stat)
    class(plug), intent(inout) :: p
    integer(int64), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    init_i64 = request(p, 'init', look(w), look(w), 1.0_real64, '', stat)
  end function

  !> Write what the next push sends of one dense table; then p%step().
  logical function put_f32(p, name, g, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    real(real32), intent(in), contiguous, target :: g(..)
    integer, intent(out), optional :: stat
    put_f32 = by_name(p, 'put', name, look(g), stat)
  end function

  logical function put_f64(p, name, g, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    real(real64), intent(in), contiguous, target :: g(..)
    integer, intent(out), optional :: stat
    put_f64 = by_name(p, 'put', name, look(g), stat)
  end function

  logical function put_i64(p, name, g, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int64), intent(in), contiguous, target :: g(..)
    integer, intent(out), optional :: stat
    put_i64 = by_name(p, 'put', name, look(g), stat)
  end function

  !> Read one dense table after a pull.
  logical function get_f32(p, name, w, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    real(real32), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    get_f32 = by_name(p, 'get', name, look(w), stat)
  end function

  logical function get_f64(p, name, w, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    real(real64), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    get_f64 = by_name(p, 'get', name, look(w), stat)
  end function

  logical function get_i64(p, name, w, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int64), intent(inout), contiguous, target :: w(..)
    integer, intent(out), optional :: stat
    get_i64 = by_name(p, 'get', name, look(w), stat)
  end function

  !> Ask for rows with the next request that pulls; came() gives them afterwards.
  logical function want_int(p, name, keys, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int32), intent(in) :: keys(:)
    integer, intent(out), optional :: stat
    want_int = name_rows(p, name, names_int(p, name, keys), size(keys, kind=int64), stat=stat)
  end function

  logical function want_long(p, name, keys, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int64), intent(in) :: keys(:)
    integer, intent(out), optional :: stat
    want_long = name_rows(p, name, names_long(p, name, keys), size(keys, kind=int64), stat=stat)
  end function

  logical function want_str(p, name, keys, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    character(*), intent(in) :: keys(:)
    integer, intent(out), optional :: stat
    want_str = name_rows(p, name, names_str(p, name, keys), size(keys, kind=int64), stat=stat)
  end function

  !> With the next request push values(:, i), or values(width * (i - 1) + 1 ...), to row keys(i).  What is refused here refuses that request, too.
  logical function rows_int_f32(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int32), intent(in) :: keys(:)
    real(real32), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_int_f32 = name_rows(p, name, names_int(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  logical function rows_int_f64(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int32), intent(in) :: keys(:)
    real(real64), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_int_f64 = name_rows(p, name, names_int(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  logical function rows_int_i64(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int32), intent(in) :: keys(:)
    integer(int64), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_int_i64 = name_rows(p, name, names_int(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  logical function rows_long_f32(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int64), intent(in) :: keys(:)
    real(real32), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_long_f32 = name_rows(p, name, names_long(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  logical function rows_long_f64(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int64), intent(in) :: keys(:)
    real(real64), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_long_f64 = name_rows(p, name, names_long(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  logical function rows_long_i64(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int64), intent(in) :: keys(:)
    integer(int64), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_long_i64 = name_rows(p, name, names_long(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  logical function rows_str_f32(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    character(*), intent(in) :: keys(:)
    real(real32), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_str_f32 = name_rows(p, name, names_str(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  logical function rows_str_f64(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    character(*), intent(in) :: keys(:)
    real(real64), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_str_f64 = name_rows(p, name, names_str(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  logical function rows_str_i64(p, name, keys, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    character(*), intent(in) :: keys(:)
    integer(int64), intent(in), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    rows_str_i64 = name_rows(p, name, names_str(p, name, keys), size(keys, kind=int64), look(values), stat)
  end function

  !> Fill values(:, i) with the i-th row that the last request wanted.  .false.: it wanted none.
  logical function came_f32(p, name, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    real(real32), intent(inout), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    came_f32 = give_rows(p, name, look(values), stat)
  end function

  logical function came_f64(p, name, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    real(real64), intent(inout), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    came_f64 = give_rows(p, name, look(values), stat)
  end function

  logical function came_i64(p, name, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int64), intent(inout), contiguous, target :: values(..)
    integer, intent(out), optional :: stat
    came_i64 = give_rows(p, name, look(values), stat)
  end function

  logical function step_none(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    step_none = request(p, 'step', view(), view(), stat=stat, more='')
  end function

  logical function push_none(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    push_none = request(p, 'push', view(), view(), stat=stat, more='')
  end function

  logical function push_async_none(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    push_async_none = request(p, 'push', view(), view(), stat=stat, more=' async=1')
  end function

  logical function pull_none(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    pull_none = request(p, 'pull', view(), view(), stat=stat, more='')
  end function

  logical function pushpull_none(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    pushpull_none = request(p, 'pushpull', view(), view(), stat=stat, more='')
  end function

  !> End this clock without a push.
  logical function tick(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    tick = bare(p, 'clock', stat)
  end function

  logical function ping(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    ping = bare(p, 'ping', stat)
  end function

  !> Is there another piece of input for this worker?  Alone: `alone`, once.  p%piece is its number, p%turn the pass, both from 0.
  logical function next(p, found, alone, stat)
    class(plug), intent(inout) :: p
    character(:), allocatable, intent(out) :: found
    character(*), intent(in) :: alone
    integer, intent(out), optional :: stat
    character(:), allocatable :: line
    integer :: first, second
    next = .false.
    found = ''
    if (ready(p)) then
      p%piece = -1
      if (carry_out(p, 'next', '')) then
        line = slurp(p, 'data')
        if (.not. p%fault .and. len(line) > 0 .and. p%code /= 'STOP') then
          line = line(:scan(line // NL, NL) - 1)
          first = index(line, ' ')
          second = first + index(line(first + 1:), ' ')
          p%turn = number(line(:first - 1), 0_int64)
          p%piece = number(line(first + 1:second - 1), -1_int64)
          found = line(second + 1:)
          next = .true.
        end if
      end if
    else if (.not. p%fault .and. .not. p%handed .and. len(alone) > 0) then
      p%handed = .true.
      found = alone
      next = .true.
    end if
    call finish(p, stat)
  end function

  !> Attach to the channel that PLUGML_DIR names, and say hello.  The first call of any function does it.  .false.: alone.
  logical function attach(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    attach = ready(p)
    call finish(p, stat)
  end function

  !> Say that this worker has finished.  A program that ends with exit code 0 and without it has finished, too.
  logical function bye(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    bye = ready(p)
    if (bye) bye = carry_out(p, 'bye', '')
    if (bye) call end_with(p, 'GONE', 'this program has said bye already')
    p%fault = p%fault .and. .not. bye
    if (bye) p%code = 'OK'
    call finish(p, stat)
  end function

  !> Refuse to go on unless the dense tables hold `elements` numbers of dtype.
  logical function expect(p, dtype, elements, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: dtype
    integer(int64), intent(in) :: elements
    integer, intent(out), optional :: stat
    integer :: i
    expect = ready(p)
    if (expect) then
      do i = 1, size(p%tables)
        if (p%tables(i)%width == 0 .and. p%tables(i)%dtype /= dtype) call end_with(p, 'SIZE', 'table ' // &
          p%tables(i)%name // ' holds ' // &
          p%tables(i)%dtype // ' numbers, the program has ' // dtype // ': declare the table so')
      end do
      if (.not. p%fault .and. p%count /= elements) call end_with(p, 'SIZE', "the job's tables have " // &
        str(p%count) // &
        ' elements, the program has ' // str(elements) // ': make the shapes agree')
      expect = .not. p%fault
    end if
    call finish(p, stat)
  end function

  ! ---- who and where am I --------------------------------------------------------------------------------------------

  logical function plugged(p)
    class(plug), intent(inout) :: p
    plugged = ready(p) .or. p%fault
  end function

  !> Alone or worker 0: prints and saves.
  logical function main(p)
    class(plug), intent(in) :: p
    main = p%worker == 0
  end function

  !> A training loop must end now: the stop rule has fired, or the last request failed.
  logical function done(p)
    class(plug), intent(in) :: p
    done = p%stopped .or. (p%code /= 'OK' .and. p%code /= 'STOP')
  end function

  !> The place of a table in p%tables; '': of the first dense one.  0: there is none.
  integer function table(p, name)
    class(plug), intent(in) :: p
    character(*), intent(in) :: name
    integer :: i
    table = 0
    if (.not. allocated(p%tables)) return
    do i = size(p%tables), 1, -1
      if (p%tables(i)%name == name .or. (name == '' .and. p%tables(i)%width == 0)) table = i
    end do
  end function

  ! ---- requests ------------------------------------------------------------------------------------------------------

  logical function loop(p, w, step, steps, stat)
    class(plug), intent(inout) :: p
    type(view), intent(in) :: w
    integer, intent(out) :: step
    integer, intent(in) :: steps
    integer, intent(out), optional :: stat
    logical :: first
    first = .not. p%begun
    if (ready(p)) then
      loop = .true.
      if (first) loop = request(p, 'pull', view(), w, stat=stat, more='')
      step = int(p%clock) + 1
      loop = loop .and. step <= steps .and. .not. p%done()
      if (present(stat) .and. .not. first) stat = 0
    else
      p%counted = p%counted + 1
      step = int(p%counted)
      loop = step <= steps .and. .not. p%fault
      call finish(p, stat)
    end if
  end function

  logical function bare(p, verb, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: verb
    integer, intent(out), optional :: stat
    bare = ready(p)
    if (bare) bare = carry_out(p, verb, '') .or. p%fault
    call finish(p, stat)
  end function

  !> One request that pushes g, fills w, and takes the rows along that were named for it.
  logical function request(p, verb, g, w, weight, more, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: verb, more
    type(view), intent(in) :: g, w
    real(real64), intent(in), optional :: weight
    integer, intent(out), optional :: stat
    real(real64) :: said
    request = ready(p)
    if (request) then
      said = p%weight
      if (present(weight)) said = weight
      call exchange(p, verb, g, w, said, more)
      p%mistake = ''
      p%put_any = .false.
      if (allocated(p%last)) deallocate (p%last)
      call move_alloc(p%sections, p%last)
      allocate (p%sections(0))
    end if
    call finish(p, stat)
  end function

  subroutine exchange(p, verb, g, w, weight, more)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: verb, more
    type(view), intent(in) :: g, w
    real(real64), intent(in) :: weight
    character(:), allocatable :: words
    character(40) :: shown
    logical :: pushes, dense
    integer :: i
    pushes = verb /= 'pull'
    if (p%mistake /= '') then
      call fail(p, trim(p%mistake), 'nothing was asked, since the rows that were named for this request had been ' // &
        'refused: ' // p%mistake_text)
      return
    end if
    ! Beside rows the dense tables take part iff somebody gives them, or a place for them.
    dense = size(p%sections) == 0 .or. g%dtype /= '' .or. merge(p%put_any, w%dtype /= '', pushes)
    if (w%dtype /= '' .and. .not. dense) then
      call fail(p, 'FORMAT', 'the dense tables are pulled where they are pushed, too: give their g beside the rows, ' // &
        'or pull them alone')
      return
    end if
    words = ''
    if (dense .and. (pushes .or. size(p%sections) > 0)) words = ' n=' // str(p%count)
    if (pushes) then
      if (.not. weight >= 0 .or. weight > WEIGHT_MAX) then
        write (shown, '(es24.16e3)') weight
        call fail(p, 'RANGE', 'weight ' // trim(adjustl(shown)) // ': a weight is from 0 to 2^53; nothing was pushed')
        return
      end if
      words = words // ' w=' // weight_text(weight) // more
    end if
    do i = 1, size(p%sections)
      associate (s => p%sections(i))
        words = words // ' table=' // p%tables(s%table)%name
        if (s%k > 0) words = words // ' k=' // str(s%k)
        if (s%want > 0) words = words // ' want=' // str(s%want)
      end associate
    end do
    if (g%dtype /= '') call move(p, 'put', only(p), g)
    if (.not. p%fault) call write_rows(p, dense)
    if (p%fault) return
    if (.not. carry_out(p, verb, words)) return
    if (verb == 'push' .or. p%code == 'STOP') then
      p%sections%wants = .false.
      return
    end if
    if (w%dtype /= '') call move(p, 'get', only(p), w)
    if (.not. p%fault) call read_rows(p, dense)
  end subroutine

  function weight_text(weight) result(text)
    real(real64), intent(in) :: weight
    character(:), allocatable :: text
    character(48) :: shown
    integer :: e
    if (.not. abs(weight - aint(weight)) > 0) then
      text = str(int(weight, int64))
      return
    else if (weight >= 0.1_real64) then
      write (shown, '(f40.17)') weight
    else
      write (shown, '(es30.17e3)') weight
    end if
    text = trim(adjustl(shown))
    e = index(text, 'E')
    if (e > 0) text(e:e) = 'e'
  end function

  !> The data lie in their files: make the request.  .true.: it was carried out.
  logical function carry_out(p, verb, words)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: verb, words
    character(:), allocatable :: line
    type(answer) :: reply
    carry_out = .false.
    if (p%code == 'SEQ') call hello(p) ! somebody else has used the channel: take up his count
    if (p%fault) return
    line = verb // ' ' // str(p%seq + 1) // ' ' // str(p%clock)
    if (p%timeout > 0 .and. index(' step push pull pushpull clock ', ' ' // verb // ' ') > 0) line = line // ' t=' // &
      str(p%timeout)
    line = line // words // NL
    if (len(line) > 4096) then
      call fail(p, 'FORMAT', 'the request names too many tables for one line: make several pushes of it')
      return
    end if
    call ask(p, line, p%seq + 1, reply)
    if (p%fault) return
    if (reply%code /= 'SEQ' .and. reply%code /= 'AGAIN') p%seq = p%seq + 1 ! refused for good is answered, too
    if (reply%code /= 'AGAIN' .and. reply%code /= 'GONE') p%clock = reply%clock ! after TIMEOUT a refusal moves it, too
    p%stopped = p%stopped .or. reply%stop .or. reply%code == 'STOP'
    if (reply%code /= 'OK' .and. reply%code /= 'STOP') then
      call refused(p, trim(reply%code))
      return
    end if
    p%code = reply%code ! STOP is no error: the loop has come to its end
    if (reply%lag >= 0) p%lag = reply%lag
    if (reply%version > 0) p%version = reply%version
    carry_out = .true.
  end function

  !> Fail with the sentence that the agent left in err, as `CODE seq=<seq>: text`.
  subroutine refused(p, code)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: code
    character(:), allocatable :: text, line
    integer :: colon
    text = meaning(code)
    if (code /= 'GONE') then ! the launcher says GONE, and it writes no text
      line = slurp(p, 'err')
      line = line(:scan(line // NL, NL // achar(0)) - 1)
      colon = index(line, ': ')
      if (colon > 0 .and. index(line, code) == 1) text = line(colon + 2:)
    end if
    call fail(p, code, text)
  end subroutine

  !> Ask where this generation stands.
  subroutine hello(p)
    class(plug), intent(inout) :: p
    type(answer) :: reply
    call ask(p, 'hello 0 ' // str(p%clock) // NL, 0_int64, reply)
    if (p%fault) return
    if (reply%code /= 'OK') then
      call refused(p, trim(reply%code))
      return
    end if
    p%seq = reply%done
    p%clock = reply%clock
  end subroutine

  !> Data lie in their files: write the request, ring, wait.
  subroutine ask(p, line, seq, reply)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: line
    integer(int64), intent(in) :: seq
    type(answer), intent(out) :: reply
    character(kind=c_char), target :: bell(1)
    integer(c_int) :: pause, status
    integer :: tries
    bell = NL
    pause = 10000
    do tries = 1, 60 ! AGAIN: 60 times, with pauses that grow from 10 ms to a second
      call store_text(p, 'cmd', line, O_WRONLY)
      if (.not. p%fault) call open_bells(p)
      if (p%fault) return
      do while (c_write(p%req, c_loc(bell), 1_c_size_t) < 0)
        if (errno() == EAGAIN) exit ! 64 KiB of rings wait already, ours would add nothing
        if (errno() /= EINTR) then
          call lost(p, 'req')
          return
        end if
      end do
      call wait(p, seq, reply)
      if (p%fault .or. reply%code /= 'AGAIN' .or. tries == 60) return
      status = c_usleep(pause)
      pause = min(2 * pause, 1000000)
    end do
  end subroutine

  !> Sleep until the agent has answered seq.  Older replies come again after an agent was restarted: they are passed over.
  subroutine wait(p, seq, reply)
    class(plug), intent(inout) :: p
    integer(int64), intent(in) :: seq
    type(answer), intent(out) :: reply
    character(kind=c_char), target :: record(64)
    integer(c_size_t) :: got, more
    got = 0
    do
      more = c_read(p%rep, c_loc(record(got + 1)), 64 - got)
      if (more < 0) then
        if (errno() == EINTR) cycle
        call lost(p, 'rep')
        return
      else if (more == 0) then
        call fail(p, 'GONE', 'agent and launcher are gone; whether the last request was carried out is unknown; run ' // &
          'the program again')
        return
      end if
      got = got + more
      if (got < 64) cycle
      got = 0
      if (.not. parse(transfer(record, repeat(' ', 64)), reply)) then
        call end_with(p, 'INTERNAL', "the agent's reply cannot be read: is something else writing to " // p%dir // &
          '/rep?')
        return
      end if
      if (reply%seq == seq .or. reply%code == 'GONE') return
    end do
  end subroutine

  logical function parse(record, reply)
    character(64), intent(in) :: record
    type(answer), intent(out) :: reply
    character(:), allocatable :: line, code
    integer :: first
    line = record(:63)
    first = index(line, ' ')
    reply%seq = number(word(line, 2), -1_int64)
    reply%clock = number(word(line, 3), -1_int64)
    parse = (word(line, 1) == 'ok' .or. word(line, 1) == 'err') .and. reply%seq >= 0 .and. reply%clock >= 0 &
      .and. record(64:64) == NL
    reply%done = number(value(line, 'done'), 0_int64)
    reply%lag = number(value(line, 'lag'), -1_int64)
    reply%version = number(value(line, 'v'), 0_int64)
    reply%stop = value(line, 'stop') == '1'
    if (word(line, 1) /= 'err') return
    code = value(line, 'code')
    reply%code = 'INTERNAL' ! a later agent has more words
    if (code_number(code) > 0) reply%code = code
  end function

  ! ---- words ---------------------------------------------------------------------------------------------------------

  !> The n-th word of a line, or ''.
  function word(line, n) result(found)
    character(*), intent(in) :: line
    integer, intent(in) :: n
    character(:), allocatable :: found
    integer :: i, start, past
    start = 1
    found = ''
    do i = 1, n
      past = verify(line(start:), ' ')
      if (past == 0) then
        found = ''
        return
      end if
      start = start + past - 1
      past = start + scan(line(start:) // ' ', ' ') - 1
      found = line(start:past - 1)
      start = min(past, len(line) + 1)
    end do
  end function

  !> The value of `key=` in a line of words, or ''.
  function value(line, key) result(found)
    character(*), intent(in) :: line, key
    character(:), allocatable :: found
    integer :: start
    found = ''
    start = index(' ' // line, ' ' // key // '=')
    if (start == 0) return
    start = start + len(key) + 1
    found = line(start:start + scan(line(start:) // ' ', ' ') - 2)
  end function

  integer(int64) function number(text, otherwise)
    character(*), intent(in) :: text
    integer(int64), intent(in) :: otherwise
    integer :: status
    number = otherwise
    if (len(text) == 0 .or. verify(text, '0123456789') > 0) return
    read (text, *, iostat=status) number
    if (status /= 0) number = otherwise
  end function

  function str(n) result(text)
    integer(int64), intent(in) :: n
    character(:), allocatable :: text
    character(24) :: shown
    write (shown, '(i0)') n
    text = trim(shown)
  end function

  integer function code_number(code)
    character(*), intent(in) :: code
    character(9), parameter :: known(CODES) = [character(9) :: 'SEQ', 'FORMAT', 'RANGE', 'SIZE', 'NONFINITE', &
      'TIMEOUT', 'AGAIN', 'NOSERVER', &
      'VERSION', 'PERM', 'GONE', 'NOSPC', 'COLLIDE', 'STOP', 'INTERNAL', 'FENCED']
    integer :: i
    code_number = 0
    do i = 1, CODES
      if (known(i) == code) code_number = i
    end do
  end function

  function meaning(code) result(text)
    character(*), intent(in) :: code
    character(:), allocatable :: text
    select case (code)
    case ('SEQ'); text = 'The sequence number or the clock is not the next one. The next request takes up the count.'
    case ('FORMAT'); text = 'The request line could not be read.'
    case ('RANGE'); text = 'A number, row or table lies outside what was declared; nothing was applied.'
    case ('SIZE'); text = 'A data file has not the size that info promises; nothing was applied.'
    case ('NONFINITE'); text = 'The push holds NaN or infinity; nothing of it was applied. Look for an overflow in ' // &
      'the program.'
    case ('TIMEOUT'); text = 'The answer did not come in time. A push was accepted and is carried out later: do not ' // &
      'send it again, pull.'
    case ('AGAIN'); text = 'There is no room for the request just now; nothing was done.'
    case ('NOSERVER'); text = 'A server that holds part of the model is gone or out of reach. See plugml status.'
    case ('VERSION'); text = 'Program and agent speak different versions of the channel. Use the client that ' // &
      'belongs to this plugml.'
    case ('PERM'); text = 'A file of the channel has another owner, type or mode than it must have.'
    case ('GONE'); text = 'The agent is gone for good; whether the last request was carried out is unknown. End the ' // &
      'program.'
    case ('NOSPC'); text = "There is no room: in the channel root, on a server, or in the job's memory."
    case ('COLLIDE'); text = 'Two string keys have the same hash; nothing was applied. Rename one of the two.'
    case ('FENCED'); text = 'A newer incarnation of this worker has taken its place. End the program: its successor ' // &
      'is at work.'
    case default; text = 'plugml itself failed. Please report the text with the log of the agent.'
    end select
  end function

  ! ---- errors --------------------------------------------------------------------------------------------------------

  subroutine fail(p, code, text)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: code, text
    p%code = code
    p%text = text
    p%fault = .true.
    if (code == 'GONE' .or. code == 'VERSION' .or. code == 'PERM' .or. code == 'FENCED') call end_with(p, code, text)
  end subroutine

  !> An error after which no request can succeed.
  subroutine end_with(p, code, text)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: code, text
    p%fatal = code
    p%fatal_text = text
    p%code = code
    p%text = text
    p%fault = .true.
  end subroutine

  subroutine lost(p, name)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    select case (errno())
    case (ENOENT); call fail(p, 'GONE', 'there is no channel in ' // p%dir // ' any more (' // name // &
      ' is missing): end the program')
    case (ENOSPC); call fail(p, 'NOSPC', 'no room for ' // name)
    case default; call fail(p, 'PERM', 'cannot use ' // p%dir // '/' // name // ': error ' // str(int(errno(), &
      int64)) // ' of the system')
    end select
  end subroutine

  integer(c_int) function errno()
    integer(c_int), pointer :: place
    call c_f_pointer(c_errno(), place)
    errno = place
  end function

  !> Tell how a call ended: by stat, or by the program's end.
  subroutine finish(p, stat)
    class(plug), intent(inout) :: p
    integer, intent(out), optional :: stat
    if (present(stat)) stat = 0
    if (.not. p%fault) return
    if (.not. present(stat)) error stop 'plugml: ' // trim(p%code) // ': ' // p%text
    stat = code_number(trim(p%code))
  end subroutine

  !> May a request be made?  .false.: alone, or with p%fault.  The first call attaches.
  logical function ready(p)
    class(plug), intent(inout) :: p
    p%fault = .false.
    ready = .false.
    if (.not. p%begun) call begin(p)
    if (.not. allocated(p%dir) .or. p%fault) return
    if (p%fatal /= '') then
      call end_with(p, trim(p%fatal), p%fatal_text)
    else if (p%owner /= c_getpid()) then
      p%fault = .true.
      p%code = 'PERM'
      p%text = 'this is a forked child of process ' // str(int(p%owner, int64)) // &
        ', which owns the channel: call plugml from there'
    end if
    ready = .not. p%fault
  end function

  ! ---- tables --------------------------------------------------------------------------------------------------------

  function look_f32(array) result(v)
    real(real32), intent(in), contiguous, target :: array(..)
    type(view) :: v
    v%start = c_loc(array)
    v%dtype = 'f32'
    v%count = max(0_int64, size(array, kind=int64)) ! an empty one that was copied may have less in gfortran
    v%rank = rank(array)
    v%shape(:v%rank) = shape(array, kind=int64)
  end function

  function look_f64(array) result(v)
    real(real64), intent(in), contiguous, target :: array(..)
    type(view) :: v
    v%start = c_loc(array)
    v%dtype = 'f64'
    v%count = max(0_int64, size(array, kind=int64)) ! an empty one that was copied may have less in gfortran
    v%rank = rank(array)
    v%shape(:v%rank) = shape(array, kind=int64)
  end function

  function look_i64(array) result(v)
    integer(int64), intent(in), contiguous, target :: array(..)
    type(view) :: v
    v%start = c_loc(array)
    v%dtype = 'i64'
    v%count = max(0_int64, size(array, kind=int64)) ! an empty one that was copied may have less in gfortran
    v%rank = rank(array)
    v%shape(:v%rank) = shape(array, kind=int64)
  end function

  integer(int64) function bytes_of(dtype)
    character(*), intent(in) :: dtype
    bytes_of = merge(4, 8, dtype == 'f32')
  end function

  !> The job's one dense table, which an array stands for that is given without a name; 0: with the error told.
  integer function only(p)
    class(plug), intent(inout) :: p
    only = p%table('')
    if (only > 0) then
      if (p%tables(only)%count == p%count) return
    end if
    only = 0
    call fail(p, 'SIZE', 'an array without a name stands for the only dense table, and the job has none or several: ' // &
      'put and get each by name')
  end function

  logical function by_name(p, how, name, array, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: how, name
    type(view), intent(in) :: array
    integer, intent(out), optional :: stat
    integer :: at
    by_name = ready(p)
    if (by_name) then
      at = p%table(name)
      if (at > 0) then
        if (p%tables(at)%width > 0) at = 0
      end if
      if (at == 0) call fail(p, 'RANGE', 'the job has no dense table ' // name // ': see the table= lines of ' // &
        p%dir // '/info')
      if (at > 0) call move(p, how, at, array)
    end if
    call finish(p, stat)
  end function

  subroutine check(p, at, array, elements)
    class(plug), intent(inout) :: p
    integer, intent(in) :: at
    type(view), intent(in) :: array
    integer(int64), intent(in) :: elements
    if (p%tables(at)%dtype /= array%dtype) then
      call fail(p, 'SIZE', 'table ' // p%tables(at)%name // ' holds ' // p%tables(at)%dtype // &
        ' numbers, the program has ' // array%dtype // &
        ': declare the table so')
    else if (array%count /= elements) then
      call fail(p, 'SIZE', 'table ' // p%tables(at)%name // ' takes ' // str(elements) // ' numbers here, ' // &
        str(array%count) // ' were given')
    end if
  end subroutine

  !> Between an array and the table's place in a file: `put` writes grad, `get` reads param.
  subroutine move(p, how, at, array)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: how
    integer, intent(in) :: at
    type(view), intent(in) :: array
    integer(int8), allocatable, target :: turned(:, :)
    integer(int8), pointer :: own(:, :)
    integer(int64) :: length
    logical :: turn
    if (at == 0) return
    call check(p, at, array, p%tables(at)%count)
    if (p%fault) return
    associate (t => p%tables(at))
      length = t%count * bytes_of(t%dtype)
      turn = array%rank > 1
      if (turn) then
        if (array%rank /= size(t%shape)) then
          call fail(p, 'SIZE', 'table ' // t%name // ' has ' // str(size(t%shape, kind=int64)) // &
            ' dimensions, the array has another number')
          return
        end if
        if (any(array%shape(:array%rank) /= t%shape)) then
          call fail(p, 'SIZE', 'table ' // t%name // ' has another shape than the array: transpose it, or declare ' // &
            'the table so')
          return
        end if
        turn = t%order == 'C'
      end if
      if (how == 'put') p%put_any = .true.
      if (.not. turn) then
        if (how == 'put') call store(p, 'grad', array%start, length, t%offset, O_WRONLY)
        if (how == 'get') call load(p, 'param', array%start, length, t%offset)
        return
      end if
      call c_f_pointer(array%start, own, [bytes_of(t%dtype), t%count])
      allocate (turned(bytes_of(t%dtype), t%count))
      if (how == 'get') call load(p, 'param', c_loc(turned), length, t%offset)
      if (.not. p%fault) call permute(own, turned, t%shape, how == 'put')
      if (how == 'put') call store(p, 'grad', c_loc(turned), length, t%offset, O_WRONLY)
    end associate
  end subroutine

  !> From elements in Fortran's order to the same in C's, or back.
  subroutine permute(fortran, c, sides, forth)
    integer(int8), intent(inout) :: fortran(:, :), c(:, :)
    integer(int64), intent(in) :: sides(:)
    logical, intent(in) :: forth
    integer(int64) :: at(size(sides)), i, place
    integer :: d
    at = 0
    do i = 1, size(fortran, 2, kind=int64)
      place = 0
      do d = 1, size(sides)
        place = place * sides(d) + at(d)
      end do
      if (forth) c(:, place + 1) = fortran(:, i)
      if (.not. forth) fortran(:, i) = c(:, place + 1)
      do d = 1, size(sides)
        at(d) = at(d) + 1
        if (at(d) < sides(d)) exit
        at(d) = 0
      end do
    end do
  end subroutine

  ! ---- rows of sparse tables -----------------------------------------------------------------------------------------

  !> The place of a sparse table, if its index is one of those named and it takes as many rows; 0: with the mistake told.
  integer function sparse(p, name, index_names, rows)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name, index_names
    integer(int64), intent(in) :: rows
    character(:), allocatable :: known
    integer :: i
    sparse = 0
    if (.not. ready(p)) return
    sparse = p%table(name)
    if (sparse > 0) then
      if (p%tables(sparse)%width == 0 .or. name == '') sparse = 0
    end if
    if (sparse == 0) then
      known = ''
      do i = 1, size(p%tables)
        if (p%tables(i)%width > 0) known = known // ', ' // p%tables(i)%name
      end do
      if (known == '') known = ', none'
      call fail(p, 'RANGE', 'the job has no sparse table ' // name // '; it has ' // known(3:))
    else if (index(index_names, p%tables(sparse)%index) == 0) then
      call fail(p, 'SIZE', 'table ' // name // ' has index ' // p%tables(sparse)%index // &
        ', the rows were named by ' // index_names)
      sparse = 0
    else if (rows > p%tables(sparse)%batch) then
      call fail(p, 'RANGE', str(rows) // ' rows of table ' // name // ': one request takes at most ' // &
        str(p%tables(sparse)%batch) // " (the table's batch=)")
      sparse = 0
    end if
  end function

  function names_int(p, name, keys) result(bytes)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int32), intent(in) :: keys(:)
    integer(int8), allocatable :: bytes(:)
    allocate (bytes(0))
    if (sparse(p, name, 'u32', size(keys, kind=int64)) == 0) return
    if (any(keys < 1)) call fail(p, 'RANGE', 'rows of table ' // name // ' are counted from 1')
    bytes = transfer(keys - 1, bytes)
  end function

  function names_long(p, name, keys) result(bytes)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int64), intent(in) :: keys(:)
    integer(int8), allocatable :: bytes(:)
    integer(int8) :: parts(8, size(keys))
    integer :: at
    allocate (bytes(0))
    at = sparse(p, name, 'u64, or u32', size(keys, kind=int64))
    if (at == 0) return
    if (p%tables(at)%index == 'u64') then
      bytes = transfer(keys, bytes)
      return
    end if
    if (any(keys < 1 .or. keys > 4294967296_int64)) call fail(p, 'RANGE', 'rows of table ' // name // &
      ' are counted from 1, to 2^32')
    parts = reshape(transfer(keys - 1, bytes), shape(parts))
    bytes = reshape(parts(:4, :), [4 * size(keys)]) ! the low halves
  end function

  !> Blanks at the end of a key do not count.
  function names_str(p, name, keys) result(bytes)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    character(*), intent(in) :: keys(:)
    integer(int8), allocatable :: bytes(:)
    integer :: i
    allocate (bytes(0))
    if (sparse(p, name, 'str', size(keys, kind=int64)) == 0) return
    do i = 1, size(keys)
      if (scan(keys(i), NL) > 0) call fail(p, 'FORMAT', 'a key of table ' // name // &
        ' holds a newline, which ends a key; nothing was applied')
      bytes = [bytes, transfer(trim(keys(i)) // NL, bytes)]
    end do
  end function

  !> Note rows for the next request: pushed with values, wanted without.
  logical function name_rows(p, name, keys, k, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int8), intent(in) :: keys(:)
    integer(int64), intent(in) :: k
    type(view), intent(in), optional :: values
    integer, intent(out), optional :: stat
    integer(int8), pointer :: bytes(:)
    integer :: at, i
    name_rows = allocated(p%dir)
    if (name_rows .and. .not. p%fault) then
      at = p%table(name)
      if (present(values)) call check(p, at, values, k * p%tables(at)%width)
      do i = 1, size(p%sections)
        if (p%sections(i)%table == at) exit
      end do
      if (i > size(p%sections)) p%sections = [p%sections, section(table=at)]
      if (merge(p%sections(i)%pushes, p%sections(i)%wants, present(values))) &
        call fail(p, 'FORMAT', 'table ' // name // ' has its rows for this request already: name all of them in one ' // &
          'call')
      if (.not. p%fault .and. present(values)) then
        p%sections(i)%pushes = .true.
        p%sections(i)%k = k
        p%sections(i)%keys = keys
        call c_f_pointer(values%start, bytes, [values%count * bytes_of(values%dtype)])
        p%sections(i)%values = bytes
      else if (.not. p%fault) then
        p%sections(i)%wants = .true.
        p%sections(i)%want = k
        p%sections(i)%wanted = keys
      end if
    end if
    if (p%fault .and. p%fatal == '') then
      p%mistake = p%code
      p%mistake_text = p%text
    end if
    call finish(p, stat)
  end function

  logical function give_rows(p, name, values, stat)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    type(view), intent(in) :: values
    integer, intent(out), optional :: stat
    integer(int8), pointer :: bytes(:)
    integer :: i
    give_rows = .false.
    if (ready(p) .and. allocated(p%last)) then
      do i = 1, size(p%last)
        if (.not. p%last(i)%wants .or. p%tables(p%last(i)%table)%name /= name &
          .or. .not. allocated(p%last(i)%came)) cycle
        call check(p, p%last(i)%table, values, p%last(i)%want * p%tables(p%last(i)%table)%width)
        if (p%fault) exit
        call c_f_pointer(values%start, bytes, [size(p%last(i)%came)])
        bytes = p%last(i)%came
        give_rows = .true.
      end do
    end if
    call finish(p, stat)
  end function

  integer(int64) function up(n, step)
    integer(int64), intent(in) :: n
    integer, intent(in) :: step
    up = (n + step - 1) / step * step
  end function

  !> Where the rows begin in grad and param: behind the dense tables, if those take part.
  integer(int64) function rows_start(p, dense)
    class(plug), intent(in) :: p
    logical, intent(in) :: dense
    rows_start = merge(up(p%nbytes, 64), 0_int64, dense)
  end function

  subroutine write_rows(p, dense)
    class(plug), intent(inout) :: p
    logical, intent(in) :: dense
    integer(int8), allocatable :: none(:)
    integer(int8), allocatable :: keys(:), wanted(:)
    integer(int64) :: at, key_at, want_at
    logical :: strings
    integer :: i
    allocate (keys(0), wanted(0), none(0))
    at = rows_start(p, dense)
    key_at = 0
    want_at = 0
    strings = .false.
    do i = 1, size(p%sections)
      if (.not. allocated(p%sections(i)%keys)) p%sections(i)%keys = none
      if (.not. allocated(p%sections(i)%wanted)) p%sections(i)%wanted = none
      if (.not. allocated(p%sections(i)%values)) p%sections(i)%values = none
      call store_bytes(p, 'grad', p%sections(i)%values, at, O_WRONLY)
      at = up(at + size(p%sections(i)%values), 8)
      if (p%tables(p%sections(i)%table)%index == 'str') then
        strings = .true.
        keys = [keys, p%sections(i)%keys]
        wanted = [wanted, p%sections(i)%wanted]
      else
        call store_bytes(p, 'gidx', p%sections(i)%keys, key_at, O_WRONLY)
        call store_bytes(p, 'want', p%sections(i)%wanted, want_at, O_WRONLY)
        key_at = up(key_at + size(p%sections(i)%keys), 8)
        want_at = up(want_at + size(p%sections(i)%wanted), 8)
      end if
      if (p%fault) return
    end do
    if (.not. strings) return
    call store_bytes(p, 'gkey', keys, 0_int64, O_WRONLY + O_TRUNC) ! nothing may lie behind the keys
    call store_bytes(p, 'wkey', wanted, 0_int64, O_WRONLY + O_TRUNC)
  end subroutine

  subroutine read_rows(p, dense)
    class(plug), intent(inout) :: p
    logical, intent(in) :: dense
    integer(int8), allocatable, target :: bytes(:)
    integer(int64) :: at, length
    integer :: i
    at = rows_start(p, dense)
    do i = 1, size(p%sections)
      associate (t => p%tables(p%sections(i)%table))
        length = p%sections(i)%want * t%width * bytes_of(t%dtype)
      end associate
      if (allocated(bytes)) deallocate (bytes)
      allocate (bytes(length))
      if (length > 0) call load(p, 'param', c_loc(bytes), length, at)
      if (p%fault) return
      p%sections(i)%came = bytes
      at = up(at + length, 8)
    end do
  end subroutine

  ! ---- files ---------------------------------------------------------------------------------------------------------

  integer(c_int) function opened(p, name, flags)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(c_int), intent(in) :: flags
    opened = c_open(p%dir // '/' // name // c_null_char, flags + O_CLOEXEC)
    if (opened < 0) call lost(p, name)
  end function

  !> Into a file of the channel, which is opened by name each time.
  subroutine store(p, name, from, length, at, flags)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: from
    integer(int64), intent(in) :: length, at
    integer(c_int), intent(in) :: flags
    integer(int8), pointer :: bytes(:)
    integer(c_size_t) :: done, more
    integer(c_int) :: fd, status
    if (p%fault) return
    fd = opened(p, name, flags)
    if (fd < 0) return
    if (length > 0) call c_f_pointer(from, bytes, [length])
    done = 0
    do while (done < length)
      more = c_pwrite(fd, c_loc(bytes(done + 1)), length - done, int(at + done, c_long))
      if (more < 0) then
        if (errno() /= EINTR) call lost(p, name)
        if (p%fault) exit
      end if
      done = done + max(more, 0_c_size_t)
    end do
    status = c_close(fd)
  end subroutine

  subroutine store_bytes(p, name, bytes, at, flags)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    integer(int8), intent(in), contiguous, target :: bytes(:)
    integer(int64), intent(in) :: at
    integer(c_int), intent(in) :: flags
    if (size(bytes) > 0 .or. flags /= O_WRONLY) call store(p, name, c_loc(bytes), size(bytes, kind=int64), at, flags)
  end subroutine

  subroutine store_text(p, name, text, flags)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name, text
    integer(c_int), intent(in) :: flags
    call store_bytes(p, name, transfer(text, [0_int8]), 0_int64, flags)
  end subroutine

  subroutine load(p, name, into, length, at)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: into
    integer(int64), intent(in) :: length, at
    integer(int8), pointer :: bytes(:)
    integer(c_size_t) :: got, more
    integer(c_int) :: fd, status
    fd = opened(p, name, O_RDONLY)
    if (fd < 0) return
    call c_f_pointer(into, bytes, [length])
    got = 0
    do while (got < length)
      more = c_pread(fd, c_loc(bytes(got + 1)), length - got, int(at + got, c_long))
      if (more == 0) call fail(p, 'SIZE', name // ' is shorter than info promises')
      if (more < 0) then
        if (errno() /= EINTR) call lost(p, name)
      end if
      if (p%fault) exit
      got = got + max(more, 0_c_size_t)
    end do
    status = c_close(fd)
  end subroutine

  !> The whole of a file.
  function slurp(p, name) result(text)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: name
    character(:), allocatable :: text
    character(kind=c_char), target :: piece(4096)
    integer(c_size_t) :: more
    integer(c_int) :: fd, status
    text = ''
    fd = opened(p, name, O_RDONLY)
    if (fd < 0) return
    do
      more = c_read(fd, c_loc(piece), size(piece, kind=c_size_t))
      if (more <= 0) exit
      text = text // transfer(piece(:more), repeat(' ', int(more)))
    end do
    status = c_close(fd)
  end function

  !> Open the FIFOs, if that has not been done, or if the program closed them.  They can be opened at any time; rep for reading only, so that its
  !> end of file tells when nobody is left.  Opening a FIFO for reading waits for a writer: for a moment we are one.
  subroutine open_bells(p)
    class(plug), intent(inout) :: p
    integer(c_int) :: writer, status
    if (p%req >= 0 .and. p%rep >= 0) then
      if (is_open(p%req)) then
        if (is_open(p%rep)) return
      end if
    end if
    p%req = opened(p, 'req', O_RDWR + O_NONBLOCK)
    if (.not. p%fault) writer = opened(p, 'rep', O_RDWR)
    if (p%fault) return
    p%rep = opened(p, 'rep', O_RDONLY)
    status = c_close(writer)
    if (is_open(p%req)) then
      if (is_open(p%rep)) return
    end if
    call fail(p, 'PERM', 'the bells in ' // p%dir // ' are not the FIFOs that they must be')
  end subroutine

  !> Is it an open descriptor, and of a FIFO?  A file could be sought in.
  logical function is_open(fd)
    integer(c_int), intent(in) :: fd
    is_open = c_fcntl(fd, F_GETFD) >= 0
    if (is_open) is_open = c_seek(fd, 0_c_long, 1_c_int) < 0
  end function

  ! ---- attaching -----------------------------------------------------------------------------------------------------

  subroutine begin(p)
    class(plug), intent(inout) :: p
    character(4096) :: text
    integer :: length
    p%begun = .true.
    p%text = ''
    allocate (p%tables(0), p%sections(0))
    call get_environment_variable('PLUGML_DIR', text, length)
    if (length == 0) return
    p%dir = text(:length)
    p%owner = c_getpid()
    call get_environment_variable('PLUGML_CLOCK', text, length)
    p%clock = number(text(:length), 0_int64)
    call check_page(p)
    if (.not. p%fault) call read_info(p)
    if (.not. p%fault) call open_bells(p)
    if (.not. p%fault) call discard_replies(p)
    if (.not. p%fault) call hello(p)
    if (p%fault) call end_with(p, trim(p%code), p%text)
  end subroutine

  !> Throw away what waits in rep: an earlier program of this generation may have died before it read its reply.
  subroutine discard_replies(p)
    class(plug), intent(inout) :: p
    character(kind=c_char), target :: rest(4096)
    integer(c_int) :: fd, status
    fd = opened(p, 'rep', O_RDONLY + O_NONBLOCK)
    if (fd < 0) return
    do while (c_read(fd, c_loc(rest), size(rest, kind=c_size_t)) > 0)
    end do
    status = c_close(fd)
  end subroutine

  subroutine check_page(p)
    class(plug), intent(inout) :: p
    integer(int8), target :: page(4096)
    integer(int32) :: crc, said
    integer :: i, bit
    call load(p, 'ctl', c_loc(page), 4096_int64, 0_int64)
    if (p%fault) return
    said = transfer(page(21:24), said)
    page(21:24) = 0
    crc = not(0_int32)
    do i = 1, 128
      crc = ieor(crc, iand(int(page(i), int32), 255_int32))
      do bit = 1, 8
        crc = ieor(ishft(crc, -1), merge(-306674912_int32, 0_int32, btest(crc, 0))) ! 0xedb88320
      end do
    end do
    if (any(page(:8) /= transfer('PLUGMLC1', page)) .or. transfer(page(13:16), 0_int32) /= 16909060_int32) then
      call fail(p, 'VERSION', p%dir // '/ctl is no page of a channel')
    else if (page(9) /= 1 .or. page(10) /= 0) then
      call fail(p, 'VERSION', p%dir // '/ctl has a layout that this client does not know: use the client that ' // &
        'belongs to this plugml')
    else if (not(crc) /= said) then
      call fail(p, 'VERSION', p%dir // '/ctl is damaged: its checksum does not fit')
    end if
  end subroutine

  subroutine read_info(p)
    class(plug), intent(inout) :: p
    character(:), allocatable :: text, line, version, bell
    integer :: past
    text = slurp(p, 'info')
    if (p%fault) return
    version = ''
    bell = ''
    do while (len(text) > 0)
      past = scan(text // NL, NL)
      line = text(:past - 1)
      text = text(min(past, len(text)) + 1:)
      if (index(line, 'table=') == 1) then
        call read_table(p, line)
      else if (value(line, 'version') /= '') then
        version = value(line, 'version')
      else if (value(line, 'bell') /= '') then
        bell = value(line, 'bell')
      else if (value(line, 'worker') /= '') then
        p%worker = number(value(line, 'worker'), 0_int64)
      else if (value(line, 'workers') /= '') then
        p%workers = number(value(line, 'workers'), 1_int64)
      end if
    end do
    if (p%fault) return
    if (version /= '1') then
      call fail(p, 'VERSION', 'the channel speaks version ' // version // &
        ', this client speaks 1: use the client that belongs to this plugml')
    else if (bell /= 'fifo') then
      call fail(p, 'VERSION', 'the channel wakes its program by bell=' // bell // &
        ', which Fortran cannot wait for: run the job with bell=fifo')
    end if
  end subroutine

  subroutine read_table(p, line)
    class(plug), intent(inout) :: p
    character(*), intent(in) :: line
    character(:), allocatable :: shape_text
    type(plug_table) :: t
    integer :: comma
    if (value(line, 'kind') /= 'dense' .and. value(line, 'kind') /= 'sparse') return
    t%name = value(line, 'table')
    t%dtype = value(line, 'dtype')
    t%index = value(line, 'index')
    t%order = value(line, 'order')
    t%count = number(value(line, 'count'), -1_int64)
    t%offset = number(value(line, 'offset'), -1_int64)
    t%width = number(value(line, 'width'), 0_int64)
    t%batch = number(value(line, 'batch'), 0_int64)
    if (t%count < 0 .or. t%offset < 0) call fail(p, 'FORMAT', 'info holds a table that cannot be read: ' // line)
    allocate (t%shape(0))
    shape_text = value(line, 'shape')
    do while (len(shape_text) > 0)
      comma = scan(shape_text // ',', ',')
      t%shape = [t%shape, number(shape_text(:comma - 1), 0_int64)]
      shape_text = shape_text(min(comma, len(shape_text)) + 1:)
    end do
    p%tables = [p%tables, t]
    p%count = p%count + t%count
    p%nbytes = max(p%nbytes, t%offset + t%count * bytes_of(t%dtype))
  end subroutine
end module
